"""Compare a SQLite store with itself: its tables, its indexes, its list of streams, its file.

Every list that a store gives is read from one index. If rows are missing there, the list is shorter
and nothing else shows it. Here each table is read without its indexes and compared with them.

Readers come in, problems go out. Each step is one snapshot or a page of one, so that processes
that write meanwhile are not reported. Nothing is written.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apsw

from perdure.backends.protocol import Head
from perdure.backends.sqlite.reading import stream_key, verified_head
from perdure.backends.sqlite.schema import (
    DELETED_LABELS,
    LATER_INDEX,
    file_size,
    require_whole_pages,
)
from perdure.errors import DamagedError

PAGE_ROWS = 256  # rows per snapshot; a long one would keep the log from being reset

PROBLEMS_MAX = 20  # problems of one kind that are named; the store is damaged after the first

INTERRUPT_STEPS = 100_000  # steps of SQLite's machine, some ms, between two looks for Ctrl-C

KEY_MIN, KEY_MAX = -(2**63), 2**63 - 1


# By the table alone; the last two columns say whether the indexes have the row.
HEADS = (
    "select h.id, h.name, h.position, h.digest, h.labels, h.snapshot,"
    " exists (select 1 from head as i indexed by head_name where i.name = h.name and +i.id = h.id),"
    " {live} from head as h not indexed where h.id >= ? order by h.id limit ?"
)

IS_LIVE = (
    f"h.labels = {DELETED_LABELS} or exists (select 1 from head as l indexed by head_live"  # noqa: S608
    f" where l.name = h.name and l.labels <> {DELETED_LABELS} and +l.id = h.id)"
)

HAS_LABEL = "select 1 from label where label = ? and name = ? and stream = ?"

COUNT_NAMES = "select count(*) from head indexed by head_name where name >= ''"

COUNT_HEADS = "select count(*) from head not indexed where id >= ?"

LABELS = (
    "select l.label, l.name, l.stream, h.name, h.position, h.digest, h.labels, h.snapshot"
    " from label as l left join head as h on h.id = l.stream"
    " where (l.label, l.name) > (?, ?) order by l.label, l.name limit ?"
)

# The streams of all entries: from each one, the index leads to the next.
STREAMS = (
    "with recursive streams (key) as ("
    " select min(stream) from entry indexed by entry_place where stream >= ?"
    " union all select (select min(stream) from entry indexed by entry_place where stream > key)"
    " from streams where key is not null limit ?)"
    " select key, exists (select 1 from head where id = key) from streams where key is not null"
)

# Within a stream, rowids grow with positions: a list by last change relies on that.
DISORDERED = (
    "select distinct stream from (select stream, rowid as row, lag(rowid) over"
    " (partition by stream order by position) as before from entry indexed by entry_place)"
    " where row < before limit ?"
)

Read = Callable[[Callable[[apsw.Connection], list[Any]]], list[Any]]

"""Runs work with a connection in one snapshot; raises PerdureError."""


class StoreFile(NamedTuple):
    """The store to check: its file, its name for problems, and how to read it."""

    path: str
    name: str
    read: Read


def find_problems(store: StoreFile, *, deep: bool) -> Iterator[DamagedError]:
    """Yield what is wrong. The cost grows with the streams; if `deep`, with the whole file."""
    steps = [_missing_end, _wrong_heads, _wrong_labels, _unlisted_streams]
    for step in [*steps, _wrong_order, _engine_problems] if deep else steps:
        try:
            yield from step(store)
        except DamagedError as error:  # What cannot be read ends the step: the next one may tell.
            yield error


def _missing_end(store: StoreFile) -> Iterator[DamagedError]:
    def needed_size(db: apsw.Connection) -> list[int]:
        require_whole_pages(db, store.path, store.name)
        return [db.pragma("page_count"), db.pragma("page_size")]

    pages, page_size = store.read(needed_size)
    if not file_size(store.path + "-wal") and file_size(store.path) < page_size * pages:
        yield DamagedError(store.name, 0, f"its file has fewer than the {pages} pages it should")


def _wrong_heads(store: StoreFile) -> Iterator[DamagedError]:
    """Every head is in the indexes, and there is nothing else in them."""
    first: int | None = KEY_MIN
    while first is not None:
        start = first
        rows = store.read(lambda db: _head_page(db, start))  # noqa: B023 - called at once
        for row in rows:
            yield from _head_problems(row)
        first = _next_key(store, rows, start)
    names, heads = store.read(
        lambda db: [db.execute(COUNT_NAMES).get, db.execute(COUNT_HEADS, (KEY_MIN,)).get]
    )
    if names != heads:
        yield DamagedError(store.name, 0, f"its index lists {names} sessions, its table {heads}")


def _head_page(db: apsw.Connection, start: int) -> list[tuple[Any, ...]]:
    has_index = db.execute("select 1 from sqlite_schema where name = ?", (LATER_INDEX,)).get
    sql = HEADS.format(live=IS_LIVE if has_index else "true")
    rows = []
    for row in db.execute(sql, (start, PAGE_ROWS)).fetchall():
        missing = _missing_labels(db, row)
        rows.append((*row, missing))
    return rows


def _missing_labels(db: apsw.Connection, row: tuple[Any, ...]) -> list[str]:
    try:
        head = verified_head(row[1], row[1:6])
    except DamagedError:
        return []  # Reported by `_head_problems`.
    return [
        label
        for label in sorted(head.labels)
        if not db.execute(HAS_LABEL, (label, head.stream, row[0])).get
    ]


def _head_problems(row: tuple[Any, ...]) -> Iterator[DamagedError]:
    key, name, *columns, is_named, is_live, missing = row
    if not isinstance(name, str) or not name or stream_key(name) != key:
        yield DamagedError(str(name), 0, "its name does not match its key")
        return
    try:
        verified_head(name, (name, *columns))
    except DamagedError as error:
        yield error
    if not is_named or not is_live:
        yield DamagedError(name, 0, "no list of sessions has it: an index lacks it")
    for label in missing:
        yield DamagedError(name, 0, f"it is not listed under its label {label!r}")


def _wrong_labels(store: StoreFile) -> Iterator[DamagedError]:
    """Every label in the list of labels is one that its session has."""
    after = ("", "")
    while True:
        rows = store.read(lambda db: db.execute(LABELS, (*after, PAGE_ROWS)).fetchall())  # noqa: B023
        for label, name, key, *head in rows:
            if not isinstance(name, str) or not isinstance(label, str) or stream_key(name) != key:
                yield DamagedError(str(name), 0, "it is listed under a label with another key")
            elif head[0] is None:
                yield DamagedError(name, 0, f"it is listed under {label!r}, but has no head")
            elif label not in _labels_of(name, head):
                yield DamagedError(name, 0, f"it is listed under {label!r}, which it does not have")
        if len(rows) < PAGE_ROWS:
            return
        last = rows[-1][:2]
        if not all(isinstance(part, str) for part in last) or last <= after:
            raise DamagedError(store.name, 0, "the rows of a table or an index are not in order")
        after = last


def _labels_of(name: str, row: list[Any]) -> frozenset[str]:
    try:
        head: Head = verified_head(name, tuple(row))
    except DamagedError:
        return frozenset()
    return head.labels


def _unlisted_streams(store: StoreFile) -> Iterator[DamagedError]:
    """Every stream that has entries has a head."""
    first: int | None = KEY_MIN
    while first is not None:
        start = first
        rows = store.read(lambda db: db.execute(STREAMS, (start, PAGE_ROWS)).fetchall())  # noqa: B023
        for key, has_head in rows:
            if not has_head:
                reason = f"entries of a stream that has no head, and so is in no list (key {key})"
                yield DamagedError(store.name, 0, reason)
        first = _next_key(store, rows, start)


def _next_key(store: StoreFile, rows: list[tuple[Any, ...]], start: int) -> int | None:
    """Return the key at which the next page begins, or None after the last one."""
    for key, *_ in rows:
        if not isinstance(key, int) or key < start:
            raise DamagedError(store.name, 0, "the rows of a table or an index are not in order")
        start = key + 1
    return start if len(rows) == PAGE_ROWS and start <= KEY_MAX else None


def _wrong_order(store: StoreFile) -> Iterator[DamagedError]:
    rows = store.read(lambda db: db.execute(DISORDERED, (PROBLEMS_MAX,)).fetchall())
    for (key,) in rows:
        reason = f"entries of a stream are not in the order of their positions (key {key})"
        yield DamagedError(store.name, 0, reason)


def _engine_problems(store: StoreFile) -> Iterator[DamagedError]:
    """Yield what SQLite finds wrong: it reads every page, and looks up every row in its indexes."""
    for text in store.read(_integrity):
        yield DamagedError(store.name, 0, f"SQLite: {text}")


def _integrity(db: apsw.Connection) -> list[str]:
    # It takes minutes in a large file: without this, Ctrl-C would have to wait for its end.
    db.set_progress_handler(lambda: False, INTERRUPT_STEPS)
    try:
        rows = db.execute(f"pragma integrity_check({PROBLEMS_MAX})").fetchall()
    finally:
        db.set_progress_handler(None)
    return [str(text) for (text,) in rows if text != "ok"]
