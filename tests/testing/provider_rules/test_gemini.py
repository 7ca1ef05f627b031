"""Google's Gemini API: what is accepted, and one breach of each rule."""

from typing import Any

import pytest

from perdure.testing import violations
from tests.testing.provider_rules.breaking import GONE, Path, changed, inserted


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"n": 1}, **more}}


def response(name: str, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": 1}, **more}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": [*parts]}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": [*parts]}


HELLO = {"text": "hello"}
VALID: list[dict[str, Any]] = [
    user(HELLO, {"inlineData": {"mimeType": "image/png", "data": ""}}),
    model({"text": "hm", "thought": True}, call("look_up"), call("look_up"), call("add")),
    user(response("add"), response("look_up"), response("look_up")),
    model({"text": "", "thoughtSignature": "c2ln"}, {"text": "done"}),
    user(HELLO),
    model({**call("add", id="a"), "thoughtSignature": "c2ln"}, call("add", id="b")),
    user(response("add", id="b"), response("add", id="a"), HELLO),
    model({"functionCall": {"name": "add"}, "thoughtSignature": "c2ln"}),
    user(response("add")),
    model(HELLO, {"thoughtSignature": "c2ln"}),
]


def test_a_conversation_with_everything_in_it_is_accepted() -> None:
    instruction = {"parts": [{"text": "Be brief."}]}
    assert violations("gemini", VALID, system=instruction, thought_signatures=True) == []
    assert violations("gemini", VALID[:-1], system="Be brief.", prefill=False) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ((0,), "hello", "Invalid type for 'contents[0]'"),
        ((0,), GONE, "first content comes from the user"),
        ((0, "role"), "assistant", "Invalid value: 'assistant'"),
        ((0, "role"), ["user"], "Invalid value: 'an array'"),
        ((1, "parts", 0), {"thought": True}, "exactly one kind of data, not 0"),
        ((3, "role"), "user", "alternate between user and model"),
        ((3,), GONE, "alternate between user and model"),
        ((0, "parts"), [], "must include at least one parts field"),
        ((0, "parts"), HELLO, "Invalid type for 'contents[0].parts'"),
        ((0, "content"), "x", "Unknown parameter: 'contents[0].content'"),
        ((0, "parts", 0), "hello", "Invalid type for 'contents[0].parts[0]'"),
        ((0, "parts", 0), {}, "exactly one kind of data, not 0"),
        ((0, "parts", 0, "inlineData"), {}, "exactly one kind of data, not 2"),
        ((0, "parts", 0, "text"), "", "has an empty text parameter"),
        ((0, "parts", 0, "text"), 5, "Invalid type for 'contents[0].parts[0].text'"),
        ((0, "parts", 0, "type"), "text", 'Unknown name "type"'),
        ((4, "parts", 1), call("add"), 'Unknown name "functionCall"'),
        ((3, "parts", 2), response("add"), 'Unknown name "functionResponse"'),
        ((1, "parts", 1, "functionCall", "name"), "", "functionCall.name': empty string"),
        ((1, "parts", 1, "functionCall", "name"), "1st", "functionCall.name': string does not"),
        ((1, "parts", 1, "functionCall", "name"), GONE, "functionCall.name"),
        ((1, "parts", 1, "functionCall", "args"), "{}", "expected an object, but got a string"),
        ((2, "parts", 0, "functionResponse", "response"), "1", "functionResponse.response"),
        ((2, "parts", 0), GONE, "is equal to the number of function call parts"),
        ((2, "parts", 0), HELLO, "is equal to the number of function call parts"),
        ((2, "parts", 3), response("add"), "is equal to the number of function call parts"),
        ((2, "parts", 0, "functionResponse", "name"), "look_up", "must name the functions"),
        ((6, "parts", 0, "functionResponse", "id"), "a", "must name the functions"),
        ((9, "parts", 0), call("add"), "(0 and 1)"),
    ],
)
def test_a_breach_of_one_rule_is_found(path: Path, value: Any, complaint: str) -> None:
    found = violations("gemini", changed(VALID, path, value))
    assert [text for text in found if complaint in text], found


def test_responses_stand_in_the_content_after_their_calls() -> None:
    torn = inserted(VALID, 2, user(HELLO), model(HELLO))
    assert [text[-9:] for text in violations("gemini", torn)] == [" (0 and 3)"[1:], "(3 and 0)"]


def test_some_models_want_the_last_word_to_be_the_users() -> None:
    (found,) = violations("gemini", VALID, prefill=False)
    assert "end with a user role or a function response" in found


@pytest.mark.parametrize("step", [5, 7])
def test_calls_of_the_current_turn_keep_their_signatures(step: int) -> None:
    unsigned = changed(VALID, (step, "parts", 0, "thoughtSignature"), GONE)
    assert violations("gemini", unsigned) == []
    (found,) = violations("gemini", unsigned, thought_signatures=True)
    assert found.startswith(f"contents[{step}]: Function call is missing a thought_signature")


def test_nothing_said_at_all_is_refused() -> None:
    assert len(violations("gemini", [])) == 1


@pytest.mark.parametrize("system", [{}, {"parts": [call("add")]}, 5])
def test_the_system_instruction_is_text(system: Any) -> None:
    assert violations("gemini", VALID, system=system) != []
