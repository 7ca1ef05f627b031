"""Anthropic's Messages API: what is accepted, and one breach of each rule."""

from typing import Any

import pytest

from perdure.testing import violations
from tests.testing.provider_rules.breaking import GONE, Path, changed, inserted


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thought(signature: str = "c2ln") -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look_up", "input": {"n": 1}}


def result(id: str, content: Any = "1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
VALID: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": [text("there")]},
    {"role": "assistant", "content": [thought(), text("I look."), use("toolu_1"), use("toolu_2")]},
    {"role": "user", "content": [result("toolu_2", ""), result("toolu_1", [text("1")]), text("?")]},
    {"role": "assistant", "content": [thought(), thought(), SEARCH, FOUND, thought(), text("Ah.")]},
    {"role": "assistant", "content": "Done. "},
    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "data:,"}}]},
    {"role": "assistant", "content": [use("toolu_3")]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_3"}]},
    {"role": "assistant", "content": [use("toolu_4")]},
    {"role": "user", "content": [result("toolu_4", [])]},
    {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "…"}, text("It")]},
]


def test_a_conversation_with_everything_in_it_is_accepted() -> None:
    assert violations("anthropic", VALID, system="Be brief.") == []
    assert violations("anthropic", VALID, system=[text("Be brief.")]) == []
    assert violations("anthropic", [*VALID[:-1], {"role": "assistant", "content": ""}]) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ((0,), "hello", "Invalid type for 'messages.0'"),
        ((0, "role"), "system", "messages.0.role: Invalid value: 'system'"),
        ((0, "role"), ["user"], "messages.0.role: Invalid value: 'an array'"),
        ((0, "role"), "assistant", "first message must use the 'user' role"),
        ((0, "id"), "x", "Unknown parameter: 'messages.0.id'"),
        ((0, "content"), GONE, "Missing required parameter: 'messages.0.content'"),
        ((0, "content"), None, "Invalid type for 'messages.0.content'"),
        ((0, "content"), "", "messages.0: text content blocks must be non-empty"),
        ((0, "content"), " \n", "messages.0: text content blocks must contain non-whitespace"),
        ((0, "content"), [], "messages.0.content: all messages must have non-empty content"),
        ((5, "content"), "", "messages.5: text content blocks must be non-empty"),
        ((1, "content", 0, "text"), "", "text content blocks must be non-empty"),
        ((1, "content", 0, "text"), 5, "Invalid type for 'messages.1.content.0'"),
        ((1, "content", 0, "text"), None, "Invalid type for 'messages.1.content.0.text'"),
        ((5, "content"), [], "messages.5.content: all messages must have non-empty content"),
        ((11, "content", 1, "text"), "", "text content blocks must be non-empty"),
        ((1, "content", 0, "type"), "input_text", "Invalid value: 'input_text'"),
        ((1, "content", 0), use("toolu_9"), "Invalid value: 'tool_use'"),
        ((2, "content", 1), result("toolu_1"), "Invalid value: 'tool_result'"),
        ((2, "content", 0, "signature"), GONE, "'messages.2.content.0.signature'"),
        ((2, "content", 0, "signature"), 5, "Invalid type for 'messages.2.content.0.signature'"),
        ((2, "content", 0, "signature"), "", "Invalid `signature` in `thinking` block"),
        ((2, "content", 0), text("First."), None),
        ((2, "content", 1), thought(), None),
        ((2, "content", 4), thought(), "thinking blocks must come first"),
        ((4, "content", 3), text("Hm."), "thinking blocks must come first"),
        ((4, "content", 5), GONE, "The final block in an assistant message cannot be `thinking`"),
        ((4, "content", 2), GONE, "found in `web_search_tool_result` blocks: srvtoolu_1"),
        ((2, "content", 2, "id"), "call.1", "'messages.2.content.2.id': string does not match"),
        ((2, "content", 2, "id"), "toolu_3", "`tool_use` ids must be unique: toolu_3"),
        ((2, "content", 2, "name"), "look up", "'messages.2.content.2.name': string does not"),
        ((2, "content", 2, "input"), "{}", "Invalid type for 'messages.2.content.2.input'"),
        ((3, "content", 0), GONE, "without `tool_result` blocks immediately after: toolu_2."),
        ((3, "content", 0, "tool_use_id"), "call.1", "tool_use_id': string does not match"),
        ((3, "content", 0, "tool_use_id"), "toolu_9", "in `tool_result` blocks: toolu_9."),
        ((3, "content", 0, "tool_use_id"), "toolu_1", "Found multiple `tool_result` blocks"),
        ((3, "content", 0), text("Well:"), "`tool_result` blocks must come first"),
        ((3, "content", 1, "content", 0, "text"), "", "text content blocks must be non-empty"),
        ((3, "content", 1, "content"), {}, "Invalid type for 'messages.3.content.1.content'"),
        ((2,), GONE, "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1"),
        ((8,), GONE, "messages.7: `tool_use` ids were found without `tool_result` blocks"),
        ((11, "content", 1), use("toolu_5"), "messages.11: `tool_use` ids were found without"),
        ((11, "content", 1, "text"), "It ", "cannot end with trailing whitespace"),
        ((11, "content"), "It\n", "cannot end with trailing whitespace"),
    ],
)
def test_a_breach_of_one_rule_is_found(path: Path, value: Any, complaint: str | None) -> None:
    found = violations("anthropic", changed(VALID, path, value))
    if complaint is None:
        assert found == []
    else:
        assert [one for one in found if complaint in one], found


def test_results_stand_in_the_message_after_their_calls() -> None:
    torn = inserted(VALID, 3, {"role": "user", "content": "Wait."})
    found = violations("anthropic", torn)
    assert ["immediately after" in found[0], "unexpected" in found[1]] == [True, True]


def test_a_model_without_prefill_wants_the_last_word_to_be_the_users() -> None:
    (found,) = violations("anthropic", VALID, prefill=False)
    assert "must end with a user message" in found
    assert violations("anthropic", VALID[:-1], prefill=False) == []


def test_nothing_said_at_all_is_refused() -> None:
    assert len(violations("anthropic", [])) == 1
    assert len(violations("anthropic", [{"role": "user", "content": ""}])) == 1


@pytest.mark.parametrize("system", [[], [text("")], [{"type": "image"}], 5])
def test_the_system_prompt_is_text(system: Any) -> None:
    assert len(violations("anthropic", VALID, system=system)) == 1
