"""A mapping that never changes and of which changed copies are cheap. Pure.

A copy shares the old layer, which is large, and has a new layer of its own, which stays about as
small as the root of the old one. When it has grown, the two become one: so n changes cost about
n times the root of n, and not n times n.
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

_SMALL = 16  # Below this, copying costs less than thinking about it.


class Layered(Mapping[str, T], Generic[T]):
    """Keys come in the order in which they were first put."""

    __slots__ = ("_length", "_new", "_old")

    def __init__(self, values: dict[str, T] | None = None) -> None:
        """Take a dict over; nobody may change it any more."""
        self._old: dict[str, T] = values if values is not None else {}
        self._new: dict[str, T] = {}
        self._length = len(self._old)

    def __getitem__(self, key: str) -> T:
        return self._new[key] if key in self._new else self._old[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._old
        for key in self._new:
            if key not in self._old:
                yield key

    def __len__(self) -> int:
        return self._length

    def put(self, key: str, value: T) -> "Layered[T]":
        """Return a mapping in which the key has this value."""
        new = {**self._new, key: value}
        if len(new) > _SMALL and len(new) ** 2 > len(self._old):
            return Layered({**self._old, **new})
        copy: Layered[T] = object.__new__(Layered)
        copy._old, copy._new = self._old, new
        copy._length = self._length + (key not in self)
        return copy
