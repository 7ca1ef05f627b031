"""Backends that wrap a real one and fail on purpose, to test how an application recovers.

A wrapper forwards every call that it does not break, and the capabilities and guarantees that the
store declares.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from perdure.backends.fields import FieldOrder
from perdure.backends.protocol import (
    Append,
    Backend,
    Entry,
    Head,
    Outcome,
    require_atomic,
    require_check,
    require_clock,
    require_order,
    require_recent,
    require_remove,
    require_watch,
    tenant_of,
)
from perdure.backends.tail import TAIL
from perdure.errors import DamagedError, UnavailableError

T = TypeVar("T")


class Crash(BaseException):  # a simulated kill: `except Exception` must not handle it
    """The process died here. Only the test that planned the crash catches it."""


class BackendWrapper:
    """Forwards every call to a backend; subclasses override the calls that fail."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name
        # Without `tail`: opening then reads by the methods that a wrapper may override.
        self.capabilities = backend.capabilities - {TAIL}
        self.guarantees = backend.guarantees
        self.tenant = tenant_of(backend)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Forward to the backend."""
        return self.backend.append(appends)

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_atomic(self.backend).append_together(appends)

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        """Forward to the backend."""
        return self.backend.read(stream, **options)

    def streams(self, **filters: Any) -> Iterator[Head]:
        """Forward to the backend."""
        return self.backend.streams(**filters)

    def recent(self, **filters: Any) -> Iterator[Head]:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_recent(self.backend).recent(**filters)

    def ordered(self, order: FieldOrder, **filters: Any) -> Iterator[Head]:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_order(self.backend).ordered(order, **filters)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_watch(self.backend).watch(stream, after=after, timeout=timeout)

    def check(self, *, deep: bool = False) -> Iterator[DamagedError]:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_check(self.backend).check(deep=deep)

    def drop(self, stream: str, *, before: int) -> None:
        """Forward to the backend."""
        self.backend.drop(stream, before=before)

    def remove(self, stream: str, *, digest: str) -> bool:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_remove(self.backend).remove(stream, digest=digest)

    def server_time(self) -> float:
        """Forward to the backend; UnsupportedError if it lacks the capability."""
        return require_clock(self.backend).server_time()

    def close(self) -> None:
        """Forward to the backend."""
        self.backend.close()


CrashPoint = Literal["append.before", "append.after", "drop.before", "drop.after"]


class CrashAt(BackendWrapper):
    """Raises `Crash` before or after the nth append or drop; all other calls pass."""

    def __init__(self, backend: Backend, point: CrashPoint, *, nth: int = 1) -> None:
        super().__init__(backend)
        self.point = point
        self.nth = nth
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return, or raise Crash if this is the nth call."""
        return self._call("append", lambda: self.backend.append(appends))

    def drop(self, stream: str, *, before: int) -> None:
        """Drop and return, or raise Crash if this is the nth call."""
        self._call("drop", lambda: self.backend.drop(stream, before=before))

    def _call(self, name: str, work: Callable[[], T]) -> T:
        crashes = False
        if self.point.startswith(name):
            self.calls += 1
            crashes = self.calls == self.nth
        if crashes and self.point.endswith("before"):
            raise Crash(self.point)
        result = work()
        if crashes:
            raise Crash(self.point)
        return result


class Flaky(BackendWrapper):
    """Raises UnavailableError from some appends, before or after they are stored.

    `fail` is a probability (seeded by `seed`), or a function of the number of the call, from 1.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        fail: float | Callable[[int], bool],
        seed: int = 0,
        after_commit: bool = False,
    ) -> None:
        super().__init__(backend)
        self.after_commit = after_commit
        self.calls = 0
        rng = random.Random(seed)  # noqa: S311 - must be reproducible, not secret
        self._fails = fail if callable(fail) else lambda _: rng.random() < fail

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return, or raise UnavailableError."""
        self.calls += 1
        fails = self._fails(self.calls)
        if fails and not self.after_commit:
            raise UnavailableError(self.name, "injected fault before the commit")
        outcomes = self.backend.append(appends)
        if fails:
            raise UnavailableError(self.name, "injected fault after the commit")
        return outcomes


class Slow(BackendWrapper):
    """Waits before each append and drop, and before each read and listing starts."""

    def __init__(self, backend: Backend, seconds: float) -> None:
        super().__init__(backend)
        self.seconds = seconds

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Wait, then store."""
        time.sleep(self.seconds)
        return self.backend.append(appends)

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        """Wait, then read."""
        time.sleep(self.seconds)
        return self.backend.read(stream, **options)

    def streams(self, **filters: Any) -> Iterator[Head]:
        """Wait, then list."""
        time.sleep(self.seconds)
        return self.backend.streams(**filters)

    def drop(self, stream: str, *, before: int) -> None:
        """Wait, then drop."""
        time.sleep(self.seconds)
        self.backend.drop(stream, before=before)


class Torn(BackendWrapper):
    """Stores only the first `keep` entries of each stream in the nth append, then fails.

    A correct store never does this; it simulates a faulty store or a truncated file.
    """

    def __init__(self, backend: Backend, *, keep: int, nth: int = 1) -> None:
        super().__init__(backend)
        self.keep = keep
        self.nth = nth
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return; in the nth call store a part and raise UnavailableError."""
        self.calls += 1
        if self.calls != self.nth:
            return self.backend.append(appends)
        # A snapshot that was not stored is not named.
        torn = [
            append._replace(entries=append.entries[: self.keep], snapshot=0) for append in appends
        ]
        self.backend.append([append for append in torn if append.entries])
        raise UnavailableError(self.name, f"injected fault after {self.keep} entries")


class OvertakenBackend(BackendWrapper):
    """Runs a callback before an append that begins a branch, so that another writer is first."""

    def __init__(self, backend: Backend, callback: Callable[[], None]) -> None:
        super().__init__(backend)
        self._callback = callback

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Run the callback if a branch is to begin, then store."""
        if any(append.begins and append.entries[0].position > 1 for append in appends):
            self._callback()
        return super().append(appends)
