"""An immutable mapping with cheap modified copies. Pure.

A copy shares the large old layer and has a small new layer of its own, which stays below about the
square root of the old one's size. When it grows beyond that, the layers are merged: n changes cost
about n·√n, not n².
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


_MERGE_MIN = 16  # keys; a smaller new layer is copied rather than merged


class PersistentMap(Mapping[str, T], Generic[T]):
    """An immutable mapping; keys iterate in the order of their first `put`."""

    __slots__ = ("_length", "_new", "_old")

    def __init__(self, values: dict[str, T] | None = None) -> None:
        """Take ownership of a dict; the caller must not change it afterwards."""
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

    def put(self, key: str, value: T) -> "PersistentMap[T]":
        """Return a copy in which the key has this value."""
        new = {**self._new, key: value}
        if len(new) > _MERGE_MIN and len(new) ** 2 > len(self._old):
            return PersistentMap({**self._old, **new})
        copy: PersistentMap[T] = object.__new__(PersistentMap)
        copy._old, copy._new = self._old, new
        copy._length = self._length + (key not in self)
        return copy
