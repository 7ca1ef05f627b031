"""Read what is left of a damaged SQLite file, page by page and without SQLite, into a new store.

SQLite follows pointers: a lost page takes along everything that it points to, and a file that lost
its end is not read at all. Here every page that holds rows of a table is read for itself, whatever
points to it. https://www.sqlite.org/fileformat2.html describes the bytes.

A path comes in; the rows of `head` and `entry` that can be decoded go out, into a store of which
every list is complete. Whether a row is right is for the journal to say. The file is only read.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import apsw
import msgspec

from perdure.backends.digests import digest_of
from perdure.backends.protocol import HALF_COPIED, HEADER_MAX, Entry, Head
from perdure.backends.sqlite import schema
from perdure.backends.sqlite.backend import ADD_ENTRY, ADD_HEAD, ADD_LABEL
from perdure.backends.sqlite.log_check import LogFile
from perdure.backends.sqlite.reading import stream_key, verified_head
from perdure.backends.sqlite.rows import (
    BYTES,
    HEADER,
    entry_rows,
    restore_body,
    restore_header,
    stream_id_of,
)
from perdure.backends.sqlite.schema import file_size
from perdure.errors import DamagedError

TABLE_LEAF = 13  # The type of a page that holds rows of a table.

FILE_HEADER = 100  # bytes at the start of the first page

PAYLOAD_MAX = 64 * 2**20  # bytes of a row; more is not a row of ours

COLUMNS = 6  # of a head and of an entry alike; their types tell them apart


PARTIAL = frozenset({HALF_COPIED})


# The stream id of packed headers whose own one is lost. Their chain is then broken, but their
# bodies are right.
UNKNOWN = "-" * 22


ADD_RIGHT = ADD_ENTRY.replace("insert", "insert or replace", 1)

ADD_ANY = ADD_ENTRY.replace("insert", "insert or ignore", 1)

LAST_POSITIONS = "select stream, max(position) from entry group by stream"

HEADERS_OF = f"select position, {HEADER} from entry where stream = ? order by position"  # noqa: S608


class Blob(bytes):
    """A value that is stored as a blob, and not as text."""


class EntryRow(NamedTuple):
    stream: int
    position: int
    first: int
    header: bytes
    body: bytes


class HeadRow(NamedTuple):
    key: int
    name: bytes
    position: int
    digest: bytes
    labels: bytes
    snapshot: int


class Recovered(NamedTuple):
    """Counts of the pages, entries and heads that were found in a damaged file."""

    pages: int
    entries: int
    heads: int
    unnamed: int
    """Streams whose name is lost with their head and their first entry."""


class PageReader:
    """The newest version of each page: of the log, as far as it counts, else of the file."""

    def __init__(self, file: BinaryIO, log: "LogFile | None", page_size: int) -> None:
        self._file = file
        self.page_size = page_size
        self._log = log
        self._newest: dict[int, int] = {}
        """Page → the number of the frame that has its newest version."""
        self.replaced: list[bytes] = []
        """Pages before a frame that may be damaged, and may belong to another page: read too."""
        if log is not None:
            self._read_log(log)
        self.count = max((self._size() + page_size - 1) // page_size, max(self._newest, default=0))

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _read_log(self, log: LogFile) -> None:
        for frame, is_linked in log.acknowledged():
            if not is_linked:
                self.replaced.append(self.page(frame.page_number))
            self._newest[frame.page_number] = frame.number

    def page(self, number: int) -> bytes:
        """Return a page, from 1 on, filled with zeros if it is missing."""
        frame_number = self._newest.get(number)
        if frame_number is not None and self._log is not None:
            frame = self._log.frame(frame_number)
            if frame is not None:
                return frame.page
        self._file.seek((number - 1) * self.page_size)
        return self._file.read(self.page_size).ljust(self.page_size, b"\0")

    def rows(self) -> Iterator[EntryRow | HeadRow]:
        """Yield every row of all pages that can be decoded."""
        for number in range(1, self.count + 1):
            yield from self._page_rows(self.page(number), FILE_HEADER if number == 1 else 0)
        for page in self.replaced:
            yield from self._page_rows(page, 0)

    def _page_rows(self, page: bytes, start: int) -> Iterator[EntryRow | HeadRow]:
        if page[start] != TABLE_LEAF:
            return
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        for index in range(cells):
            at = start + 8 + 2 * index
            pointer = int.from_bytes(page[at : at + 2], "big")
            try:
                row = _decode_row(*self._payload(page, pointer))
            except (IndexError, ValueError):
                continue  # Damaged, or not a row of these tables.
            if row is not None:
                yield row

    def _payload(self, page: bytes, at: int) -> tuple[int, bytes]:
        """Return the rowid and the payload of a cell, joined from its overflow pages."""
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        if size > PAYLOAD_MAX:
            raise ValueError(size)
        usable = self.page_size
        local = size
        if size > usable - 35:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (size - least) % (usable - 4)
            local = local if local <= usable - 35 else least
        payload = bytearray(page[at : at + local])
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        while len(payload) < size:
            if not 1 <= following <= self.count:
                raise ValueError(following)
            overflow = self.page(following)
            following = int.from_bytes(overflow[:4], "big")
            payload += overflow[4 : 4 + size - len(payload)]
        return rowid, bytes(payload)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number as SQLite stores it, and the offset behind it."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the high bit says that more follows
            return value, at + index + 1
    value = value << 8 | data[at + 8]
    return (value - 2**64 if value >= 2**63 else value), at + 9


INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}

"""The serial types of integers, and their sizes in bytes; 8 and 9 are the values 0 and 1."""

TEXT_OR_BLOB = 12  # Serial types from here on: a blob or, if odd, a text.


def _decode_row(rowid: int, payload: bytes) -> EntryRow | HeadRow | None:
    """Return a row of `entry` or `head`, None for one of another table."""
    end, at = _varint(payload, 0)
    types: list[int] = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    if len(types) != COLUMNS or types[0] != 0:
        return None
    values: list[int | bytes] = []
    for kind in types[1:]:
        value, at = _value(payload, at, kind)
        values.append(value)
    match values:
        case [int(stream), int(position), int(first), bytes(header), bytes(body)]:
            is_entry = len(header) <= HEADER_MAX and 1 <= first <= position
            return EntryRow(stream, position, first, header, body) if is_entry else None
        case [bytes(name), int(position), bytes(digest), bytes(labels), int(snapshot)]:
            return HeadRow(rowid, name, position, digest, labels, snapshot)
    return None


def _value(payload: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind in INTEGER_SIZES:
        size = INTEGER_SIZES[kind]
        if not size:
            return kind - 8, at
        number = int.from_bytes(payload[at : at + size], "big", signed=True)
        return number, at + size
    if kind < TEXT_OR_BLOB:
        raise ValueError(kind)
    size = (kind - TEXT_OR_BLOB) // 2
    if at + size > len(payload):
        raise ValueError(size)
    value = payload[at : at + size]
    return (value if kind % 2 else Blob(value)), at + size


class Journal(NamedTuple):
    """The journal's functions for entries, which a backend does not look into."""

    name_of: Callable[[bytes], str | None]
    """Returns the name in the header of a stream's first entry, None for any other header."""
    is_right: Callable[[Entry], bool]
    """Returns whether the positions, the header and the body of an entry belong together."""


def rebuild_store(path: str, target: str, journal: Journal) -> Recovered:
    """Write what can be read of a file and its log to a new store, and return how much that is.

    The file must not be open in this process: closing it here would drop SQLite's locks.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))  # noqa: PTH123 - the path is text
        page_size = _page_size(file.read(FILE_HEADER))
        log = None
        if file_size(path + "-wal"):
            log_file = stack.enter_context(open(path + "-wal", "rb"))  # noqa: PTH123
            log = LogFile(log_file.fileno(), page_size)
        reader = PageReader(file, log, page_size)
        new = schema.open_writer(target, f"sqlite:{target}", None, lambda _: False)
        stack.callback(new.close)
        return _write_store(new, reader, journal)


def _page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    is_valid = 512 <= size <= 65536 and not size & (size - 1)  # noqa: PLR2004 - SQLite's limits
    return size if is_valid else schema.PAGE_SIZE


def _write_store(new: apsw.Connection, reader: PageReader, journal: Journal) -> Recovered:
    def write() -> Recovered:
        ids = _stream_ids(reader)
        heads = _write_entries(new, reader, journal, ids)
        unnamed = 0
        lasts: list[Any] = new.execute(LAST_POSITIONS).fetchall()
        for key, last in lasts:
            known = heads.get(key)
            if known is None or known.position < last:  # Lost, or an old version of it.
                heads[key], is_named = _make_head(new, key, known, journal)
                unnamed += not is_named
        for head in heads.values():
            _add_head(new, head)
        count: Any = new.execute("select count(*) from entry").get
        new.execute("commit")
        return Recovered(reader.count, count, len(heads), unnamed)

    return schema.in_transaction(new, write)


def _stream_ids(reader: PageReader) -> dict[int, str]:
    """Return the stream ids by the keys of streams, as far as a header that is text has them."""
    ids: dict[int, str] = {}
    for row in reader.rows():
        if isinstance(row, EntryRow) and not isinstance(row.header, Blob):
            ids.setdefault(row.stream, stream_id_of(row.header) or UNKNOWN)
    return ids


def _write_entries(
    new: apsw.Connection, reader: PageReader, journal: Journal, ids: dict[int, str]
) -> dict[int, Head]:
    """Write all entries, and return the newest head of each stream by its key."""
    heads: dict[int, Head] = {}
    for row in reader.rows():
        if isinstance(row, EntryRow):
            entry = _restore(row, ids.get(row.stream, UNKNOWN))
            if entry is None:
                continue
            (columns,) = entry_rows(row.stream, [entry])
            # The same entry may be on two pages, one of them damaged: the right one stays.
            new.execute(ADD_RIGHT if journal.is_right(entry) else ADD_ANY, columns)
        elif (head := _decode_head(row)) is not None:
            known = heads.get(row.key)
            if known is None or known.position < head.position:
                heads[row.key] = head
    return heads


def _restore(row: EntryRow, stream_id: str) -> Entry | None:
    """Return the entry of a row, None if its header or its body cannot be unpacked."""
    header, body = row.header, row.body
    try:
        if isinstance(header, Blob):
            header = restore_header(BYTES + stream_id.encode() + header, row.position)
        restored = restore_body(body, PAYLOAD_MAX) if isinstance(body, Blob) else body
    except ValueError:
        return None
    if restored is None:
        return None
    return Entry(row.first, bytes(header), bytes(restored), row.position - row.first + 1)


def _decode_head(row: HeadRow) -> Head | None:
    """Return a head whose name belongs to its key, None if the row is damaged."""
    try:
        name, digest, labels = row.name.decode(), row.digest.decode(), row.labels.decode()
        if not name or stream_key(name) != row.key:
            return None
        return verified_head(name, (name, row.position, digest, labels, row.snapshot))
    except (UnicodeError, DamagedError):
        return None


def _make_head(
    new: apsw.Connection, key: int, old: Head | None, journal: Journal
) -> tuple[Head, bool]:
    """Return a head for entries whose head is lost, and whether their name is known.

    The name is in the first entry. Without it, they get a name that says so. The head is labeled as
    that of a part, because later entries may be lost too, and names no snapshot.
    """
    rows: list[Any] = new.execute(HEADERS_OF, (key,)).fetchall()
    headers = [(last, restore_header(selected, last)) for last, selected in rows]
    position, header = headers[-1]
    digest = digest_of(header)
    if old is not None:
        return Head(old.stream, position, digest, PARTIAL), True
    names = (journal.name_of(header) for _, header in headers)
    name = next((name for name in names if name and stream_key(name) == key), None)
    if name is not None:
        return Head(name, position, digest, PARTIAL), True
    name = f"unnamed {key}"
    new.execute("update entry set stream = ? where stream = ?", (stream_key(name), key))
    return Head(name, position, digest, PARTIAL), False


def _add_head(new: apsw.Connection, head: Head) -> None:
    key, labels = stream_key(head.stream), sorted(head.labels)
    text = msgspec.json.encode(labels).decode()
    columns = (head.position, head.digest, head.snapshot, text, key, head.stream)
    new.execute(ADD_HEAD, columns)
    new.executemany(ADD_LABEL, [(label, head.stream, key) for label in labels])
