"""Checkpoints as notes of a session: how each is stored, and read again.

A value is in the note of its checkpoint, or the note says which earlier note has it: what did not
change is not stored again, and a list that grew is stored as its tail. Versions are stored as
changes against the parent's, in full at every 16th checkpoint. A conversation is not stored here:
the note has the positions of its messages.

When editing: every field is the stored format. `LAYOUT` is its version.

| spec | the value of a channel |
|---|---|
| `["v", tree]` | is this |
| `["@", position]` | is stored in the note at that position |
| `["+", position, keep, items]` | begins with `keep` items of the list there, and has these |
| `["m", ranges, whole]` | are messages; `whole`: all messages that the session showed then |
"""

from collections.abc import Mapping
from typing import Any

import perdure
from perdure.adapters.langgraph.state_codec import StateCodec, common_prefix, encoded
from perdure.adapters.langgraph.thread_index import CheckpointPlace
from perdure.errors import DamagedError, VersionError

LAYOUT = 1
FULL_EVERY = 16  # checkpoints; opening a thread reads at most so many notes
INLINE_MAX = 48  # bytes; a shorter value is cheaper to store again than to refer to
DELTA_MIN = 8  # items; a shorter list is stored whole
CACHED = 256  # notes that a thread keeps in memory

Data = dict[str, Any]
Spec = list[Any]

_OWN_FIELDS = frozenset({"v", "id", "ts", "channel_values", "channel_versions", "versions_seen"})
_NUMBERS = frozenset({bool, int, float, type(None)})


class CheckpointNotes:
    """The notes of one thread, read when they are needed."""

    def __init__(self, session: perdure.Session) -> None:
        self._session = session
        self._notes: dict[int, Data] = {}
        self._versions: dict[int, tuple[Data, Data]] = {}

    def read(self, position: int) -> Data:
        """Return the content of the note at a position."""
        data = self._notes.get(position)
        if data is None:
            record = self._session.record(position)
            content: Any = record.content
            if record.kind != "note" or type(content.data) is not dict:
                raise DamagedError(self._session.id, position, "a checkpoint is expected here")
            data = self.add(position, content.data)
        return data

    def add(self, position: int, data: Data) -> Data:
        """Keep a note that was just stored or read; VersionError if it is of a later layout."""
        layout = data.get("layout", 1)
        if layout > LAYOUT:
            what = f"the checkpoint at {position} of session {self._session.id!r}"
            raise VersionError(what, str(layout), str(LAYOUT))
        trim(self._notes, CACHED)
        self._notes[position] = data
        return data

    def parent_of(self, data: Data) -> str | None:
        """Return the id of the checkpoint that one follows."""
        if "parent" in data:
            parent: str = data["parent"]
            return parent
        return self.read(data["at"])["put"] if "at" in data else None

    # Values

    def spec(self, position: int, channel: str) -> tuple[int, Spec]:
        """Return where the value of a channel is stored, and how."""
        spec = self.read(position)["values"][channel]
        if spec[0] == "@":
            position = spec[1]
            spec = self.read(position)["values"][channel]
        return position, spec

    def tree(self, channel: str, spec: Spec) -> Any:
        """Return a stored value that is not a conversation; a grown list is put together."""
        tails: list[tuple[int, list[Any]]] = []
        while spec[0] == "+":
            tails.append((spec[2], spec[3]))
            _, spec = self.spec(spec[1], channel)
        if not tails:
            return spec[1]
        items = [*spec[1]]
        for keep, tail in reversed(tails):
            items[keep:] = tail
        return items

    def conversation(self, position: int) -> tuple[str, int, Spec] | None:
        """Return the channel that is the conversation, where it is stored, and how."""
        for channel in self.read(position)["values"]:
            source, spec = self.spec(position, channel)
            if spec[0] == "m":
                return channel, source, spec
        return None

    def versions(self, position: int) -> tuple[Data, Data]:
        """Return the versions of a checkpoint's channels, and those that each node has seen."""
        cached = self._versions.get(position)
        if cached is not None:
            return cached
        chain: list[Data] = []
        at = position
        while "versions" not in (data := self.read(at)):
            chain.append(data)
            at = data["at"]
        versions, seen = {**data["versions"]}, {**data["seen"]}
        for changes in reversed(chain):
            versions.update(changes["versions+"])
            seen.update(changes["seen+"])
        trim(self._versions, CACHED)
        self._versions[position] = versions, seen
        return versions, seen

    # Storing

    def describe(
        self,
        checkpoint: Mapping[str, Any],
        parent: CheckpointPlace | None,
        conversation: tuple[str, Spec] | None,
        codec: StateCodec,
    ) -> Data:
        """Return the note of a checkpoint, without its place and its metadata."""
        data: Data = {"put": checkpoint["id"], "ts": checkpoint["ts"], "v": checkpoint["v"]}
        data |= self._describe_versions(checkpoint, parent)
        data["values"] = {
            channel: conversation[1]
            if conversation is not None and channel == conversation[0]
            else self._describe_value(channel, value, parent, codec)
            for channel, value in checkpoint["channel_values"].items()
        }
        more = {name: value for name, value in checkpoint.items() if name not in _OWN_FIELDS}
        if more:
            data["more"] = codec.encode(more, "checkpoint")
        return data

    def _describe_versions(
        self, checkpoint: Mapping[str, Any], parent: CheckpointPlace | None
    ) -> Data:
        versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
        place: Data = {}
        if parent is not None:
            place = {"at": parent.position}
            depth = self.read(parent.position).get("depth", 0) + 1
            before, seen_before = self.versions(parent.position)
            grown = before.keys() <= versions.keys() and seen_before.keys() <= seen.keys()
            if grown and depth < FULL_EVERY:
                changes = {
                    "versions+": _changes(before, versions),
                    "seen+": _changes(seen_before, seen),
                }
                return place | {"depth": depth} | changes
        copied = {node: {**channels} for node, channels in seen.items()}
        return place | {"versions": {**versions}, "seen": copied}

    def _describe_value(
        self, channel: str, value: Any, parent: CheckpointPlace | None, codec: StateCodec
    ) -> Spec:
        """Return how a value is stored: in this note, as its parent's, or as the tail of a list."""
        tree = codec.encode(value, channel)
        if type(tree) in _NUMBERS or parent is None:
            return ["v", tree]
        if channel not in self.read(parent.position)["values"]:
            return ["v", tree]
        source, spec = self.spec(parent.position, channel)
        data = _items(tree)
        if spec[0] == "m" or (type(data) is bytes and len(data) <= INLINE_MAX):
            return ["v", tree]
        before = _items(self.tree(channel, spec))
        if before == data:
            return ["@", source]
        if type(before) is list and type(data) is list:
            keep = common_prefix(before, data)
            if keep >= DELTA_MIN:
                return ["+", source, keep, tree[keep:]]
        return ["v", tree]


def _items(tree: Any) -> Any:
    """Return a tree as bytes to compare with, item by item if it is a list that may grow."""
    if type(tree) is list and len(tree) >= DELTA_MIN:
        return [encoded(item) for item in tree]
    return encoded(tree)


def _changes(before: Data, after: Mapping[str, Any]) -> Data:
    return {name: value for name, value in after.items() if before.get(name) != value}


def trim(cache: dict[Any, Any], size: int) -> None:
    """Drop the oldest items of a cache, so that one more has room."""
    while len(cache) >= size:
        del cache[next(iter(cache))]
