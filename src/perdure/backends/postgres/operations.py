"""Operations of a Postgres store as steps: SQL requests out, rows in. Pure, for sync and async.

A step yields statements and is sent their rows; the pool that drives it has the connection. A step
that is interrupted by a lost connection restarts from its beginning, so everything here must be
safe to run twice.
"""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from perdure.backends.append_rules import POSITION_MAX, check_name, decide
from perdure.backends.digests import digest_of
from perdure.backends.postgres.arrays import BigintArray, BooleanArray, ByteaArray, TextArray
from perdure.backends.postgres.statements import NOW_MICROSECONDS, Statements
from perdure.backends.protocol import STORED, Append, Entry, Outcome
from perdure.errors import DamagedError, UnavailableError

PAGE_ROWS = 256  # rows per statement of a read or a listing

PAGE_BYTES = 2**20  # bytes per page; bounds memory however long the bodies are

BATCH_BYTES = 2**26  # bytes per commit; Postgres arrays end at 1 GB, so larger calls are split

ROUNDS_MAX = 100  # attempts per call; each lost one means another writer won, so more is a bug

UNLIMITED = 2**62

LABEL_CACHE_MAX = 8192  # heads whose labels are cached


T = TypeVar("T")

Row = tuple[Any, ...]


class Query(NamedTuple):
    """A statement and its parameters."""

    sql: str
    parameters: tuple[Any, ...]
    may_fail: bool = False
    """Whether it is the last of its steps, which have succeeded without it."""
    often: bool = False
    """Whether it runs so often that it should be prepared: planning would dominate its cost."""


Steps = Generator[Query, list[Row], T]


class HeadLabelCache:
    """Labels of the heads that this process wrote last, so that unchanged ones cost nothing.

    A cache and only a hint: the statement moves a head without touching its labels only if they are
    equal.
    """

    def __init__(self) -> None:
        self._cached: dict[bytes, tuple[int, frozenset[str]]] = {}

    def may_differ(self, key: bytes, append: Append) -> bool:
        """Return whether the labels may differ from those of the head that the append moves."""
        previous = append.entries[0].position - 1
        if append.begins or not previous:
            return bool(append.labels)
        return self._cached.get(key) != (previous, append.labels)

    def remember(self, key: bytes, append: Append) -> None:
        """Remember the labels that a head has now."""
        if len(self._cached) >= LABEL_CACHE_MAX:
            self._cached = {}  # Only a cache: forgetting costs a slower statement.
        self._cached[key] = (append.entries[-1].position, append.labels)

    def forget(self, key: bytes) -> None:
        """Forget the labels of a head."""
        self._cached.pop(key, None)


class Operations:
    """The operations of one store as steps, and the keys of its streams."""

    def __init__(self, sql: Statements, tenant: str, name: str, channel: str) -> None:
        self.sql = sql
        self.tenant = tenant
        self.name = name
        self._channel = channel
        self.labels = HeadLabelCache()
        self._salt = tenant.encode() + b"\0"

    def key(self, stream: str) -> bytes:
        """Return the key of a stream, which entries carry instead of a long name."""
        return hashlib.sha256(self._salt + check_name(stream)).digest()[:16]

    def append(self, appends: Sequence[Append]) -> Steps[list[Outcome]]:
        """Store all appends in one statement per batch; inspect only those it did not store."""
        outcomes: dict[str, Outcome] = {}
        remaining = [(self.key(append.stream), append) for append in appends]
        watched_keys: list[bytes] = []
        for _ in range(ROUNDS_MAX):
            missed: list[tuple[bytes, Append]] = []
            for batch in _split_batches(sorted(remaining)):
                stored = {key: is_watched for key, _, is_watched in (yield self._write(batch))}
                watched_keys += [
                    key.hex().encode() for key, is_watched in stored.items() if is_watched
                ]
                for key, append in batch:
                    if key in stored:
                        outcomes[append.stream] = STORED
                        self.labels.remember(key, append)
                    else:
                        self.labels.forget(key)
                        missed.append((key, append))
            remaining = (yield from self._resolve_missed(missed, outcomes)) if missed else []
            if not remaining:
                if watched_keys:
                    yield Query(
                        self.sql.notify, (self._channel, TextArray(watched_keys)), may_fail=True
                    )
                return [outcomes[append.stream] for append in appends]
        error = UnavailableError(self.name, "other writers kept winning the race for a position")
        error.of_one = True
        raise error

    def _write(self, batch: list[tuple[bytes, Append]]) -> Query:
        tenant = self.tenant
        lasts = [append.entries[-1] for _, append in batch]
        rows = [(key, entry) for key, append in batch for entry in append.entries]
        relabels = [self.labels.may_differ(key, append) for key, append in batch]
        if len(batch) == 1 and _continues(batch[0][1]) and not relabels[0]:
            return self._write_next(batch[0][1])
        heads = (
            ByteaArray([key for key, _ in batch]),
            ByteaArray([append.stream.encode() for _, append in batch]),
            BigintArray(
                [0 if append.begins else append.entries[0].position - 1 for _, append in batch]
            ),
            BigintArray([last.position for last in lasts]),
            TextArray([digest_of(last.header).encode() for last in lasts]),
            ByteaArray([_labels_column(append.labels) for _, append in batch]),
            BooleanArray(relabels),
        )
        entries = (
            ByteaArray([key for key, _ in rows]),
            BigintArray([entry.position for _, entry in rows]),
            ByteaArray([entry.header for _, entry in rows]),
            ByteaArray([entry.body or b"" for _, entry in rows]),
        )
        parameters = (*heads, tenant, tenant, tenant, *entries)
        if not any(relabels):
            return Query(self.sql.append, (*parameters, tenant), often=True)
        changed = [item for item, has_changed in zip(batch, relabels, strict=True) if has_changed]
        wanted = [(key, label.encode()) for key, append in changed for label in append.labels]
        labels = (
            ByteaArray([key for key, _ in wanted]),
            ByteaArray([label for _, label in wanted]),
        )
        relabelling = (*labels, tenant, tenant, tenant)
        return Query(self.sql.append_relabelling, (*parameters, *relabelling), often=True)

    def _write_next(self, append: Append) -> Query:
        """Return the request that continues one stream with unchanged labels."""
        entries, last = append.entries, append.entries[-1]
        parameters = (
            *(last.position, digest_of(last.header)),
            *(self.tenant, append.stream.encode(), entries[0].position - 1),
            *(_labels_column(append.labels), self.tenant),
            BigintArray([entry.position for entry in entries]),
            ByteaArray([entry.header for entry in entries]),
            ByteaArray([entry.body or b"" for entry in entries]),
            self.tenant,
        )
        return Query(self.sql.append_next, parameters, often=True)

    def _resolve_missed(
        self, missed: list[tuple[bytes, Append]], outcomes: dict[str, Outcome]
    ) -> Steps[list[tuple[bytes, Append]]]:
        """Decide about appends that were not stored as sent; return those to send again.

        An append that is stored already is reported only after its entries are durable.
        """
        stored_heads = _stored_heads((yield self._inspect(missed)), missed)
        retries: list[tuple[bytes, Append]] = []
        already_stored: list[bytes] = []
        for (key, append), (head, headers) in zip(missed, stored_heads, strict=True):
            outcome, missing = decide(append, head, partial(_stored_headers, headers))
            if missing:
                rest = append._replace(entries=missing)
                if head is not None:
                    rest = rest._replace(begins=False)
                retries.append((key, rest))
                continue
            outcomes[append.stream] = outcome
            if outcome is STORED:
                already_stored.append(append.stream.encode())
        if already_stored:
            yield Query(
                self.sql.confirm_durable, (ByteaArray(already_stored), self.tenant)
            )  # In the order of their keys, in which heads are locked.
        return retries

    def _inspect(self, missed: list[tuple[bytes, Append]]) -> Query:
        parameters = (
            ByteaArray([key for key, _ in missed]),
            ByteaArray([append.stream.encode() for _, append in missed]),
            BigintArray([append.entries[0].position for _, append in missed]),
            BigintArray([append.entries[-1].position for _, append in missed]),
            *(self.tenant, self.tenant),
        )
        return Query(self.sql.inspect, parameters)

    def drop(self, stream: str, before: int) -> Steps[None]:
        """Remove entries, but never the last one."""
        bound = max(min(before, POSITION_MAX), 0)
        name = check_name(stream)
        here = (self.tenant, self.key(stream), bound)
        yield Query(self.sql.drop, (*here, self.tenant, name))

    def register_watch(self, stream: str, seconds: int) -> Steps[None]:
        """Register a waiter: writers notify appends to this stream for some seconds."""
        yield Query(self.sql.expire_watches, ())
        yield Query(self.sql.register_watch, (self.tenant, self.key(stream), seconds))

    def server_time(self) -> Steps[float]:
        """Return the time by the server's clock, in seconds since 1970."""
        rows = yield Query(f"select {NOW_MICROSECONDS}", ())
        return int(rows[0][0]) / 1e6

    def remove(self, stream: str, digest: str) -> Steps[bool]:
        """Remove a stream if its head has this digest; return whether it no longer exists."""
        here = (self.tenant, check_name(stream))
        rows = yield Query(self.sql.remove, (*here, digest, self.tenant, *here, *here))
        return bool(rows[0][0])


def _split_batches(items: list[tuple[bytes, Append]]) -> Iterator[list[tuple[bytes, Append]]]:
    batch: list[tuple[bytes, Append]] = []
    size = 0
    for item in items:
        weight = sum(len(entry.header) + len(entry.body or b"") for entry in item[1].entries)
        if batch and size + weight > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += weight
    yield batch


def _stored_heads(
    rows: list[Row], items: list[tuple[bytes, Append]]
) -> list[tuple[int | None, list[bytes]]]:
    """Return for each stream its head position and the headers stored at its positions."""
    heads: list[int | None] = [None] * len(items)
    headers: list[list[bytes]] = [[] for _ in items]
    for number, stream, head, position, header in rows:
        key, append = items[number - 1]
        if stream is not None and stream != key:
            raise DamagedError(append.stream, 0, "its name does not belong to its key")
        heads[number - 1] = head
        if position is None:
            continue
        if head is None:
            raise DamagedError(append.stream, 0, "it has entries and no head")
        if position > head:
            raise DamagedError(append.stream, head + 1, "entries exist after its head")
        headers[number - 1].append(header)
    return list(zip(heads, headers, strict=True))


def _continues(append: Append) -> bool:
    return append.entries[0].position > 1 and not append.begins


def _stored_headers(headers: list[bytes], _first: int, _last: int) -> list[bytes]:
    return headers


def _labels_column(labels: frozenset[str]) -> bytes:
    return msgspec.json.encode(sorted(labels)) if labels else b"[]"


class StreamPage:
    """One page of entries from a consistent view, and whether it is the last one."""

    def __init__(
        self,
        operations: Operations,
        stream: str,
        after: int,
        limit: int,
        max_body: int | None,
        *,
        reverse: bool,
    ) -> None:
        self._operations = operations
        self._stream = stream
        self._after = after
        self._size = min(limit, PAGE_ROWS)
        self._max_body = UNLIMITED if max_body is None else max(max_body, -1)
        self._reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False

    def steps(self) -> Steps[None]:
        """Load the page."""
        sql, operations, after = (
            self._operations.sql,
            self._operations,
            min(self._after, POSITION_MAX),
        )
        if self._reverse and not after:
            after = UNLIMITED * 2 - 1
        statement = sql.reverse if self._reverse else sql.forward
        name, key, bound = check_name(self._stream), operations.key(self._stream), self._max_body
        entries = (operations.tenant, key, after, self._size)
        parameters = (operations.tenant, name, bound, bound, *entries, PAGE_BYTES)
        self._load_rows((yield Query(statement, parameters)), key)

    def _load_rows(self, rows: list[Row], key: bytes) -> None:
        stream, head = rows[0][:2]
        self.entries = [Entry(*row[2:5]) for row in rows if row[2] is not None]
        if stream is not None and stream != key:
            raise DamagedError(self._stream, 0, "its name does not belong to its key")
        if head is None and self.entries:
            raise DamagedError(self._stream, 0, "it has entries and no head")
        count = rows[0][5] or 0
        self.is_last = len(self.entries) == count < self._size
        if head is not None:
            self._check(head)

    def _check(self, head: int) -> None:
        """Check the page against the head: the last entry is never dropped, so it must exist."""
        highest = max((entry.position for entry in self.entries), default=self._after)
        if self.entries and highest > head:
            self.entries = [entry for entry in self.entries if entry.position <= head]
            raise DamagedError(self._stream, head + 1, "entries exist after its head")
        if self._reverse and not self._after and highest < head:
            self.entries = []
            raise DamagedError(self._stream, highest + 1, "entries are missing at the end")
        if not self._reverse and self.is_last and highest < head:
            raise DamagedError(self._stream, highest + 1, "entries are missing at the end")
