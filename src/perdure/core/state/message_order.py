"""The order of messages in a conversation, given those that were retracted or replaced. Pure.

In: entries, newest first, as they are stored. Out: the message entries in the order of the
conversation, newest first: retracted ones are left out, and replacements are where the messages
were that they replace. A replacement is stored after the messages it replaces, so a reader that
goes backward has always seen it before it gets to their place.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.journal.chain import VerifiedEntry

Positions = tuple[int, int]
"""The first and the last position of a range."""


class Replacement(NamedTuple):
    """Messages that stand in the place of others: both ranges, inclusive.

    Snapshots store it as an array: the order of the fields is part of the format.
    """

    first: int
    last: int
    new_first: int
    new_last: int

    @property
    def new(self) -> Positions:
        """The positions of the messages that replace the others."""
        return self.new_first, self.new_last


def merge_ranges(ranges: Iterable[Positions]) -> tuple[Positions, ...]:
    """Return ranges in order, with those joined that overlap or touch."""
    merged: list[Positions] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def clip_ranges(ranges: Iterable[Positions], end: int) -> tuple[Positions, ...]:
    """Return ranges without the positions after an end."""
    return tuple((first, min(last, end)) for first, last in ranges if first <= end)


def exclude_ranges(ranges: Iterable[Positions], excluded: Iterable[Positions]) -> list[Positions]:
    """Return ranges without the positions of others."""
    left = [*ranges]
    for start, end in excluded:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, start - 1)), (max(first, end + 1), last))
            if part[0] <= part[1]
        ]
    return left


def contains(ranges: Sequence[Positions], position: int) -> bool:
    """Whether a position is in one of the ranges, which are in order and do not overlap."""
    number = bisect_right(ranges, (position, 1 << 63))
    return number > 0 and position <= ranges[number - 1][1]


class MessageOrder:
    """Puts message entries, given newest first, into the order of the conversation."""

    def __init__(self, hidden: Sequence[Positions], replacements: Sequence[Replacement]) -> None:
        self._hidden = hidden
        self._replacements = sorted(replacements, key=lambda item: item.last)
        self._held: dict[Replacement, list[VerifiedEntry]] = {}

    def flush(self) -> list[VerifiedEntry]:
        """Return the messages whose place was not reached: a compaction dropped it."""
        placed: list[VerifiedEntry] = []
        while self._replacements:
            placed += self._held.pop(self._replacements.pop(), ())
        return placed

    def place(self, linked: VerifiedEntry, *, is_message: bool) -> list[VerifiedEntry]:
        """Return the messages whose place is reached with an entry, newest first."""
        position = linked.entry.position
        placed: list[VerifiedEntry] = []
        while self._replacements and self._replacements[-1].last >= position:
            placed += self._held.pop(self._replacements.pop(), ())
        if not is_message or contains(self._hidden, position):
            return placed
        for replacement in self._replacements:
            if replacement.new_first <= position <= replacement.new_last:
                self._held.setdefault(replacement, []).append(linked)
                return placed
        return [*placed, linked]
