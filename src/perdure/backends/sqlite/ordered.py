"""List the streams of a SQLite store by the value of a field, in the order of the labels' table.

A field and its value are one label, so the rows of a field lie together in the table's key, sorted
by value and name. Few matches of another filter are read and sorted instead of looked for there.
"""

from typing import Any

import apsw

from perdure.backends.fields import FieldOrder
from perdure.backends.protocol import Head, StreamFilter, arrange
from perdure.backends.sqlite.reading import (
    LABEL_LISTING,
    LABEL_LISTING_DOWN,
    choose_label,
    head_from_label,
    heads_by_key,
    listing_rows,
)
from perdure.backends.sqlite.recent import SORT_MAX, sorted_keys
from perdure.errors import DamagedError

FIRST_ROWS = 64  # rows of the first page; a caller that shows one screen should not wait for more

PAGE_ROWS = 256  # rows of the longest pages; each has twice the rows of the one before


class ValueListing:
    """Lists heads in pages, in the order of a field."""

    def __init__(self, choice: StreamFilter, order: FieldOrder) -> None:
        self.ended = choice.matches_nothing
        self._choice = choice
        self._order = order
        self._rows = 0
        low, high = order.labels
        start = (high, "") if order.reverse else (low, "")  # Before or behind all of its rows.
        if order.after is not None:
            after = (order.start + order.after[0], order.after[1])
            start = min(start, after) if order.reverse else max(start, after)
        self._start = start
        self._bound = low if order.reverse else high

    def page(self, db: apsw.Connection) -> list[Head]:
        """Return the next heads; a page may be empty before the end."""
        if not self._rows and self._choice.is_narrow:
            choose_label(db, self._choice)
            few = sorted_keys(db, self._choice, SORT_MAX)
            if few is not None:
                self.ended = True
                heads = heads_by_key(db, list(few), self._choice)
                return arrange(self._order, filter(self._choice.matches, heads))
        self._rows = min(2 * self._rows, PAGE_ROWS) or FIRST_ROWS
        return self._scan(db)

    def _scan(self, db: apsw.Connection) -> list[Head]:
        sql = LABEL_LISTING_DOWN if self._order.reverse else LABEL_LISTING
        rows = listing_rows(db, sql, (*self._start, self._bound, self._rows), self._choice)
        self.ended = len(rows) < self._rows
        heads = [self._head(row) for row in rows]
        return [head for head in heads if self._choice.matches(head)]

    def _head(self, row: tuple[Any, ...]) -> Head:
        label, *rest = row
        place = (label, rest[0])
        texts = all(isinstance(part, str) for part in place)
        if not texts or (place >= self._start if self._order.reverse else place <= self._start):
            reason = "the list that it is in is not in order"  # With a damaged index, without end.
            raise DamagedError(str(rest[0]), 0, reason)
        self._start = place
        return head_from_label(tuple(rest), label)
