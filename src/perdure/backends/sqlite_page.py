"""Some entries of a SQLite stream, read in one transaction and checked against its head."""

from typing import Any

import apsw

from perdure.backend import Entry
from perdure.backends.rules import POSITION_MAX
from perdure.backends.sqlite_heads import head_of, place_of
from perdure.errors import DamagedError

PAGE_BYTES = 2**20  # It does not hold many long bodies in memory at once.
NO_BOUND = 2**63 - 1

# octet_length() does not load a long body, cast() gives the bytes of text and blob alike.
FORWARD = (
    "select position, cast(header as blob), octet_length(body),"
    " case when octet_length(body) <= ? then cast(body as blob) end"
    " from entry where stream = ? and position > ? order by position limit ?"
)
REVERSE = FORWARD.replace("position > ?", "position < ?").replace(
    "order by position", "order by position desc"
)


class Page:
    """Some entries of one moment. What was read before an error stays in `entries`."""

    def __init__(self, stream: str, after: int, size: int, max_body: int, *, reverse: bool) -> None:
        self.stream = stream
        self.after = after
        self.size = size
        self.max_body = max_body
        self.reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False

    @property
    def next_position(self) -> int:
        last = self.entries[-1].position if self.entries else self.after
        return max(last - 1 if self.reverse else last + 1, 0)

    def load(self, db: apsw.Connection) -> None:
        place = place_of(self.stream)
        try:
            head = head_of(db, self.stream, place)
        except DamagedError:
            # `streams` tells of a damaged head, and opening asks it; the entries may be whole.
            self._fill(db, place)
            return
        if head is None:
            self.is_last = True
            return
        self._fill(db, place)
        self._check_end(head.position)

    def _check_end(self, head: int) -> None:
        """The last entry always stays, so it must be met where reading begins or ends there."""
        highest = max((one.position for one in self.entries), default=self.after)
        if self.entries and highest > head:
            raise DamagedError(self.stream, head + 1, "entries stand after its head")
        if self.reverse and not self.after and highest < head:
            self.entries = []
            raise DamagedError(self.stream, highest + 1, "entries are missing at the end")
        if not self.reverse and self.is_last and highest < head:
            raise DamagedError(self.stream, highest + 1, "entries are missing at the end")

    def _fill(self, db: apsw.Connection, place: int) -> None:
        after = min(self.after, POSITION_MAX)
        if self.reverse:
            after = after or NO_BOUND
        loaded = 0
        sql = REVERSE if self.reverse else FORWARD
        for row in db.execute(sql, (self.max_body, place, after, self.size)):
            entry, size = self._entry(row)
            self.entries.append(entry)
            loaded += size
            if loaded > PAGE_BYTES:
                return
        self.is_last = len(self.entries) < self.size

    def _entry(self, row: tuple[Any, ...]) -> tuple[Entry, int]:
        position, header, size, body = row
        if not (isinstance(position, int) and isinstance(header, bytes) and isinstance(size, int)):
            raise DamagedError(self.stream, self.next_position, "a column has the wrong type")
        return Entry(position, header, body), len(header) + len(body or b"")
