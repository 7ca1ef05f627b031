"""Streams in one SQLite file, for any number of processes and threads of one machine.

Entries come and go as bytes. SQLite does not notice most changed bits, so what is stored twice
(a name and its hash, a row and its index) is compared whenever it is read; what an entry says of
itself is the journal's business. Readers hold no snapshot while their caller is busy.
"""

import functools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import apsw
import msgspec

from perdure.backend import (
    RECENT,
    REMOVE,
    STORED,
    WATCH,
    Append,
    Entry,
    Head,
    Outcome,
    digest_of,
)
from perdure.backends import sqlite_at_once, sqlite_guarantees, sqlite_recent
from perdure.backends.filesystem import ACCEPTABLE, require_local
from perdure.backends.rules import Choice, check, decide
from perdure.backends.sqlite_at_once import is_text
from perdure.backends.sqlite_errors import DRIVER_ERRORS, translated
from perdure.backends.sqlite_heads import by_name, head_of, listed, place_of
from perdure.backends.sqlite_page import NO_BOUND, Page
from perdure.backends.sqlite_read_only import connect
from perdure.backends.sqlite_schema import require_library
from perdure.backends.watching import Watchers
from perdure.errors import PerdureError, UnavailableError, UsageError
from perdure.guarantees import Acceptance

PATIENCE = 60.0  # Seconds; many writers queue behind one slow disk before it counts as down.
PAGE_ROWS = 256  # A page's read transaction stays short: it keeps the log from being reset.

T = TypeVar("T")

HEADERS = (
    "select cast(header as blob) from entry"
    " where stream = ? and position between ? and ? order by position"
)
ADD_ENTRY = "insert into entry (stream, position, header, body) values (?, ?, ?, ?)"
ADD_TEXT = (
    "insert into entry (stream, position, header, body)"
    " values (?, ?, cast(? as text), cast(? as text))"
)
ADD_HEAD = "insert into head (position, digest, labels, id, name) values (?, ?, ?, ?, ?)"
MOVE_HEAD = "update head set position = ?, digest = ? where id = ? and name = ?"
RELABEL_HEAD = (
    "update head set labels = ? where id = ?"  # Only where they change: an index has them.
)
GO_ON = (
    "update head set position = ?, digest = ? where id = ? and name = ? and position = ?"
    " and labels = ? and typeof(digest) = 'text'"
)
ADD_LABEL = "insert into label (label, name, stream) values (?, ?, ?)"
REMOVE_LABEL = "delete from label where label = ? and name = ?"
DROP = "delete from entry where stream = ? and position < ?"
REMOVE_ENTRIES = "delete from entry where stream = ?"
REMOVE_HEAD = "delete from head where id = ?"


class SqliteBackend:
    """Keeps streams in a file. What `append` has stored survives the loss of power.

    The file is made if it is missing or empty; its directory must exist. Waits up to `patience`
    seconds for other processes. May be used after `os.fork` in both processes. On a read-only
    medium, and without permission to write, streams can be read; writing is a UsageError. `accept`
    names weaknesses that are not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({RECENT, REMOVE, WATCH})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vfs: str | None = None,
        patience: float = PATIENCE,
        accept: Collection[str] = (),
    ) -> None:
        given = os.fspath(path)
        if not given or "\0" in given:
            raise UsageError(f"{given!r} is not a path")
        require_library()
        self.name = f"sqlite:{given}"
        self._path = os.path.realpath(given)
        accepted = Acceptance(accept, ACCEPTABLE, store=self.name)
        place = require_local(self._path, sqlite_guarantees.NEEDS, accepted)
        self._connections, checks, why = connect(self._path, self.name, vfs, patience)
        self.guarantees = sqlite_guarantees.promised(checks, place, accepted, why)
        self.watchers = Watchers(lambda _: self._path + "-wal")
        self._labels = sqlite_at_once.Labels()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: one transaction for all."""
        check(appends)
        if len(appends) == 1:
            outcomes = self._append_one(appends[0])
        else:
            outcomes = self._append_all(appends) if appends else []
        self.watchers.ring(appends)
        return outcomes

    def _append_one(self, append: Append) -> Sequence[Outcome]:
        stream, labels = append.stream, _labels(append)
        place = place_of(stream)
        add = functools.partial(_add_one, append, place, labels)
        outcomes = self._connections.write(stream, add)
        if outcomes[0] is STORED and self._labels.known.get(place) != labels:
            self._labels.remember([(place, labels)])
        return outcomes

    def _append_all(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        rows = [(place_of(append.stream), _labels(append), append) for append in appends]
        load = self._labels.load(rows) if len(appends) >= sqlite_at_once.LEAST else None
        if load is not None:
            store = functools.partial(sqlite_at_once.store, load)
            if self._connections.write("", store, begin=False):
                self._labels.remember(row[:2] for row in rows)
                return [STORED] * len(appends)
        outcomes = self._connections.write("", functools.partial(_add, appends))
        stored = zip(outcomes, rows, strict=True)
        self._labels.remember([row[:2] for outcome, row in stored if outcome is STORED])
        return outcomes

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As `Backend.read`. What comes before a damaged entry is yielded before it raises."""
        left = NO_BOUND if limit is None else limit
        bound = NO_BOUND if max_body is None else max_body
        while left > 0:
            page = Page(stream, after, min(left, PAGE_ROWS), bound, reverse=reverse)
            error = self._load(page)
            yield from page.entries
            if error is not None:
                raise error
            if page.is_last:
                return
            left -= len(page.entries)
            after = page.entries[-1].position

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Backend.streams`, by pages: what is written meanwhile may be listed or not.

        What comes before a damaged head is yielded before it raises.
        """
        left = NO_BOUND if limit is None else limit
        choice = Choice(prefix, labels, without)
        while left > 0 and not choice.is_none:
            start = max(prefix, after + "\0")  # The least name beyond `after`.
            size = min(left, PAGE_ROWS)
            rows = self._reading(lambda db: by_name(db, choice, start, size))  # noqa: B023 - now
            for row in rows:
                if not str(row[0]).startswith(prefix):
                    return
                head = listed(row, choice.label)
                after = head.stream
                if choice.has(head):
                    yield head
                    left -= 1
            if len(rows) < size:
                return

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Recent.recent`, by pages."""
        left = NO_BOUND if limit is None else limit
        listing = sqlite_recent.Listing(Choice(prefix, labels, without))
        while left > 0 and not listing.ended:
            heads = self._reading(listing.page)[:left]
            left -= len(heads)
            yield from heads

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`; durable on return. Free pages keep nothing of what was dropped."""
        place = place_of(stream)

        def drop(db: apsw.Connection) -> None:
            head = head_of(db, stream, place)
            if head is not None:
                db.execute(DROP, (place, min(before, head.position)))

        self._connections.write(stream, drop)

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`. Free pages keep nothing of it."""
        place = place_of(stream)

        def remove(db: apsw.Connection) -> bool:
            head = head_of(db, stream, place)
            if head is None or head.digest != digest:
                return head is None
            _relabel(db, stream, head.labels, frozenset())
            db.execute(REMOVE_ENTRIES, (place,))
            db.execute(REMOVE_HEAD, (place,))
            return True

        return self._connections.write(stream, remove)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `Watch.watch`: whether others wrote is told by the log."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def close(self) -> None:
        """Let go of the file; the last one to close it leaves a single file behind."""
        self._connections.close()
        self.watchers.ring_all()

    def _head(self, stream: str) -> Head | None:
        return self._reading(lambda db: [head_of(db, stream, place_of(stream))])[0]

    def _reading(self, work: Callable[[apsw.Connection], list[T]]) -> list[T]:
        try:
            with self._connections.reading() as db:
                return work(db)
        except DRIVER_ERRORS as error:
            raise translated(error, self.name) from error

    def _load(self, page: Page) -> PerdureError | None:
        """Return what to raise once the entries read before it have been yielded."""
        try:
            with self._connections.reading() as db:
                page.load(db)
        except UnavailableError as error:
            page.entries.clear()  # Others wrote to a file that was read without a lock.
            return error
        except PerdureError as error:
            return error
        except DRIVER_ERRORS as error:
            better = translated(error, self.name, page.stream, page.next_position)
            better.__cause__ = error
            return better
        return None


def _add_one(append: Append, place: int, labels: str, db: apsw.Connection) -> Sequence[Outcome]:
    return [STORED] if _go_on(db, place, labels, append) else _add([append], db)


def _go_on(db: apsw.Connection, place: int, labels: str, append: Append) -> bool:
    """Store an append that goes on where its stream ends, under the labels that it bears.

    Most do, and this asks nothing first. False if it is not so, and then nothing was changed.
    """
    if append.begins:
        return False
    entries = append.entries
    (first, _, _), (last, last_header, _) = entries[0], entries[-1]
    moved = (last, digest_of(last_header), place, append.stream, first - 1, labels)
    db.execute(GO_ON, moved)
    if db.changes() == 0:
        return False
    rows: list[tuple[int, int, bytes, bytes | None]] = []
    parts: list[bytes] = []
    for position, header, body in entries:
        rows.append((place, position, header, body))
        parts += header, body or b""
    if is_text(b"\n".join(parts)):  # Then each of them is: no character holds a new line.
        db.executemany(ADD_TEXT, rows)
    else:
        db.executemany(ADD_ENTRY, _rows(place, entries))
    return True


def _add(appends: Sequence[Append], db: apsw.Connection) -> list[Outcome]:
    """Decide about each, then write for all: calls are few, because each lets other threads run."""
    outcomes: list[Outcome] = []
    entry_rows: list[tuple[int, int, str | bytes, str | bytes]] = []
    new_heads: list[tuple[int, str, str, int, str]] = []
    moved_heads: list[tuple[int, str, int, str]] = []
    relabelled: list[tuple[str, int]] = []
    for append in appends:
        stream, labels, place = append.stream, append.labels, place_of(append.stream)
        head = head_of(db, stream, place)
        outcome, missing = decide(
            append, None if head is None else head.position, functools.partial(_headers, db, place)
        )
        outcomes.append(outcome)
        if missing:
            entry_rows += _rows(place, missing)
            last = missing[-1]
            digest = digest_of(last.header)
            text = _labels(append)
            if head is None:
                new_heads.append((last.position, digest, text, place, stream))
            else:
                moved_heads.append((last.position, digest, place, stream))
                relabelled += [(text, place)] if head.labels != labels else []
            _relabel(db, stream, frozenset() if head is None else head.labels, labels)
    for statement, rows in (
        (ADD_ENTRY, entry_rows),
        (ADD_HEAD, new_heads),
        (MOVE_HEAD, moved_heads),
        (RELABEL_HEAD, relabelled),
    ):
        if rows:
            db.executemany(statement, rows)
    return outcomes


def _rows(place: int, entries: Sequence[Entry]) -> list[tuple[int, int, str | bytes, str | bytes]]:
    return [(place, e.position, _column(e.header), _column(e.body)) for e in entries]


def _labels(append: Append) -> str:
    return msgspec.json.encode(sorted(append.labels)).decode() if append.labels else "[]"


def _headers(db: apsw.Connection, place: int, first: int, last: int) -> list[bytes]:
    return [row[0] for row in db.execute(HEADERS, (place, first, last))]


def _relabel(
    db: apsw.Connection, stream: str, before: frozenset[str], after: frozenset[str]
) -> None:
    if before != after:
        db.executemany(REMOVE_LABEL, [(label, stream) for label in before - after])
        place = place_of(stream)
        db.executemany(ADD_LABEL, [(label, stream, place) for label in after - before])


def _column(data: bytes | None) -> str | bytes:
    """Return text where the same bytes come back from it, so that a shell can show them."""
    if data is None or b"\0" in data:  # SQLite's own functions end a text at a NUL.
        return data or b""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
