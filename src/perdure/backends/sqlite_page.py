"""Read one page of a SQLite stream in one transaction, and check it against the head.

A connection comes in; `entries` go out. Gaps at the end of a stream raise DamagedError; the content
of an entry is not looked at.
"""

from typing import Any

import apsw

from perdure.backend import Entry
from perdure.backends.rules import POSITION_MAX
from perdure.backends.sqlite_heads import head_of, place_of
from perdure.errors import DamagedError

PAGE_BYTES = 2**20  # bytes; long bodies end a page early, so that memory stays bounded
NO_BOUND = 2**63 - 1  # the largest SQLite integer, in place of "unlimited"

# octet_length() does not load a long body; cast() returns the bytes of text and of blobs.
FORWARD = (
    "select position, cast(header as blob), octet_length(body),"
    " case when octet_length(body) <= ? then cast(body as blob) end"
    " from entry where stream = ? and position > ? order by position limit ?"
)
REVERSE = FORWARD.replace("position > ?", "position < ?").replace(
    "order by position", "order by position desc"
)


class Page:
    """Entries from one snapshot. Those read before an error stay in `entries`."""

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
        key = place_of(self.stream)
        try:
            head = head_of(db, self.stream, key)
        except DamagedError:
            # `streams` reports a damaged head, and opening a session uses that. The entries may
            # be intact, and salvage needs them.
            self._fill(db, key)
            return
        if head is None:
            self.is_last = True
            return
        self._fill(db, key)
        self._check_end(head.position)

    def _check_end(self, head: int) -> None:
        """Raise DamagedError if the page does not reach the head, although it should.

        `drop` never removes the last entry, so that a missing one is always damage.
        """
        highest = max((entry.position for entry in self.entries), default=self.after)
        if self.entries and highest > head:
            raise DamagedError(self.stream, head + 1, "it has entries after its head")
        if self.reverse and not self.after and highest < head:
            self.entries = []
            raise DamagedError(self.stream, highest + 1, "entries are missing at the end")
        if not self.reverse and self.is_last and highest < head:
            raise DamagedError(self.stream, highest + 1, "entries are missing at the end")

    def _fill(self, db: apsw.Connection, key: int) -> None:
        after = min(self.after, POSITION_MAX)
        if self.reverse:
            after = after or NO_BOUND
        loaded = 0
        sql = REVERSE if self.reverse else FORWARD
        for row in db.execute(sql, (self.max_body, key, after, self.size)):
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
