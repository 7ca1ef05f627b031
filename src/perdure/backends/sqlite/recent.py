"""List the streams of a SQLite store by last append, using only the entries' rowids.

A new row gets the highest rowid plus one, so rowids are in insertion order: also after a stream was
removed entirely, when the next row reuses a number of one of its rows. Streams by recency are
therefore the distinct streams met when scanning rowids downwards.

A session that wrote a million of the newest rows is not scanned: if a page of rows brings nothing
new, the index says how far down the rows of its streams extend without a gap.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import apsw

from perdure.backends.protocol import Head, StreamFilter
from perdure.backends.sqlite.reading import choose_label, heads_by_key, require_label
from perdure.backends.sqlite.schema import DELETED_LABELS
from perdure.errors import DamagedError

FIRST_ROWS = 128  # rows of the first page; at about two per stream, enough for one screen

PAGE_ROWS = 256  # rows of the other pages

PAGE_HEADS = 64  # heads per page once the matches are sorted

PAGE_ROWS_MAX = 4096  # rows; pages grow up to this while they hold only deleted streams

SORT_MAX = 1000  # streams; up to this many matches are sorted at once instead of scanned for

HEAD_COST = 10  # streams that can be sorted in the time that reading one head takes


ROWS = "select rowid, stream, null from entry where rowid < ? order by rowid desc limit ?"

ROWS_LIVE = (  # The third column says whether the stream is deleted.
    f"select entry.rowid, stream, labels = {DELETED_LABELS} from entry"  # noqa: S608 - constants
    " left join head on head.id = stream"
    " where entry.rowid < ? order by entry.rowid desc limit ?"
)

NEWEST = "select rowid, position from entry where stream = ? order by position desc limit 1"

OLDEST = "select position from entry where stream = ? order by position limit 1"

ROWID = "select rowid from entry where stream = ? and position >= ? order by position limit 1"

COUNT_ROWS = (
    "select count(*) from entry indexed by entry_place"
    " where stream = ? and position >= ? and position < ?"
)


NAME_RANGE = " name >= ? and name < cast(? as text) order by name limit ?"

KEYS_OF_ALL = f"select id as stream_key from head where{NAME_RANGE}"  # noqa: S608

KEYS_OF_LIVE = f"select id as stream_key from head where labels <> {DELETED_LABELS} and{NAME_RANGE}"  # noqa: S608

KEYS_OF_LABEL = f"select stream as stream_key from label where label = ? and{NAME_RANGE}"  # noqa: S608

COUNT = "select count(*) from ({})"

SORT = (
    "select stream_key from ({}) order by"
    " (select rowid from entry where stream = stream_key order by position desc limit 1) desc"
)


class RecentListing:
    """Lists heads in pages, the most recently changed stream first.

    Up to `SORT_MAX` matches are sorted. If there are more, a scan through all streams usually finds
    them soon. If it does not, because many other streams changed since, they are sorted as well:
    once the scan has spent as much on other streams as sorting would cost.
    """

    def __init__(self, choice: StreamFilter) -> None:
        self.ended = choice.matches_nothing
        self._choice = choice
        self._wasted = SORT_MAX if choice.is_narrow else 0
        self._enough = SORT_MAX
        self._sorted: Iterator[int] | None = None
        self._row_scan = RowScan(lives=choice.only_live)

    def page(self, db: apsw.Connection) -> list[Head]:
        """Return the next matching heads; a page may be empty before the end."""
        if self._sorted is None and self._wasted >= self._enough:
            choose_label(db, self._choice)
            self._sorted = sorted_keys(db, self._choice, self._wasted)
            self._enough = 4 * self._wasted  # Where many match, the scan finds a page soon.
        return self._scan(db) if self._sorted is None else self._next_sorted(db, self._sorted)

    def _scan(self, db: apsw.Connection) -> list[Head]:
        keys, deleted = self._row_scan.page(db)
        self.ended = self._row_scan.ended
        heads = self._matching(heads_by_key(db, keys, self._choice))
        self._wasted += deleted + HEAD_COST * (len(keys) - len(heads))
        return heads

    def _next_sorted(self, db: apsw.Connection, keys: Iterator[int]) -> list[Head]:
        # The scan has yielded those that it saw: a stream is listed once.
        page = list(islice((key for key in keys if key not in self._row_scan.seen), PAGE_HEADS))
        self.ended = len(page) < PAGE_HEADS
        heads = heads_by_key(db, page, self._choice)
        for head in heads:
            require_label(db, head, self._choice.label)
        return self._matching(heads)

    def _matching(self, heads: Iterable[Head]) -> list[Head]:
        return [head for head in heads if self._choice.matches(head)]


def sorted_keys(db: apsw.Connection, choice: StreamFilter, most: int) -> Iterator[int] | None:
    """Return the keys of matching streams by last change; None if more than `most` match."""
    # 0xff is above every byte of UTF-8.
    bounds: tuple[Any, ...] = (choice.prefix, choice.prefix.encode() + b"\xff")
    if choice.label is not None:
        source, bounds = KEYS_OF_LABEL, (choice.label, *bounds)
    else:
        source = KEYS_OF_LIVE if choice.only_live else KEYS_OF_ALL
    if db.execute(COUNT.format(source), (*bounds, most + 1)).get > most:
        return None
    rows: list[Any] = db.execute(SORT.format(source), (*bounds, most)).fetchall()
    return (row[0] for row in rows)


class RowScan:
    """Scans the rows of all streams downwards; skips deleted streams if only live ones match."""

    def __init__(self, *, lives: bool) -> None:
        self.ended = False
        self.seen: set[int] = set()
        self._before = 2**63 - 1
        self._rows = FIRST_ROWS
        self._sql = ROWS_LIVE if lives else ROWS

    def page(self, db: apsw.Connection) -> tuple[list[int], int]:
        """Return the keys of the next new streams, and how many deleted ones were skipped."""
        rows: list[Any] = db.execute(self._sql, (self._before, self._rows)).fetchall()
        self.ended = len(rows) < self._rows
        if not rows:
            return [], 0
        _require_descending(self._before, rows)
        self._before = rows[-1][0]
        on_page: dict[int, int | None] = {stream: deleted for _, stream, deleted in rows}
        new = [stream for stream in on_page if stream not in self.seen]
        self.seen.update(new)
        live = [stream for stream in new if not on_page[stream]]
        if not new:
            self._before = lowest_contiguous(db, self._before, list(on_page))
        self._rows = min(2 * self._rows, PAGE_ROWS_MAX) if new and not live else PAGE_ROWS
        return live, len(new) - len(live)


def _require_descending(before: int, rows: list[Any]) -> None:
    """Raise DamagedError if rows of a damaged table lead back: the scan would never end."""
    for rowid, stream, _ in rows:
        if not isinstance(stream, int) or rowid >= before:
            raise DamagedError("the table of entries", 0, "its rows are not in order")
        before = rowid


def lowest_contiguous(db: apsw.Connection, before: int, streams: list[int]) -> int:
    """Return a rowid from which, up to `before`, all rows belong to these streams."""
    low, step = before, PAGE_ROWS  # Doubling steps while they succeed, then halving ones.
    while step >= PAGE_ROWS:
        target = low - step
        if target > 0 and sum(_count_rows(db, stream, target, low) for stream in streams) == step:
            low, step = target, step * 2
        else:
            step //= 2
    return low


def _count_rows(db: apsw.Connection, stream: int, first: int, last: int) -> int:
    """Return how many rows of a stream have rowids from `first` up to, but excluding, `last`."""
    low, high = _position_at(db, stream, first), _position_at(db, stream, last)
    return int(db.execute(COUNT_ROWS, (stream, low, high)).get)


def _position_at(db: apsw.Connection, stream: int, rowid: int) -> int:
    """Return the lowest position of a stream whose row has at least this rowid.

    A stream's positions have no gaps, and its rowids grow with them.
    """
    newest = db.execute(NEWEST, (stream,)).get
    oldest = db.execute(OLDEST, (stream,)).get
    if newest is None:  # The index lacks the stream: damage, which reading the stream reports.
        return 0
    low, high = oldest, newest[1] + 1
    while low < high:
        middle = (low + high) // 2
        middle_rowid = db.execute(ROWID, (stream, middle)).get
        if middle_rowid is not None and middle_rowid >= rowid:
            high = middle
        else:
            low = middle + 1
    return int(low)
