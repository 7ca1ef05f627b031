"""Collect the chunks of a streamed chat completion into storable pieces and messages.

Chunks come in; pieces and messages go out. Pure, and a chunk is never changed.

A piece has the form of a chunk: the chunks since the previous piece, merged. Decisions that depend
on the whole stream, such as which deltas form one tool call, are made only when the answer is
assembled, so that a stream can be cut into pieces anywhere.
"""

from collections.abc import Iterable
from typing import Any

from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage, export, extract_completion
from perdure.formats.streaming.merge import materialize, merge_all

FORMAT = "openai.chat"


class ChatCollector:
    """Collects the chunks of one chat completion; see `streaming.Collector`."""

    def __init__(self) -> None:
        self._pieces: list[dict[str, Any]] = []
        self._recent = MergedChunk()
        self._stored = MergedChunk()
        self._ended: dict[int, bool] = {}

    def add(self, chunk: object) -> None:
        """Add a chunk, as an object or a dict, or an event of the SDK's own stream helper."""
        data = _chunk_data(chunk)
        if data is None:
            return
        if not _is_chunk(data):
            reason = f"a {type(chunk).__qualname__} is not a chunk of a chat completion"
            raise UsageError(f"{reason}: pass the chunks as the client yields them")
        for choice in data["choices"] or ():
            if not isinstance(choice.get("index") or 0, int):
                raise UsageError("the index of a choice is not a number", "$.choices")
        self._recent.add(data)
        for choice in data["choices"] or ():
            index = choice.get("index") or 0
            ended = choice.get("finish_reason") is not None
            self._ended[index] = ended or self._ended.get(index, False)

    def piece(self) -> dict[str, Any] | None:
        chunk = self._recent.chunk(self._stored)
        self._recent = MergedChunk()
        if not chunk:
            return None
        self._stored.note(chunk)
        piece = {"format": FORMAT, "chunk": chunk}
        self._pieces.append(piece)
        return piece

    def finished(self, *, exhausted: bool = False) -> bool:
        del exhausted  # A connection that breaks may look like the end of the source.
        return bool(self._ended) and all(self._ended.values())

    def messages(self) -> list[IncomingMessage]:
        recent = {"format": FORMAT, "chunk": self._recent.chunk(self._stored)}
        return rebuild([*self._pieces, recent])


def rebuild(pieces: Iterable[dict[str, Any]]) -> list[IncomingMessage]:
    """Return the answer that the pieces add up to; empty if they contain no choice."""
    merged = MergedChunk()
    for piece in pieces:
        merged.add(piece["chunk"])
    return extract_completion(merged.completion()) if merged.choices else []


def _chunk_data(chunk: object) -> Any:
    """Return a chunk as data; None for a helper event that repeats an earlier chunk."""
    if type(chunk) is dict:
        return chunk
    if hasattr(chunk, "choices"):
        return export(chunk)
    inner = getattr(chunk, "chunk", None)
    if inner is not None:
        return export(inner)
    kind = getattr(chunk, "type", None)
    repeats = ("content.", "refusal.", "tool_calls.", "logprobs.")
    return None if isinstance(kind, str) and kind.startswith(repeats) else export(chunk) or {}


def _is_chunk(data: Any) -> bool:
    if not isinstance(data, dict) or "choices" not in data:
        return False
    for choice in data["choices"] or ():
        if type(choice) is not dict or type(choice.get("delta")) not in {dict, type(None)}:
            return False
    return True


class MergedChunk:
    """Several chunks merged into one. Fields outside the deltas are sent whole: the last wins."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.choices: dict[int, MergedChoice] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        for name, value in chunk.items():
            if name == "choices":
                for choice in value or ():
                    self.choice(choice.get("index") or 0).add(choice)
            elif name != "obfuscation":  # Random padding against traffic analysis.
                fields = self.fields
                if name not in fields or fields[name] != value:
                    _set_field(fields, name, value)

    def choice(self, index: int) -> "MergedChoice":
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = MergedChoice()
        return choice

    def chunk(self, stored: "MergedChunk") -> dict[str, Any]:
        """Return the merged chunk, without the fields that earlier pieces already stored."""
        chunk = _changed_fields(self.fields, stored.fields)
        choices = []
        for index, choice in self.choices.items():
            earlier = stored.choices.get(index)
            data = choice.chunk(earlier.fields if earlier is not None else {})
            if data or earlier is None:
                choices.append({"index": index, **data})
        if choices:
            chunk["choices"] = choices
        return chunk

    def note(self, chunk: dict[str, Any]) -> None:
        """Remember the fields that a stored chunk had, except deltas, which never repeat."""
        for name, value in chunk.items():
            if name != "choices":
                self.fields[name] = value
        for choice in chunk.get("choices", ()):
            fields = self.choice(choice["index"]).fields
            fields.update((name, choice[name]) for name in choice.keys() - {"delta"})

    def completion(self) -> dict[str, Any]:
        """Return the completion as it would have arrived without streaming."""
        choices = [
            {"index": index, **choice.completed()} for index, choice in sorted(self.choices.items())
        ]
        return {**self.fields, "object": "chat.completion", "choices": choices}


class MergedChoice:
    """One choice: merged deltas, tool-call deltas in arrival order, and the fields around them."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._logprobs: dict[str, list[Any] | None] = {}
        self._delta: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        for name, value in choice.items():
            if name == "delta":
                self._add_delta(value or {})
            elif name == "logprobs" and type(value) is dict:
                self._add_logprobs(value)
            elif name != "index" and (name not in self.fields or value is not None):
                _set_field(self.fields, name, value)

    def _add_delta(self, delta: dict[str, Any]) -> None:
        calls = delta.get("tool_calls")
        if calls is not None:
            delta = {name: value for name, value in delta.items() if name != "tool_calls"}
            self._calls = self._calls or []
            for call in calls:
                _add_call(self._calls, call)
        merge_all(self._delta, delta)

    def _add_logprobs(self, logprobs: dict[str, Any]) -> None:
        for name, value in logprobs.items():
            values = self._logprobs.get(name)
            if type(value) is list and values is not None:
                values.extend(value)
            elif value is not None or name not in self._logprobs:
                self._logprobs[name] = list(value) if type(value) is list else value

    def chunk(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that differ from those stored before, and the merged delta."""
        chunk = _changed_fields(self.fields, stored)
        if self._logprobs:
            chunk["logprobs"] = materialize(self._logprobs)
        delta = materialize(self._delta)
        if self._calls is not None:
            delta["tool_calls"] = materialize(self._calls)
        return {**chunk, "delta": delta} if delta else chunk

    def completed(self) -> dict[str, Any]:
        """Return the choice with its message, as it would have arrived without streaming."""
        message = {"role": "assistant", "content": None, **materialize(self._delta)}
        if self._calls is not None:
            message["tool_calls"] = _assemble_calls(self._calls)
        logprobs = {"logprobs": materialize(self._logprobs)} if self._logprobs else {}
        return {**self.fields, **logprobs, "message": message}


def _changed_fields(fields: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if name not in stored or (value is not None and stored[name] != value)
    }


def _set_field(fields: dict[str, Any], name: str, value: Any) -> None:
    if value is not None or name not in fields:
        fields[name] = materialize(value) if type(value) in {dict, list} else value


def _add_call(calls: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Add a tool-call delta: merge it into the delta that it continues, or append it.

    Only a delta with neither id nor name certainly continues another; `_assemble_calls` decides
    about the rest.
    """
    index = call.get("index")
    if not call.get("id") and not _call_name(call):
        for earlier in reversed(calls):
            if earlier.get("index") == index:
                merge_all(earlier, call)
                return
    new_call: dict[str, Any] = {}
    merge_all(new_call, call)
    calls.append(new_call)


def _assemble_calls(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assemble tool calls from their deltas, in the order of their indexes.

    Providers differ: some repeat the id or the name in every delta, some send the name in parts or
    late, some give each delta a new id, some send parallel calls under one index or under none. A
    delta begins another call if it has a name, and either no index or an id that differs from that
    of its index's current call.
    """
    calls: list[tuple[int, dict[str, Any]]] = []
    current: dict[object, dict[str, Any]] = {}
    for delta in deltas:
        index = delta.get("index")
        call = current.get(index)
        if call is None or _begins_call(delta, call):
            call = current[index] = {}
            calls.append((index if index is not None else len(calls), call))
        _extend_call(call, delta)
    calls.sort(key=lambda numbered: numbered[0])
    return [materialize({k: v for k, v in call.items() if k != "index"}) for _, call in calls]


def _begins_call(delta: dict[str, Any], call: dict[str, Any]) -> bool:
    if not _call_name(delta):
        return False
    if delta.get("index") is None:
        return True
    return bool(delta.get("id") and call.get("id") and delta["id"] != call["id"])


def _extend_call(call: dict[str, Any], delta: dict[str, Any]) -> None:
    call_id, name = call.get("id"), _call_name(call)
    merge_all(call, materialize(delta))
    if call_id:
        call["id"] = call_id
    delta_name = _call_name(delta)
    if name and delta_name and name != delta_name:
        call["function" if "function" in call else "custom"]["name"] = name + delta_name


def _call_name(call: dict[str, Any]) -> str:
    for kind in ("function", "custom"):
        inner = call.get(kind)
        if type(inner) is dict and inner.get("name"):
            return str(inner["name"])
    return ""
