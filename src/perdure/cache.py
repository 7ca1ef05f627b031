"""Values in full, as of one of their versions: what deltas are made against. Pure."""

from typing import NamedTuple

VALUES_CACHED_MOST = 256
VALUES_CACHED = 8 * 2**20  # Bases of deltas: enough for the few documents that a session works on.


class Cached(NamedTuple):
    """A value in full, as of the position of one of its versions."""

    position: int
    data: bytes


class ValueCache:
    """The few documents that a session works on; the oldest go when there are too many bytes.

    Readers and the writer of a session share it. An entry says of which version it is, so that
    one that came late is of no use to anybody, and no harm.
    """

    def __init__(self) -> None:
        self._values: dict[str, Cached] = {}
        self._bytes = 0

    def get(self, key: str, position: int) -> bytes | None:
        """Return a value in full if it is known as of exactly this position."""
        known = self._values.get(key)
        return known.data if known is not None and known.position == position else None

    def put(self, key: str, cached: Cached) -> None:
        """Keep a value, and forget the oldest if that makes too many bytes or too many values."""
        former = self._values.pop(key, None)
        self._values[key] = cached
        self._bytes += len(cached.data) - (len(former.data) if former else 0)
        while self._bytes > VALUES_CACHED or len(self._values) > VALUES_CACHED_MOST:
            oldest = next(iter(tuple(self._values)))
            if oldest == key:
                break
            self._bytes -= len(self._values.pop(oldest).data)
