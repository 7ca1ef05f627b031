"""Backends that die at any call, lie, or lack a capability: what a copy must cope with."""

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.backends.protocol import REMOVE, Append, Backend, Entry, Head, Outcome
from perdure.testing import Crash
from perdure.testing.faults import BackendWrapper


class Dying(BackendWrapper):
    """Dies at the nth call of any method: before it, or, where it writes, after it."""

    def __init__(self, backend: Backend, nth: int, *, after: bool = False) -> None:
        super().__init__(backend)
        self.left = nth
        self.after = after

    def _die(self, *, after: bool = False) -> None:
        if after == self.after:
            self.left -= 1
            if self.left == 0:
                raise Crash("made to die")

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self._die()
        found = super().append(appends)
        self._die(after=True)
        return found

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        self._die()
        return super().read(stream, **options)

    def streams(self, **filters: Any) -> Iterator[Head]:
        self._die()
        return super().streams(**filters)

    def drop(self, stream: str, *, before: int) -> None:
        self._die()
        super().drop(stream, before=before)
        self._die(after=True)

    def remove(self, stream: str, *, digest: str) -> bool:
        self._die()
        found = super().remove(stream, digest=digest)
        self._die(after=True)
        return found


class Counted(BackendWrapper):
    """Counts what was really sent to it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.calls = 0
        self.sent: list[tuple[str, int]] = []

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.calls += 1
        self.sent += [(one.stream, entry.position) for one in appends for entry in one.entries]
        return super().append(appends)


class Lying(BackendWrapper):
    """Stores another body than it was given, for one stream, and says that all is well."""

    def __init__(self, backend: Backend, stream: str) -> None:
        super().__init__(backend)
        self.stream = stream

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        return super().append([self._spoil(one) for one in appends])

    def _spoil(self, append: Append) -> Append:
        if append.stream != self.stream:
            return append
        last = append.entries[-1]
        spoiled = last._replace(body=(last.body or b"") + b" ")
        return append._replace(entries=[*append.entries[:-1], spoiled])


class Unable(BackendWrapper):
    """Can not remove a stream."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = backend.capabilities - {REMOVE}
