"""Which streams of a SQLite store were appended to last, told by the entries' rowids alone.

A new row gets the highest rowid plus one, so rowids are in the order of insertion: also where a
stream was removed whole, and the next row gets a number that one of its rows had. Streams by
recency are therefore the distinct streams met on the way down.

A session that wrote a million of the newest rows is not read through: where a page of rows brings
nothing new, the index says how far down the rows of its streams go without a gap.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import apsw

from perdure.backend import Head
from perdure.backends.rules import Choice
from perdure.backends.sqlite_heads import by_id, require_label
from perdure.backends.sqlite_schema import DELETED

FIRST_ROWS = 128  # Two rows a stream or so: whoever shows a page does not wait for more.
PAGE_ROWS = 256
PAGE_HEADS = 64
PAGE_ROWS_MAX = 4096  # Where nothing but deleted streams is met.
FEW = 1000  # So many streams are rather sorted than looked for among all the others.
HEAD = 10  # So many are sorted in the time in which one is met.

ROWS = "select rowid, stream, null from entry where rowid < ? order by rowid desc limit ?"
ROWS_LIVE = (  # With whether it was deleted.
    f"select entry.rowid, stream, labels = {DELETED} from entry"  # noqa: S608 - constants
    " left join head on head.id = stream"
    " where entry.rowid < ? order by entry.rowid desc limit ?"
)
NEWEST = "select rowid, position from entry where stream = ? order by position desc limit 1"
OLDEST = "select position from entry where stream = ? order by position limit 1"
ROWID = "select rowid from entry where stream = ? and position = ?"

BETWEEN = " name >= ? and name < cast(? as text) order by name limit ?"
OF_HEADS = f"select id as place from head where{BETWEEN}"  # noqa: S608
OF_LIVE = f"select id as place from head where labels <> {DELETED} and{BETWEEN}"  # noqa: S608
OF_LABEL = f"select stream as place from label where label = ? and{BETWEEN}"  # noqa: S608
COUNT = "select count(*) from ({})"
SORT = (
    "select place from ({}) order by"
    " (select rowid from entry where stream = place order by position desc limit 1) desc"
)


class Listing:
    """Heads of streams by pages, the last changed one first.

    If a few are meant, they are sorted. More than a few are soon met on the way down through all
    streams. Where they are not, because many others changed since, they are sorted as well: as soon
    as what was met in vain has cost as much as that.
    """

    def __init__(self, choice: Choice) -> None:
        self.ended = choice.is_none
        self._choice = choice
        self._wasted = FEW if choice.is_narrow else 0
        self._enough = FEW
        self._sorted: Iterator[int] | None = None
        self._walk = Walk(lives=choice.lives)

    def page(self, db: apsw.Connection) -> list[Head]:
        """Return the next heads that are meant; there may be none on a page."""
        if self._sorted is None and self._wasted >= self._enough:
            self._sorted = sort(db, self._choice, self._wasted)
            self._enough = 2 * self._wasted
        return self._met(db) if self._sorted is None else self._known(db, self._sorted)

    def _met(self, db: apsw.Connection) -> list[Head]:
        places, deleted = self._walk.page(db)
        self.ended = self._walk.ended
        heads = self._meant([by_id(db, place) for place in places])
        self._wasted += deleted + HEAD * (len(places) - len(heads))
        return heads

    def _known(self, db: apsw.Connection, places: Iterator[int]) -> list[Head]:
        page = list(islice((one for one in places if one not in self._walk.seen), PAGE_HEADS))
        self.ended = len(page) < PAGE_HEADS
        found = [by_id(db, place) for place in page]
        for head in found:
            require_label(db, head, self._choice.label)
        return self._meant(found)

    def _meant(self, heads: Iterable[Head | None]) -> list[Head]:
        return [head for head in heads if head is not None and self._choice.has(head)]


def sort(db: apsw.Connection, choice: Choice, most: int) -> Iterator[int] | None:
    """Return the keys of streams that are meant, the last changed first; None if they are more."""
    start = choice.prefix
    bounds: tuple[Any, ...] = (start, start.encode() + b"\xff")  # No byte of UTF-8 is as high.
    if choice.label is not None:
        source, bounds = OF_LABEL, (choice.label, *bounds)
    else:
        source = OF_LIVE if choice.lives else OF_HEADS
    if db.execute(COUNT.format(source), (*bounds, most + 1)).get > most:
        return None
    rows: list[Any] = db.execute(SORT.format(source), (*bounds, most)).fetchall()
    return (row[0] for row in rows)


class Walk:
    """Goes down through the rows of all streams; past deleted ones, where only others are meant."""

    def __init__(self, *, lives: bool) -> None:
        self.ended = False
        self.seen: set[int] = set()
        self._before = 2**63 - 1
        self._rows = FIRST_ROWS
        self._sql = ROWS_LIVE if lives else ROWS

    def page(self, db: apsw.Connection) -> tuple[list[int], int]:
        """Return the keys of the next streams, if any, and the number of those that it passed."""
        rows: list[Any] = db.execute(self._sql, (self._before, self._rows)).fetchall()
        self.ended = len(rows) < self._rows
        if not rows:
            return [], 0
        self._before = rows[-1][0]
        here: dict[int, int | None] = {stream: deleted for _, stream, deleted in rows}
        new = [stream for stream in here if stream not in self.seen]
        self.seen.update(new)
        found = [stream for stream in new if not here[stream]]
        if not new:
            self._before = lowest(db, self._before, list(here))
        self._rows = min(2 * self._rows, PAGE_ROWS_MAX) if new and not found else PAGE_ROWS
        return found, len(new) - len(found)


def lowest(db: apsw.Connection, before: int, streams: list[int]) -> int:
    """Return a rowid down from which, to `before`, all rows belong to these streams."""
    low, step = before, PAGE_ROWS
    while step >= PAGE_ROWS:
        target = low - step
        if target > 0 and sum(_count(db, stream, target, low) for stream in streams) == step:
            low, step = target, step * 2
        else:
            step //= 2
    return low


def _count(db: apsw.Connection, stream: int, first: int, last: int) -> int:
    """Return how many rows of a stream have rowids from `first` to before `last`."""
    return _position(db, stream, last) - _position(db, stream, first)


def _position(db: apsw.Connection, stream: int, rowid: int) -> int:
    """Return the least position of a stream whose row is this one or a newer one.

    A stream's positions have no gaps, and its rowids grow with them.
    """
    newest = db.execute(NEWEST, (stream,)).get
    oldest = db.execute(OLDEST, (stream,)).get
    if newest is None:  # The index knows nothing of it: damage, which whoever reads it will find.
        return 0
    low, high = oldest, newest[1] + 1
    while low < high:
        middle = (low + high) // 2
        found = db.execute(ROWID, (stream, middle)).get
        if found is not None and found >= rowid:
            high = middle
        else:
            low = middle + 1
    return int(low)
