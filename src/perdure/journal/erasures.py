"""The erased records of a session: ranges of positions, and ids of keys. Pure.

An erased body is overwritten with spaces. That counts as an erasure only if an `erased` record
names the position or the key of the record; everywhere else it is damage.
"""

from collections.abc import Iterable
from typing import NamedTuple

from perdure.journal.ranges import Positions, contains, merge_ranges
from perdure.journal.records import Content, Erased


class Erasures(NamedTuple):
    """What `erased` records name. Snapshots store it as an array: the order is the format."""

    ranges: tuple[Positions, ...] = ()
    keys: tuple[str, ...] = ()

    def cover(self, position: int, key: str) -> bool:
        """Whether the record at a position, under a key, was erased."""
        return contains(self.ranges, position) or (key != "" and key in self.keys)

    def add(self, content: Content) -> "Erasures":
        """Return these and those that a further `erased` record names."""
        if not isinstance(content, Erased):
            return self
        ranges = merge_ranges([*self.ranges, *content.ranges])
        return Erasures(ranges, _in_order([*self.keys, *content.keys]))


def _in_order(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))


NOTHING_ERASED = Erasures()
