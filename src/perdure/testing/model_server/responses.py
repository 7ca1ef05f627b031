"""Format an answer for the Responses API: complete, or as the events of a stream. Pure.

The id of an item that was generated with reasoning contains the id of that reasoning
(`reasoning_ids`), so a request that omits the reasoning is rejected without any stored state.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.testing.model_server.answers import Answer, calls_with_ids, split_text
from perdure.testing.model_server.chat import CREATED
from perdure.testing.model_server.prompts import Prompt, digest

_WITH_REASONING = re.compile(r"(?:msg|fc|ctc)_([0-9a-f]{12})r\d*")

# For each kind of content: the name in its delta events, and the field of the finished part.
_TEXT = ("output_text", "text")

_REFUSAL = ("refusal", "refusal")

# The fields of an item when it is added to the stream, before its first delta.
_BLANK: dict[str, Any] = {
    "status": "in_progress",
    "content": [],
    "summary": [],
    "encrypted_content": None,
    "arguments": "",
    "input": "",
}


def reasoning_ids(items: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Map ids of items to the id of the reasoning that they were generated with."""
    ids = [str(item.get("id")) for item in items]
    matches = [_WITH_REASONING.fullmatch(id) for id in ids]
    return {match[0]: f"rs_{match[1]}" for match in matches if match}


def output(prompt: Prompt, answer: Answer) -> list[dict[str, Any]]:
    """Return the items of an answer: reasoning, a message, and calls."""
    seed = prompt.seed
    mark = "r" if answer.reasoning is not None else ""
    items: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        sealed = f"sealed-{digest(seed, answer.reasoning)}"
        head = {"id": f"rs_{seed}", "type": "reasoning"}
        items.append({**head, "summary": summary, "encrypted_content": sealed})
    if answer.text is not None or answer.refusal is not None:
        part: dict[str, Any] = {"type": "refusal", "refusal": answer.refusal}
        if answer.refusal is None:
            part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        status = "incomplete" if answer.finish == "length" else "completed"
        head = {"id": f"msg_{seed}{mark}", "type": "message", "role": "assistant", "status": status}
        items.append({**head, "content": [part]})
    for index, (call, id) in enumerate(calls_with_ids(answer, seed)):
        suffix, fields = f"{seed}{mark}{index}", {"call_id": id, "name": call.name}
        if call.custom:
            head = {"id": f"ctc_{suffix}", "type": "custom_tool_call"}
            items.append({**head, **fields, "input": call.arguments})
        else:
            head = {"id": f"fc_{suffix}", "type": "function_call", "status": "completed"}
            items.append({**head, **fields, "arguments": call.arguments})
    return items


def response(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    body, cut = prompt.body, answer.finish == "length"
    used = answer.tokens + answer.reasoning_tokens
    return {
        "id": f"resp_{prompt.seed}",
        "object": "response",
        "created_at": CREATED,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": output(prompt, answer),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": {
            "input_tokens": prompt.tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": used,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": prompt.tokens + used,
        },
    }


def events(prompt: Prompt, answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the numbered events of a streamed answer."""
    done = response(prompt, answer)
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *(event for index, item in enumerate(done["output"]) for event in _item(item, index)),
        {"type": f"response.{done['status']}", "response": done},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": index}
    begun = {**item, **{name: empty for name, empty in _BLANK.items() if name in item}}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    match item["type"]:
        case "message":
            yield from _message(item, at)
        case "reasoning":
            yield from _summary(item, at)
        case "function_call":
            yield from _pieces("function_call_arguments", "arguments", item["arguments"], at)
        case _:
            yield from _pieces("custom_tool_call_input", "input", item["input"], at)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _message(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    name, field = _REFUSAL if part["type"] == "refusal" else _TEXT
    at = {**at, "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, field: ""}}
    with_logprobs = at if name == "refusal" else {**at, "logprobs": []}
    yield from _pieces(name, field, part[field], with_logprobs)
    yield {"type": "response.content_part.done", **at, "part": part}


def _summary(item: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["summary"]
    at = {**at, "summary_index": 0}
    yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
    yield from _pieces("reasoning_summary_text", "text", part["text"], at)
    yield {"type": "response.reasoning_summary_part.done", **at, "part": part}


def _pieces(name: str, field: str, text: str, at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in split_text(text):
        yield {"type": f"response.{name}.delta", **at, "delta": piece}
    yield {"type": f"response.{name}.done", **at, field: text}
