"""Streams in dictionaries of this process: for tests, and for sessions that may be forgotten."""

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence

from perdure.backend import RECENT, REMOVE, WATCH, Append, Entry, Head, Outcome, digest_of
from perdure.backends.rules import Choice, check, check_name, decide
from perdure.backends.watching import Watchers
from perdure.errors import UsageError
from perdure.guarantees import Guarantees

PAGE = 256  # Entries copied at a time, so that a reader does not keep writers waiting.


class _Stream:
    def __init__(self) -> None:
        self.entries: list[Entry] = []  # Without gaps: a position is an index plus the first one.
        self.labels: frozenset[str] = frozenset()
        self.digest = ""

    @property
    def first(self) -> int:
        return self.entries[0].position

    @property
    def last(self) -> int:
        return self.entries[-1].position

    def between(self, first: int, last: int) -> list[Entry]:
        start = max(first - self.first, 0)
        return self.entries[start : max(last - self.first + 1, start)]


class MemoryBackend:
    """Keeps streams until it is closed or the process ends.

    A child made by `os.fork` has a copy of its own.
    """

    name = "memory:"
    capabilities: frozenset[str] = frozenset({RECENT, REMOVE, WATCH})
    guarantees = Guarantees(
        "nothing",
        "one process",
        "gone when the process ends",
        atomic="one call",
        engine="memory of this process",
        version="",
    )

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}  # In the order of their last appends.
        self._closed = False
        self._lock = threading.Lock()
        self.watchers = Watchers()
        self._pid = os.getpid()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`, but nothing survives."""
        check(appends)
        with self._open():
            outcomes = [self._append(append) for append in appends]
        self.watchers.ring(appends)
        return outcomes

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As `Backend.read`."""
        while limit is None or limit > 0:
            size = PAGE if limit is None else min(limit, PAGE)
            page = self._page(stream, after, size, reverse=reverse)
            for entry in page:
                yield _without_long_body(entry, max_body)
            if len(page) < size:
                return
            after = page[-1].position
            limit = None if limit is None else limit - size

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Backend.streams`; what is written meanwhile is not listed."""
        with self._open():
            names = sorted(name for name in self._streams if name > after)
            heads = self._heads(names, prefix, labels, without)
        yield from heads[: None if limit is None else max(limit, 0)]

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Recent.recent`; what is written meanwhile is not listed."""
        with self._open():
            heads = self._heads(reversed(self._streams), prefix, labels, without)
        yield from heads[: None if limit is None else max(limit, 0)]

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        with self._open():
            found = self._streams.get(stream)
            if found is not None:
                del found.entries[: max(min(before, found.last) - found.first, 0)]

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`."""
        check_name(stream)
        with self._open():
            found = self._streams.get(stream)
            if found is not None and found.digest != digest:
                return False
            self._streams.pop(stream, None)
            return True

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `Watch.watch`; only this process can append."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def close(self) -> None:
        """Forget everything. Closing twice is harmless."""
        self._closed = True
        self._streams = {}
        self.watchers.ring_all()

    def _head(self, name: str) -> Head | None:
        with self._open():
            found = self._streams.get(name)
            return None if found is None else _head(name, found)

    def _open(self) -> threading.Lock:
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock when this process was forked.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _append(self, append: Append) -> Outcome:
        found = self._streams.get(append.stream) or _Stream()
        outcome, missing = decide(
            append,
            found.last if found.entries else None,
            lambda first, last: [entry.header for entry in found.between(first, last)],
        )
        if missing:
            found.entries.extend(missing)
            found.labels = append.labels
            found.digest = digest_of(missing[-1].header)
            try:
                self._streams.pop(append.stream, None)
            finally:  # An interrupt must not come in between.
                self._streams[append.stream] = found
        return outcome

    def _heads(
        self, names: Iterable[str], prefix: str, labels: Collection[str], without: Collection[str]
    ) -> list[Head]:
        chosen = Choice(prefix, labels, without)
        heads = (_head(name, self._streams[name]) for name in names)
        return [head for head in heads if chosen.has(head)]

    def _page(self, stream: str, after: int, size: int, *, reverse: bool) -> list[Entry]:
        with self._open():
            found = self._streams.get(stream)
            if found is None:
                return []
            if not reverse:
                first = max(after + 1, found.first)  # What was dropped is not part of a page.
                return found.between(first, first + size - 1)
            last = min(after - 1 if after else found.last, found.last)
            return found.between(last - size + 1, last)[::-1]


def _without_long_body(entry: Entry, max_body: int | None) -> Entry:
    if max_body is None or entry.body is None or len(entry.body) <= max_body:
        return entry
    return entry._replace(body=None)


def _head(name: str, stream: _Stream) -> Head:
    return Head(name, stream.last, stream.digest, stream.labels)
