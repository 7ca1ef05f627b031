"""Fields: labels of a stream that have a value, by which streams are found and sorted. Pure.

A field is a label: its name, a `FIELD_MARK`, its value. A stream has one label of each field. To a
store it is a label like any other, so that `streams(labels=)` finds the streams in which a field
has a value. A store with the capability `order` lists streams in the order of the values as well.
The values are texts whose order by code points is the order that is meant.
"""

from collections.abc import Iterable
from typing import NamedTuple

FIELD_MARK = "\t"  # no label of a caller has a control character

FIELDS_MAX = 16  # fields, beside the labels; a head is read with every listing

FIELD_BYTES_MAX = 480  # bytes of UTF-8: a field's name, the mark and its value, encrypted or not


class FieldOrder(NamedTuple):
    """Streams that have a field, in the order of its values, and of names where those are equal.

    Both are in reverse with `reverse`.
    """

    field: str
    low: str = ""
    """The lowest value, included; empty for no bound."""
    high: str = ""
    """The end of the values, excluded; empty for no bound."""
    reverse: bool = False
    after: tuple[str, str] | None = None
    """A value and the name of a stream: the listing continues behind them."""

    @property
    def start(self) -> str:
        """The beginning of every label of the field."""
        return self.field + FIELD_MARK

    @property
    def labels(self) -> tuple[str, str]:
        """The lowest label of the listing, and the end of its labels, which is not part of it."""
        end = self.start + self.high if self.high else self.field + chr(ord(FIELD_MARK) + 1)
        return self.start + self.low, end

    def key(self, name: str, labels: Iterable[str]) -> tuple[str, str] | None:
        """Return the place of a stream in the listing, or None if it is not to be listed."""
        start = self.start
        value = next((label[len(start) :] for label in labels if label.startswith(start)), None)
        if value is None or value < self.low or (self.high and value >= self.high):
            return None
        key = (value, name)
        if self.after is not None and (key >= self.after if self.reverse else key <= self.after):
            return None
        return key
