"""Listings of a Postgres store, page by page, once for both colours. Pure: no I/O.

Each walk says what to ask for next and takes the rows; a page is one moment's view.
"""

from collections.abc import Collection

import msgspec

from perdure.backend import Head
from perdure.backends.postgres_arrays import Bytes
from perdure.backends.postgres_steps import NO_BOUND, PAGE_ROWS, Ask, Book, Row, Steps
from perdure.backends.rules import check_name
from perdure.errors import DamagedError, UsageError

FEW = 1000  # So many streams are rather sorted than looked for among all the others.
COMMITTING = 5_000_000  # Microseconds from a head's time to its commit, at most but for mishaps.


class ByName:
    """Heads by name, of streams that bear all the labels."""

    def __init__(
        self, book: Book, prefix: str, after: str, labels: Collection[str], limit: int | None
    ) -> None:
        self._book = book
        self._prefix = _encoded(prefix)
        self._after = _encoded(after)
        self._labels = frozenset(labels)
        self._left = NO_BOUND if limit is None else limit
        self.ended = self._left <= 0

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; there may be none on a page."""
        sql, tenant = self._book.sql, self._book.tenant
        size = min(self._left, PAGE_ROWS)
        bounds = (self._after, self._prefix, size)
        if self._labels:
            label = _encoded(min(self._labels))
            rows = yield Ask(sql.labelled, (tenant, label, *bounds, tenant))
        else:
            rows = yield Ask(sql.streams, (tenant, *bounds))
        self.ended = len(rows) < size
        heads = []
        for row in rows:
            if not row[0].startswith(self._prefix):
                self.ended = True
                break
            self._after = row[0]
            head = head_of(row)
            if self._labels <= head.labels:
                heads.append(head)
        self._left -= len(heads)
        self.ended = self.ended or self._left <= 0
        return heads


class ByChange:
    """Heads, those first that were appended to last.

    One that is appended to while the pages are read moves to the front: it comes last, if it has
    not come before.
    """

    def __init__(self, book: Book, prefix: str, labels: Collection[str], limit: int | None) -> None:
        self._book = book
        self._prefix = prefix
        self._labels = frozenset(labels)
        self._left = NO_BOUND if limit is None else limit
        self._before: tuple[int, bytes] = (NO_BOUND, b"")
        self._begun = -1
        self._seen: set[bytes] = set()
        self.ended = self._left <= 0

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; there may be none on a page."""
        rows = yield from self._rows()
        heads = []
        for row in rows:
            if row[0] in self._seen:
                continue
            self._seen.add(row[0])
            head = head_of(row)
            if self._labels <= head.labels and head.stream.startswith(self._prefix):
                heads.append(head)
        heads = heads[: self._left]
        self._left -= len(heads)
        self.ended = self.ended or self._left <= 0
        return heads

    def _rows(self) -> Steps[list[Row]]:
        sql, tenant = self._book.sql, self._book.tenant
        if not self._seen and (self._prefix or self._labels):
            few = ByName(self._book, self._prefix, "", self._labels, FEW + 1)
            names: list[bytes] = []
            while not few.ended:
                names += [head.stream.encode() for head in (yield from few.steps())]
            if len(names) <= FEW:
                self.ended = True
                return (yield Ask(sql.named, (Bytes(names), tenant)))
        size = PAGE_ROWS if self._prefix or self._labels else min(self._left, PAGE_ROWS)
        rows = yield Ask(sql.recent, (tenant, *self._before, size))
        begun = rows[0][4] if rows and self._begun < 0 else self._begun
        ended = len(rows) < size
        late: list[Row] = []
        if ended and begun >= 0:
            late = yield Ask(sql.changed, (tenant, begun - COMMITTING))
        # Only now: a lost connection begins these steps again.
        self._begun, self.ended = begun, ended
        if rows:
            self._before = (rows[-1][4], rows[-1][0])
        return rows + late


def head_steps(book: Book, stream: str) -> Steps[Head | None]:
    """Return the head of a stream, None if it has none."""
    rows = yield Ask(book.sql.named, (Bytes([check_name(stream)]), book.tenant))
    return head_of(rows[0]) if rows else None


def head_of(row: Row) -> Head:
    """Return a head as it was stored, or raise DamagedError."""
    name, position, digest, labels, _changed = row
    try:
        stream = name.decode()
        known = msgspec.json.decode(labels, type=frozenset[str]) if labels != b"[]" else frozenset()
    except (msgspec.MsgspecError, UnicodeError) as error:
        text = name.decode(errors="replace")
        raise DamagedError(text, 0, "its name or its labels can not be read") from error
    return Head(stream, position, digest, known)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is not encodable as UTF-8") from error
