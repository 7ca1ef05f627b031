"""Streams in one SQLite file, for any number of processes and threads on one machine.

Entries are stored and returned as bytes; their content is checked by the journal, not here. SQLite
does not detect most flipped bits, so redundant data (a name and its hash, a row and its index) is
compared on every read. Readers hold no snapshot while their caller processes a page.
"""

import functools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import apsw
import msgspec

from perdure.backends.append_rules import UNLIMITED, check, decide
from perdure.backends.compression import ZSTD, require_driver
from perdure.backends.digests import digest_of
from perdure.backends.fields import FieldOrder
from perdure.backends.filesystem import ACCEPTABLE, require_local, resolve_path
from perdure.backends.guarantees import Acceptance
from perdure.backends.protocol import (
    ATOMIC,
    CHECK,
    ORDER,
    RECENT,
    REMOVE,
    STORED,
    WATCH,
    Append,
    Entry,
    Head,
    Outcome,
    StreamFilter,
)
from perdure.backends.sqlite import batch_append, schema
from perdure.backends.sqlite.check import StoreFile, find_problems
from perdure.backends.sqlite.connections import BUSY_TIMEOUT, connect
from perdure.backends.sqlite.errors import DRIVER_ERRORS, translate_error
from perdure.backends.sqlite.ordered import ValueListing
from perdure.backends.sqlite.reading import (
    EntryPage,
    StreamTail,
    head_from_label,
    read_head,
    require_order,
    rows_by_name,
    stream_key,
)
from perdure.backends.sqlite.recent import RecentListing
from perdure.backends.sqlite.rows import (
    FIRST_STREAM_ID,
    HEADER,
    STREAM_ID,
    Row,
    compressed_rows,
    entry_rows,
    restore_header,
    stream_id_of,
    text_or_blob,
)
from perdure.backends.sqlite.schema import INCREMENTAL, require_library
from perdure.backends.tail import TAIL
from perdure.backends.watchers import Watchers
from perdure.errors import (
    DamagedError,
    PerdureError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

PAGE_ROWS = 256  # rows per read transaction; a long one would keep the log from being reset


T = TypeVar("T")


HEADERS = (
    f"select first, position, {HEADER} from entry"  # noqa: S608 - constant
    " where stream = ? and position >= ? and first <= ? order by position limit ?"
)

ADD_ENTRY = "insert into entry (stream, position, first, header, body) values (?, ?, ?, ?, ?)"

ADD_HEAD = (
    "insert into head (position, digest, snapshot, labels, id, name) values (?, ?, ?, ?, ?, ?)"
)

MOVE_HEAD = "update head set position = ?, digest = ?, snapshot = ? where id = ? and name = ?"

# Apart from MOVE_HEAD, and only if the labels change: a partial index depends on them.
RELABEL_HEAD = "update head set labels = ? where id = ?"

CONTINUE_STREAM = (
    "update head set position = ?, digest = ?, snapshot = ? where id = ? and name = ?"
    " and position = ? and labels = ? and digest = ?"
)

CONTINUE_PACKED = f"{CONTINUE_STREAM} and ? = {STREAM_ID.format('head.id')}"

ADD_LABEL = "insert into label (label, name, stream) values (?, ?, ?)"

REMOVE_LABEL = "delete from label where label = ? and name = ?"

DROP_ENTRIES = 4096  # entries per transaction, which took 8 ms (at most 33): decision 0040

VACUUM_PAGES = 256  # pages per transaction, 1 MiB, which took 3 ms (at most 21): decision 0040

FREE_SHARE = 10  # a file shrinks if more than one in so many pages is free; others are used again

FIRST_POSITION = "select min(position) from entry where stream = ?"

FIRST_LEFT = (
    f"select position, {HEADER} from entry where stream = ? and position >= ?"  # noqa: S608
    " order by position limit 1"
)

UNPACK = "update entry set header = ? where stream = ? and position = ?"

DROP = "delete from entry where stream = ? and position < ?"

REMOVE_ENTRIES = "delete from entry where stream = ?"

REMOVE_HEAD = "delete from head where id = ?"


def _is_sparse(db: apsw.Connection) -> bool:
    """Whether a file can shrink, and by so much that it should."""
    free, pages = db.pragma("freelist_count"), db.pragma("page_count")
    return bool(db.pragma("auto_vacuum") == INCREMENTAL and free * FREE_SHARE > pages)


def _shrink(db: apsw.Connection) -> bool:
    """Return some free pages to the file system; return whether there are more."""
    db.execute(f"pragma incremental_vacuum({VACUUM_PAGES})").fetchall()
    if db.pragma("freelist_count"):
        return True
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # Only then the file itself shrinks.
    return False


class SqliteBackend:
    """Keeps streams in a SQLite file. Stored appends survive a power failure.

    The file is created if it is missing or empty; its directory must exist. Waits up to `timeout`
    seconds for locks of other processes. Usable in both processes after `os.fork`. On a read-only
    medium, or without permission to write, streams can be read; writing raises UsageError. `accept`
    names weaknesses to accept instead of refusing them (`perdure.backends.guarantees`).

    With `compress="zstd"`, the store becomes a compressed one with its next append, and stays one:
    new bodies are compressed by every process that opens it later. Earlier ones stay as they are.
    """

    capabilities: frozenset[str] = frozenset({ATOMIC, CHECK, ORDER, RECENT, REMOVE, TAIL, WATCH})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vfs: str | None = None,
        timeout: float = BUSY_TIMEOUT,
        accept: Collection[str] = (),
        compress: str | None = None,
    ) -> None:
        file = os.fspath(path)
        if not file or "\0" in file:
            raise UsageError(f"{file!r} is not a path: pass the name of a file")
        require_library()
        if compress not in (None, ZSTD):
            raise UsageError(f"compress={compress!r} is unknown: use compress={ZSTD!r}")
        self.name = f"sqlite:{file}"
        self._path = resolve_path(file, self.name)
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        filesystem = require_local(self._path, schema.NEEDS_LOCAL_DISK, acceptance)
        self._connections, checks, why_read_only = connect(self._path, self.name, vfs, timeout)
        self.guarantees = schema.store_guarantees(checks, filesystem, acceptance, why_read_only)
        self.watchers = Watchers(lambda _: self._path + "-wal")
        self._labels = batch_append.LabelCache()
        self._compresses = self._connections.is_compressed or compress == ZSTD
        self._becomes_compressed = self._compresses and not self._connections.is_compressed
        if self._compresses:
            try:
                require_driver()
            except UnsupportedError:
                self._connections.close()
                raise

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: all in one transaction."""
        check(appends)
        if self._becomes_compressed:
            self._connections.write("", schema.mark_compressed)
            self._becomes_compressed = False
        if len(appends) == 1:
            outcomes = self._append_one(appends[0])
        else:
            outcomes = self._append_all(appends) if appends else []
        if self.watchers.waiting:
            self.watchers.notify(appends)
        return outcomes

    def _append_one(self, append: Append) -> Sequence[Outcome]:
        key, labels = stream_key(append.stream), _labels_text(append)
        stream_id = stream_id_of(append.entries[0].header) if self._compresses else ""
        if self._compresses:
            rows = compressed_rows(key, append.entries, stream_id, begins=append.begins)
        else:
            rows = entry_rows(key, append.entries)

        def add(db: apsw.Connection) -> Sequence[Outcome]:
            if _append_in_place(db, labels, append, rows, stream_id):
                return [STORED]
            return self._append_checked([append], db)

        outcomes = self._connections.write(append.stream, add)
        if outcomes[0] is STORED and self._labels.cached.get(key) != labels:
            self._labels.remember([(key, labels)])
        return outcomes

    def _append_all(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        rows = [(stream_key(append.stream), _labels_text(append), append) for append in appends]
        load = None
        if len(appends) >= batch_append.BATCH_MIN:
            load = self._labels.load(rows, compresses=self._compresses)
        if load is not None:
            store = functools.partial(batch_append.store_batch, load)
            if self._connections.write("", store, begin=False):
                self._labels.remember(row[:2] for row in rows)
                return [STORED] * len(appends)
        outcomes = self._connections.write("", functools.partial(self._append_checked, appends))
        stored = zip(outcomes, rows, strict=True)
        self._labels.remember([row[:2] for outcome, row in stored if outcome is STORED])
        return outcomes

    def _append_checked(self, appends: Sequence[Append], db: apsw.Connection) -> list[Outcome]:
        """Decide on each append, then write all: few driver calls, as each releases the GIL."""
        outcomes: list[Outcome] = []
        new_rows: list[Row] = []
        new_heads: list[tuple[int, str, int, str, int, str]] = []
        moved_heads: list[tuple[int, str, int, int, str]] = []
        relabeled: list[tuple[str, int]] = []
        for append in appends:
            stream, labels, key = append.stream, append.labels, stream_key(append.stream)
            head = read_head(db, stream, key)
            outcome, missing = decide(append, head, functools.partial(_stored_entries, db, key))
            outcomes.append(outcome)
            if missing:
                new_rows += self._checked_rows(db, key, missing, begins=head is None)
                end = (missing[-1].last, digest_of(missing[-1].header), append.snapshot)
                text = _labels_text(append)
                if head is None:
                    new_heads.append((*end, text, key, stream))
                else:
                    moved_heads.append((*end, key, stream))
                    relabeled += [(text, key)] if head.labels != labels else []
                _relabel(db, stream, frozenset() if head is None else head.labels, labels)
        for statement, rows in (
            (ADD_ENTRY, new_rows),
            (ADD_HEAD, new_heads),
            (MOVE_HEAD, moved_heads),
            (RELABEL_HEAD, relabeled),
        ):
            if rows:
                db.executemany(statement, rows)
        return outcomes

    def _checked_rows(
        self, db: apsw.Connection, key: int, entries: Sequence[Entry], *, begins: bool
    ) -> list[Row]:
        if not self._compresses:
            return entry_rows(key, entries)
        stored = "" if begins else db.execute(FIRST_STREAM_ID, (key,)).get
        stream_id = stream_id_of(entries[0].header) if begins else (stored or "")
        return compressed_rows(key, entries, stream_id, begins=begins)

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`: all in one transaction."""
        check(appends)
        if self._becomes_compressed:
            self._connections.write("", schema.mark_compressed)
            self._becomes_compressed = False

        def add(db: apsw.Connection) -> None:
            outcomes = self._append_checked(appends, db)
            for outcome in outcomes:
                if outcome is not STORED:
                    raise _NotStoredError(outcome)

        try:
            self._connections.write("", add)
        except _NotStoredError as error:
            return error.outcome
        self._labels.remember([(stream_key(item.stream), _labels_text(item)) for item in appends])
        self.watchers.notify(appends)
        return STORED

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As `Backend.read`. The entries before a damaged one are yielded, then it raises."""
        remaining = UNLIMITED if limit is None else limit
        bound = UNLIMITED if max_body is None else max_body
        while remaining > 0:
            page = EntryPage(stream, after, min(remaining, PAGE_ROWS), bound, reverse=reverse)
            error = self._load(page)
            yield from page.entries
            if error is not None:
                raise error
            if page.is_last:
                return
            remaining -= len(page.entries)
            last = page.entries[-1]
            after = last.position if reverse else last.last

    def tail(
        self, stream: str, *, limit: int, max_body: int | None = None
    ) -> tuple[Head | None, Sequence[Entry]]:
        """As `TailCapability.tail`."""
        tail = StreamTail(stream, limit, UNLIMITED if max_body is None else max_body)
        error = self._load(tail)
        if error is not None:
            raise error
        return tail.head, tail.entries

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `Backend.streams`, in pages: streams written during it may be listed or not.

        The heads before a damaged one are yielded, then it raises.
        """
        remaining = UNLIMITED if limit is None else limit
        choice = StreamFilter(prefix, labels, without, headers=headers)
        while remaining > 0 and not choice.matches_nothing:
            start = max(prefix, after + "\0")  # The smallest name after `after`.
            size = min(remaining, PAGE_ROWS)
            rows = self._reading(
                functools.partial(rows_by_name, choice=choice, start=start, size=size)
            )
            for row in rows:
                require_order(row[0], after)
                if not str(row[0]).startswith(prefix):
                    return
                head = head_from_label(row, choice.label)
                after = head.stream
                if choice.matches(head):
                    yield head
                    remaining -= 1
            if len(rows) < size:
                return

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `RecencyCapability.recent`, in pages."""
        choice = StreamFilter(prefix, labels, without, headers=headers)
        return self._pages(RecentListing(choice), limit)

    def ordered(
        self,
        order: FieldOrder,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `OrderCapability.ordered`, in pages."""
        choice = StreamFilter(prefix, labels, without, headers=headers)
        return self._pages(ValueListing(choice, order), limit)

    def _pages(self, listing: RecentListing | ValueListing, limit: int | None) -> Iterator[Head]:
        remaining = UNLIMITED if limit is None else limit
        while remaining > 0 and not listing.ended:
            heads = self._reading(listing.page)[:remaining]
            remaining -= len(heads)
            yield from heads

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`; durable on return. Free pages keep no dropped bytes.

        In several transactions, so that other writers do not wait for long. The file then shrinks,
        unless it was created by an older version.
        """
        key = stream_key(stream)

        def drop(db: apsw.Connection) -> bool:
            head = read_head(db, stream, key)
            if head is None:
                return False
            last = min(before, head.position)  # Up to the head at most: the last entry stays.
            first = db.execute(FIRST_POSITION, (key,)).get or last
            end = min(first + DROP_ENTRIES, last)
            if self._compresses:
                _unpack_first(db, key, end)
            db.execute(DROP, (key, end))
            return first + DROP_ENTRIES < last

        while self._connections.write(stream, drop):
            pass
        shrinks = self._connections.write(stream, _is_sparse, begin=False)
        while shrinks:
            shrinks = self._connections.write(stream, _shrink, begin=False)

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`. Free pages keep no removed bytes."""
        key = stream_key(stream)

        def remove(db: apsw.Connection) -> bool:
            head = read_head(db, stream, key)
            if head is None or head.digest != digest:
                return head is None
            _relabel(db, stream, head.labels, frozenset())
            db.execute(REMOVE_ENTRIES, (key,))
            db.execute(REMOVE_HEAD, (key,))
            return True

        return self._connections.write(stream, remove)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `WatchCapability.watch`: changes of the log reveal writes of other processes."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def check(self, *, deep: bool = False) -> Iterator[DamagedError]:
        """As `CheckCapability.check`; `deep` reads the whole file in one snapshot."""
        return find_problems(StoreFile(self._path, self.name, self._reading), deep=deep)

    def close(self) -> None:
        """Close the file; the last process to close it leaves no -wal and -shm behind."""
        self._connections.close()
        self.watchers.notify_all()

    def _head(self, stream: str) -> Head | None:
        return self._reading(lambda db: [read_head(db, stream, stream_key(stream))])[0]

    def _reading(self, work: Callable[[apsw.Connection], list[T]]) -> list[T]:
        try:
            return self._connections.read(work)
        except DRIVER_ERRORS as error:
            raise translate_error(error, self.name) from error

    def _load(self, page: EntryPage | StreamTail) -> PerdureError | None:
        """Load a page; return the error to raise after its entries have been yielded."""
        try:
            self._connections.read(page.load)
        except UnavailableError as error:
            page.entries.clear()  # Read without a lock while another process wrote: not consistent.
            return error
        except PerdureError as error:
            return error
        except DRIVER_ERRORS as error:
            own_error = translate_error(error, self.name, page.stream, page.next_position)
            own_error.__cause__ = error
            return own_error
        return None


class _NotStoredError(Exception):
    """Rolls a transaction back: one of its appends was not stored."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def _unpack_first(db: apsw.Connection, key: int, position: int) -> None:
    """Store the header of the first entry that `drop` will leave as it is, if it is packed."""
    last, header = db.execute(FIRST_LEFT, (key, position)).fetchone() or (0, b"")
    try:
        restored = restore_header(header or b"", last)
    except ValueError:
        return  # Damaged: reading reports it.
    if restored != header:
        db.execute(UNPACK, (text_or_blob(restored), key, last))


def _append_in_place(
    db: apsw.Connection, labels: str, append: Append, rows: list[Row], stream_id: str
) -> bool:
    """Store an append that continues its stream with unchanged labels, without reading first.

    This is the common case. Return False if it does not apply; then nothing was changed.
    """
    stream, entries, _, previous, snapshot = append
    if not previous:
        return False
    key, end = rows[-1][:2]
    digest, before = digest_of(entries[-1].header), entries[0].position - 1
    head = (end, digest, snapshot, key, stream, before, labels, previous)
    if stream_id:
        db.execute(CONTINUE_PACKED, (*head, stream_id))
    else:
        db.execute(CONTINUE_STREAM, head)
    if db.changes() == 0:
        return False
    db.executemany(ADD_ENTRY, rows)
    return True


def _labels_text(append: Append) -> str:
    return msgspec.json.encode(sorted(append.labels)).decode() if append.labels else "[]"


def _stored_entries(db: apsw.Connection, key: int, first: int, last: int) -> list[Entry]:
    """Return the entries that cover any of these positions, without their bodies."""
    rows = db.execute(HEADERS, (key, first, last, last - first + 1))  # No more can overlap.
    return [Entry(begin, _own(header, end), None, end - begin + 1) for begin, end, header in rows]


def _own(selected: bytes | None, last: int) -> bytes:
    """Return a stored header, to compare with; one that cannot be restored equals no other."""
    try:
        return restore_header(selected or b"", last)
    except ValueError:
        return b""


def _relabel(db: apsw.Connection, stream: str, old: frozenset[str], new: frozenset[str]) -> None:
    if old != new:
        db.executemany(REMOVE_LABEL, [(label, stream) for label in old - new])
        key = stream_key(stream)
        db.executemany(ADD_LABEL, [(label, stream, key) for label in new - old])
