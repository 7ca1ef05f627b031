"""Turn a recorded reply into the object that the SDK would have returned. Nothing is sent.

The SDK's own code reads the reply from a transport that answers from memory. So parsed objects,
streams and events have the SDK's own classes, whatever the version of the package.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from perdure.adapters.openai.exchanges import Item, RecordedReply

_CHOICE_FIELDS = ("index", "finish_reason", "logprobs")

_BLANK_FIELDS: Item = {"content": [], "summary": [], "arguments": "", "input": ""}


def replay_client(
    client: Any, reply: RecordedReply, *, streaming: bool, usage: bool, asynchronous: bool
) -> Any:
    """Return a copy of a client whose next request is answered with a recorded reply.

    `usage` says whether a stream of chunks ends with one about the usage, which has no choices.
    """
    import openai

    http_class = openai.DefaultAsyncHttpxClient if asynchronous else openai.DefaultHttpxClient
    # The HTTP package that the SDK itself uses: older versions use a different one.
    http = sys.modules[http_class.__mro__[1].__module__.partition(".")[0]]
    is_response = reply.meta.get("object") == "response"
    body = response_body(reply) if is_response else completion_body(reply)
    headers = {"content-type": "text/event-stream" if streaming else "application/json"}
    if "request_id" in reply.meta:
        headers["x-request-id"] = str(reply.meta["request_id"])
    if streaming:
        events = response_events(body) if is_response else completion_chunks(body, usage=usage)
        content = "".join(_encode_event(event) for event in events) + "data: [DONE]\n\n"
    else:
        content = json.dumps(body)

    def answer(request: Any) -> Any:
        return http.Response(200, headers=headers, content=content.encode(), request=request)

    transport = http.MockTransport(answer)
    return client.with_options(http_client=http_class(transport=transport), max_retries=0)


def _encode_event(event: Item) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def completion_body(reply: RecordedReply) -> Item:
    """Return a chat completion as the API sends it."""
    meta = {**reply.meta}
    meta.pop("request_id", None)
    others, own = meta.pop("choices", []), meta.pop("choice", {})
    choice = {name: meta.pop(name) for name in _CHOICE_FIELDS if name in meta}
    (message,) = reply.messages
    first = {"index": 0, "finish_reason": "stop", **choice, **own, "message": message}
    return {**meta, "object": "chat.completion", "choices": [first, *others]}


def completion_chunks(body: Item, *, usage: bool) -> Iterator[Item]:
    """Yield a completion as chunks: the whole message, the finish reason, and perhaps the usage."""
    rest = {**body, "object": "chat.completion.chunk"}
    used, choices = rest.pop("usage", None), rest.pop("choices")
    deltas = [
        {**choice, "finish_reason": None, "delta": _delta(choice["message"])} for choice in choices
    ]
    endings = [{**choice, "delta": {}} for choice in choices]
    for choices_part in (deltas, endings):
        for choice in choices_part:
            choice.pop("message")
        yield {**rest, "choices": choices_part}
    if usage and used is not None:
        yield {**rest, "choices": [], "usage": used}


def _delta(message: Item) -> Item:
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    return {**message, "tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}


def response_body(reply: RecordedReply) -> Item:
    """Return a response as the API sends it."""
    meta = {name: value for name, value in reply.meta.items() if name != "request_id"}
    return {**meta, "output": reply.messages}


def response_events(body: Item) -> Iterator[Item]:
    """Yield a response as numbered stream events."""
    started = {**body, "status": "in_progress", "output": [], "usage": None}
    started["incomplete_details"] = None
    status = body.get("status") or "completed"
    events = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        *(
            event
            for index, item in enumerate(body["output"])
            for event in _item_events(item, index)
        ),
        {"type": f"response.{status}", "response": body},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: Item, index: int) -> Iterator[Item]:
    position = {"item_id": item.get("id") or "", "output_index": index}
    blank = {name: empty for name, empty in _BLANK_FIELDS.items() if name in item}
    started = {**item, **blank, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": started}
    match item.get("type"):
        case "message":
            for number, part in enumerate(item.get("content") or ()):
                yield from _part_events(part, {**position, "content_index": number})
        case "function_call":
            yield from _text_events("function_call_arguments", "arguments", item, position)
        case "custom_tool_call":
            yield from _text_events("custom_tool_call_input", "input", item, position)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: Item, position: Item) -> Iterator[Item]:
    is_refusal = part.get("type") == "refusal"
    name, field = ("refusal", "refusal") if is_refusal else ("output_text", "text")
    blank = {**part, field: ""}
    yield {"type": "response.content_part.added", **position, "part": blank}
    yield from _text_events(
        name, field, part, position if is_refusal else {**position, "logprobs": []}
    )
    yield {"type": "response.content_part.done", **position, "part": part}


def _text_events(name: str, field: str, holder: Item, position: Item) -> Iterator[Item]:
    text = holder.get(field) or ""
    if text:
        yield {"type": f"response.{name}.delta", **position, "delta": text}
    yield {"type": f"response.{name}.done", **position, field: text}
