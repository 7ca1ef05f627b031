"""What is counted and not timed: syncs of the disk, and what is read from a store."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import apsw

from perdure.backends.protocol import Append, Backend, Entry, Head, Outcome
from perdure.backends.tail import TAIL

_number = itertools.count(1)


class SyncCounter(apsw.VFS):
    """A VFS that counts every sync. Python code in SQLite's way makes it slow: never time it.

    A sync takes `seconds` more: where it takes no time, nobody has to wait, and nobody shares it.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.syncs = 0
        self.seconds = seconds
        self.name = f"counting-{os.getpid()}-{next(_number)}"
        self._lock = threading.Lock()
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        return _CountedFile(self, name, flags)

    def count(self) -> None:
        with self._lock:
            self.syncs += 1


class _CountedFile(apsw.VFSFile):
    def __init__(self, counter: SyncCounter, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._counter = counter

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        self._counter.count()
        super().xSync(flags)
        if self._counter.seconds:
            time.sleep(self._counter.seconds)


@contextlib.contextmanager
def sync_counter(seconds: float = 0.0) -> Iterator[SyncCounter]:
    """Register a counting VFS for as long as the block runs."""
    counter = SyncCounter(seconds)
    try:
        yield counter
    finally:
        counter.unregister()


class CountingBackend:
    """Passes everything on, and counts the entries and bytes that were read and the heads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = backend.name
        self.capabilities = backend.capabilities - {TAIL}  # It counts what `read` yields.
        self.guarantees = backend.guarantees
        self.entries = 0
        self.bytes = 0
        self.heads = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        return self._backend.append(appends)

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        for entry in self._backend.read(
            stream, after=after, limit=limit, reverse=reverse, max_body=max_body
        ):
            self.entries += 1
            self.bytes += len(entry.header) + len(entry.body or b"")
            yield entry

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
        for head in self._backend.streams(
            prefix=prefix, after=after, labels=labels, without=without, limit=limit, headers=headers
        ):
            self.heads += 1
            yield head

    def drop(self, stream: str, *, before: int) -> None:
        self._backend.drop(stream, before=before)

    def close(self) -> None:
        self._backend.close()
