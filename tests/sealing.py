"""What tests of encrypted stores share: keys, and what an attacker without a key can do."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Append, Backend, Entry, Head, require_remove
from perdure.journal import key_store
from perdure.journal.requests import Steps
from perdure.sync.driver import Driver
from perdure.sync.group_commit import GroupCommitter

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TIME = "2026-11-18T10:00:00.000000Z"


def run(backend: Backend, steps: Steps[Any]) -> Any:
    return Driver(backend, GroupCommitter(backend)).run(steps)


def head_of(backend: Backend, stream: str) -> Head:
    (head,) = (head for head in backend.streams(prefix=stream) if head.stream == stream)
    return head


def data_keys(backend: Backend, session: str) -> list[str]:
    """Return the names of the streams with the data keys of a session."""
    (first, *_) = backend.read(session, limit=1)
    stream = json.loads(first.header)[2]
    names, _ = run(backend, key_store.list_names())
    return [name for name in names if key_store.parse_name(name)[0] == stream]


def remove(backend: Backend, stream: str) -> list[Entry]:
    """Remove a stream without a trace; return its entries."""
    entries = [*backend.read(stream)]
    assert require_remove(backend).remove(stream, digest=head_of(backend, stream).digest)
    return entries


def replace(backend: Backend, stream: str, entries: list[Entry], labels: Any = None) -> None:
    """Store other entries in the place of a stream."""
    kept = head_of(backend, stream).labels if labels is None else labels
    remove(backend, stream)
    backend.append([Append(stream, entries, frozenset(kept))])


class Forger:
    """The entries of a stream as lists that can be edited, linked again by `entries`."""

    def __init__(self, backend: Backend, stream: str) -> None:
        self.headers: list[Any] = []
        self.bodies: list[list[bytes]] = []
        for entry in backend.read(stream):
            header, body, start = json.loads(entry.header), entry.body or b"", 0
            self.headers.append(header)
            self.bodies.append([])
            for record in header[8]:
                self.bodies[-1].append(body[start : start + record[2]])
                start += record[2]

    def entries(self) -> list[Entry]:
        """Return the entries with new lengths, digests, positions and links."""
        entries: list[Entry] = []
        previous, position = self.headers[0][4], self.headers[0][3]
        for header, bodies in zip(self.headers, self.bodies, strict=True):
            header[3], header[4] = position, previous
            for record, body in zip(header[8], bodies, strict=True):
                record[2], record[3] = len(body), digest_of(body)
            data = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
            entries.append(Entry(position, data, b"".join(bodies), len(bodies)))
            previous, position = digest_of(data), position + len(bodies)
        return entries


class Proxy:
    """A backend whose methods are those of another one, unless a subclass has its own."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


class Torn(Proxy):
    """Reads a session without its last entry, as after a write that was cut short."""

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        heads = self.backend.streams(prefix=stream, limit=1)
        last = 0 if key_store.is_own(stream) else next((head.position for head in heads), 0)
        for entry in self.backend.read(stream, **options):
            if entry.last != last:
                yield entry

    def tail(self, stream: str, **options: Any) -> tuple[Head | None, Sequence[Entry]]:
        backend: Any = self.backend
        head, entries = backend.tail(stream, **options)
        if head is None or key_store.is_own(stream):
            return head, entries
        return head, [entry for entry in entries if entry.last != head.position]


class DeathError(BaseException):
    """Stands for the end of a process."""


class Dying(Proxy):
    """Dies before or after a write, counted from 1."""

    def __init__(self, backend: Backend, at: int, *, after: bool) -> None:
        super().__init__(backend)
        self.left, self._after = at, after

    def _write(self, write: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left > 0:
            return write()
        if self._after and not self.left:
            write()
        raise DeathError

    def append(self, appends: Any) -> Any:
        return self._write(lambda: self.backend.append(appends))

    def append_together(self, appends: Any) -> Any:
        return self._write(lambda: cast("Any", self.backend).append_together(appends))

    def drop(self, stream: str, *, before: int) -> Any:
        return self._write(lambda: self.backend.drop(stream, before=before))

    def close(self) -> None:
        pass
