"""All rule books: they judge anything, and they do not change it."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.testing import provider_rules, violations
from tests.testing.provider_rules import test_anthropic as test_rules_anthropic
from tests.testing.provider_rules import test_chat as test_rules_chat
from tests.testing.provider_rules import test_gemini as test_rules_gemini
from tests.testing.provider_rules import test_responses as test_rules_responses

VALID = {
    "openai.chat": test_rules_chat.VALID,
    "openai.responses": test_rules_responses.VALID,
    "anthropic": test_rules_anthropic.VALID,
    "gemini": test_rules_gemini.VALID,
}
# Words of the formats, so that what is drawn comes near to being right.
WORDS = sorted(set(json.dumps(VALID).replace('"', " ").split()))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("format", VALID)
@given(messages=st.lists(values, max_size=4), system=st.none() | values)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_anything_is_judged(format: str, messages: list[Any], system: Any) -> None:
    before = copy.deepcopy(messages)
    assert all(violations(format, messages, system=system))
    assert repr(messages) == repr(before)


def places(value: Any) -> list[tuple[Any, Any]]:
    """List every place in a JSON value, as its container and its key."""
    if not isinstance(value, list | dict):
        return []
    keys = [*range(len(value))] if isinstance(value, list) else [*value]
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@pytest.mark.parametrize("format", VALID)
@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_anything_in_any_place_is_judged(format: str, data: st.DataObject) -> None:
    messages = copy.deepcopy(VALID[format])
    container, key = data.draw(st.sampled_from(places(messages)))
    container[key] = data.draw(values)
    assert all(violations(format, messages))


def test_what_may_be_sent_as_a_tuple_may_be_judged_as_one() -> None:
    assert violations("openai.chat", tuple(VALID["openai.chat"])) == []
    assert violations("anthropic", tuple(VALID["anthropic"])) == []


def test_the_rules_know_nothing_of_perdure_but_its_errors() -> None:
    modules = [*Path(provider_rules.__file__).parent.glob("*.py")]
    assert len(modules) > 5
    for module in modules:
        found = re.findall(r"^(?:from|import) ([\w.]+)", module.read_text("utf-8"), re.MULTILINE)
        own = {name for name in found if name.startswith("perdure")}
        assert {*found} - own <= {"collections", "collections.abc", "re", "typing"}
        allowed = ("perdure.testing.provider_rules", "perdure.errors")
        assert not {name for name in own if not name.startswith(allowed)}


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'openai' is not one of openai\.chat, openai\.resp"):
        violations("openai", [])
