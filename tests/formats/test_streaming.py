"""Streams, collected: what was said so far, and the pieces that make it again."""

import asyncio
import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
)

from perdure.errors import UsageError, VersionError
from perdure.formats.intake import IncomingMessage, extract_messages
from perdure.formats.streaming import Collector, collector_for, rebuild
from perdure.formats.streaming.anthropic import AnthropicCollector
from perdure.formats.streaming.chat import ChatCollector
from perdure.formats.streaming.responses import ResponseCollector
from perdure.formats.streaming.text import TextCollector
from perdure.journal.codec import Codec, decode_tree, encode_tree
from tests.formats import streams

Stream = tuple[list[dict[str, Any]], dict[str, Any]]

EVENTS: dict[str, type[openai.BaseModel]] = {
    "response.created": ResponseCreatedEvent,
    "response.output_item.added": ResponseOutputItemAddedEvent,
    "response.output_text.delta": ResponseTextDeltaEvent,
    "response.output_item.done": ResponseOutputItemDoneEvent,
    "response.completed": ResponseCompletedEvent,
}


def built(chunk: dict[str, Any]) -> object:
    """Return a chunk as the SDK makes it, where its type is one of those above."""
    if "choices" in chunk:
        return ChatCompletionChunk.construct(**chunk)
    if "." not in chunk["type"]:
        # Anthropic's SDK has the same base class, and is not installed here.
        fields: dict[str, Any] = {
            name: openai.BaseModel.construct(**value) if isinstance(value, dict) else value
            for name, value in chunk.items()
        }
        return openai.BaseModel.construct(**fields)
    kind = EVENTS.get(chunk["type"])
    return kind.construct(**chunk) if kind is not None else chunk


def collected(chunks: Iterable[object]) -> Collector:
    collector: Collector | None = None
    for chunk in chunks:
        collector = collector or collector_for(chunk)
        collector.add(chunk)
    assert collector is not None
    return collector


def stored(piece: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a piece as it comes back from a store, in a list; an empty one for no piece."""
    if piece is None:
        return []
    back = Codec().unpack(decode_tree(encode_tree(Codec().pack(piece))))
    return [back]


def assert_any_cut_gives_the_same(
    collector: Collector, chunks: list[dict[str, Any]], cut_after: Callable[[int], bool]
) -> None:
    pieces: list[dict[str, Any]] = []
    uncut = type(collector)()
    for number, chunk in enumerate(chunks):
        collector.add(chunk)
        uncut.add(deepcopy(chunk))
        if cut_after(number):
            pieces += stored(collector.piece())
            assert rebuild(pieces) == collector.messages()
            assert collector.piece() is None
        assert collector.messages() == uncut.messages()
    pieces += stored(collector.piece())
    assert rebuild(pieces) == uncut.messages() == rebuild(stored(uncut.piece()))


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


def without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


# --- what a whole stream gives ------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=40)
@given(streams.chat_streams(), st.sampled_from([built, dict]))
def test_a_whole_chat_stream_gives_what_the_completion_gives(
    stream: Stream, as_given: Callable[[dict[str, Any]], object]
) -> None:
    chunks, completion = stream
    collector = collected(as_given(chunk) for chunk in chunks)
    assert collector.finished()
    assert collector.messages() == extract_messages(completion)
    assert collector.messages() == extract_messages(ChatCompletion.construct(**completion))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(streams.chat_streams())
def test_the_sdk_makes_the_same_of_a_chat_stream(
    stream: Stream,
) -> None:
    chunks, _ = stream
    state = ChatCompletionStreamState[None]()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.construct(**chunk))
    (theirs,) = extract_messages(state.get_final_completion())
    (ours,) = collected(chunks).messages()
    for call in theirs.message.get("tool_calls") or ():
        del call["index"]
        call["function"].pop("parsed_arguments", None)
    assert without_nulls(ours.message) == without_nulls(theirs.message)
    for name in ("id", "model", "finish_reason", "logprobs", "usage"):
        assert ours.meta[name] == theirs.meta[name]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(streams.response_streams(), st.sampled_from([built, dict]))
def test_a_whole_stream_of_events_gives_what_the_response_gives(
    stream: Stream, as_given: Callable[[dict[str, Any]], object]
) -> None:
    events, response = stream
    collector = collected(as_given(event) for event in events)
    assert collector.finished()
    assert (
        collector.messages()
        == extract_messages(response)
        == extract_messages(Response.construct(**response))
    )


@settings(derandomize=True, deadline=None)
@given(streams.response_streams())
def test_without_its_last_event_a_response_is_whole_but_not_finished(
    stream: Stream,
) -> None:
    events, response = stream
    collector = collected(events[:-1])
    assert not collector.finished()
    assert [taken.message for taken in collector.messages()] == response["output"]
    # Deltas alone say the same as the events that repeat them at the end of a text or part.
    told = [event for event in events[:-1] if not event["type"].endswith(".done")]
    for ours, theirs in zip(collected(told).messages(), response["output"], strict=True):
        for field in ("content", "summary", "arguments", "input", "code"):
            assert ours.message.get(field) == theirs.get(field)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    stream=streams.anthropic_streams(),
    as_given=st.sampled_from([built, dict]),
    helper=st.booleans(),
)
def test_a_whole_stream_of_anthropic_gives_what_the_message_gives(
    stream: Stream, as_given: Callable[[dict[str, Any]], object], *, helper: bool
) -> None:
    events, message = stream
    told = streams.with_helper_events(events, message) if helper else events
    collector = collected(as_given(event) for event in told)
    assert collector.finished()
    assert collector.messages() == extract_messages(message)
    assert "stop_reason" in collector.messages()[0].meta


def test_a_stream_of_texts_gives_a_message_of_the_assistant() -> None:
    collector = collected(["one ", "", "two"])
    assert not collector.finished()
    assert collector.finished(exhausted=True)
    assert collector.messages() == [
        IncomingMessage({"role": "assistant", "content": "one two"}, {})
    ]
    assert collected([""]).messages() == []


@pytest.mark.parametrize("chunk", ["chat", "responses", "anthropic"])
def test_only_texts_are_over_when_their_source_is(chunk: str) -> None:
    first: dict[str, dict[str, Any]] = {
        "chat": streams.one_choice(0, {"content": "a"}),
        "responses": {"type": "response.created", "response": streams.RESPONSE},
        "anthropic": {"type": "message_start", "message": streams.ANTHROPIC},
    }
    assert not collected([first[chunk]]).finished(exhausted=True)


# --- pieces -------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(st.lists(streams.anthropic_events, max_size=8), st.integers(0, 255))
def test_a_stream_of_anthropic_can_be_cut_anywhere(events: list[dict[str, Any]], cuts: int) -> None:
    cut_after = [bool(cuts >> number & 1) for number in range(8)]
    assert_any_cut_gives_the_same(AnthropicCollector(), events, lambda number: cut_after[number])


@settings(derandomize=True, deadline=None)
@given(st.lists(streams.texts, max_size=8), st.integers(0, 255))
def test_a_stream_of_texts_can_be_cut_anywhere(texts: list[Any], cuts: int) -> None:
    cut_after = [bool(cuts >> number & 1) for number in range(8)]
    assert_any_cut_gives_the_same(TextCollector(), texts, lambda number: cut_after[number])


@settings(derandomize=True, deadline=None)
@given(st.lists(streams.chunks_of_any_provider, max_size=8), st.integers(0, 255))
def test_a_chat_stream_can_be_cut_anywhere(chunks: list[dict[str, Any]], cuts: int) -> None:
    assert_any_cut_gives_the_same(ChatCollector(), chunks, lambda number: bool(cuts >> number & 1))


@settings(derandomize=True, deadline=None)
@given(st.lists(streams.events_of_any_provider, max_size=8), st.integers(0, 255))
def test_a_stream_of_events_can_be_cut_anywhere(events: list[dict[str, Any]], cuts: int) -> None:
    cut_after = [bool(cuts >> number & 1) for number in range(8)]
    assert_any_cut_gives_the_same(ResponseCollector(), events, lambda number: cut_after[number])


ENCRYPTED = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "d2hvbGU="}
SAID = {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "content_index": 0}


def of_item(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": 0, "item": item}


def of_response(kind: str, *output: dict[str, Any]) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {**streams.RESPONSE, "output": list(output)}}


@pytest.mark.parametrize(
    "events",
    [
        [
            of_item("done", ENCRYPTED),
            of_item("added", ENCRYPTED),
            of_response("completed", {**ENCRYPTED, "encrypted_content": None}),
        ],
        [
            SAID | {"delta": "a"},
            SAID | {"type": "response.output_text.done", "text": "x"},
            SAID | {"delta": "b"},
        ],
        [of_response("in_progress", ENCRYPTED), of_response("in_progress")],
        [of_response("failed"), of_response("in_progress")],
        [SAID | {"delta": text, "logprobs": [{"token": text}]} for text in "abc"],
    ],
    ids=["an item again", "a text again", "output early", "after the end", "logprobs"],
)
@pytest.mark.parametrize("cuts", range(8))
def test_odd_streams_can_be_cut_anywhere(events: list[dict[str, Any]], cuts: int) -> None:
    assert_any_cut_gives_the_same(
        ResponseCollector(), events, lambda number: bool(cuts >> number & 1)
    )
    assert collected(events).messages() != []


@settings(derandomize=True, deadline=None)
@given(streams.response_streams() | streams.chat_streams() | streams.anthropic_streams(), st.data())
def test_a_well_formed_stream_can_be_cut_anywhere(stream: Stream, data: st.DataObject) -> None:
    chunks, whole = stream
    cuts = data.draw(st.sets(st.integers(0, len(chunks))))
    collector = collector_for(chunks[0])
    assert_any_cut_gives_the_same(collector, chunks, cuts.__contains__)
    assert collector.messages() == extract_messages(whole)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(streams.chat_streams() | streams.response_streams() | streams.anthropic_streams())
def test_collecting_changes_nothing_that_it_is_given(
    stream: Stream,
) -> None:
    chunks, _ = stream
    before = deepcopy(chunks)
    collector = collected(chunks)
    found = deepcopy(collector.messages())
    for taken in collector.messages():
        taken.message.clear()
        taken.meta.clear()
    assert collector.messages() == found
    assert chunks == before


def said(text: str) -> dict[str, Any]:
    return streams.one_choice(0, {"content": text})


def test_a_piece_tells_only_what_is_new() -> None:
    collector = collected([said("a"), said("b")])
    first = collector.piece()
    assert first is not None
    assert first["chunk"]["id"] == "chatcmpl-1"
    assert collector.piece() is None
    collector.add(said("c"))
    collector.add(said("d"))
    assert collector.piece() == {
        "format": "openai.chat",
        "chunk": {"choices": [{"index": 0, "delta": {"content": "cd"}}]},
    }
    deltas = [SAID | {"delta": text, "sequence_number": 1, "obfuscation": "x"} for text in "ab"]
    part = {"type": "output_text", "text": "abc"}
    done = SAID | {"type": "response.content_part.done", "part": part, "sequence_number": 3}
    del done["item_id"]
    assert collected([*deltas, done]).piece() == {
        "format": "openai.responses",
        "events": [SAID | {"delta": "ab"}, without(done, "sequence_number")],
    }
    item = of_item("done", {"type": "message", "content": [part]})
    assert collected([*deltas, done, item]).piece() == {
        "format": "openai.responses",
        "events": [item],
    }


def test_pieces_of_a_long_stream_are_small_and_take_linear_time() -> None:
    collector = ChatCollector()
    sizes = []
    for number in range(20_000):
        collector.add(said("word "))
        if number % 20 == 19:
            sizes.append(len(encode_tree(collector.piece())))
    assert max(sizes[1:]) < 200
    (taken,) = collector.messages()
    assert taken.message["content"] == "word " * 20_000


def test_nothing_was_said_before_the_first_choice_or_item() -> None:
    assert collected([streams.chat_chunk([])]).messages() == []
    (taken,) = collected([{"choices": [{"index": 0, "delta": {"role": ""}}]}]).messages()
    assert taken.message == {"role": "assistant", "content": None}
    assert len(collected([{"choices": [{"index": 0, "delta": {}}]}]).messages()) == 1
    events = [{"type": "response.created", "response": streams.RESPONSE}]
    collector = collected(events)
    assert collector.messages() == []
    assert rebuild(stored(collector.piece())) == []
    collector.add({"type": "response.failed", "response": streams.RESPONSE | {"error": {"a": 1}}})
    (taken,) = collector.messages()
    assert taken.meta["error"] == {"a": 1}
    assert collector.finished()


# --- chat, provider by provider -----------------------------------------------------------------


def calls(*deltas: dict[str, Any]) -> list[dict[str, Any]]:
    chunks = [streams.one_choice(0, {"tool_calls": [delta]}) for delta in deltas]
    (taken,) = collected(chunks).messages()
    found: list[dict[str, Any]] = taken.message["tool_calls"]
    return found


def call(index: int | None, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    delta: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    delta |= {} if index is None else {"index": index}
    return delta if id is None else {"id": id, "type": "function", **delta}


def whole(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_interleaved_calls_are_told_apart_by_their_index() -> None:
    found = calls(
        call(1, "b", "g", ""),
        call(0, "a", "f", "{"),
        call(1, None, None, "["),
        call(0, None, None, "}"),
        call(1, None, None, "]"),
    )
    assert found == [whole("a", "f", "{}"), whole("b", "g", "[]")]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        (
            [call(0, "a", "pay", "{"), call(0, "a", "pay", "}")],
            [whole("a", "pay", "{}")],
        ),
        (
            [call(0, "a", "edit_", ""), call(0, None, "file", "{"), call(0, None, None, "}")],
            [whole("a", "edit_file", "{}")],
        ),
        (
            [call(0, "a", None, "{"), call(0, None, "pay", "}")],
            [whole("a", "pay", "{}")],
        ),
        (
            [call(0, "a", "pay", ""), call(0, "x", "", "{"), call(0, "y", "", "}")],
            [whole("a", "pay", "{}")],
        ),
        (
            [call(0, "a", "pay", "{}"), call(0, "b", "pay", "[]")],
            [whole("a", "pay", "{}"), whole("b", "pay", "[]")],
        ),
        (
            [call(None, "a", "pay", "{}"), call(None, "b", "pay", "[]")],
            [whole("a", "pay", "{}"), whole("b", "pay", "[]")],
        ),
    ],
    ids=[
        "the name is repeated",
        "the name comes in parts",
        "the name comes late",
        "every delta has an id of its own",
        "parallel calls share an index",
        "calls come whole, without an index",
    ],
)
def test_the_calls_of_providers_who_differ_are_put_together(
    deltas: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert calls(*deltas) == expected


def test_custom_calls_and_the_old_function_call_are_joined() -> None:
    custom = [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": "select "}},
        {"index": 0, "custom": {"input": "1"}},
    ]
    assert calls(*custom) == [
        {"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]
    chunks = [
        streams.one_choice(0, {"function_call": {"name": "pay", "arguments": "{"}}),
        streams.one_choice(0, {"function_call": {"arguments": "}"}}),
    ]
    (taken,) = collected(chunks).messages()
    assert taken.message["function_call"] == {"name": "pay", "arguments": "{}"}


def test_audio_and_fields_of_other_providers_are_joined() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "audio": {"id": "audio_1", "data": "UklG", "transcript": "h"}},
        {"role": "assistant", "audio": {"data": "Rg==", "transcript": "m"}},
        {"audio": {"expires_at": 99}, "reasoning_content": "I "},
        {"reasoning_content": "think", "annotations": [{"type": "url_citation", "url": "a"}]},
        {"annotations": [{"type": "url_citation", "url": "b"}]},
        {"reasoning_details": [{"index": 0, "type": "r", "format": "v1", "text": "x"}]},
        {"reasoning_details": [{"index": 1, "type": "r", "format": "v1", "text": "-"}]},
        {"reasoning_details": [{"index": 0, "type": "r", "format": "v1", "text": "y"}]},
        {"reasoning_details": [{"index": 0, "type": "s", "data": "z"}]},
        {"content": "So: "},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]},
        {"content": "47"},
        {"content": "11"},
    ]
    (taken,) = collected(streams.one_choice(0, delta) for delta in deltas).messages()
    assert taken.message == {
        "role": "assistant",
        "audio": {"id": "audio_1", "data": "UklGRg==", "transcript": "hm", "expires_at": 99},
        "reasoning_content": "I think",
        "annotations": [{"type": "url_citation", "url": url} for url in "ab"],
        "reasoning_details": [
            {"index": 0, "type": "r", "format": "v1", "text": "xy"},
            {"index": 1, "type": "r", "format": "v1", "text": "-"},
            {"index": 0, "type": "s", "data": "z"},
        ],
        "content": [
            {"type": "text", "text": "So: "},
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "4711"},
        ],
    }


def test_other_choices_and_what_came_around_the_answer_are_meta() -> None:
    chunks = [
        streams.chat_chunk([], prompt_filter_results=[1]),
        said("one"),
        streams.one_choice(1, {"role": "assistant", "content": "two"}),
        streams.one_choice(0, {}, finish_reason="stop"),
    ]
    collector = collected(chunks)
    assert not collector.finished()
    collector.add(streams.one_choice(1, {}, finish_reason="length"))
    assert collector.finished()
    collector.add(streams.one_choice(1, {}))
    assert collector.finished()
    collector.add(streams.chat_chunk([], usage=streams.USAGE))
    (taken,) = collector.messages()
    assert taken.message == {"role": "assistant", "content": "one"}
    assert taken.meta["usage"] == streams.USAGE
    assert taken.meta["prompt_filter_results"] == [1]
    assert taken.meta["object"] == "chat.completion"
    assert "obfuscation" not in taken.meta
    (other,) = taken.meta["choices"]
    assert other["message"] == {"role": "assistant", "content": "two"}
    assert other["finish_reason"] == "length"


# --- responses ----------------------------------------------------------------------------------


def test_what_only_a_done_item_has_outlives_the_final_response() -> None:
    without = {**ENCRYPTED, "encrypted_content": None}
    completed = of_response("completed", without)
    (taken,) = collected([of_item("done", ENCRYPTED), completed]).messages()
    assert taken.message == ENCRYPTED
    (taken,) = collected([of_item("added", ENCRYPTED), completed]).messages()
    assert taken.message == without
    (taken,) = collected([of_item("done", {**ENCRYPTED, "id": "rs_2"}), completed]).messages()
    assert taken.message == without


def test_logprobs_of_deltas_are_joined() -> None:
    deltas = [SAID | {"delta": text, "logprobs": [{"token": text}]} for text in "ab"]
    (taken,) = collected(deltas).messages()
    assert taken.message["content"] == [
        {"type": "output_text", "text": "ab", "logprobs": [{"token": "a"}, {"token": "b"}]}
    ]


@pytest.mark.parametrize("output", [[], None])
def test_a_final_response_without_output_does_not_erase_what_was_said(output: object) -> None:
    events = [
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "47"},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "11"},
        {"type": "response.failed", "response": {**streams.RESPONSE, "output": output}},
    ]
    (taken,) = collected(events).messages()
    assert taken.message == {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [{"type": "output_text", "text": "4711"}],
    }


def test_an_error_in_the_middle_is_kept_with_what_was_said_and_finishes_nothing() -> None:
    events = [
        {"type": "response.created", "response": streams.RESPONSE},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "47"},
        {"type": "error", "code": "server_error", "message": "sorry", "param": None},
        {"type": "keepalive"},
        {"type": "response.audio.delta", "delta": "UklGRg=="},
    ]
    collector = collected(events)
    assert not collector.finished()
    (taken,) = rebuild(stored(collector.piece()))
    assert taken.message["content"][0]["text"] == "47"
    assert taken.meta["error"] == {"code": "server_error", "message": "sorry", "param": None}


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        ({"object": "chat.completion", "choices": []}, "append it as it is"),
        ({"type": "content_block_stop", "index": 0}, "dict is not a known chunk"),
        (b"data: {}", "bytes is not a known chunk"),
        (5, "int is not a known chunk"),
        (None, "NoneType is not a known chunk"),
    ],
)
def test_a_stream_of_another_kind_is_refused(chunk: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        collector_for(chunk)


def test_what_is_no_chunk_is_refused_and_changes_nothing() -> None:
    chat, responses = collected([said("a")]), ResponseCollector()
    before = chat.messages()
    wrong: object
    half = {"choices": [{"delta": {"content": "b"}}, {"delta": "c"}]}
    for wrong in ({"type": "response.created"}, {"choices": [7]}, half, "a", None, 7, []):
        with pytest.raises(UsageError, match="not a chunk of a chat completion"):
            chat.add(wrong)
    assert chat.messages() == before
    for wrong in (said("a"), "a", None):
        with pytest.raises(UsageError, match="not an event of a response"):
            responses.add(wrong)
    assert responses.messages() == []
    assert responses.piece() is None


def test_what_is_no_event_of_anthropic_is_refused_and_changes_nothing() -> None:
    begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}}
    collector = collected([{"type": "message_start", "message": streams.ANTHROPIC}, begun])
    before = collector.messages()
    wrong: list[tuple[object, str]] = [
        (said("a"), "not an event of a message"),
        ("a", "not an event of a message"),
        (None, "not an event of a message"),
        ({**begun, "index": "0"}, "index"),
        ({**begun, "content_block": 5}, "content_block"),
        ({**delta, "delta": None}, "delta"),
        (delta, r"\$\.delta\.text"),
        ({**delta, "delta": {"type": "input_json_delta", "partial_json": {}}}, "partial_json"),
        ({**delta, "delta": {"type": "text_delta", "text": "\ud800"}}, "lone surrogate"),
        ({"type": "message_start", "message": "hi"}, "message"),
        ({"type": "message_delta", "delta": {}, "usage": 5}, "usage"),
    ]
    for event, reason in wrong:
        with pytest.raises(UsageError, match=reason):
            collector.add(event)
    assert collector.messages() == before
    assert not collector.finished()


def test_what_is_no_text_is_refused_and_changes_nothing() -> None:
    collector = collected(["a"])
    for wrong in (b"a", None, said("a"), 5, "\ud800"):
        with pytest.raises(UsageError):
            collector.add(wrong)
    assert collector.messages()[0].message["content"] == "a"


def test_the_input_of_a_call_that_was_cut_is_kept_as_it_came() -> None:
    events = [
        {"type": "message_start", "message": streams.ANTHROPIC},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"amount": 2'},
        },
    ]
    (taken,) = collected(events).messages()
    assert taken.message["content"][0]["input"] == '{"amount": 2'
    assert taken.meta["stop_reason"] is None


def test_an_error_of_anthropic_is_kept_with_what_was_said_and_finishes_nothing() -> None:
    said = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "47"},
    }
    error = {"type": "overloaded_error", "message": "sorry"}
    events = [{"type": "message_start", "message": streams.ANTHROPIC}, said]
    collector = collected([*events, {"type": "error", "error": error}])
    assert not collector.finished()
    (taken,) = rebuild(stored(collector.piece()))
    assert taken.message["content"] == [{"type": "text", "text": "47"}]
    assert taken.meta["error"] == error


def test_pieces_that_do_not_belong_together_are_refused() -> None:
    assert rebuild([]) == []
    chat = stored(collected([said("a")]).piece())
    assert rebuild(chat)[0].message["content"] == "a"
    with pytest.raises(UsageError, match="several answers"):
        rebuild([*chat, {"format": "openai.responses", "events": []}])
    with pytest.raises(VersionError, match=r"openai\.next"):
        rebuild([{"format": "openai.next"}])
    for damaged in (
        *({}, {"format": "openai.chat"}, {"format": "openai.responses", "events": [7]}),
        *({"format": "text"}, {"format": "anthropic", "events": [{}]}),
    ):
        with pytest.raises(UsageError, match="not the pieces"):
            rebuild([damaged])


# --- the real client ----------------------------------------------------------------------------


def sse(events: Iterable[dict[str, Any]]) -> bytes:
    lines = []
    for event in events:
        if "type" in event:
            lines.append(f"event: {event['type']}\n")
        lines.append(f"data: {json.dumps(event)}\n\n")
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def transport(events: Iterable[dict[str, Any]]) -> httpx2.MockTransport:
    headers = {"content-type": "text/event-stream"}
    body = sse(events)
    return httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=body))


CHAT = [
    streams.one_choice(0, {"role": "assistant", "content": "", "refusal": None}),
    said("47"),
    said("11"),
    streams.one_choice(0, {"tool_calls": [{**call(0, "call_1", "pay", "")}]}),
    streams.one_choice(0, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    streams.one_choice(0, {}, finish_reason="tool_calls"),
    streams.chat_chunk([], usage=streams.USAGE),
]

ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
PART = {"type": "output_text", "text": "4711", "annotations": [], "logprobs": []}
AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSES: list[dict[str, Any]] = [
    {"type": "response.created", "response": streams.RESPONSE},
    {"type": "response.output_item.added", "output_index": 0, "item": ITEM | {"content": []}},
    {"type": "response.content_part.added", **AT, "part": PART | {"text": ""}},
    {"type": "response.output_text.delta", **AT, "delta": "47", "logprobs": []},
    {"type": "response.output_text.delta", **AT, "delta": "11", "logprobs": []},
    {"type": "response.output_text.done", **AT, "text": "4711", "logprobs": []},
    {"type": "response.content_part.done", **AT, "part": PART},
    {"type": "response.output_item.done", "output_index": 0, "item": ITEM | {"content": [PART]}},
    {
        "type": "response.completed",
        "response": {**streams.RESPONSE, "output": [ITEM | {"content": [PART]}]},
    },
]


def client(events: Iterable[dict[str, Any]]) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=transport(events))
    return openai.OpenAI(api_key="none", base_url="http://localhost", http_client=http)


def numbered(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def test_chunks_and_helper_events_of_the_real_client_give_the_same_answer() -> None:
    expected = collected(CHAT).messages()
    assert expected[0].message["content"] == "4711"
    assert expected[0].message["tool_calls"] == [whole("call_1", "pay", "{}")]
    with client(CHAT) as api:
        chunks = api.chat.completions.create(model="m", messages=[], stream=True)
        assert collected(chunks).messages() == expected
        with api.chat.completions.stream(model="m", messages=[]) as helper:
            assert collected(helper).messages() == expected
            assert extract_messages(helper.get_final_completion())[0].message["content"] == "4711"


def test_events_of_the_real_client_and_its_helper_give_the_same_answer() -> None:
    events = numbered(RESPONSES)
    expected = collected(events).messages()
    assert expected == extract_messages(RESPONSES[-1]["response"])
    with client(events) as api:
        assert collected(api.responses.create(model="m", stream=True)).messages() == expected
        with api.responses.stream(model="m", input="") as helper:
            (ours,) = collected(helper).messages()
            (theirs,) = extract_messages(helper.get_final_response())
        assert ours == theirs
        assert ours.message["content"][0]["text"] == "4711"


def test_an_asynchronous_stream_is_collected_by_the_same_collector() -> None:
    async def collect() -> list[IncomingMessage]:
        http = openai.DefaultAsyncHttpxClient(transport=transport(CHAT))
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://localhost", http_client=http
        ) as api:
            collector = ChatCollector()
            async for chunk in await api.chat.completions.create(
                model="m", messages=[], stream=True
            ):
                collector.add(chunk)
            return collector.messages()

    assert asyncio.run(collect()) == collected(CHAT).messages()
