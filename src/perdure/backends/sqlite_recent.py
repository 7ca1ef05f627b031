"""Which streams of a SQLite store were appended to last, told by the entries' rowids alone.

A new row gets the highest rowid plus one, so rowids are in the order of insertion: also where a
stream was removed whole, and the next row gets a number that one of its rows had. Streams by
recency are therefore the distinct streams met on the way down.

A session that wrote a million of the newest rows is not read through: where a page of rows brings
nothing new, the index says how far down the rows of its streams go without a gap.
"""

from typing import Any

import apsw

FIRST_ROWS = 128  # Two rows a stream or so: whoever shows a page does not wait for more.
PAGE_ROWS = 256
FEW = 1000  # So many streams are rather sorted than looked for among all the others.

ROWS = "select rowid, stream from entry where rowid < ? order by rowid desc limit ?"
NEWEST = "select rowid, position from entry where stream = ? order by position desc limit 1"
OLDEST = "select position from entry where stream = ? order by position limit 1"
ROWID = "select rowid from entry where stream = ? and position = ?"


class Walk:
    """Goes down through the rows of all streams."""

    def __init__(self) -> None:
        self.ended = False
        self._before = 2**63 - 1
        self._rows = FIRST_ROWS
        self._seen: set[int] = set()

    def page(self, db: apsw.Connection) -> list[int]:
        """Return the keys of the next streams; there may be none on a page."""
        rows: list[Any] = db.execute(ROWS, (self._before, self._rows)).fetchall()
        self.ended = len(rows) < self._rows
        self._rows = PAGE_ROWS
        if not rows:
            return []
        self._before = rows[-1][0]
        here: dict[int, None] = dict.fromkeys(stream for _, stream in rows)
        found = [stream for stream in here if stream not in self._seen]
        self._seen.update(found)
        if not found:
            self._before = lowest(db, self._before, list(here))
        return found


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


def sort(db: apsw.Connection, streams: list[int]) -> list[int]:
    """Return the keys of streams, the one that was appended to last first."""

    def change(stream: int) -> int:
        newest = db.execute(NEWEST, (stream,)).get
        return 0 if newest is None else int(newest[0])

    return sorted(streams, key=change, reverse=True)
