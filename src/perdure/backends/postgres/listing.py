"""Listings of a Postgres store, page by page, for sync and async. Pure: no I/O.

Each listing yields the next query and is sent its rows; a page is a consistent view of one moment.

Editing: steps may run twice after a lost connection, so state changes only after the last query.
"""

from collections.abc import Collection

import msgspec

from perdure.backends.append_rules import check_name
from perdure.backends.postgres.arrays import ByteaArray
from perdure.backends.postgres.operations import PAGE_ROWS, UNLIMITED, Operations, Query, Row, Steps
from perdure.backends.protocol import Head, StreamFilter
from perdure.errors import DamagedError, UsageError

# Below FEW matches, sort them; otherwise scan, and switch to sorting (up to MANY) once FEW
# non-matches were skipped.
SORT_FEW_MAX = 1000  # streams

SORT_MANY_MAX = 20_000  # streams

FIRST_ROWS = 64  # rows of the first sorted page, so that a caller can show it early

COMMIT_DELAY_MAX = 5_000_000  # microseconds; a head's commit rarely comes later after its timestamp


class NameListing:
    """Heads by name, of streams that have all of some labels and none of others."""

    def __init__(
        self,
        operations: Operations,
        prefix: str,
        after: str,
        labels: Collection[str],
        without: Collection[str],
        limit: int | None,
    ) -> None:
        self._operations = operations
        self._filter = StreamFilter(prefix, labels, without)
        self._prefix = _encode(prefix)
        self._after = _encode(after)
        self._remaining = UNLIMITED if limit is None else limit
        self.is_finished = self._remaining <= 0 or self._filter.is_none

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; a page may be empty."""
        sql, tenant, stream_filter = self._operations.sql, self._operations.tenant, self._filter
        size = min(self._remaining, PAGE_ROWS)
        bounds = (self._after, self._prefix, size)
        if stream_filter.label is not None:
            rows = yield Query(
                sql.labelled, (tenant, _encode(stream_filter.label), *bounds, tenant)
            )
        else:
            rows = yield Query(
                sql.streams_live if stream_filter.lives else sql.streams, (tenant, *bounds)
            )
        self.is_finished = len(rows) < size
        heads = []
        for row in rows:
            if not row[0].startswith(self._prefix):
                self.is_finished = True
                break
            self._after = row[0]
            head = decode_head(row)
            if stream_filter.has(head):
                heads.append(head)
        self._remaining -= len(heads)
        self.is_finished = self.is_finished or self._remaining <= 0
        return heads


class RecencyListing:
    """Heads by their last append, newest first.

    If few streams match, the server sorts them. If many match, a scan from the newest head finds
    them soon; where it does not, more are sorted, too.

    A stream that is appended to while the pages are read moves to the front: it comes last, if it
    was not returned before.
    """

    def __init__(
        self,
        operations: Operations,
        prefix: str,
        labels: Collection[str],
        without: Collection[str],
        limit: int | None,
    ) -> None:
        self._operations = operations
        self._filter = StreamFilter(prefix, labels, without)
        start = _encode(prefix)
        self._bounds = (start, start + b"\xff")  # UTF-8 has no byte 0xff.
        self._remaining = UNLIMITED if limit is None else limit
        self._cursor: tuple[int, bytes] = (UNLIMITED, b"")
        self._started_at = -1
        self._seen: set[bytes] = set()
        self._sort_limit = (
            SORT_FEW_MAX if self._filter.is_narrow else 0
        )  # At most this many matches are sorted; 0: scan.
        self._sorts = self._filter.is_narrow
        self._first_page_read = False
        self._skipped = 0
        self.is_finished = self._remaining <= 0 or self._filter.is_none

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; a page may be empty."""
        rows = yield from self._rows()
        heads = []
        for row in rows:
            if row[0] in self._seen:
                continue
            self._seen.add(row[0])
            head = decode_head(row)
            if self._filter.has(head):
                heads.append(head)
        self._skipped += len(rows) - len(heads)
        self._sorts = self._sorts or (self._sort_limit > 0 and self._skipped >= SORT_FEW_MAX)
        heads = heads[: self._remaining]
        self._remaining -= len(heads)
        self.is_finished = self.is_finished or self._remaining <= 0
        return heads

    def _rows(self) -> Steps[list[Row]]:
        if self._sorts:
            rows = yield from self._sorted_rows()
            if rows is not None:
                return rows
        return (yield from self._scanned_rows())

    def _sorted_rows(self) -> Steps[list[Row] | None]:
        """Return the newest matches, then the others; None if there are too many to sort."""
        sql, tenant, label = self._operations.sql, self._operations.tenant, self._filter.label
        limit = self._sort_limit
        size = limit if self._first_page_read else min(self._remaining, FIRST_ROWS)
        bounds = (*self._bounds, limit + 1, tenant, limit, size)
        if label is not None:
            rows = yield Query(sql.few_labelled, (tenant, _encode(label), *bounds))
        else:
            rows = yield Query(sql.few_live if self._filter.lives else sql.few, (tenant, *bounds))
        count, heads = rows[0][0], [row[1:] for row in rows if row[1] is not None]
        if count > limit:
            self._sorts, self._sort_limit = False, SORT_MANY_MAX if limit < SORT_MANY_MAX else 0
            return None
        self._first_page_read = True
        if self._started_at < 0:
            self._started_at = heads[0][4] if heads else 0
        self.is_finished = count <= size
        late = [row for row in heads if row[4] > self._started_at]
        return heads[len(late) :] + late

    def _scanned_rows(self) -> Steps[list[Row]]:
        """Return the next heads of the scan, sized so that a page comes soon if most match."""
        sql, tenant = self._operations.sql, self._operations.tenant
        is_narrow = self._filter.is_narrow
        size = PAGE_ROWS if is_narrow else min(self._remaining, PAGE_ROWS)
        # Non-matches are read as long as they count towards FEW; later the server skips them.
        bounds = (b"", b"\xff") if self._sort_limit else self._bounds
        bounds_and_size = (tenant, *self._cursor, *bounds, size)
        if self._filter.lives:
            rows = yield Query(sql.recent_live, bounds_and_size)
        else:
            rows = yield Query(sql.recent, (*bounds_and_size, *bounds_and_size, size))
        started_at = rows[0][4] if rows and self._started_at < 0 else self._started_at
        is_finished = len(rows) < size
        late: list[Row] = []
        if is_finished and started_at >= 0:
            since = (tenant, started_at - COMMIT_DELAY_MAX)
            late = yield Query(sql.changed, since * 2)
        # Set state only now: after a lost connection these steps run again.
        self._started_at, self.is_finished = started_at, is_finished
        if rows:
            self._cursor = (rows[-1][4], rows[-1][0])
        return rows + late


def head_steps(operations: Operations, stream: str) -> Steps[Head | None]:
    """Return the head of a stream, None if it has none."""
    rows = yield Query(operations.sql.named, (ByteaArray([check_name(stream)]), operations.tenant))
    return decode_head(rows[0]) if rows else None


def decode_head(row: Row) -> Head:
    """Return a head as it was stored, or raise DamagedError."""
    name, position, digest, labels, _changed = row
    try:
        stream = name.decode()
        label_set = (
            msgspec.json.decode(labels, type=frozenset[str]) if labels != b"[]" else frozenset()
        )
    except (msgspec.MsgspecError, UnicodeError) as error:
        text = name.decode(errors="replace")
        raise DamagedError(text, 0, "its name or its labels cannot be read") from error
    return Head(stream, position, digest, label_set)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is not encodable as UTF-8") from error
