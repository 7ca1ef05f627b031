# Generated from postgres/listing_async.py by scripts/generate_sync.py: do not edit.
"""Listings of a Postgres store, page by page; a page is a consistent view of one moment.

Editing: a page may be read twice after a lost connection, so state changes only after its last
query.
"""

from perdure.backends.append_rules import UNLIMITED
from perdure.backends.postgres.connection import Connection
from perdure.backends.postgres.queries import PAGE_ROWS, Query, Row, StoreQueries, decode_head
from perdure.backends.protocol import Head, StreamFilter
from perdure.errors import UsageError

# Below FEW matches, sort them; otherwise scan, and switch to sorting (up to MANY) once FEW
# non-matches were skipped.
SORT_FEW_MAX = 1000  # streams

SORT_MANY_MAX = 20_000  # streams

FIRST_ROWS = 64  # rows of the first sorted page, so that a caller can show it early

COMMIT_DELAY_MAX = 5_000_000  # microseconds; a head's commit rarely comes later after its timestamp


class NameListing:
    """Heads by name, of streams that have all of some labels and none of others."""

    def __init__(
        self, queries: StoreQueries, stream_filter: StreamFilter, after: str, limit: int | None
    ) -> None:
        self._queries = queries
        self._filter = stream_filter
        self._prefix = _encode(stream_filter.prefix)
        self._after = _encode(after)
        self._remaining = UNLIMITED if limit is None else limit
        self.is_finished = self._remaining <= 0 or self._filter.matches_nothing

    def next_page(self, connection: Connection) -> list[Head]:
        """Return the next heads; a page may be empty."""
        sql, tenant, stream_filter = self._queries.sql, self._queries.tenant, self._filter
        size = min(self._remaining, PAGE_ROWS)
        bounds = (self._after, self._prefix, size)
        if stream_filter.label is not None:
            label = _encode(stream_filter.label)
            query = Query(
                sql.labelled, (tenant, label, *bounds, tenant, stream_filter.headers, tenant)
            )
        else:
            statement = sql.streams_live if stream_filter.only_live else sql.streams
            query = Query(statement, (tenant, *bounds, stream_filter.headers, tenant))
        rows = connection.fetch(query)
        self.is_finished = len(rows) < size
        heads = []
        for row in rows:
            if not row[0].startswith(self._prefix):
                self.is_finished = True
                break
            self._after = row[0]
            head = decode_head(row)
            if stream_filter.matches(head):
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
        self, queries: StoreQueries, stream_filter: StreamFilter, limit: int | None
    ) -> None:
        self._queries = queries
        self._filter = stream_filter
        start = _encode(stream_filter.prefix)
        self._bounds = (start, start + b"\xff")  # UTF-8 has no byte 0xff.
        self._remaining = UNLIMITED if limit is None else limit
        self._cursor: tuple[int, bytes] = (UNLIMITED, b"")
        self._started_at = -1
        self._seen: set[bytes] = set()
        # At most this many matches are sorted; 0: scan.
        self._sort_limit = SORT_FEW_MAX if self._filter.is_narrow else 0
        self._sorts = self._filter.is_narrow
        self._first_page_read = False
        self._skipped = 0
        self.is_finished = self._remaining <= 0 or self._filter.matches_nothing

    def next_page(self, connection: Connection) -> list[Head]:
        """Return the next heads; a page may be empty."""
        rows = self._rows(connection)
        heads = []
        for row in rows:
            if row[0] in self._seen:
                continue
            self._seen.add(row[0])
            head = decode_head(row)
            if self._filter.matches(head):
                heads.append(head)
        self._skipped += len(rows) - len(heads)
        self._sorts = self._sorts or (self._sort_limit > 0 and self._skipped >= SORT_FEW_MAX)
        heads = heads[: self._remaining]
        self._remaining -= len(heads)
        self.is_finished = self.is_finished or self._remaining <= 0
        return heads

    def _rows(self, connection: Connection) -> list[Row]:
        if self._sorts:
            rows = self._sorted_rows(connection)
            if rows is not None:
                return rows
        return self._scanned_rows(connection)

    def _sorted_rows(self, connection: Connection) -> list[Row] | None:
        """Return the newest matches, then the others; None if there are too many to sort."""
        sql, tenant, label = self._queries.sql, self._queries.tenant, self._filter.label
        limit = self._sort_limit
        size = limit if self._first_page_read else min(self._remaining, FIRST_ROWS)
        bounds = (*self._bounds, limit + 1, tenant, limit, size, self._filter.headers, tenant)
        if label is not None:
            query = Query(sql.few_labelled, (tenant, _encode(label), *bounds))
        else:
            query = Query(sql.few_live if self._filter.only_live else sql.few, (tenant, *bounds))
        rows = connection.fetch(query)
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

    def _scanned_rows(self, connection: Connection) -> list[Row]:
        """Return the next heads of the scan, sized so that a page comes soon if most match."""
        sql, tenant = self._queries.sql, self._queries.tenant
        size = PAGE_ROWS if self._filter.is_narrow else min(self._remaining, PAGE_ROWS)
        # Non-matches are read as long as they count towards FEW; later the server skips them.
        bounds = (b"", b"\xff") if self._sort_limit else self._bounds
        header = (self._filter.headers, tenant)
        bounds_and_size = (tenant, *self._cursor, *bounds, size)
        if self._filter.only_live:
            query = Query(sql.recent_live, (*bounds_and_size, *header))
        else:
            query = Query(sql.recent, (*bounds_and_size, *bounds_and_size, size, *header))
        rows = connection.fetch(query)
        started_at = rows[0][4] if rows and self._started_at < 0 else self._started_at
        is_finished = len(rows) < size
        late: list[Row] = []
        if is_finished and started_at >= 0:
            since = (tenant, started_at - COMMIT_DELAY_MAX)
            late = connection.fetch(Query(sql.changed, (*since, *since, *header)))
        # Set state only now: after a lost connection this page is read again.
        self._started_at, self.is_finished = started_at, is_finished
        if rows:
            self._cursor = (rows[-1][4], rows[-1][0])
        return rows + late


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is not encodable as UTF-8") from error
