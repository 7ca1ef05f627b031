"""Stored messages: their fields as they were stored, to build new ones from and to compare with.

A message is never handed out twice, because the caller may change it. What was stored is kept as a
copy, and every list that is to be stored is compared with it, field by field.

A checkpoint's list of messages is stored as ranges of positions: `[first, last, count]` is all
message records from one position to another. Positions up to 0 count back from the checkpoint's own
record, because its new messages are in the same commit, directly before it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from perdure.adapters.langgraph import messages
from perdure.adapters.langgraph.state_codec import StateCodec, encoded

Range = list[int]  # The first position, the last one, and how many messages are in between.

Fields = tuple[dict[str, Any], dict[str, Any] | None]

_ATOMS = frozenset({str, int, float, bool, type(None), bytes})
_fields_of = attrgetter("__dict__", "__pydantic_extra__")


class KnownMessage:
    """A stored message: its class, and a copy of its fields."""

    __slots__ = ("_containers", "_stored", "cls", "fields", "id", "position")

    def __init__(self, position: int, message: Any, stored: dict[str, Any]) -> None:
        self.position = position
        """Where it is stored; 0 until it is looked up."""
        self.cls = type(message)
        self.id: str | None = message.id
        self.fields: Fields | None = copy_fields(message)
        """None if they hold objects that cannot be copied: then it is compared as stored."""
        self._stored = stored if self.fields is None else None
        own = self.fields[0] if self.fields is not None else {}
        self._containers = tuple(name for name, value in own.items() if type(value) not in _ATOMS)

    def build(self, codec: StateCodec) -> Any:
        """Return a new message with these fields."""
        if self.fields is None:
            return messages.to_message(self._stored or {}, codec.decode)
        own, extra = self.fields
        fields = own.copy()
        for name in self._containers:
            value = fields[name]
            fields[name] = copy_tree(value) if value else value.copy()
        return messages.build(self.cls, fields, copy_tree(extra))

    def equals(self, message: Any, codec: StateCodec) -> bool:
        """Whether a message is what is stored here."""
        if self.fields is not None:
            return type(message) is self.cls and _fields_of(message) == self.fields
        stored = codec.encode_message(message, "message")
        return stored is not None and encoded(stored) == encoded(self._stored)


class MessageList:
    """The messages of one checkpoint, in order, and the ranges of their positions."""

    __slots__ = ("fields", "known", "ranges", "whole")

    def __init__(self, known: list[KnownMessage], ranges: list[Range], *, whole: bool) -> None:
        self.known = known
        self.ranges = ranges
        self.whole = whole
        """Whether these were all messages that the session showed when the list was stored."""
        self.fields = [each.fields for each in known]

    def __len__(self) -> int:
        return len(self.known)

    def is_start_of(self, given: Sequence[Any]) -> bool:
        """Whether a list begins with these messages, unchanged. One comparison in C for all."""
        count = len(self.fields)
        return count <= len(given) and list(map(_fields_of, given[:count])) == self.fields

    def extended(
        self, known: Sequence[KnownMessage], ranges: list[Range], *, whole: bool
    ) -> "MessageList":
        """Return a list that has more messages at its end."""
        longer = MessageList([], ranges, whole=whole)
        longer.known = [*self.known, *known]
        longer.fields = [*self.fields, *(each.fields for each in known)]
        return longer


def copy_fields(message: Any) -> Fields | None:
    """Return a copy of a message's fields, or None if they hold other than plain data."""
    own, extra = _fields_of(message)
    try:
        return {name: copy_tree(value) for name, value in own.items()}, copy_tree(extra)
    except TypeError:
        return None


def copy_tree(value: Any) -> Any:
    """Return a copy of plain data; TypeError if there is an object in it."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: copy_tree(item) for key, item in value.items()}
    if kind is list:
        return [copy_tree(item) for item in value]
    raise TypeError(kind)


def resolve(ranges: Iterable[Range], position: int) -> list[Range]:
    """Return ranges with the positions that they have if their checkpoint is at a position."""
    return [
        [first if first > 0 else position + first, last if last > 0 else position + last, count]
        for first, last, count in ranges
    ]


def make_ranges(
    start: Sequence[Range], positions: Sequence[int], all_positions: Sequence[int], newest: int
) -> list[Range]:
    """Return ranges that begin with `start` and continue with positions, some of them up to 0.

    A range continues if there is no other message in between. `all_positions` has those of all
    messages, in order, or those since the session was opened; `newest` is the last one.
    """
    before = {after: at for at, after in pairwise(all_positions)}
    added = sorted({position for position in positions if position <= 0})
    before |= {after: at for at, after in zip([newest, *added], added, strict=False)}
    ranges = [[*each] for each in start]
    for position in positions:
        if ranges and before.get(position) == ranges[-1][1]:
            ranges[-1][1:] = [position, ranges[-1][2] + 1]
        else:
            ranges.append([position, position, 1])
    return ranges
