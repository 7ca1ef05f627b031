"""Backends that fail on purpose, around a real one: to test how an application recovers.

A wrapper forwards everything it does not break, and what the store declares about itself.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from perdure.backends.protocol import (
    Append,
    Backend,
    Entry,
    Head,
    Outcome,
    require_clock,
    require_recent,
    require_remove,
    require_watch,
)
from perdure.errors import UnavailableError


class Crash(BaseException):  # Not an error to be caught, but a simulated death.
    """The process died here. No `except Exception` catches it; the test that planned it does."""


class _Around:
    """Forwards what the backend does; what fails is decided by subclasses."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name
        self.capabilities = backend.capabilities
        self.guarantees = backend.guarantees

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As the backend's."""
        return self.backend.append(appends)

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As the backend's."""
        return self.backend.read(
            stream, after=after, limit=limit, reverse=reverse, max_body=max_body
        )

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As the backend's."""
        return self.backend.streams(
            prefix=prefix, after=after, labels=labels, without=without, limit=limit
        )

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As the backend's, where it declares it."""
        return require_recent(self.backend).recent(
            prefix=prefix, labels=labels, without=without, limit=limit
        )

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As the backend's, where it declares it."""
        return require_watch(self.backend).watch(stream, after=after, timeout=timeout)

    def drop(self, stream: str, *, before: int) -> None:
        """As the backend's."""
        self.backend.drop(stream, before=before)

    def remove(self, stream: str, *, digest: str) -> bool:
        """As the backend's, where it declares it."""
        return require_remove(self.backend).remove(stream, digest=digest)

    def server_time(self) -> float:
        """As the backend's, where it declares it."""
        return require_clock(self.backend).server_time()

    def close(self) -> None:
        """As the backend's."""
        self.backend.close()


class CrashAt(_Around):
    """Dies (`Crash`) before or after the nth append was stored; the others pass."""

    def __init__(
        self, backend: Backend, point: Literal["append.before", "append.after"], *, nth: int = 1
    ) -> None:
        super().__init__(backend)
        self.point = point
        self.nth = nth
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return, or raise Crash if this is the nth call."""
        self.calls += 1
        dies = self.calls == self.nth
        if dies and self.point == "append.before":
            raise Crash(self.point)
        outcomes = self.backend.append(appends)
        if dies:
            raise Crash(self.point)
        return outcomes


class Flaky(_Around):
    """Raises UnavailableError from some appends, before or after they were really stored.

    `fail` is the probability, drawn from `seed`, or a function of the call's number (from 1).
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
        draw = random.Random(seed)  # noqa: S311 - it must repeat, not be secret.
        self._fails = fail if callable(fail) else lambda _: draw.random() < fail

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return, or raise UnavailableError."""
        self.calls += 1
        fails = self._fails(self.calls)
        if fails and not self.after_commit:
            raise UnavailableError(self.name, "made to fail before the commit")
        outcomes = self.backend.append(appends)
        if fails:
            raise UnavailableError(self.name, "made to fail after the commit")
        return outcomes


class Slow(_Around):
    """Takes its time: an append, a drop, the begin of a reading or listing wait first."""

    def __init__(self, backend: Backend, seconds: float) -> None:
        super().__init__(backend)
        self.seconds = seconds

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Wait, then store."""
        time.sleep(self.seconds)
        return self.backend.append(appends)

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """Wait, then read."""
        time.sleep(self.seconds)
        return super().read(stream, after=after, limit=limit, reverse=reverse, max_body=max_body)

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """Wait, then list."""
        time.sleep(self.seconds)
        return super().streams(
            prefix=prefix, after=after, labels=labels, without=without, limit=limit
        )

    def drop(self, stream: str, *, before: int) -> None:
        """Wait, then drop."""
        time.sleep(self.seconds)
        self.backend.drop(stream, before=before)


class Torn(_Around):
    """Stores only the first `keep` entries of each stream in the nth append, then fails.

    No good store does this. It is what a bad one, or a file cut short, looks like afterwards.
    """

    def __init__(self, backend: Backend, *, keep: int, nth: int = 1) -> None:
        super().__init__(backend)
        self.keep = keep
        self.nth = nth
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store and return, or tear the nth call and raise UnavailableError."""
        self.calls += 1
        if self.calls != self.nth:
            return self.backend.append(appends)
        torn = [one._replace(entries=one.entries[: self.keep]) for one in appends]
        self.backend.append([one for one in torn if one.entries])
        raise UnavailableError(self.name, f"made to fail after {self.keep} entries")


class _Overtaken(_Around):
    """Somebody else is faster than whoever begins a stream: a callback runs just before it."""

    def __init__(self, backend: Backend, before: Callable[[], None]) -> None:
        super().__init__(backend)
        self._before = before

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Let the others be first where a stream is to begin, then store."""
        if any(append.begins for append in appends):
            self._before()
        return super().append(appends)
