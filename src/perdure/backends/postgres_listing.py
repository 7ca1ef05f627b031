"""Listings of a Postgres store, page by page, once for both colours. Pure: no I/O.

Each walk says what to ask for next and takes the rows; a page is one moment's view.
"""

from collections.abc import Collection

import msgspec

from perdure.backend import Head
from perdure.backends.postgres_arrays import Bytes
from perdure.backends.postgres_steps import NO_BOUND, PAGE_ROWS, Ask, Book, Row, Steps
from perdure.backends.rules import Choice, check_name
from perdure.errors import DamagedError, UsageError

FEW = 1000  # So many streams are rather sorted than looked for among all the others,
MANY = 20_000  # and so many after as many others as FEW have been met.
FIRST_ROWS = 64  # Whoever shows a page does not wait for all that were sorted.
COMMITTING = 5_000_000  # Microseconds from a head's time to its commit, at most but for mishaps.


class ByName:
    """Heads by name, of streams that bear all the labels, and none of others."""

    def __init__(
        self,
        book: Book,
        prefix: str,
        after: str,
        labels: Collection[str],
        without: Collection[str],
        limit: int | None,
    ) -> None:
        self._book = book
        self._choice = Choice(prefix, labels, without)
        self._prefix = _encoded(prefix)
        self._after = _encoded(after)
        self._left = NO_BOUND if limit is None else limit
        self.ended = self._left <= 0 or self._choice.is_none

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; there may be none on a page."""
        sql, tenant, choice = self._book.sql, self._book.tenant, self._choice
        size = min(self._left, PAGE_ROWS)
        bounds = (self._after, self._prefix, size)
        if choice.label is not None:
            rows = yield Ask(sql.labelled, (tenant, _encoded(choice.label), *bounds, tenant))
        else:
            rows = yield Ask(sql.streams_live if choice.lives else sql.streams, (tenant, *bounds))
        self.ended = len(rows) < size
        heads = []
        for row in rows:
            if not row[0].startswith(self._prefix):
                self.ended = True
                break
            self._after = row[0]
            head = head_of(row)
            if choice.has(head):
                heads.append(head)
        self._left -= len(heads)
        self.ended = self.ended or self._left <= 0
        return heads


class ByChange:
    """Heads, those first that were appended to last.

    If a few are meant, the server sorts them. More than a few are soon met on the way through all
    of them from the newest on; where they are not, more are sorted, too.

    One that is appended to while the pages are read moves to the front: it comes last, if it has
    not come before.
    """

    def __init__(
        self,
        book: Book,
        prefix: str,
        labels: Collection[str],
        without: Collection[str],
        limit: int | None,
    ) -> None:
        self._book = book
        self._choice = Choice(prefix, labels, without)
        start = _encoded(prefix)
        self._bounds = (start, start + b"\xff")  # No byte of UTF-8 is as high.
        self._left = NO_BOUND if limit is None else limit
        self._before: tuple[int, bytes] = (NO_BOUND, b"")
        self._begun = -1
        self._seen: set[bytes] = set()
        self._most = FEW if self._choice.is_narrow else 0  # So many may still be sorted.
        self._sorts = self._choice.is_narrow
        self._is_begun = False
        self._wasted = 0
        self.ended = self._left <= 0 or self._choice.is_none

    def steps(self) -> Steps[list[Head]]:
        """Return the next heads; there may be none on a page."""
        rows = yield from self._rows()
        heads = []
        for row in rows:
            if row[0] in self._seen:
                continue
            self._seen.add(row[0])
            head = head_of(row)
            if self._choice.has(head):
                heads.append(head)
        self._wasted += len(rows) - len(heads)
        self._sorts = self._sorts or (self._most > 0 and self._wasted >= FEW)
        heads = heads[: self._left]
        self._left -= len(heads)
        self.ended = self.ended or self._left <= 0
        return heads

    def _rows(self) -> Steps[list[Row]]:
        if self._sorts:
            few = yield from self._few()
            if few is not None:
                return few
        return (yield from self._next())

    def _few(self) -> Steps[list[Row] | None]:
        """Return the first of all that are meant, then the others; None if they are too many."""
        sql, tenant, label = self._book.sql, self._book.tenant, self._choice.label
        most = self._most
        size = most if self._is_begun else min(self._left, FIRST_ROWS)
        bounds = (*self._bounds, most + 1, tenant, most, size)
        if label is not None:
            rows = yield Ask(sql.few_labelled, (tenant, _encoded(label), *bounds))
        else:
            rows = yield Ask(sql.few_live if self._choice.lives else sql.few, (tenant, *bounds))
        many, found = rows[0][0], [row[1:] for row in rows if row[1] is not None]
        if many > most:
            self._sorts, self._most = False, MANY if most < MANY else 0
            return None
        self._is_begun = True
        if self._begun < 0:
            self._begun = found[0][4] if found else 0
        self.ended = many <= size
        late = [row for row in found if row[4] > self._begun]
        return found[len(late) :] + late

    def _next(self) -> Steps[list[Row]]:
        """Return the next of all heads, so many that a page comes soon if most are meant."""
        sql, tenant = self._book.sql, self._book.tenant
        is_narrow = self._choice.is_narrow
        size = PAGE_ROWS if is_narrow else min(self._left, PAGE_ROWS)
        # Others are met as long as they count, and then passed over by the server.
        bounds = (b"", b"\xff") if self._most else self._bounds
        place = (tenant, *self._before, *bounds, size)
        if self._choice.lives:
            rows = yield Ask(sql.recent_live, place)
        else:
            rows = yield Ask(sql.recent, (*place, *place, size))
        begun = rows[0][4] if rows and self._begun < 0 else self._begun
        ended = len(rows) < size
        late: list[Row] = []
        if ended and begun >= 0:
            since = (tenant, begun - COMMITTING)
            late = yield Ask(sql.changed, since * 2)
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
