"""Messages with fields of a wrong type are refused at append; what is accepted is never lost."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from perdure.errors import UsageError
from perdure.formats import openai_chat
from perdure.formats.field_types import require_message
from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import FORMATS, Transcript, render
from tests.promises.p13_fields import MARK, failure, is_told, spoiled
from tests.promises.p13_histories import Drawing, History
from tests.support import said, store_in_memory

CONTENT = "pass a text or a list of parts"
SECRET = "4929"  # noqa: S105 - it must not show up in errors


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def call(**function: Any) -> dict[str, Any]:
    made = {"id": "c1", "type": "function", "function": {"name": "f", **function}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def gemini(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": [*parts]}


def use(**fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {}, **fields}
    return {"role": "assistant", "content": [block]}


def used(content: Any) -> dict[str, Any]:
    return user([{"type": "tool_result", "tool_use_id": "t1", "content": content}])


class Text(str):
    __slots__ = ()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # Chat.
    ({"role": "user"}, "$.content", "no content: pass a text or a list of parts"),
    ({"role": "user", "contents": SECRET}, "$.content", "no content"),
    (user(None), "$.content", "no content"),
    ({"role": "system", "text": SECRET}, "$.content", "'system' has no content"),
    ({"role": "developer", "content": None, "name": "d"}, "$.content", "'developer' has no"),
    ({"type": "message", "role": "user"}, "$.content", "no content"),
    ({"role": "user", "parts": None}, "$.content", "no content"),
    (user(5), "$.content", f"a number; {CONTENT}"),
    (user(0.5), "$.content", f"a number; {CONTENT}"),
    (user(content=False), "$.content", f"true or false; {CONTENT}"),
    (user(b"hi"), "$.content", f"a bytes; {CONTENT}"),
    (user(("hi",)), "$.content", f"a tuple; {CONTENT}"),
    (user(Text("hi")), "$.content", f"a Text; {CONTENT}"),
    (user(datetime(2026, 1, 1, tzinfo=UTC)), "$.content", f"a datetime; {CONTENT}"),
    (user({"a": SECRET}), "$.content.type", "a part has no type"),
    (user([5]), "$.content[0]", "a number; pass a text or an object"),
    (user(["hi", None]), "$.content[1]", "null; pass a text or an object"),
    (user([["hi"]]), "$.content[0]", "a list; pass"),
    (user([{"text": SECRET}]), "$.content[0].type", "a part has no type"),
    (user([{"type": 5, "text": SECRET}]), "$.content[0].type", "a number; pass a text"),
    (user([{"type": "text"}]), "$.content[0].text", "null; pass a text"),
    (user([{"type": "text", "text": 5}]), "$.content[0].text", "a number; pass a text"),
    (user({"type": "text", "text": [SECRET]}), "$.content.text", "a list; pass a text"),
    (user([{"type": "refusal", "refusal": 5}]), "$.content[0].refusal", "a number; pass a text"),
    (user([{"type": "file", "file": SECRET}]), "$.content[0].file", "a text; pass an object"),
    (user("hi", name=5), "$.name", "a number; pass a text"),
    (user("hi", tool_calls=5), "$.tool_calls", "a number; pass a list"),
    (user("hi", tool_calls={"a": 1}), "$.tool_calls", "an object; pass a list"),
    (user("hi", tool_calls=["f"]), "$.tool_calls[0]", "a text; pass an object"),
    (user("", tool_calls=[{"id": "c"}]), "$.tool_calls[0].function", "null; pass an object"),
    (
        user("", tool_calls=[{"function": 5}]),
        "$.tool_calls[0].function",
        "a number; pass an object",
    ),
    (call(arguments=5), "$.tool_calls[0].function.arguments", "a number; pass a JSON text or an"),
    (call(arguments=[SECRET]), "$.tool_calls[0].function.arguments", "a list; pass a JSON text"),
    (call(name=5), "$.tool_calls[0].function.name", "a number; pass a text"),
    (user("", function_call="f"), "$.function_call", "a text; pass an object"),
    (
        user("", function_call={"name": "f", "arguments": 5}),
        "$.function_call.arguments",
        "a number; pass a JSON text",
    ),
    (user("", refusal=5), "$.refusal", "a number; pass a text"),
    (user("", audio="a"), "$.audio", "a text; pass an object"),
    (user("", audio={"transcript": 5}), "$.audio.transcript", "a number; pass a text"),
    (result([1, 2]), "$.content[0]", "a number; pass a text or an object with a type; other data"),
    (result([{"row": 1}]), "$.content[0].type", "a part has no type.*JSON text"),
    ({**result("x"), "tool_call_id": 5}, "$.tool_call_id", "a number; pass a text"),
    (
        {"role": "tool", "tool_responses": [SECRET]},
        "$.tool_responses[0]",
        "a text; pass an object",
    ),
    # Responses.
    ({"type": "message", "role": "user", "content": 5}, "$.content", f"a number; {CONTENT}"),
    (
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": 5}]},
        "$.content[0].text",
        "a number; pass a text",
    ),
    (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": 5},
        "$.arguments",
        "a number; pass a JSON text or an object",
    ),
    (
        {"type": "function_call", "call_id": 5, "name": "f", "arguments": "{}"},
        "$.call_id",
        "a number; pass a text",
    ),
    (
        {"type": "function_call_output", "call_id": "c", "output": [5]},
        "$.output[0]",
        "a number; pass a text",
    ),
    (
        {"type": "shell_call_output", "call_id": "c", "output": SECRET},
        "$.output",
        "a text; pass a list",
    ),
    (
        {"type": "shell_call_output", "call_id": "c", "output": [SECRET]},
        "$.output[0]",
        "a text; pass an object",
    ),
    (
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": [SECRET], "stderr": ""}],
        },
        "$.output[0].stdout",
        "a list; pass a text",
    ),
    # Anthropic.
    (use(input=5), "$.content[0].input", "a number; pass a JSON text or an object"),
    (use(input=[SECRET]), "$.content[0].input", "a list; pass a JSON text or an object"),
    (use(id=5), "$.content[0].id", "a number; pass a text"),
    (used(5), "$.content[0].content", f"a number; {CONTENT}"),
    (used({"a": SECRET}), "$.content[0].content.type", "a part has no type"),
    (used([5]), "$.content[0].content[0]", "a number; pass a text or an object"),
    (user([{"type": "image", "source": "a"}]), "$.content[0].source", "a text; pass an object"),
    (
        user([{"type": "search_result", "source": "s", "title": "t", "content": [SECRET]}]),
        "$.content[0].content[0]",
        "a text; pass an object",
    ),
    (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": 5, "signature": "s"}]},
        "$.content[0].thinking",
        "a number; pass a text",
    ),
    # Gemini.
    ({"role": "user", "parts": 5}, "$.parts", "a number; pass a list of parts"),
    (gemini(5), "$.parts[0]", "a number; pass a text or an object"),
    (gemini({"text": 5}), "$.parts[0].text", "a number; pass a text"),
    ({"role": "user", "parts": {"text": 5}}, "$.parts.text", "a number; pass a text"),
    (gemini({"functionCall": SECRET}), "$.parts[0].functionCall", "a text; pass an object"),
    (
        gemini({"function_call": {"name": "f", "args": [SECRET]}}),
        "$.parts[0].function_call.args",
        "a list; pass an object",
    ),
    (
        gemini({"functionResponse": {"name": "f", "response": {}, "parts": [SECRET]}}),
        "$.parts[0].functionResponse.parts[0]",
        "a text; pass an object",
    ),
    (gemini({"inlineData": {"data": 5}}), "$.parts[0].inlineData.data", "a number; pass base64"),
]


@pytest.mark.parametrize(
    ("message", "path", "reason"), REFUSED, ids=[f"{n}-{one[1]}" for n, one in enumerate(REFUSED)]
)
def test_a_field_of_a_wrong_type_is_refused_with_its_path(
    message: dict[str, Any], path: str, reason: str
) -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(said("before"))
    position = session.position
    with pytest.raises(UsageError, match=reason) as raised:
        session.append(said("first"), message)
    assert raised.value.path == path
    assert str(raised.value).startswith(f"{path}: ")
    assert SECRET not in str(raised.value)
    assert session.position == position
    with session.turn() as turn, pytest.raises(UsageError, match=reason):
        turn.append(message)
    with pytest.raises(UsageError, match=reason), session.turn(message):
        pass


ACCEPTED: list[dict[str, Any]] = [
    user(""),
    user([]),
    user(["a", {"type": "text", "text": "b"}]),
    user({"type": "text", "text": "alone"}),
    user([{"type": "image_url", "image_url": {"url": "http://a"}}]),
    user([{"type": "image_url", "image_url": "http://a"}]),
    user([{"type": "of next year", "value": 5}]),
    user("hi", metadata=5, name=None),
    call(),
    call(arguments=None),
    call(arguments=""),
    call(arguments="{not JSON"),
    call(arguments={"a": 1}),
    {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    },
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}],
    },
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": None},
    result("x"),
    result(None),
    result(5),
    result({"temperature": 5}),
    result([{"type": "text", "text": "x"}]),
    {"role": "tool", "tool_responses": [{"tool_call_id": "c1", "content": 5}]},
    {"type": "function_call_output", "call_id": "c", "output": 5},
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": ""}],
    },
    {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {"type": "local_shell_call_output", "id": "c", "output": "text"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": None},
    use(),
    use(input=None),
    used("x"),
    used(None),
    used([{"type": "text", "text": "x"}, {"type": "image", "source": {"type": "url", "url": "u"}}]),
    gemini(),
    gemini("text", {"text": "a", "thought": True, "function_call": None}),
    gemini({"function_call": {"name": "f", "args": None}}),
    gemini({"functionResponse": {"name": "f", "response": {"a": [1]}}}),
    gemini({"inline_data": {"mime_type": "image/png", "data": b"png"}}),
    {"role": "user", "parts": "text"},
    {"role": "user", "content": None, "tool_responses": []},
    {"role": "assistant"},
    {"role": "assistant", "content": None},
]


@pytest.mark.parametrize("number", range(len(ACCEPTED)))
def test_shapes_that_providers_send_or_accept_are_stored(number: int) -> None:
    session = perdure.open("memory:").session("s")
    session.append(ACCEPTED[number])
    assert list(session.messages()) == [ACCEPTED[number]]
    for format in FORMATS:
        session.messages(format=format)


sources = st.randoms(use_true_random=False)


def drawn(source: random.Random, *, tame: bool) -> History:
    return Drawing(source, tame=tame).history()


@settings(max_examples=150, deadline=None)
@given(source=sources)
def test_what_programs_say_to_providers_is_accepted(source: random.Random) -> None:
    for stored in drawn(source, tame=True).said:
        require_message(stored.message)


def test_whatever_is_accepted_is_rendered_or_listed_as_a_loss() -> None:
    assert [failure(seed) for seed in range(1_500) if failure(seed)] == []
    assert sum(spoiled(seed) is not None for seed in range(1_500)) > 500


def test_a_reader_that_loses_something_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the search fails when the fields of results are no longer looked at."""
    assert is_told(render([StoredMessage(1, user(MARK))], "openai.chat"), 1)
    assert not is_told(Transcript(), 1)
    monkeypatch.setattr(openai_chat, "unknown_fields", lambda *_: [])
    assert any(failure(seed) for seed in range(3_000))
