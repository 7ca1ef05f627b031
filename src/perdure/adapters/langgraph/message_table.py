"""Stored messages: their fields as they were stored, to build new ones from and to compare with.

A message is never in two hands, because its holder may change it. What was stored is kept as a
copy, and every list that is to be stored is compared with it, field by field. A message that was
handed out, and that no code holds any more, is handed out again if it is still what is stored.

A checkpoint's list of messages is stored as ranges of positions: `[first, last, count]` is all
message records from one position to another. Positions up to 0 count back from the checkpoint's own
record, because its new messages are in the same commit, directly before it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from sys import getrefcount
from typing import Any

from perdure.adapters.langgraph import messages
from perdure.adapters.langgraph.state_codec import StateCodec, encoded

Range = list[int]  # The first position, the last one, and how many messages are in between.

Fields = tuple[dict[str, Any], dict[str, Any] | None]

_NO_DICT: dict[str, Any] = {}
_NO_LIST: list[Any] = []
_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}  # Most messages have the same empty fields.
_CONTAINERS = frozenset({dict, list})
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})
_fields_of = attrgetter("__dict__", "__pydantic_extra__")
_own_fields_of, _extra_fields_of = attrgetter("__dict__"), attrgetter("__pydantic_extra__")


class KnownMessage:
    """A stored message: its class, and a copy of its fields."""

    __slots__ = ("_empty", "_filled", "_stored", "cls", "fields", "id", "position")

    def __init__(
        self, position: int, cls: type, id: str | None, fields: Fields | None, stored: Any
    ) -> None:
        self.position = position
        """Where it is stored; 0 until it is looked up."""
        self.cls = cls
        self.id = id
        self.fields = fields
        """None if they hold objects that cannot be copied: then it is compared as stored."""
        self._stored = stored if fields is None else None
        own = fields[0].items() if fields is not None else ()
        # A built message must not share what can be changed. Most of it is empty.
        empty = tuple([name for name, value in own if value is _NO_DICT or value is _NO_LIST])
        self._empty = _NAMES.setdefault(empty, empty)
        self._filled = tuple([name for name, value in own if value and type(value) in _CONTAINERS])

    @classmethod
    def of(cls, position: int, message: Any, stored: dict[str, Any]) -> "KnownMessage":
        """Return a message that is stored."""
        return cls(position, type(message), message.id, _copy(*_fields_of(message)), stored)

    @classmethod
    def read(cls, position: int, stored: dict[str, Any], codec: StateCodec) -> "KnownMessage":
        """Return a message as it is stored, without building it."""
        kind, own, extra = messages.to_fields(stored, codec.decode)
        return cls(position, kind, own["id"], _copy(own, extra), stored)

    def build(self, codec: StateCodec) -> Any:
        """Return a new message with these fields."""
        if self.fields is None:
            return messages.to_message(self._stored or {}, codec.decode)
        own, extra = self.fields
        fields = own.copy()
        for name in self._empty:
            fields[name] = fields[name].copy()
        for name in self._filled:
            fields[name] = copy_tree(fields[name])
        return messages.build(self.cls, fields, copy_tree(extra))

    def equals(self, message: Any, codec: StateCodec) -> bool:
        """Whether a message is what is stored here."""
        if self.fields is not None:
            return type(message) is self.cls and _fields_of(message) == self.fields
        stored = codec.encode_message(message, "message")
        return stored is not None and encoded(stored) == encoded(self._stored)


def are_free(held: Sequence[Any]) -> list[bool]:
    """Return for each object of a list whether only that list refers to it."""
    return [getrefcount(each) == _ALONE for each in held]


_ALONE = [getrefcount(each) for each in [object()]][0]  # noqa: RUF015 - counted as above


class MessageList:
    """The messages of one checkpoint, in order, and the ranges of their positions."""

    __slots__ = ("_fields", "_has_extra", "known", "ranges", "whole")

    def __init__(self, known: list[KnownMessage], ranges: list[Range], *, whole: bool) -> None:
        self.known = known
        self.ranges = ranges
        self.whole = whole
        """Whether these were all messages that the session showed when the list was stored."""
        self._fields: list[dict[str, Any] | None] = []
        self._has_extra = False
        self._add(known)

    def _add(self, known: Iterable[KnownMessage]) -> None:
        for each in known:
            own, extra = each.fields or (None, None)
            self._fields.append(own)
            self._has_extra = self._has_extra or own is None or bool(extra)

    def __len__(self) -> int:
        return len(self.known)

    def is_start_of(self, given: Sequence[Any]) -> bool:
        """Whether a list begins with these messages, unchanged. All are compared in C, at once."""
        count = len(self._fields)
        start = given if count == len(given) else given[:count]
        if count > len(given) or list(map(_own_fields_of, start)) != self._fields:
            return False
        if self._has_extra:
            pairs = zip(self.known, start, strict=True)
            return all(known.fields == _fields_of(message) for known, message in pairs)
        return not any(map(_extra_fields_of, start))

    def build(self, lent: list[Any], codec: StateCodec) -> list[Any]:
        """Return messages that only the caller holds: those that were lent before, if possible."""
        free = are_free(lent)
        if len(lent) == len(self) and all(free) and self.is_start_of(lent):
            return lent
        again = [
            message if is_free and known.equals(message, codec) else known.build(codec)
            for known, message, is_free in zip(self.known, lent, free, strict=False)
        ]
        return [*again, *(known.build(codec) for known in self.known[len(again) :])]

    def extended(
        self, known: Sequence[KnownMessage], ranges: list[Range], *, whole: bool
    ) -> "MessageList":
        """Return a list that has more messages at its end."""
        longer = MessageList([], ranges, whole=whole)
        longer.known = [*self.known, *known]
        longer._fields, longer._has_extra = [*self._fields], self._has_extra
        longer._add(known)
        return longer


def _copy(own: dict[str, Any], extra: dict[str, Any] | None) -> Fields | None:
    """Return a copy of fields, or None if they hold other than plain data.

    Empty containers are shared: thousands of them would keep the garbage collector busy.
    """
    try:
        fields = {
            name: value
            if type(value) in _ATOMS
            else copy_tree(value) or (_NO_DICT if type(value) is dict else _NO_LIST)
            for name, value in own.items()
        }
        return fields, copy_tree(extra)
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
    ranges = [[*each] for each in start]
    for position in positions:
        if position > 0:
            at = bisect_left(all_positions, position)
            before = all_positions[at - 1] if at else 0
        else:
            before = position - 1 if position - 1 in positions else newest
        if ranges and before == ranges[-1][1]:
            ranges[-1][1:] = [position, ranges[-1][2] + 1]
        else:
            ranges.append([position, position, 1])
    return ranges
