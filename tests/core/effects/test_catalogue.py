"""The catalogue of tools: names, digests, and what changed."""

import dataclasses
from typing import Any

import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import FunctionTool

from perdure.core.effects.catalogue import (
    ToolChanges,
    catalogue_digest,
    compare_catalogues,
    tool_digests,
)
from perdure.errors import UsageError

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "to": {"type": "string"}},
    "required": ["n"],
}
PAY = {"name": "pay", "description": "Pay money.", "parameters": SCHEMA}
CHAT = {"type": "function", "function": PAY}


def reversed_keys(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: reversed_keys(tree[key]) for key in reversed(tree)}
    return [reversed_keys(item) for item in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", **PAY},
        PAY,
        {"name": "pay", "description": "Pay money.", "input_schema": SCHEMA},
        {"type": "custom", "name": "pay", "description": "Pay money.", "input_schema": SCHEMA},
        {
            "name": "pay",
            "description": "Pay money.",
            "input_schema": SCHEMA,
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "function", "function": {**PAY, "strict": None}},
        reversed_keys(CHAT),
        FunctionTool.model_validate({"type": "function", "strict": None, **PAY}),
    ],
    ids=[
        "responses",
        "a function's schema",
        "anthropic",
        "anthropic with its type",
        "anthropic with a cache mark",
        "a null field",
        "another order of keys",
        "an object of the SDK",
    ],
)
def test_a_tool_is_the_same_however_it_is_phrased(tool: object) -> None:
    assert tool_digests([tool]) == tool_digests([CHAT])


@pytest.mark.parametrize(
    "tool",
    [
        {**PAY, "description": "Pay much money."},
        {**PAY, "strict": True},
        {**PAY, "parameters": {**SCHEMA, "required": []}},
        {**PAY, "parameters": {**SCHEMA, "properties": {"n": {"type": "number"}}}},
        {"name": "pay", "description": "Pay money."},
        {"type": "custom", "name": "pay", "description": "Pay money."},
    ],
)
def test_a_tool_that_differs_has_another_digest(tool: object) -> None:
    assert tool_digests([tool]).keys() == {"pay"}
    assert tool_digests([tool]) != tool_digests([CHAT])


def test_hosted_tools_go_by_their_type() -> None:
    found = tool_digests(
        [
            {"type": "web_search"},
            {"type": "mcp", "server_label": "crm", "server_url": "https://a.b"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "custom", "custom": {"name": "sql", "format": {"type": "text"}}},
        ]
    )
    assert list(found) == ["web_search", "mcp:crm", "bash", "sql"]


def test_tools_of_one_name_share_a_digest_in_any_order() -> None:
    one, two = {"type": "web_search", "size": 1}, {"type": "web_search", "size": 2}
    assert tool_digests([one, two]) == tool_digests([two, one])
    assert tool_digests([one, two]) != tool_digests([one]) != tool_digests([one, one])


class Order(pydantic.BaseModel):
    n: int


def test_the_sdk_s_own_tools_and_no_tools_are_welcome() -> None:
    assert tool_digests([openai.pydantic_function_tool(Order)]).keys() == {"Order"}
    assert tool_digests(None) == tool_digests([]) == tool_digests(openai.NOT_GIVEN) == {}  # type: ignore[arg-type]


@dataclasses.dataclass
class Callback:
    name: str
    run: object


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ([CHAT, {}], r"\$\.tools\[1\]: a tool needs a name"),
        ([{"description": "nameless"}], "needs a name"),
        ([{"name": 7}], "needs a name"),
        ([len], r"\$\.tools\[0\].*give its schema"),
        (["pay"], "str is not a tool"),
        (CHAT, "must be a list"),
        ("pay", "must be a list"),
        ([Callback("pay", len)], "'pay' is not plain JSON data"),
    ],
)
def test_what_is_no_tool_is_refused_with_its_place(tools: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        tool_digests(tools)


def test_changes_name_what_was_added_removed_and_changed() -> None:
    before = {"a": "1", "b": "1", "c": "1"}
    after = {"c": "1", "b": "2", "e": "1", "d": "1"}
    assert compare_catalogues(before, after) == ToolChanges(
        added=("d", "e"), removed=("a",), changed=("b",)
    )
    assert not compare_catalogues(before, before)
    assert compare_catalogues(before, after)


catalogues = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"))


@settings(derandomize=True, deadline=None)
@given(catalogues, catalogues)
def test_a_catalogue_s_digest_differs_exactly_if_something_changed(
    before: dict[str, str], after: dict[str, str]
) -> None:
    found = compare_catalogues(before, after)
    assert bool(found) == (before != after) == (catalogue_digest(before) != catalogue_digest(after))
    assert catalogue_digest(dict(reversed(before.items()))) == catalogue_digest(before)
    back = compare_catalogues(after, before)
    assert (back.added, back.removed, back.changed) == (found.removed, found.added, found.changed)
