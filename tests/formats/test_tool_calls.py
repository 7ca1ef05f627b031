"""Which calls a stored message makes and answers, in any format, and how an open one is closed."""

from typing import Any

import pytest

from perdure.formats.tool_calls import INTERRUPTED_NOTICE, Call, answers, closing, open_calls
from perdure.formats.transcript import FORMATS
from tests.formats.transcripts import (
    ANSWER,
    USER,
    chat_call,
    chat_result,
    gemini_call,
    gemini_result,
    give,
    item_answer,
    item_call,
    item_reasoning,
    item_result,
    use,
    used,
)

CUSTOM = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}],
}
DEPRECATED = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
COMPUTER = {"type": "computer_call", "call_id": "c", "id": "cu_1", "action": {"type": "wait"}}

CALLS: list[tuple[dict[str, Any], list[Call]]] = [
    (chat_call("a", "b"), [Call("a", "f"), Call("b", "f")]),
    (CUSTOM, [Call("c", "f")]),
    (DEPRECATED, [Call("f", "f")]),
    (item_call("a"), [Call("a", "f")]),
    (COMPUTER, [Call("c", "computer")]),
    ({"type": "custom_tool_call", "call_id": "a", "name": "f", "input": ""}, [Call("a", "f")]),
    (use("a", "b"), [Call("a", "f"), Call("b", "f")]),
    (gemini_call("f", "g"), [Call("f", "f"), Call("g", "g")]),
    ({"parts": [{"function_call": {"name": "f", "id": "x"}}]}, [Call("x", "f")]),
]
NO_CALLS: list[dict[str, Any]] = [
    USER,
    ANSWER,
    {"role": "assistant", "content": None, "tool_calls": None, "function_call": None},
    {"role": "assistant", "content": "a", "tool_calls": []},
    chat_result("a"),
    item_result("a"),
    item_answer(),
    item_reasoning(),
    used("a"),
    gemini_result("f"),
    {"type": "web_search_call", "id": "ws_1", "action": {}},
    {"type": "tool_search_call", "execution": "server", "arguments": {}, "call_id": None},
    {"type": ["function_call"]},
    {"role": "assistant", "tool_calls": "f", "content": 5, "parts": 7, "function_call": []},
    {},
]


@pytest.mark.parametrize(("message", "calls"), CALLS)
def test_calls_of_every_format_are_found(message: dict[str, Any], calls: list[Call]) -> None:
    assert open_calls(message) == calls
    assert answers(message) == []


@pytest.mark.parametrize("message", NO_CALLS)
def test_nothing_else_is_a_call(message: dict[str, Any]) -> None:
    assert open_calls(message) == []


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        (chat_result("a"), ["a"]),
        ({"tool_call_id": "a", "content": "done"}, ["a"]),
        ({"role": "function", "name": "f", "content": "x"}, ["f"]),
        ({"tool_responses": [{"tool_call_id": "a"}, {"tool_call_id": "b"}]}, ["a", "b"]),
        (item_result("a"), ["a"]),
        ({"type": "local_shell_call_output", "id": "a", "output": ""}, ["a"]),
        (used("a", "b"), ["a", "b"]),
        (gemini_result("f"), ["f"]),
        ({"parts": [{"function_response": {"name": "f", "id": "x"}}]}, ["x"]),
    ],
)
def test_answers_of_every_format_are_found(message: dict[str, Any], ids: list[str]) -> None:
    assert answers(message) == ids
    assert open_calls(message) == []


@pytest.mark.parametrize("message", [USER, ANSWER, item_answer(), {}, {"type": {}}, {"parts": 5}])
def test_nothing_else_is_an_answer(message: dict[str, Any]) -> None:
    assert answers(message) == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("message", [message for message, _ in CALLS if message is not COMPUTER])
def test_an_open_call_can_be_closed_in_its_own_format(message: dict[str, Any], format: str) -> None:
    results = [closing(message, call, INTERRUPTED_NOTICE) for call in open_calls(message)]
    assert [id for result in results for id in answers(result)] == [
        call.id for call in open_calls(message)
    ]
    assert give(format, USER, message).interrupted_calls
    transcript = give(format, USER, message, *results)
    assert transcript.interrupted_calls == ()
    assert str([*transcript]).count(INTERRUPTED_NOTICE) == len(results)


@pytest.mark.parametrize("type_", ["shell_call", "apply_patch_call", "local_shell_call"])
def test_a_call_of_a_shell_or_a_patch_is_closed_in_its_own_kind(type_: str) -> None:
    item: dict[str, Any] = {"type": type_, "call_id": "a", "id": "x_1", "status": "completed"}
    item |= {"operation": {}} if type_ == "apply_patch_call" else {"action": {}}
    result = closing(item, open_calls(item)[0])
    assert result["type"] == f"{type_}_output"
    transcript = give("openai.responses", USER, item, result)
    assert [each.get("type") for each in transcript[1:]] == [type_, f"{type_}_output"]
    assert transcript.losses == ()


def test_a_screen_can_not_be_closed_by_a_text_so_the_two_go() -> None:
    transcript = give("openai.responses", USER, COMPUTER, closing(COMPUTER, Call("c", "computer")))
    assert [*transcript] == [USER]
    assert {loss.position for loss in transcript.losses} == {2, 3}


def test_a_gemini_call_without_an_id_is_closed_without_one() -> None:
    (part,) = closing(gemini_call("f"), Call("f", "f"))["parts"]
    assert part["function_response"].keys() == {"name", "response"}
    (part,) = closing(gemini_call("f"), Call("x", "f"))["parts"]
    assert part["function_response"]["id"] == "x"
