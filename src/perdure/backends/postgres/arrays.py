"""PostgreSQL arrays in the binary wire format. Pure.

An append sends a dozen of them, and the driver's own conversion is slow. Each class is one element
type; `PostgresArray.data` is sent unchanged (`connection` registers the dumpers).
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import ClassVar

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
