"""Streams for the tests of collecting: as the APIs send them, and as nobody should."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

texts = st.text(alphabet='ab {}":é😀\n', max_size=4)
cuts = st.lists(texts, max_size=4)
Draw = Callable[[st.SearchStrategy[Any]], Any]


def interleaved(draw: Draw, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the elements of several lists in one, each list's own order kept."""
    waiting = [list(row) for row in rows if row]
    found = []
    while waiting:
        row = draw(st.sampled_from(range(len(waiting))))
        found.append(waiting[row].pop(0))
        if not waiting[row]:
            del waiting[row]
    return found


# --- chat ---------------------------------------------------------------------------------------

AROUND = {"id": "chatcmpl-1", "created": 1_760_000_000, "model": "m", "service_tier": "default"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def chat_chunk(choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    padding = {"object": "chat.completion.chunk", "usage": None, "obfuscation": "x7"}
    return {**AROUND, **padding, **fields, "choices": choices}


def one_choice(index: int, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "finish_reason": None, "logprobs": None, **fields, "delta": delta}
    return chat_chunk([choice])


@st.composite
def chat_choices(draw: st.DrawFn, index: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chunks of one choice, and the choice as it comes without streaming."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    rows: list[list[dict[str, Any]]] = []
    logprobs: list[Any] | None = [] if draw(st.booleans()) else None
    for field in ("content", "refusal", "reasoning_content"):
        pieces = draw(cuts)
        if pieces:
            message[field] = "".join(pieces)
            rows.append([{field: piece} for piece in pieces])
    for number in range(draw(st.integers(0, 3))):
        pieces = draw(cuts)
        call: dict[str, Any] = {"id": f"call_{number}", "type": "function"}
        arguments = "".join(pieces)
        message.setdefault("tool_calls", []).append(
            {**call, "function": {"name": f"tool_{number % 2}", "arguments": arguments}}
        )
        head = {**call, "function": {"name": f"tool_{number % 2}", "arguments": ""}}
        deltas: list[dict[str, Any]] = [
            head,
            *({"function": {"arguments": piece}} for piece in pieces),
        ]
        rows.append([{"tool_calls": [{"index": number, **delta}]} for delta in deltas])
    # Calls begin in the order of their indexes; the rest may mix.
    begun = [row.pop(0) for row in rows if "tool_calls" in row[0]]
    chunks = [one_choice(index, {"role": "assistant", "content": None, "refusal": None})]
    for number, delta in enumerate([*begun, *interleaved(draw, rows)]):
        found: dict[str, Any] | None = None
        if logprobs is not None:
            token = {"token": str(number), "logprob": -0.5, "bytes": None, "top_logprobs": []}
            logprobs.append(token)
            found = {"content": [token], "refusal": None}
        chunks.append(one_choice(index, delta, logprobs=found))
    chunks.append(one_choice(index, {}, finish_reason="stop"))
    around = {"content": logprobs, "refusal": None} if logprobs else None
    choice = {"index": index, "finish_reason": "stop", "logprobs": around, "message": message}
    return chunks, choice


@st.composite
def chat_streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chunks of a well-formed stream, and the completion that they stand for."""
    drawn = [draw(chat_choices(index)) for index in range(draw(st.integers(1, 2)))]
    # Choices begin in the order of their indexes, which the SDK relies on.
    begun = [chunks.pop(0) for chunks, _ in drawn]
    chunks = [*begun, *interleaved(draw, [chunks for chunks, _ in drawn])]
    usage = USAGE if draw(st.booleans()) else None
    if usage:
        chunks.append(chat_chunk([], usage=usage))
    completion = {
        **AROUND,
        "object": "chat.completion",
        "usage": usage,
        "choices": [choice for _, choice in drawn],
    }
    return chunks, completion


calls_of_any_provider = st.fixed_dictionaries(
    {"index": st.sampled_from([None, 0, 1])},
    optional={
        "id": st.sampled_from([None, "", "a", "b"]),
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from([None, "", "f", "fg", "g"]), "arguments": texts}
        ),
        "custom": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["f", "g"]), "input": texts}
        ),
    },
)

parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts})
    | st.fixed_dictionaries(
        {
            "type": st.just("thinking"),
            "thinking": st.lists(
                st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2
            ),
        }
    )
    | st.fixed_dictionaries({"type": st.just("image"), "url": texts}),
    max_size=2,
)

indexed = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 1)},
        optional={"type": st.sampled_from(["x", "y"]), "format": st.just("f"), "text": texts},
    )
    | texts
    | st.none(),
    max_size=2,
)

deltas_of_any_provider = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "", None]),
        "content": st.none() | texts | parts,
        "tool_calls": st.none() | st.lists(calls_of_any_provider, max_size=3),
        "reasoning_details": st.none() | indexed,
        "audio": st.none()
        | st.fixed_dictionaries(
            {}, optional={"id": st.just("audio_1"), "data": texts, "expires_at": st.integers(1, 9)}
        ),
        "function_call": st.fixed_dictionaries({}, optional={"name": texts, "arguments": texts}),
    },
)

choices_of_any_provider = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "delta": st.none() | deltas_of_any_provider},
    optional={
        "finish_reason": st.sampled_from([None, "stop"]),
        "logprobs": st.none()
        | st.fixed_dictionaries(
            {}, optional={"content": st.none() | st.lists(st.integers(1, 3), max_size=2)}
        ),
        "content_filter_results": st.dictionaries(st.sampled_from("ab"), st.booleans()),
    },
)

chunks_of_any_provider = st.fixed_dictionaries(
    {"choices": st.none() | st.lists(choices_of_any_provider, max_size=2)},
    optional={
        "id": st.sampled_from(["", "chatcmpl-1", "chatcmpl-2"]),
        "usage": st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
        "citations": st.lists(texts, max_size=2),
    },
)


# --- responses ----------------------------------------------------------------------------------

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_760_000_000,
    "model": "m",
    "status": "in_progress",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [],
    "usage": None,
}


def _text_part(draw: Draw, where: dict[str, Any], kind: str) -> tuple[Any, list[Any]]:
    """Return a part of a message, and the events between its beginning and its end."""
    pieces = draw(cuts)
    if kind == "refusal":
        part: dict[str, Any] = {"type": "refusal", "refusal": "".join(pieces)}
        base = {**part, "refusal": ""}
        events = [{"type": "response.refusal.delta", "delta": piece} for piece in pieces]
        events.append({"type": "response.refusal.done", "refusal": part["refusal"]})
    else:
        part = {"type": "output_text", "text": "".join(pieces), "annotations": [], "logprobs": []}
        base = {**part, "text": ""}
        events = [
            {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
            for piece in pieces
        ]
        for number in range(draw(st.integers(0, 2))):
            note = {"type": "file_path", "file_id": f"file_{number}", "index": number}
            part["annotations"] = [*part["annotations"], note]
            kind = "response.output_text.annotation.added"
            events.append({"type": kind, "annotation": note, "annotation_index": number})
        events.append({"type": "response.output_text.done", "text": part["text"], "logprobs": []})
    return part, [
        {**where, "type": "response.content_part.added", "part": base},
        *({**where, **event} for event in events),
        {**where, "type": "response.content_part.done", "part": part},
    ]


def _message(draw: Draw, where: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    base = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
    drawn = [
        _text_part(draw, {**where, "content_index": number}, kind)
        for number, kind in enumerate(
            draw(st.lists(st.sampled_from(["text", "refusal"]), max_size=2))
        )
    ]
    done = {**base, "status": "completed", "content": [part for part, _ in drawn]}
    return base, done, [event for _, events in drawn for event in events]


def _reasoning(draw: Draw, where: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    base = {"type": "reasoning", "summary": [], "encrypted_content": "cGFydA=="}
    done: dict[str, Any] = {**base, "encrypted_content": "d2hvbGU="}
    events = []
    for number, pieces in enumerate(draw(st.lists(cuts, max_size=2))):
        here = {**where, "summary_index": number}
        part = {"type": "summary_text", "text": "".join(pieces)}
        done["summary"] = [*done["summary"], part]
        kind = "response.reasoning_summary_part.added"
        events.append({**here, "type": kind, "part": {**part, "text": ""}})
        kind = "response.reasoning_summary_text.delta"
        events.extend({**here, "type": kind, "delta": piece} for piece in pieces)
        kind = "response.reasoning_summary_text.done"
        events.append({**here, "type": kind, "text": part["text"]})
        events.append({**here, "type": "response.reasoning_summary_part.done", "part": part})
    return base, done, events


_FIELDS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "mcp_call": ("arguments", "response.mcp_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code"),
}


def _call(draw: Draw, where: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    kind = draw(st.sampled_from([*_FIELDS, "web_search_call"]))
    if kind == "web_search_call":
        base = {"type": kind, "status": "in_progress", "action": {"type": "search", "query": "q"}}
        event = {**where, "type": "response.web_search_call.searching"}
        return base, {**base, "status": "completed"}, [event]
    field, name = _FIELDS[kind]
    pieces = draw(cuts)
    base = {"type": kind, "call_id": "call_1", "name": "pay", field: "", "status": "in_progress"}
    done = {**base, field: "".join(pieces), "status": "completed"}
    events = [{**where, "type": f"{name}.delta", "delta": piece} for piece in pieces]
    return base, done, [*events, {**where, "type": f"{name}.done", field: done[field]}]


@st.composite
def response_streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the events of a well-formed stream, and the response that they stand for."""
    rows, output = [], []
    for number in range(draw(st.integers(0, 4))):
        where = {"output_index": number, "item_id": f"item_{number}"}
        base, done, events = draw(st.sampled_from([_message, _reasoning, _call]))(draw, where)
        base, done = {"id": where["item_id"], **base}, {"id": where["item_id"], **done}
        output.append(done)
        rows.append(
            [
                {"type": "response.output_item.added", "output_index": number, "item": base},
                *events,
                {"type": "response.output_item.done", "output_index": number, "item": done},
            ]
        )
    end = draw(st.sampled_from(["completed", "incomplete"]))
    response = {**RESPONSE, "status": end, "output": output, "usage": {"total_tokens": 7}}
    events = [
        {"type": "response.created", "response": RESPONSE},
        {"type": "response.in_progress", "response": RESPONSE},
        *[event for row in rows for event in row],
        {"type": f"response.{end}", "response": response},
    ]
    return [{**event, "sequence_number": n} for n, event in enumerate(events)], response


_places = {
    "output_index": st.integers(0, 1),
    "content_index": st.integers(0, 1),
    "summary_index": st.integers(0, 1),
    "item_id": st.sampled_from(["item_0", "item_1"]),
}
_items = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning"])},
    optional={
        "id": st.just("item_0"),
        "content": st.none() | st.just([]) | st.just([{"type": "output_text", "text": "t"}]),
        "encrypted_content": st.none() | texts,
    },
)
_responses = st.fixed_dictionaries(
    {"id": texts}, optional={"output": st.none() | st.lists(_items, max_size=2), "error": texts}
)


def _events(names: Sequence[str], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.sampled_from(names), **_places, **fields})


_texts_of = [
    "response.output_text",
    "response.refusal",
    "response.reasoning_text",
    "response.reasoning_summary_text",
    "response.function_call_arguments",
]

events_of_any_provider = st.one_of(
    _events([f"{name}.delta" for name in _texts_of], delta=texts, logprobs=st.just([{"t": 1}])),
    _events([f"{name}.done" for name in _texts_of], text=texts, refusal=texts, arguments=texts),
    _events(
        ["response.content_part.added", "response.content_part.done"],
        part=st.just({"type": "output_text", "text": "p", "annotations": []}),
    ),
    _events(
        ["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"],
        part=st.just({"type": "summary_text", "text": "p"}),
    ),
    _events(["response.output_text.annotation.added"], annotation=st.just({"type": "x"})),
    _events(["response.output_item.added", "response.output_item.done"], item=st.none() | _items),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["response.created", "response.in_progress", "response.completed"]
            ),
            "response": _responses,
        }
    ),
    st.just({"type": "response.web_search_call.searching", "output_index": 0}),
    st.just({"type": "error", "code": "c", "message": "m", "param": None}),
)


# --- Anthropic ----------------------------------------------------------------------------------

ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 1},
}

Block = tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]
"""A block as it begins, as it is in the end, and the deltas between."""


def _said(draw: Draw) -> Block:
    pieces, base = draw(cuts), {"type": "text", "text": ""}
    deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": piece} for piece in pieces]
    done: dict[str, Any] = {**base, "text": "".join(pieces)}
    for number in range(draw(st.integers(0, 2))):
        citation = {"type": "char_location", "document_index": number}
        done["citations"] = [*done.get("citations", ()), citation]
        deltas.append({"type": "citations_delta", "citation": citation})
    return base, done, deltas


def _thought(draw: Draw) -> Block:
    pieces, base = draw(cuts), {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    done = {**base, "thinking": "".join(pieces), "signature": "c2ln"}
    return base, done, [*deltas, {"type": "signature_delta", "signature": "c2ln"}]


def _used(draw: Draw) -> Block:
    kind = draw(st.sampled_from(["tool_use", "server_tool_use"]))
    base = {"type": kind, "id": "toolu_1", "name": "pay", "input": {}}
    given = draw(st.dictionaries(texts, texts | st.integers() | st.lists(texts), max_size=2))
    text = json.dumps(given) if given else ""
    at = sorted(draw(st.sets(st.integers(0, len(text)), max_size=3)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *at, len(text)])]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return base, {**base, "input": given}, deltas


def _searched(_: Draw) -> Block:
    found = [{"type": "web_search_result", "url": "http://a", "title": "A"}]
    base = {"type": "web_search_tool_result", "tool_use_id": "toolu_1", "content": found}
    return base, base, []


@st.composite
def anthropic_streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the events of a well-formed stream, and the message that they stand for."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": ANTHROPIC}]
    events.append({"type": "ping"})
    content = []
    for index in range(draw(st.integers(1, 4))):
        base, done, deltas = draw(st.sampled_from([_said, _thought, _used, _searched]))(draw)
        content.append(done)
        events.append({"type": "content_block_start", "index": index, "content_block": base})
        kind = "content_block_delta"
        events += [{"type": kind, "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    usage = {"output_tokens": 40, "input_tokens": None}
    events += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
    whole = {**ANTHROPIC, **delta, "content": content}
    return events, {**whole, "usage": {"input_tokens": 9, "output_tokens": 40}}


_HELPER_EVENTS = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("input_json", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
}


def with_helper_events(events: list[dict[str, Any]], whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events as the SDK's stream helper yields them: with its own, and snapshots."""
    found: list[dict[str, Any]] = []
    for event in events:
        delta = event.get("delta", {})
        match event["type"]:
            case "ping":
                continue
            case "content_block_stop":
                found.append({**event, "content_block": whole["content"][event["index"]]})
            case "message_stop":
                found.append({**event, "message": whole})
            case _:
                found.append(event)
        if delta.get("type") in _HELPER_EVENTS:
            name, field = _HELPER_EVENTS[delta["type"]]
            found.append({"type": name, field: delta[field], "snapshot": "all so far"})
    return found


_blocks = st.sampled_from(
    [
        {"type": "text", "text": "t"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {}},
    ]
)
_deltas = st.one_of(
    st.fixed_dictionaries({"type": st.just("text_delta"), "text": texts}),
    st.fixed_dictionaries({"type": st.just("thinking_delta"), "thinking": texts}),
    st.fixed_dictionaries({"type": st.just("input_json_delta"), "partial_json": texts}),
    st.fixed_dictionaries({"type": st.just("signature_delta"), "signature": texts}),
    st.fixed_dictionaries({"type": st.just("citations_delta"), "citation": st.just({"a": 1})}),
    st.just({"type": "compaction_delta", "content": "shorter"}),
)
_index = st.integers(0, 1)

anthropic_events = st.one_of(
    st.just({"type": "message_start", "message": ANTHROPIC}),
    st.fixed_dictionaries(
        {"type": st.just("content_block_start"), "index": _index, "content_block": _blocks}
    ),
    st.fixed_dictionaries(
        {"type": st.just("content_block_delta"), "index": _index, "delta": _deltas}
    ),
    st.fixed_dictionaries({"type": st.just("content_block_stop"), "index": _index}),
    st.just({"type": "message_delta", "delta": {"stop_reason": None}, "usage": None}),
    st.just({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
    st.just({"type": "message_stop"}),
    st.just({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}),
    st.just({"type": "of next year", "index": 0}),
)
