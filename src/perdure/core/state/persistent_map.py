"""An immutable mapping with cheap modified copies. Pure.

A copy shares the large old layer and has a small new layer of its own, which stays below about the
square root of the old one's size. When it grows beyond that, the layers are merged: n changes cost
about n·√n, not n².
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
U = TypeVar("U")


_MERGE_MIN = 16  # keys; a smaller new layer is copied rather than merged

_REMOVED: Any = object()  # In the new layer, in place of the value of a key that the old layer has.


class PersistentMap(Mapping[str, T], Generic[T]):
    """An immutable mapping; keys iterate in the order of their first `put`, as in a dict."""

    __slots__ = ("_new", "_old", "length")

    def __init__(self, values: dict[str, T] | None = None) -> None:
        """Take ownership of a dict; the caller must not change it afterwards."""
        self._old: dict[str, T] = values if values is not None else {}
        self._new: dict[str, T] = {}
        self.length = len(self._old)
        """As `len`, without a call: every write asks whether turns are open."""

    def __getitem__(self, key: str) -> T:
        value = self._new[key] if key in self._new else self._old[key]
        if value is _REMOVED:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: str, /) -> T | None: ...
    @overload
    def get(self, key: str, /, default: U) -> T | U: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        value = self._new.get(key) if self._new else None
        if value is None:
            return self._old.get(key, default)
        return default if value is _REMOVED else value

    def __contains__(self, key: object) -> bool:
        if key in self._new:
            return self._new[key] is not _REMOVED
        return key in self._old

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self.to_dict())

    def __len__(self) -> int:
        return self.length

    def items(self) -> ItemsView[str, T]:
        """Return the keys with their values, without a look-up for each."""
        return self.to_dict().items()

    def values(self) -> ValuesView[T]:
        """Return the values, without a look-up for each."""
        return self.to_dict().values()

    def to_dict(self) -> dict[str, T]:
        """Return a new dict of it."""
        merged = {**self._old, **self._new}
        if len(merged) != self.length:
            return {key: value for key, value in merged.items() if value is not _REMOVED}
        return merged

    def put(self, key: str, value: T) -> "PersistentMap[T]":
        """Return a copy in which the key has this value, which is not None."""
        previous = self._new.get(key)
        if previous is _REMOVED:  # Rare. It comes after the others now.
            return PersistentMap({**self.to_dict(), key: value})
        is_new = previous is None and key not in self._old
        return self._with({**self._new, key: value}, self.length + is_new)

    def without(self, key: str) -> "PersistentMap[T]":
        """Return a copy without the key, which it need not have."""
        if key not in self:
            return self
        new = {**self._new, key: _REMOVED}
        if key not in self._old:
            del new[key]
        return self._with(new, self.length - 1)

    def _with(self, new: dict[str, T], length: int) -> "PersistentMap[T]":
        copy: PersistentMap[T] = object.__new__(PersistentMap)
        copy._old, copy._new, copy.length = self._old, new, length
        if len(new) > _MERGE_MIN and len(new) ** 2 > len(self._old):
            return PersistentMap(copy.to_dict())
        return copy
