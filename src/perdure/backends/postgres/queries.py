"""Queries of a Postgres store: statements with their parameters, and the meaning of their rows.

Pure: `operations_async` and `listing_async` run the queries. Every query may be sent twice, because
a lost connection leaves its statement in doubt. An append sends a dozen arrays, which the driver
would convert slowly: they are encoded here, one class per element type, and sent unchanged
(`connection` registers the dumpers).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import msgspec

from perdure.backends.append_rules import POSITION_MAX, UNLIMITED, check_name
from perdure.backends.digests import digest_of
from perdure.backends.fields import FIELD_MARK
from perdure.backends.postgres.statements import Statements
from perdure.backends.protocol import Append, Entry, Head
from perdure.errors import DamagedError, UsageError

PAGE_ROWS = 256  # rows per statement of a read or a listing

PAGE_BYTES = 2**20  # bytes per page; bounds memory however long the bodies are

BATCH_BYTES = 2**26  # bytes per commit; Postgres arrays end at 1 GB, so larger calls are split

LABEL_CACHE_MAX = 8192  # heads whose labels are cached


Row = tuple[Any, ...]


# Dimensions, has-nulls flag, element type, length, lower bound.
_HEADER = Struct("!iiIii")

_EMPTY_HEADER = Struct("!iiI")

_LENGTH = Struct("!i")

_NUMBER = Struct("!iq")


class PostgresArray:
    """A one-dimensional array without nulls."""

    __slots__ = ("data",)
    element: ClassVar[int]
    """The object id of the element type, the same on every server."""
    oid: ClassVar[int]

    def __init__(self, items: Sequence[bytes]) -> None:
        if not items:
            self.data = _EMPTY_HEADER.pack(0, 0, self.element)
            return
        parts = [_HEADER.pack(1, 0, self.element, len(items), 1)]
        for item in items:
            parts += (_LENGTH.pack(len(item)), item)
        self.data = b"".join(parts)


class ByteaArray(PostgresArray):
    """bytea[]."""

    __slots__ = ()
    element, oid = 17, 1001


class TextArray(PostgresArray):
    """text[], items already encoded as UTF-8."""

    __slots__ = ()
    element, oid = 25, 1009


class BooleanArray(PostgresArray):
    """boolean[]."""

    __slots__ = ()
    element, oid = 16, 1000

    def __init__(self, items: Iterable[bool]) -> None:
        super().__init__([b"\1" if item else b"\0" for item in items])


class BigintArray(PostgresArray):
    """bigint[]."""

    __slots__ = ()
    element, oid = 20, 1016

    def __init__(self, items: Sequence[int]) -> None:
        if not items:
            super().__init__(())
            return
        head = _HEADER.pack(1, 0, self.element, len(items), 1)
        self.data = head + b"".join([_NUMBER.pack(8, item) for item in items])


class Query(NamedTuple):
    """A statement and its parameters."""

    sql: str
    parameters: tuple[Any, ...]
    often: bool = False
    """Whether it runs so often that it should be prepared: planning would dominate its cost."""


class HeadLabelCache:
    """Labels of the heads that this process wrote last, so that unchanged ones cost nothing.

    A cache and only a hint: the statement moves a head without touching its labels only if they are
    equal.
    """

    def __init__(self) -> None:
        self._cached: dict[bytes, tuple[int, frozenset[str]]] = {}

    def may_differ(self, key: bytes, append: Append) -> bool:
        """Return whether the labels may differ from those of the head that the append moves."""
        if append.begins:
            return bool(append.labels)
        return self._cached.get(key) != (append.entries[0].position - 1, append.labels)

    def remember(self, key: bytes, append: Append) -> None:
        """Remember the labels that a head has now."""
        if len(self._cached) >= LABEL_CACHE_MAX:
            self._cached = {}  # Only a cache: forgetting costs a slower statement.
        self._cached[key] = (append.entries[-1].last, append.labels)

    def forget(self, key: bytes) -> None:
        """Forget the labels of a head."""
        self._cached.pop(key, None)


class StoreQueries:
    """Builds the queries of one store, and the keys of its streams."""

    def __init__(self, sql: Statements, tenant: str, channel: str) -> None:
        self.sql = sql
        self.tenant = tenant
        self.channel = channel
        self.labels = HeadLabelCache()
        self._salt = tenant.encode() + b"\0"

    def key(self, stream: str) -> bytes:
        """Return the key of a stream, which entries carry instead of a long name."""
        return hashlib.sha256(self._salt + check_name(stream)).digest()[:16]

    def append_batch(self, batch: list[tuple[bytes, Append]]) -> Query:
        """Store all appends of a batch, and return the keys of those that were stored."""
        tenant = self.tenant
        lasts = [append.entries[-1] for _, append in batch]
        rows = [(key, entry) for key, append in batch for entry in append.entries]
        relabels = [self.labels.may_differ(key, append) for key, append in batch]
        if len(batch) == 1 and not batch[0][1].begins and not relabels[0]:
            return self._append_next(batch[0][1])
        heads = (
            ByteaArray([key for key, _ in batch]),
            ByteaArray([append.stream.encode() for _, append in batch]),
            BigintArray(
                [0 if append.begins else append.entries[0].position - 1 for _, append in batch]
            ),
            TextArray([append.previous.encode() for _, append in batch]),
            BigintArray([last.last for last in lasts]),
            TextArray([digest_of(last.header).encode() for last in lasts]),
            ByteaArray([_labels_column(append.labels) for _, append in batch]),
            BooleanArray(relabels),
            BigintArray([append.snapshot for _, append in batch]),
        )
        entries = (
            ByteaArray([key for key, _ in rows]),
            BigintArray([entry.last for _, entry in rows]),
            BigintArray([entry.position for _, entry in rows]),
            ByteaArray([entry.header for _, entry in rows]),
            ByteaArray([entry.body or b"" for _, entry in rows]),
        )
        parameters = (*heads, tenant, tenant, tenant, *entries)
        if not any(relabels):
            return Query(self.sql.append, (*parameters, tenant), often=True)
        changed = [item for item, has_changed in zip(batch, relabels, strict=True) if has_changed]
        wanted = [(key, *split_label(label)) for key, append in changed for label in append.labels]
        labels = (
            ByteaArray([key for key, _, _ in wanted]),
            ByteaArray([label for _, label, _ in wanted]),
            ByteaArray([value for _, _, value in wanted]),
        )
        relabelling = (*labels, tenant, tenant, tenant)
        return Query(self.sql.append_relabelling, (*parameters, *relabelling), often=True)

    def _append_next(self, append: Append) -> Query:
        """Continue one stream whose labels do not change."""
        entries, last = append.entries, append.entries[-1]
        parameters = (
            *(last.last, digest_of(last.header), append.snapshot),
            *(self.tenant, append.stream.encode(), entries[0].position - 1, append.previous),
            *(_labels_column(append.labels), self.tenant),
            BigintArray([entry.last for entry in entries]),
            BigintArray([entry.position for entry in entries]),
            ByteaArray([entry.header for entry in entries]),
            ByteaArray([entry.body or b"" for entry in entries]),
            self.tenant,
        )
        return Query(self.sql.append_next, parameters, often=True)

    def inspect(self, missed: list[tuple[bytes, Append]]) -> Query:
        """Return the heads of appends that were not stored, and headers from just before them."""
        parameters = (
            ByteaArray([key for key, _ in missed]),
            ByteaArray([append.stream.encode() for _, append in missed]),
            BigintArray([append.entries[0].position - 1 for _, append in missed]),
            BigintArray([append.entries[-1].last for _, append in missed]),
            *(self.tenant, self.tenant),
        )
        return Query(self.sql.inspect, parameters)

    def head_problems(self, rows: list[Row]) -> Iterator[DamagedError]:
        """Yield what is wrong with heads, given the rows of `check_heads`."""
        for *row, listed in rows:
            try:
                head = decode_head((*row, None))
            except DamagedError as error:
                yield error
                continue
            if row[-1] != self.key(head.stream):
                yield DamagedError(head.stream, 0, "its name does not belong to its key")
            labels = {label.encode() for label in head.labels}
            if labels != {*listed}:
                reason = "the labels that it is listed under are not those of its head"
                yield DamagedError(head.stream, 0, reason)


def split_label(label: str) -> tuple[bytes, bytes]:
    """Return a label's columns: itself, or the name of a field with its mark, and the value."""
    try:
        field, mark, value = label.partition(FIELD_MARK)
        return (field + mark).encode(), value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{label!r} is not encodable as UTF-8") from error


def split_batches(items: list[tuple[bytes, Append]]) -> Iterator[list[tuple[bytes, Append]]]:
    """Split appends into batches that are small enough for one statement each."""
    batch: list[tuple[bytes, Append]] = []
    size = 0
    for item in items:
        weight = sum(entry.size for entry in item[1].entries)
        if batch and size + weight > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += weight
    yield batch


def stored_heads(
    rows: list[Row], items: list[tuple[bytes, Append]]
) -> list[tuple[Head | None, list[Entry]]]:
    """Return for each stream its head, without labels, and the entries at its positions."""
    heads: list[Head | None] = [None] * len(items)
    entries: list[list[Entry]] = [[] for _ in items]
    for number, stream, end, digest, position, first, header in rows:
        key, append = items[number - 1]
        if stream is not None and stream != key:
            raise DamagedError(append.stream, 0, "its name does not belong to its key")
        if stream is not None:
            heads[number - 1] = Head(append.stream, end, digest, frozenset())
        if position is None:
            continue
        if end is None:
            raise DamagedError(append.stream, 0, "it has entries and no head")
        if position > end:
            raise DamagedError(append.stream, end + 1, "entries exist after its head")
        entries[number - 1].append(Entry(first, header, None, position - first + 1))
    return list(zip(heads, entries, strict=True))


def _labels_column(labels: frozenset[str]) -> bytes:
    return msgspec.json.encode(sorted(labels)) if labels else b"[]"


class StreamPage:
    """One page of entries from a consistent view, and whether it is the last one."""

    def __init__(
        self,
        queries: StoreQueries,
        stream: str,
        after: int,
        limit: int,
        max_body: int | None,
        *,
        reverse: bool,
    ) -> None:
        self._queries = queries
        self._stream = stream
        self._after = after
        self._size = min(limit, PAGE_ROWS)
        self._max_body = UNLIMITED if max_body is None else max(max_body, -1)
        self._reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False

    def query(self) -> Query:
        """Return the query that reads the page."""
        queries, after = self._queries, min(self._after, POSITION_MAX)
        if self._reverse and not after:
            after = UNLIMITED
        statement = queries.sql.reverse if self._reverse else queries.sql.forward
        name, bound = check_name(self._stream), self._max_body
        place = (queries.tenant, queries.key(self._stream))
        start = (*place, after, after) if self._reverse else (after,)
        parameters = (queries.tenant, name, bound, bound, *place, *start, self._size, PAGE_BYTES)
        return Query(statement, parameters)

    def load(self, rows: list[Row]) -> None:
        """Set the entries from the rows of the query; raise DamagedError if they do not fit.

        The entries before the damage are set even then.
        """
        stream, head = rows[0][:2]
        entries = [Entry(*row[2:6]) for row in rows if row[2] is not None]
        is_long = [entry.header is None for entry in entries]  # The statement leaves those out.
        self.entries = entries[: is_long.index(True)] if any(is_long) else entries
        if stream is not None and stream != self._queries.key(self._stream):
            raise DamagedError(self._stream, 0, "its name does not belong to its key")
        if head is None and self.entries:
            raise DamagedError(self._stream, 0, "it has entries and no head")
        if len(self.entries) < len(entries):
            position = entries[len(self.entries)].position
            raise DamagedError(self._stream, position, "its header is too long")
        count = rows[0][6] or 0
        self.is_last = len(self.entries) == count < self._size
        if head is not None:
            self._check(head)

    def _check(self, head: int) -> None:
        """Check the page against the head: the last entry is never dropped, so it must exist."""
        highest = max((entry.last for entry in self.entries), default=self._after)
        if self.entries and highest > head:
            self.entries = [entry for entry in self.entries if entry.last <= head]
            raise DamagedError(self._stream, head + 1, "entries exist after its head")
        reaches_end = not self._after if self._reverse else self.is_last
        if reaches_end and highest < head:
            if self._reverse:
                self.entries = []
            raise DamagedError(self._stream, highest + 1, "entries are missing at the end")


def decode_head(row: Row) -> Head:
    """Return a head as it was stored, or raise DamagedError."""
    name, position, digest, labels, _changed, snapshot, _stream, header = row
    try:
        stream = name.decode()
        label_set = (
            msgspec.json.decode(labels, type=frozenset[str]) if labels != b"[]" else frozenset()
        )
    except (msgspec.MsgspecError, UnicodeError) as error:
        text = name.decode(errors="replace")
        raise DamagedError(text, 0, "its name or its labels cannot be read") from error
    if not 0 <= snapshot <= position:
        raise DamagedError(stream, 0, "its head names a snapshot that it cannot have")
    return Head(stream, position, digest, label_set, header or b"", snapshot)
