"""Read heads and pages of entries of a SQLite store, and check them for damage.

Names, keys, filters or positions come in; verified heads and entries go out. A name is compared
with its key, and a row with the index that led to it. Nothing is written.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from perdure.backends.append_rules import POSITION_MAX, UNLIMITED, check_name
from perdure.backends.protocol import Entry, Head, StreamFilter
from perdure.backends.sqlite.rows import (
    BODY,
    BYTES,
    FIRST_STREAM_ID,
    HEADER,
    STORED_HEADER,
    restore_body,
    restore_header,
)
from perdure.backends.sqlite.schema import DELETED_LABELS
from perdure.errors import DamagedError

HEAD_BY_KEY = "select name, position, digest, labels, snapshot from head where id = ?"

# A subquery, not a join: a listing reads the header only of rows that it returns.
LAST_HEADER = (
    f"(select {HEADER} from entry where entry.stream = h.id and entry.position = h.position)"  # noqa: S608
)

HEADER_AT = f"select {HEADER} from entry where stream = ? and position = ?"  # noqa: S608

# The heads of some keys, a JSON array: one call of the driver for a page.
HEADS_BY_KEY = (
    f"select h.id, name, position, digest, labels, snapshot, {LAST_HEADER}"  # noqa: S608
    " from json_each(?) as asked cross join head as h on h.id = asked.value"
)

ANY_ENTRY = "select position from entry where stream = ? limit 1"

# The name comes from the index, the other columns from the row that it points to, so that a
# mismatch shows. The last column is true if the index of live streams lacks the row.
BY_NAME = (
    f"select i.name, i.id, h.name, h.position, h.digest, h.labels, h.snapshot, {LAST_HEADER},"  # noqa: S608
    f" h.labels <> {DELETED_LABELS} and not exists"
    f" (select 1 from head as l where l.name = i.name and l.labels <> {DELETED_LABELS}"
    " and +l.id = i.id)"
    " from head as i indexed by head_name left join head as h on h.id = i.id"
    " where i.name >= ? order by i.name limit ?"
)

# Uses the index of live streams, which excludes deleted ones, in files that have it.
BY_NAME_LIVE = (
    f"select i.name, i.id, h.name, h.position, h.digest, h.labels, h.snapshot, {LAST_HEADER}"  # noqa: S608
    " from head as i left join head as h on h.id = i.id"
    f" where i.name >= ? and i.labels <> {DELETED_LABELS} order by i.name limit ?"
)

BY_LABEL = (
    f"select l.name, l.stream, h.name, h.position, h.digest, h.labels, h.snapshot, {LAST_HEADER}"  # noqa: S608
    " from label as l left join head as h on h.id = l.stream"
    " where l.name >= ? and l.label = ? order by l.name limit ?"
)

# Several labels, in order; the label comes before the columns that `head_from_label` reads.
LABEL_LISTING = (
    "select l.label, l.name, l.stream, h.name, h.position, h.digest, h.labels, h.snapshot,"  # noqa: S608
    f" {LAST_HEADER}"
    " from label as l left join head as h on h.id = l.stream"
    " where (l.label, l.name) > (?, ?) and l.label < ? order by l.label, l.name limit ?"
)

LABEL_LISTING_DOWN = (
    LABEL_LISTING.replace("name) >", "name) <")
    .replace("label < ?", "label >= ?")
    .replace("order by l.label, l.name", "order by l.label desc, l.name desc")
)

WITHOUT_HEADER = {
    sql: sql.replace(LAST_HEADER, "null")
    for sql in (
        *(HEADS_BY_KEY, BY_NAME, BY_NAME_LIVE, BY_LABEL),
        *(LABEL_LISTING, LABEL_LISTING_DOWN),
    )
}

COUNT_LABEL = "select count(*) from (select 1 from label where label = ? limit ?)"

COUNT_MAX = 1000  # rows of each label that are counted to find the rarest

HAS_LABEL = "select 1 from label where label = ? and name = ?"


_decode_labels = msgspec.json.Decoder(frozenset[str]).decode  # Twice as fast as `json.decode`.


WRONG_LABEL = "it is listed under a label that its head does not have"


@functools.lru_cache(maxsize=4096)
def stream_key(stream: str) -> int:
    """Return the integer key of a stream. The row found by it must have the stream's name."""
    return int.from_bytes(hashlib.sha256(check_name(stream)).digest()[:8], "big", signed=True)


def read_head(db: apsw.Connection, stream: str, key: int) -> Head | None:
    """Return the head of a stream, None if there is no such stream."""
    row = db.execute(HEAD_BY_KEY, (key,)).fetchone()
    if row is not None:
        return verified_head(stream, row)
    _require_no_entries(db, key, stream)
    return None


def _require_no_entries(db: apsw.Connection, key: int, stream: str) -> None:
    if db.execute(ANY_ENTRY, (key,)).fetchone() is not None:
        raise DamagedError(stream, 0, "it has entries and no head")


def verified_head(stream: str, row: tuple[Any, ...]) -> Head:
    """Return the head in a row; raise DamagedError if it is not a valid head of the stream."""
    name, position, digest, labels, snapshot = row
    if name != stream:
        raise DamagedError(stream, 0, "its head has another name")
    if not (isinstance(position, int) and isinstance(digest, str) and position > 0):
        raise DamagedError(stream, 0, "its head has a column of the wrong type")
    if not (isinstance(snapshot, int) and 0 <= snapshot <= position):
        raise DamagedError(stream, 0, "its head names a snapshot that it cannot have")
    try:
        # "[]" is by far the most common value: skip the decoder.
        parsed = _decode_labels(labels) if labels != "[]" else frozenset()
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise DamagedError(stream, 0, "the labels of its head cannot be read") from error
    return Head(stream, position, digest, parsed, b"", snapshot)


def head_from_label(row: tuple[Any, ...], label: str | None) -> Head:
    """Return the head of a listed row: name and key from the index, then the row's columns."""
    name, key, *rest = row
    if not isinstance(name, str) or stream_key(name) != key:
        raise DamagedError(str(name), 0, "its name does not match its key")
    head = verified_head(name, tuple(rest[:5]))
    head = head._replace(header=_last_header(rest[5], head.position))
    if any(rest[6:]):  # Only rows of BY_NAME have this column.
        raise DamagedError(name, 0, "the index of live sessions lacks it")
    if label is not None and label not in head.labels:
        raise DamagedError(name, 0, WRONG_LABEL)
    return head


def _last_header(selected: object, position: int) -> bytes:
    """Return the header of a last entry, empty if it cannot be read: reading reports that."""
    try:
        return restore_header(selected, position) if isinstance(selected, bytes) else b""
    except ValueError:
        return b""


def require_order(name: object, after: str) -> None:
    """Raise DamagedError if a list goes back, as with a damaged index: it would never end."""
    if not isinstance(name, str) or name <= after:
        raise DamagedError(str(name), 0, "the list that it is in is not in order")


def rows_by_name(
    db: apsw.Connection, choice: StreamFilter, start: str, size: int
) -> list[tuple[Any, ...]]:
    """Return rows for `head_from_label`, from a name on; the caller filters them."""
    choose_label(db, choice)
    if choice.label is not None:
        return listing_rows(db, BY_LABEL, (start, choice.label, size), choice)
    return listing_rows(db, BY_NAME_LIVE if choice.only_live else BY_NAME, (start, size), choice)


def choose_label(db: apsw.Connection, choice: StreamFilter) -> None:
    """Look streams up by the label that the fewest have, if there are several."""
    if len(choice.labels) > 1 and not choice.label_is_rarest:
        counts = {label: db.execute(COUNT_LABEL, (label, COUNT_MAX)).get for label in choice.labels}
        choice.label = min(sorted(counts), key=lambda label: counts[label])
        choice.label_is_rarest = True


def listing_rows(
    db: apsw.Connection, sql: str, bindings: tuple[Any, ...], choice: StreamFilter
) -> list[tuple[Any, ...]]:
    """Return the rows of a listing; a damaged table of entries does not end it."""
    if choice.headers:
        try:
            return db.execute(sql, bindings).fetchall()
        except apsw.CorruptError:
            rows: list[tuple[Any, ...]] = db.execute(WITHOUT_HEADER[sql], bindings).fetchall()
            column = sql[: sql.index(LAST_HEADER)].count(",")
            return [_with_header(db, row, column) for row in rows]
    # Opening a session lists one head, without its header: that lookup would take 7 % of the time.
    return db.execute(WITHOUT_HEADER[sql], bindings).fetchall()


def _with_header(db: apsw.Connection, row: tuple[Any, ...], column: int) -> tuple[Any, ...]:
    """Return a row of a listing with its header, which stays null if it cannot be read."""
    # In every listing: key, name, position, digest, labels, snapshot, header.
    key, _, position = row[column - 6 : column - 3]
    try:
        header = db.execute(HEADER_AT, (key, position)).get
    except apsw.CorruptError:
        header = None  # Reading the stream reports it.
    return (*row[:column], header, *row[column + 1 :])


def heads_by_key(db: apsw.Connection, keys: Sequence[int], choice: StreamFilter) -> list[Head]:
    """Return the heads with some keys, in their order; a stream that was removed has none."""
    asked = msgspec.json.encode(keys).decode()
    rows = {row[0]: row for row in listing_rows(db, HEADS_BY_KEY, (asked,), choice)}
    heads = []
    for key in keys:
        if key in rows:
            heads.append(head_from_label((rows[key][1], *rows[key]), None))
        else:
            _require_no_entries(db, key, f"the stream with key {key}")
    return heads


def require_label(db: apsw.Connection, head: Head, label: str | None) -> None:
    """Raise DamagedError if a head is listed under a label that it does not have."""
    if label is None or label in head.labels:
        return
    if db.execute(HAS_LABEL, (label, head.stream)).get:
        raise DamagedError(head.stream, 0, WRONG_LABEL)


PAGE_BYTES = 2**20  # bytes; long bodies end a page early, so that memory stays bounded


READ_FORWARD = (
    f"select first, position, {STORED_HEADER}, {BODY}"  # noqa: S608 - constant
    " from entry where stream = ?2 and position > ?3 order by position limit ?4"
)

# Up to the entry that covers the position before `after`, which may end after it.
READ_REVERSE = READ_FORWARD.replace(
    "position > ?3 order by position",
    "position <= coalesce((select position from entry where stream = ?2 and position >= ?3 - 1"
    " order by position limit 1), ?3) and first < ?3 order by position desc",
)


class EntryPage:
    """Entries from one snapshot. Entries read before an error stay in `entries`."""

    def __init__(self, stream: str, after: int, size: int, max_body: int, *, reverse: bool) -> None:
        self.stream = stream
        self.after = after
        self.size = size
        self.max_body = max_body
        self.reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False
        self._stream_id: bytes | None = None

    @property
    def next_position(self) -> int:
        if self.reverse:
            return max((self.entries[-1].position if self.entries else self.after) - 1, 0)
        return (self.entries[-1].last if self.entries else self.after) + 1

    def load(self, db: apsw.Connection) -> None:
        key = stream_key(self.stream)
        try:
            head = read_head(db, self.stream, key)
        except DamagedError:
            # `streams` reports a damaged head, and opening a session uses that. The entries may
            # be intact, and salvage needs them.
            self._fill(db, key)
            return
        if head is None:
            self.is_last = True
            return
        self.fill(db, head)

    def fill(self, db: apsw.Connection, head: Head) -> None:
        """Load the page, and compare it with the head."""
        self._fill(db, stream_key(self.stream))
        self._check_end(head.position)

    def _check_end(self, head: int) -> None:
        """Raise DamagedError if the page does not reach the head, although it should.

        `drop` never removes the last entry, so that a missing one is always damage.
        """
        highest = self.entries[0 if self.reverse else -1].last if self.entries else self.after
        if self.entries and highest > head:
            raise DamagedError(self.stream, head + 1, "entries exist after its head")
        reaches_end = not self.after if self.reverse else self.is_last
        if reaches_end and highest < head:
            if self.reverse:
                self.entries = []
            raise DamagedError(self.stream, highest + 1, "entries are missing at the end")

    def _fill(self, db: apsw.Connection, key: int) -> None:
        after = min(self.after, POSITION_MAX)
        if self.reverse:
            after = after or UNLIMITED
        loaded = 0
        sql = READ_REVERSE if self.reverse else READ_FORWARD
        for row in db.execute(sql, (self.max_body, key, after, self.size)):
            entry = self._entry(row, db)
            self.entries.append(entry)
            loaded += entry.size
            if loaded > PAGE_BYTES:
                return
        self.is_last = len(self.entries) < self.size

    def _entry(self, row: tuple[Any, ...], db: apsw.Connection) -> Entry:
        first, last, header, is_packed, body, is_stored = row
        if not (isinstance(last, int) and isinstance(header, bytes)):
            reason = "a column has the wrong type, or its header is too long"
            raise DamagedError(self.stream, self.next_position, reason)
        if not isinstance(first, int) or not 1 <= first <= last:
            raise DamagedError(
                self.stream, self.next_position, "its positions contradict themselves"
            )
        # A damaged index may lead back: reading would never end.
        before = self.entries[-1] if self.entries else None
        if before and (last >= before.position if self.reverse else first <= before.last):
            raise DamagedError(self.stream, self.next_position, "its entries are not in order")
        if not before and not self.reverse and last <= self.after:
            raise DamagedError(self.stream, self.next_position, "its entries are not in order")
        try:
            if is_packed:
                if self._stream_id is None:
                    stored = db.execute(FIRST_STREAM_ID, (stream_key(self.stream),)).get
                    self._stream_id = (stored or "").encode()
                header = restore_header(BYTES + self._stream_id + header, last)
            if is_stored and body is not None:
                body = restore_body(body, self.max_body)
        except ValueError as error:
            reason = "its header or its body cannot be unpacked"
            raise DamagedError(self.stream, self.next_position, reason) from error
        if body is not None and len(body) > self.max_body:
            body = None
        return Entry(first, header, body, last - first + 1)


class StreamTail:
    """The head of a stream and its newest entries, newest first, from one snapshot."""

    def __init__(self, stream: str, limit: int, max_body: int) -> None:
        self.stream = stream
        self.head: Head | None = None
        self.entries: list[Entry] = []
        self.next_position = 0
        self._limit = limit
        self._max_body = max_body

    def load(self, db: apsw.Connection) -> None:
        self.head = head = read_head(db, self.stream, stream_key(self.stream))
        if head is None:
            return
        if not head.snapshot:
            page = EntryPage(self.stream, 0, self._limit, self._max_body, reverse=True)
            page.fill(db, head)
            self.entries = page.entries
            return
        after = head.snapshot - 1
        while after < head.position:
            size = head.position - after
            page = EntryPage(self.stream, after, size, self._max_body, reverse=False)
            self.next_position = after + 1
            page.fill(db, head)
            self.entries += page.entries
            after = self.entries[-1].last
        self.entries.reverse()
