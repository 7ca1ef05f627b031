"""What is asked of Postgres and what its rows mean, once for both colours. Pure: no I/O.

A step yields statements and is sent their rows; whoever drives it has the connection. A step that
is cut by a lost connection is begun again from its start: everything here may be done twice.
"""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from perdure.backend import STORED, Append, Entry, Outcome, digest_of
from perdure.backends.postgres_arrays import Bytes, Flags, Numbers, Texts
from perdure.backends.postgres_sql import NOW, Statements
from perdure.backends.rules import POSITION_MAX, check_name, decide
from perdure.errors import DamagedError, UnavailableError

PAGE_ROWS = 256
PAGE_BYTES = 2**20  # Memory stays bounded however long the bodies are.
BATCH_BYTES = 2**26  # Postgres holds no array of a gigabyte; larger calls are several commits.
ROUNDS = 100  # Each round means that another writer got on; so many in one call are a mistake.
NO_BOUND = 2**62
KNOWN_LABELS = 8192

T = TypeVar("T")
Row = tuple[Any, ...]


class Ask(NamedTuple):
    """A statement and its parameters."""

    sql: str
    parameters: tuple[Any, ...]
    may_fail: bool = False
    """Whether it is the last of its steps, and they have succeeded without it."""
    often: bool = False
    """Whether it is asked so often that planning it each time would be most of the work."""


Steps = Generator[Ask, list[Row], T]


class Labels:
    """The labels of heads that this process wrote last, so that unchanged ones cost nothing.

    Only a hint: the statement moves a head without touching its labels only if they are the same.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, frozenset[str]]] = {}

    def change(self, key: bytes, append: Append) -> bool:
        """Tell whether the labels may differ from those of the head that the append moves."""
        before = append.entries[0].position - 1
        if append.begins or not before:
            return bool(append.labels)
        return self._known.get(key) != (before, append.labels)

    def stored(self, key: bytes, append: Append) -> None:
        """Remember the labels that a head has now."""
        if len(self._known) >= KNOWN_LABELS:
            self._known = {}  # What is lost is only a shortcut.
        self._known[key] = (append.entries[-1].position, append.labels)

    def forget(self, key: bytes) -> None:
        """Rely on nothing that is known of a head."""
        self._known.pop(key, None)


class Book:
    """The statements of one store, and the names of its streams as they are kept there."""

    def __init__(self, sql: Statements, tenant: str, name: str, channel: str) -> None:
        self.sql = sql
        self.tenant = tenant
        self.name = name
        self._channel = channel
        self.labels = Labels()
        self._salt = tenant.encode() + b"\0"

    def key(self, stream: str) -> bytes:
        """Return what entries carry in place of a long name."""
        return hashlib.sha256(self._salt + check_name(stream)).digest()[:16]

    def append(self, appends: Sequence[Append]) -> Steps[list[Outcome]]:
        """Store what can be stored, in one statement; look only at what could not."""
        outcomes: dict[str, Outcome] = {}
        left = [(self.key(append.stream), append) for append in appends]
        waited: list[bytes] = []
        for _ in range(ROUNDS):
            missed: list[tuple[bytes, Append]] = []
            for batch in _batches(sorted(left)):
                taken = {key: is_waited for key, _, is_waited in (yield self._write(batch))}
                waited += [key.hex().encode() for key, is_waited in taken.items() if is_waited]
                for key, append in batch:
                    if key in taken:
                        outcomes[append.stream] = STORED
                        self.labels.stored(key, append)
                    else:
                        self.labels.forget(key)
                        missed.append((key, append))
            left = (yield from self._judge(missed, outcomes)) if missed else []
            if not left:
                if waited:
                    yield Ask(self.sql.notify, (self._channel, Texts(waited)), may_fail=True)
                return [outcomes[append.stream] for append in appends]
        outrun = UnavailableError(self.name, "other writers were always first")
        outrun.of_one = True
        raise outrun

    def _write(self, batch: list[tuple[bytes, Append]]) -> Ask:
        tenant = self.tenant
        lasts = [append.entries[-1] for _, append in batch]
        rows = [(key, entry) for key, append in batch for entry in append.entries]
        relabels = [self.labels.change(key, append) for key, append in batch]
        if len(batch) == 1 and _goes_on(batch[0][1]) and not relabels[0]:
            return self._write_next(batch[0][1])
        heads = (
            Bytes([key for key, _ in batch]),
            Bytes([append.stream.encode() for _, append in batch]),
            Numbers([0 if one.begins else one.entries[0].position - 1 for _, one in batch]),
            Numbers([last.position for last in lasts]),
            Texts([digest_of(last.header).encode() for last in lasts]),
            Bytes([_labels_column(append.labels) for _, append in batch]),
            Flags(relabels),
        )
        entries = (
            Bytes([key for key, _ in rows]),
            Numbers([entry.position for _, entry in rows]),
            Bytes([entry.header for _, entry in rows]),
            Bytes([entry.body or b"" for _, entry in rows]),
        )
        parameters = (*heads, tenant, tenant, tenant, *entries)
        if not any(relabels):
            return Ask(self.sql.append, (*parameters, tenant), often=True)
        changed = [one for one, relabelled in zip(batch, relabels, strict=True) if relabelled]
        wanted = [(key, label.encode()) for key, append in changed for label in append.labels]
        labels = (Bytes([key for key, _ in wanted]), Bytes([label for _, label in wanted]))
        relabelling = (*labels, tenant, tenant, tenant)
        return Ask(self.sql.append_relabelling, (*parameters, *relabelling), often=True)

    def _write_next(self, append: Append) -> Ask:
        """Return how to store what goes on in a stream under the labels that it had."""
        entries, last = append.entries, append.entries[-1]
        parameters = (
            *(last.position, digest_of(last.header)),
            *(self.tenant, append.stream.encode(), entries[0].position - 1),
            *(_labels_column(append.labels), self.tenant),
            Numbers([entry.position for entry in entries]),
            Bytes([entry.header for entry in entries]),
            Bytes([entry.body or b"" for entry in entries]),
            self.tenant,
        )
        return Ask(self.sql.append_next, parameters, often=True)

    def _judge(
        self, missed: list[tuple[bytes, Append]], outcomes: dict[str, Outcome]
    ) -> Steps[list[tuple[bytes, Append]]]:
        """Decide about what was not stored as it is; return what has to be sent again."""
        found = _standing((yield self._look(missed)), missed)
        again: list[tuple[bytes, Append]] = []
        settled: list[bytes] = []
        for (key, append), (head, headers) in zip(missed, found, strict=True):
            outcome, missing = decide(append, head, partial(_given, headers))
            if missing:
                rest = append._replace(entries=missing)
                if head is not None:
                    rest = rest._replace(begins=False)
                again.append((key, rest))
                continue
            outcomes[append.stream] = outcome
            if outcome is STORED:
                settled.append(append.stream.encode())
        if settled:
            yield Ask(self.sql.settle, (Bytes(settled), self.tenant))  # In their keys' order.
        return again

    def _look(self, missed: list[tuple[bytes, Append]]) -> Ask:
        parameters = (
            Bytes([key for key, _ in missed]),
            Bytes([append.stream.encode() for _, append in missed]),
            Numbers([append.entries[0].position for _, append in missed]),
            Numbers([append.entries[-1].position for _, append in missed]),
            *(self.tenant, self.tenant),
        )
        return Ask(self.sql.look, parameters)

    def drop(self, stream: str, before: int) -> Steps[None]:
        """Remove entries, but never the last one."""
        bound = max(min(before, POSITION_MAX), 0)
        name = check_name(stream)
        here = (self.tenant, self.key(stream), bound)
        yield Ask(self.sql.drop, (*here, self.tenant, name))

    def expect(self, stream: str, seconds: int) -> Steps[None]:
        """Have writers tell, for a while, when they append to a stream."""
        yield Ask(self.sql.tidy, ())
        yield Ask(self.sql.expect, (self.tenant, self.key(stream), seconds))

    def server_time(self) -> Steps[float]:
        """Return the time by the server's clock, in seconds since 1970."""
        rows = yield Ask(f"select {NOW}", ())
        return int(rows[0][0]) / 1e6

    def remove(self, stream: str, digest: str) -> Steps[bool]:
        """Forget a stream if this is the digest of its end; tell whether it is gone."""
        here = (self.tenant, check_name(stream))
        rows = yield Ask(self.sql.remove, (*here, digest, self.tenant, *here, *here))
        return bool(rows[0][0])


def _batches(left: list[tuple[bytes, Append]]) -> Iterator[list[tuple[bytes, Append]]]:
    batch: list[tuple[bytes, Append]] = []
    size = 0
    for one in left:
        weight = sum(len(entry.header) + len(entry.body or b"") for entry in one[1].entries)
        if batch and size + weight > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += weight
    yield batch


def _standing(
    rows: list[Row], asked: list[tuple[bytes, Append]]
) -> list[tuple[int | None, list[bytes]]]:
    """Return the head of each stream that was asked about, and the headers that stand there."""
    heads: list[int | None] = [None] * len(asked)
    headers: list[list[bytes]] = [[] for _ in asked]
    for number, stream, head, position, header in rows:
        key, append = asked[number - 1]
        if stream is not None and stream != key:
            raise DamagedError(append.stream, 0, "its name does not belong to its key")
        heads[number - 1] = head
        if position is None:
            continue
        if head is None:
            raise DamagedError(append.stream, 0, "it has entries and no head")
        if position > head:
            raise DamagedError(append.stream, head + 1, "entries stand after its head")
        headers[number - 1].append(header)
    return list(zip(heads, headers, strict=True))


def _goes_on(append: Append) -> bool:
    return append.entries[0].position > 1 and not append.begins


def _given(headers: list[bytes], _first: int, _last: int) -> list[bytes]:
    return headers


def _labels_column(labels: frozenset[str]) -> bytes:
    return msgspec.json.encode(sorted(labels)) if labels else b"[]"


class Page:
    """Some entries of one moment, and whether there are more."""

    def __init__(
        self,
        book: Book,
        stream: str,
        after: int,
        limit: int,
        max_body: int | None,
        *,
        reverse: bool,
    ) -> None:
        self._book = book
        self._stream = stream
        self._after = after
        self._size = min(limit, PAGE_ROWS)
        self._max_body = NO_BOUND if max_body is None else max(max_body, -1)
        self._reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False

    def steps(self) -> Steps[None]:
        """Load the page."""
        sql, book, after = self._book.sql, self._book, min(self._after, POSITION_MAX)
        if self._reverse and not after:
            after = NO_BOUND * 2 - 1
        statement = sql.reverse if self._reverse else sql.forward
        name, key, bound = check_name(self._stream), book.key(self._stream), self._max_body
        entries = (book.tenant, key, after, self._size)
        parameters = (book.tenant, name, bound, bound, *entries, PAGE_BYTES)
        self._take((yield Ask(statement, parameters)), key)

    def _take(self, rows: list[Row], key: bytes) -> None:
        stream, head = rows[0][:2]
        self.entries = [Entry(*row[2:5]) for row in rows if row[2] is not None]
        if stream is not None and stream != key:
            raise DamagedError(self._stream, 0, "its name does not belong to its key")
        if head is None and self.entries:
            raise DamagedError(self._stream, 0, "it has entries and no head")
        many = rows[0][5] or 0
        self.is_last = len(self.entries) == many < self._size
        if head is not None:
            self._check(head)

    def _check(self, head: int) -> None:
        """The last entry always stays, so it must be met where reading begins or ends there."""
        highest = max((one.position for one in self.entries), default=self._after)
        if self.entries and highest > head:
            self.entries = [one for one in self.entries if one.position <= head]
            raise DamagedError(self._stream, head + 1, "entries stand after its head")
        if self._reverse and not self._after and highest < head:
            self.entries = []
            raise DamagedError(self._stream, highest + 1, "entries are missing at the end")
        if not self._reverse and self.is_last and highest < head:
            raise DamagedError(self._stream, highest + 1, "entries are missing at the end")
