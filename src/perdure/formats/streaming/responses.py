"""Collect the events of a streamed response into storable pieces and messages.

Events come in; pieces and messages go out. Pure, and an event is never changed.

A piece is the list of events since the previous piece. The deltas of one text are joined, and those
of an item that is done are dropped. Done items and the final response override deltas. Events that
leave nothing in the answer, such as the progress of a search, are ignored.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage, export, extract_response, field_of, to_plain
from perdure.formats.streaming.merge import TextBuffer, materialize

FORMAT = "openai.responses"


FINAL_EVENTS = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)

_LIFECYCLE_EVENTS = FINAL_EVENTS | {"response.created", "response.in_progress", "response.queued"}

_ITEM_EVENTS = frozenset({"response.output_item.added", "response.output_item.done"})

_ANNOTATION_EVENT = "response.output_text.annotation.added"


# The field of an item that holds parts, and the field of an event with the index there.
_CONTENT = ("content", "content_index")
_SUMMARY = ("summary", "summary_index")

_PART_EVENTS = {"response.content_part": _CONTENT, "response.reasoning_summary_part": _SUMMARY}


class TextTarget(NamedTuple):
    """Target of a text delta: a field of an item, or of one of the item's parts."""

    field: str
    item: str
    parts: str = ""
    at: str = ""
    part: str = ""


_TEXT_TARGETS = {
    "response.output_text": TextTarget("text", "message", *_CONTENT, "output_text"),
    "response.refusal": TextTarget("refusal", "message", *_CONTENT, "refusal"),
    "response.reasoning_text": TextTarget("text", "reasoning", *_CONTENT, "reasoning_text"),
    "response.reasoning_summary_text": TextTarget("text", "reasoning", *_SUMMARY, "summary_text"),
    "response.function_call_arguments": TextTarget("arguments", "function_call"),
    "response.mcp_call_arguments": TextTarget("arguments", "mcp_call"),
    "response.custom_tool_call_input": TextTarget("input", "custom_tool_call"),
    "response.code_interpreter_call_code": TextTarget("code", "code_interpreter_call"),
}


# Fields of events that are not part of the answer, or that the SDK's stream helper adds.
_DROPPED_FIELDS = frozenset({"sequence_number", "obfuscation", "parsed", "snapshot"})


class ResponseCollector:
    """Collects the events of one response; see `streaming.Collector`."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._recent = EventLog()
        self._finished = False

    def add(self, event: object) -> None:
        """Add an event, as an object or a dict."""
        kind = field_of(event, "type")
        if not isinstance(kind, str):
            raise UsageError(f"a {type(event).__qualname__} is not an event of a response")
        if not isinstance(field_of(event, "output_index") or 0, int):
            raise UsageError("the output_index of an event is not a number", "$.output_index")
        subject, _, verb = kind.rpartition(".")
        if verb == "delta":
            if subject in _TEXT_TARGETS:
                self._recent.add_delta(event, kind, _TEXT_TARGETS[subject])
        elif (
            kind in _LIFECYCLE_EVENTS
            or kind in _ITEM_EVENTS
            or subject in _PART_EVENTS
            or subject in _TEXT_TARGETS
            or kind in {_ANNOTATION_EVENT, "error"}
        ):
            data = event if type(event) is dict else to_plain(event) or {}
            self._recent.add(
                {name: value for name, value in data.items() if name not in _DROPPED_FIELDS}
            )
            self._finished = self._finished or kind in FINAL_EVENTS

    def piece(self) -> dict[str, Any] | None:
        events = self._recent.events()
        self._recent = EventLog()
        if not events:
            return None
        piece = {"format": FORMAT, "events": events}
        self._pieces.append(piece)
        return piece

    def finished(self, *, exhausted: bool = False) -> bool:
        del exhausted  # A connection that breaks may look like the end of the source.
        return self._finished

    def messages(self) -> list[IncomingMessage]:
        return rebuild([*self._pieces, {"format": FORMAT, "events": self._recent.events()}])


def rebuild(pieces: Iterable[dict[str, Any]]) -> list[IncomingMessage]:
    """Return the answer that the pieces add up to; empty if no item has begun."""
    answer = ResponseBuilder()
    for piece in pieces:
        for event in piece["events"]:
            answer.add(event)
    return answer.messages()


class EventLog:
    """The events since the last piece, without those that no longer affect the answer."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._open: dict[tuple[str, int, int], dict[str, Any]] = {}

    def events(self) -> list[dict[str, Any]]:
        return [materialize(event) for event in self._events]

    def add_delta(self, event: object, kind: str, place: TextTarget) -> None:
        item_index = field_of(event, "output_index") or 0
        part_index = (field_of(event, place.at) or 0) if place.at else 0
        joined = self._open.get((kind, item_index, part_index))
        if joined is None:
            item_id = field_of(event, "item_id")
            joined = {"type": kind, "output_index": item_index, "item_id": item_id}
            if place.at:
                joined[place.at] = part_index
            joined["delta"] = TextBuffer()
            self._events.append(joined)
            self._open[kind, item_index, part_index] = joined
        joined["delta"].append(field_of(event, "delta") or "")
        logprobs = field_of(event, "logprobs") if place.part == "output_text" else None
        if logprobs:
            joined.setdefault("logprobs", []).extend(map(_to_data, logprobs))

    def add(self, event: dict[str, Any]) -> None:
        self._open.clear()
        self._events = [earlier for earlier in self._events if not _supersedes(event, earlier)]
        self._events.append(materialize(event))


def _to_data(value: object) -> Any:
    return value if type(value) is dict else export(value)


def _supersedes(event: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Whether an event makes an earlier one irrelevant to the answer."""
    if event["type"] in _LIFECYCLE_EVENTS:
        is_empty = not (earlier.get("response") or {}).get("output")
        return is_empty and earlier["type"] in _LIFECYCLE_EVENTS - FINAL_EVENTS
    if event["type"] in _ITEM_EVENTS and event.get("item") is not None:
        return "output_index" in earlier and earlier["output_index"] == event.get("output_index")
    return False


class IndexedParts(dict[int, Any]):
    """The parts of an item by index, which may have gaps."""


class ResponseBuilder:
    """Builds a response and its items from events."""

    def __init__(self) -> None:
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._is_final = False

    def add(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        subject, _, verb = kind.rpartition(".")
        if kind in _LIFECYCLE_EVENTS:
            self._add_response(event.get("response") or {}, is_final=kind in FINAL_EVENTS)
        elif kind == "error":
            self._response["error"] = {name: event[name] for name in event if name != "type"}
        elif kind in _ITEM_EVENTS:
            self._add_item(event, is_done=verb == "done")
        elif subject in _PART_EVENTS:
            name, index = _PART_EVENTS[subject]
            item = self._item(event, "message" if name == "content" else "reasoning")
            _indexed_parts(item, name)[event.get(index, 0)] = materialize(event.get("part"))
        elif kind == _ANNOTATION_EVENT:
            part = self._part(event, _TEXT_TARGETS["response.output_text"])
            part["annotations"] = [*part.get("annotations", ()), event.get("annotation")]
        else:
            self._add_text(event, _TEXT_TARGETS[subject], is_done=verb == "done")

    def _add_response(self, response: dict[str, Any], *, is_final: bool) -> None:
        self._is_final = self._is_final or is_final
        self._response = {name: value for name, value in response.items() if name != "output"}
        output = dict(enumerate(response.get("output") or ()))
        for number, item in output.items():
            output[number] = materialize(item)
            if number in self._done:
                output[number] = _merge_final_item(self._items[number], output[number])
        if is_final and output:
            self._items = output
        else:
            self._items = {**output, **self._items}

    def _add_item(self, event: dict[str, Any], *, is_done: bool) -> None:
        if event.get("item") is None:
            return
        number = event.get("output_index", 0)
        self._items[number] = materialize(event["item"])
        if is_done:
            self._done.add(number)
        else:
            self._done.discard(number)

    def _add_text(self, event: dict[str, Any], place: TextTarget, *, is_done: bool) -> None:
        holder = self._part(event, place) if place.parts else self._item(event, place.item)
        if is_done:
            holder[place.field] = event.get(place.field)
        else:
            if type(holder.get(place.field)) is not TextBuffer:
                holder[place.field] = TextBuffer((holder.get(place.field) or "",))
            holder[place.field].append(event["delta"])
        if event.get("logprobs"):
            earlier = () if is_done else holder.get("logprobs") or ()
            holder["logprobs"] = [*earlier, *event["logprobs"]]

    def _item(self, event: dict[str, Any], kind: str) -> dict[str, Any]:
        number = event.get("output_index", 0)
        if number not in self._items:
            item = {"id": event.get("item_id"), "type": kind, "status": "in_progress"}
            self._items[number] = {**item, "role": "assistant"} if kind == "message" else item
        return self._items[number]

    def _part(self, event: dict[str, Any], place: TextTarget) -> dict[str, Any]:
        parts = _indexed_parts(self._item(event, place.item), place.parts)
        part: dict[str, Any] = parts.setdefault(event.get(place.at, 0), {"type": place.part})
        return part

    def messages(self) -> list[IncomingMessage]:
        if not self._items and not self._is_final:
            return []
        output = [_finish_item(item) for _, item in sorted(self._items.items())]
        return extract_response({**self._response, "object": "response", "output": output})


def _merge_final_item(done: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
    """Return an item of the final response, plus the fields that only its own event had."""
    if done.get("id") != final.get("id"):
        return final
    return {**done, **{k: v for k, v in final.items() if v is not None or k not in done}}


def _indexed_parts(item: dict[str, Any], name: str) -> IndexedParts:
    parts = item.get(name)
    if type(parts) is not IndexedParts:
        parts = item[name] = IndexedParts(enumerate(parts or ()))
    return parts


def _finish_item(item: dict[str, Any]) -> dict[str, Any]:
    plain = dict(item)
    for name in ("content", "summary"):
        parts = plain.get(name)
        if type(parts) is IndexedParts:
            plain[name] = [part for _, part in sorted(parts.items())]
    finished: dict[str, Any] = materialize(plain)
    return finished
