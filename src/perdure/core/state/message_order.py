"""The order of messages in a conversation, given those that were retracted or replaced. Pure.

In: entries, newest first, as they are stored. Out: the message entries in the order of the
conversation, newest first: retracted ones are left out, and replacements are where the messages
were that they replace. A replacement is stored after the messages it replaces, so a reader that
goes backward has always seen it before it gets to their place.
"""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.journal.chain import VerifiedRecord
from perdure.journal.ranges import Positions, contains


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


class MessageOrder:
    """Puts message entries, given newest first, into the order of the conversation."""

    def __init__(self, hidden: Sequence[Positions], replacements: Sequence[Replacement]) -> None:
        self._hidden = hidden
        self._replacements = sorted(replacements, key=lambda item: item.last)
        self._held: dict[Replacement, list[VerifiedRecord]] = {}

    def flush(self) -> list[VerifiedRecord]:
        """Return the messages whose place was not reached: a compaction dropped it."""
        placed: list[VerifiedRecord] = []
        while self._replacements:
            placed += self._held.pop(self._replacements.pop(), ())
        return placed

    def place(self, linked: VerifiedRecord, *, is_message: bool) -> list[VerifiedRecord]:
        """Return the messages whose place is reached with an entry, newest first."""
        position = linked.position
        placed: list[VerifiedRecord] = []
        while self._replacements and self._replacements[-1].last >= position:
            placed += self._held.pop(self._replacements.pop(), ())
        if not is_message or contains(self._hidden, position):
            return placed
        for replacement in self._replacements:
            if replacement.new_first <= position <= replacement.new_last:
                self._held.setdefault(replacement, []).append(linked)
                return placed
        return [*placed, linked]
