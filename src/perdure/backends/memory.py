"""Streams in the memory of this process: for tests, and for sessions that need not last.

Nothing is written to disk. All state is under one lock; readers copy pages, so that a slow reader
never blocks a writer.
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from perdure.backends.append_rules import check, check_name, decide
from perdure.backends.digests import digest_of
from perdure.backends.fields import FieldOrder
from perdure.backends.guarantees import Guarantees
from perdure.backends.label_index import LabelIndex
from perdure.backends.protocol import (
    ATOMIC,
    CHECK,
    ORDER,
    RECENT,
    REMOVE,
    STORED,
    WATCH,
    Append,
    Entry,
    Head,
    Outcome,
    StreamFilter,
    arrange,
)
from perdure.backends.watchers import Watchers
from perdure.errors import DamagedError, UsageError

PAGE_ENTRIES = 256  # entries copied under the lock at a time; more would keep writers waiting


class _MemoryStream:
    def __init__(self) -> None:
        self.entries: list[Entry] = []  # In order, without gaps.
        self.labels: frozenset[str] = frozenset()
        self.digest = ""
        self.snapshot = 0
        self.changed = 0

    @property
    def last(self) -> int:
        return self.entries[-1].last

    def between(self, first: int, last: int) -> list[Entry]:
        """Return the entries that cover any of these positions."""
        return self.entries[self.covering(first) : self.beginning(last + 1)]

    def covering(self, position: int) -> int:
        """Return the index of the entry that covers a position, or of the first one after it."""
        return bisect_left(self.entries, position, key=lambda entry: entry.last)

    def beginning(self, position: int) -> int:
        """Return the index of the first entry that begins at a position or after it."""
        return bisect_left(self.entries, position, key=lambda entry: entry.position)


class MemoryBackend:
    """Keeps streams until it is closed or the process ends.

    A child of `os.fork` has its own copy.
    """

    name = "memory:"
    capabilities: frozenset[str] = frozenset({ATOMIC, CHECK, ORDER, RECENT, REMOVE, WATCH})
    guarantees = Guarantees(
        "nothing",
        "one process",
        "lost when the process ends",
        atomic="one call",
        engine="memory of this process",
        version="",
    )

    def __init__(self) -> None:
        # In the order of their last appends, for `recent`.
        self._streams: dict[str, _MemoryStream] = {}
        self._changes = 0
        self._index = LabelIndex(self._labels)
        self._closed = False
        self._lock = threading.Lock()
        self.watchers = Watchers()
        self._pid = os.getpid()

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`, but nothing survives the process."""
        check(appends)
        with self._open():
            outcomes = [self._append(append) for append in appends]
        self.watchers.notify(appends)
        return outcomes

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`, but nothing survives the process."""
        check(appends)
        with self._open():
            for append in appends:
                outcome, _ = _decide(append, self._streams.get(append.stream) or _MemoryStream())
                if outcome is not STORED:
                    return outcome
            for append in appends:
                self._append(append)
        self.watchers.notify(appends)
        return STORED

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
            size = PAGE_ENTRIES if limit is None else min(limit, PAGE_ENTRIES)
            page = self._page(stream, after, size, reverse=reverse)
            for entry in page:
                yield _without_long_body(entry, max_body)
            if len(page) < size:
                return
            after = page[-1].position if reverse else page[-1].last
            limit = None if limit is None else limit - size

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `Backend.streams`; later writes are not listed."""
        with self._open():
            choice = StreamFilter(prefix, labels, without, headers=headers)
            heads = self._heads(self._index.names(choice, after), choice, limit)
        yield from heads

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `RecencyCapability.recent`; later writes are not listed."""
        with self._open():
            choice = StreamFilter(prefix, labels, without, headers=headers)
            names: Iterable[str] = reversed(self._streams)
            if choice.labels:
                found = self._index.names(choice)
                names = sorted(found, key=lambda name: self._streams[name].changed, reverse=True)
            heads = self._heads(names, choice, limit)
        yield from heads

    def ordered(
        self,
        order: FieldOrder,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `OrderCapability.ordered`; later writes are not listed."""
        with self._open():
            choice = StreamFilter(prefix, labels, without, headers=headers)
            if choice.labels:  # One list has all streams with a label: few, as a rule.
                heads = arrange(order, self._heads(self._index.names(choice), choice, None))
                heads = heads[: None if limit is None else max(limit, 0)]
            else:
                heads = self._heads(self._index.ordered(order), choice, limit)
        yield from heads

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        with self._open():
            state = self._streams.get(stream)
            if state is not None:
                # Up to `last` at most: the last entry of a stream always stays.
                del state.entries[: state.covering(min(before, state.last))]

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`."""
        check_name(stream)
        with self._open():
            state = self._streams.get(stream)
            if state is not None and state.digest != digest:
                return False
            self._index.changed.add(stream)
            self._streams.pop(stream, None)
            return True

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `WatchCapability.watch`; only this process can append, so nothing is polled."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def check(self, *, deep: bool = False) -> Iterator[DamagedError]:  # noqa: ARG002
        """As `CheckCapability.check`: a head is made from its entries, so they always match."""
        self._open()
        return iter(())

    def close(self) -> None:
        """Discard everything. Closing twice is harmless."""
        self._closed = True
        self._streams = {}
        self._index = LabelIndex(self._labels)
        self.watchers.notify_all()

    def _head(self, name: str) -> Head | None:
        with self._open():
            state = self._streams.get(name)
            return None if state is None else _head(name, state)

    def _labels(self, name: str) -> frozenset[str] | None:
        state = self._streams.get(name)
        return None if state is None else state.labels

    def _open(self) -> threading.Lock:
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock during the fork: it would never be
            # released in this process.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _append(self, append: Append) -> Outcome:
        state = self._streams.get(append.stream) or _MemoryStream()
        outcome, missing = _decide(append, state)
        if missing:
            digest, end = digest_of(missing[-1].header), len(state.entries)
            self._index.changed.add(append.stream)
            self._changes += 1
            changed = self._changes
            try:
                self._streams.pop(append.stream, None)
            finally:  # No calls below: no signal handler can raise after a part of it.
                state.entries[end:] = missing
                state.labels, state.digest, state.changed = append.labels, digest, changed
                state.snapshot = append.snapshot
                self._streams[append.stream] = state
        return outcome

    def _heads(self, names: Iterable[str], choice: StreamFilter, limit: int | None) -> list[Head]:
        heads = (_head(name, self._streams[name]) for name in names)
        matching = (choice.shown(head) for head in heads if choice.matches(head))
        return list(islice(matching, None if limit is None else max(limit, 0)))

    def _page(self, stream: str, after: int, size: int, *, reverse: bool) -> list[Entry]:
        with self._open():
            state = self._streams.get(stream)
            if state is None:
                return []
            if not reverse:
                start = state.covering(after + 1)
                return state.entries[start : start + size]
            end = state.beginning(after) if after else len(state.entries)
            return state.entries[max(end - size, 0) : end][::-1]


def _decide(append: Append, state: _MemoryStream) -> tuple[Outcome, Sequence[Entry]]:
    return decide(
        append,
        _head(append.stream, state) if state.entries else None,
        state.between,
    )


def _without_long_body(entry: Entry, max_body: int | None) -> Entry:
    if max_body is None or entry.body is None or len(entry.body) <= max_body:
        return entry
    return entry._replace(body=None)


def _head(name: str, stream: _MemoryStream) -> Head:
    end = stream.entries[-1]
    return Head(name, end.last, stream.digest, stream.labels, end.header, stream.snapshot)
