"""A cache of complete values, each as of one version: the bases of deltas. Pure."""

from typing import NamedTuple

VALUES_CACHED_MOST = 256  # values; bounds the bookkeeping where values are tiny
VALUES_CACHED = 8 * 2**20  # bytes; enough for the few documents that a session works on


class Cached(NamedTuple):
    """A complete value, as of the position of one of its versions."""

    position: int
    data: bytes


class ValueCache:
    """The few documents that a session works on; the oldest are evicted beyond the limits.

    Readers and the writer of a session share it. Each item holds the position of its version, so
    an outdated item is never returned and does no harm.
    """

    def __init__(self) -> None:
        self._values: dict[str, Cached] = {}
        self._bytes = 0

    def get(self, key: str, position: int) -> bytes | None:
        """Return the complete value if it is cached as of exactly this position."""
        cached = self._values.get(key)
        return cached.data if cached is not None and cached.position == position else None

    def put(self, key: str, cached: Cached) -> None:
        """Cache a value, and evict the oldest beyond the limits of bytes or values."""
        replaced = self._values.pop(key, None)
        self._values[key] = cached
        self._bytes += len(cached.data) - (len(replaced.data) if replaced else 0)
        while self._bytes > VALUES_CACHED or len(self._values) > VALUES_CACHED_MOST:
            oldest = next(iter(tuple(self._values)))
            if oldest == key:
                break
            self._bytes -= len(self._values.pop(oldest).data)
