"""Collect the events of a streamed Anthropic message into storable pieces and a message.

Events come in, of the API or of the SDK's stream helper; pieces and a message go out. Pure, and an
event is never changed.

A piece is the list of events since the previous piece; deltas of one block are joined. Events that
repeat others (those that the helper adds) or leave nothing in the answer are ignored, and so are
types of events that are unknown: the provider may add some.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage, export, extract_messages, field_of
from perdure.formats.streaming.merge import TextBuffer, materialize
from perdure.formats.streaming.text import require_unicode

FORMAT = "anthropic"

START_EVENTS = frozenset({"message_start", "ping"})

_EVENTS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"}
    | {"error"}
)

# By type of delta: its field, which is also the field of the block that it continues.
_TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking"}

_INPUT_DELTA, _CITATION_DELTA = "input_json_delta", "citations_delta"

_JSON_FIELD = "partial_json"  # Also the block's field in which the input is collected.


class AnthropicCollector:
    """Collects the events of one message; see `streaming.Collector`."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._recent: list[dict[str, Any]] = []
        self._finished = False

    def add(self, event: object) -> None:
        """Add an event, as an object or a dict."""
        kind = field_of(event, "type")
        if not isinstance(kind, str):
            reason = f"a {type(event).__qualname__} is not an event of a message"
            raise UsageError(f"{reason}: pass the events as the client yields them")
        if kind not in _EVENTS:
            return
        data = _require_fields(kind, event)
        last = self._recent[-1] if self._recent else {}
        if kind != "content_block_delta" or not _join(last, data):
            self._recent.append(data)
        stopped = kind == "message_delta" and data["delta"].get("stop_reason") is not None
        self._finished = self._finished or stopped or kind == "message_stop"

    def piece(self) -> dict[str, Any] | None:
        events, self._recent = materialize_all(self._recent), []
        if not events:
            return None
        piece = {"format": FORMAT, "events": events}
        self._pieces.append(piece)
        return piece

    def finished(self, *, exhausted: bool = False) -> bool:
        del exhausted  # A connection that breaks may look like the end of the source.
        return self._finished

    def messages(self) -> list[IncomingMessage]:
        return rebuild([*self._pieces, {"events": materialize_all(self._recent)}])


def materialize_all(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events as plain copies."""
    return [materialize(event) for event in events]


def _require_fields(kind: str, event: object) -> dict[str, Any]:
    """Return the fields of an event that are part of the answer; UsageError if one is missing."""
    data: dict[str, Any] = {"type": kind}
    if kind.startswith("content_block"):
        data["index"] = index = field_of(event, "index")
        if type(index) is not int:
            raise UsageError("the index of an event is not a number", "$.index")
    match kind:
        case "message_start":
            data["message"] = _plain(event, "message")
        case "content_block_start":
            data["content_block"] = _plain(event, "content_block")
        case "content_block_delta":
            data["delta"] = _require_delta(_plain(event, "delta"))
        case "message_delta":
            data["delta"] = _plain(event, "delta")
            if field_of(event, "usage") is not None:
                data["usage"] = _plain(event, "usage")
        case "error":
            data["error"] = _plain(event, "error")
    return data


def _plain(event: object, name: str) -> dict[str, Any]:
    value = field_of(event, name)
    data = value if type(value) is dict else export(value)
    if not isinstance(data, dict):
        raise UsageError("a field of an event is not an object", f"$.{name}")
    copied: dict[str, Any] = materialize(data)
    return copied


def _require_delta(delta: dict[str, Any]) -> dict[str, Any]:
    name = _text_field(delta)
    if name:
        if not isinstance(delta.get(name), str):
            raise UsageError("a delta of a text has none", f"$.delta.{name}")
        require_unicode(delta[name])
    return delta


def _text_field(delta: dict[str, Any]) -> str:
    """Return the field of a delta that continues a text, or ""."""
    kind = delta.get("type")
    return _JSON_FIELD if kind == _INPUT_DELTA else _TEXT_DELTAS.get(str(kind), "")


def _join(last: dict[str, Any], event: dict[str, Any]) -> bool:
    """Join a delta with the event before it, if both continue the same text."""
    delta, name = event["delta"], _text_field(event["delta"])
    if not name or last.get("index") != event["index"] or "delta" not in last:
        return False
    if last["delta"].get("type") != delta["type"]:
        return False
    if type(last["delta"][name]) is not TextBuffer:
        last["delta"][name] = TextBuffer((last["delta"][name],))
    last["delta"][name].append(delta[name])
    return True


def rebuild(pieces: Iterable[dict[str, Any]]) -> list[IncomingMessage]:
    """Return the message that the pieces add up to; empty if no block has begun."""
    answer = MessageBuilder()
    for piece in pieces:
        for event in piece["events"]:
            answer.add(event)
    return answer.messages()


class MessageBuilder:
    """Builds a message from its events."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}

    def add(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self._fields = materialize(event["message"])
                blocks = self._fields.pop("content", None) or ()
                self._blocks = dict(enumerate(blocks))
            case "content_block_start":
                self._blocks[event["index"]] = materialize(event["content_block"])
            case "content_block_delta":
                self._add_delta(event["index"], event["delta"])
            case "message_delta":
                given = {name: value for name, value in event["delta"].items() if value is not None}
                self._fields.update(given)
                usage = event.get("usage") or {}
                given = {name: value for name, value in usage.items() if value is not None}
                self._fields["usage"] = {**(self._fields.get("usage") or {}), **given}
            case "error":
                self._fields["error"] = event["error"]

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        name = _text_field(delta)
        if name:
            kind = "tool_use" if name == _JSON_FIELD else name
            block = self._blocks.setdefault(index, {"type": kind})
            if type(block.get(name)) is not TextBuffer:
                block[name] = TextBuffer((block.get(name) or "",))
            block[name].append(delta[name])
            return
        block = self._blocks.setdefault(index, {"type": "text"})
        if delta.get("type") == _CITATION_DELTA:
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:  # A signature, or a type that is unknown: whole fields of the block.
            block.update({name: value for name, value in delta.items() if name != "type"})

    def messages(self) -> list[IncomingMessage]:
        if not self._blocks:
            return []
        content = [_finish_block(block) for _, block in sorted(self._blocks.items())]
        answer = {"role": "assistant", **self._fields, "content": content}
        # As an answer that was not streamed: with a stop reason, if only None.
        return extract_messages({"type": "message", "stop_reason": None, **answer})


def _finish_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block as it would have arrived without streaming; incomplete input stays a text."""
    plain: dict[str, Any] = materialize(block)
    text = plain.pop(_JSON_FIELD, None)
    if text:
        try:
            plain["input"] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            plain["input"] = text
    return plain
