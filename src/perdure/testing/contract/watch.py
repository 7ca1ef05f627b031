"""Contract tests of the capability `watch`; skipped for stores that do not declare it."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from perdure.backends.protocol import WATCH, Backend, WatchCapability, require_watch
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    OpenBackend,
    append_all,
    append_of,
    skip_unless_declared,
    start_forked,
)

TIMEOUT = 30.0  # seconds; even a busy machine wakes a waiter well before that


def watch_or_skip(backend: Backend) -> WatchCapability:
    """Return the backend typed as `WatchCapability`, or skip the test."""
    skip_unless_declared(backend, WATCH)
    return require_watch(backend)


class _WatchThread:
    """A thread that watches a stream, and its result."""

    def __init__(self, backend: Backend, stream: str, after: int, timeout: float | None) -> None:
        self.result: bool | None = None
        self.error: BaseException | None = None
        self.ended = 0.0
        watch = watch_or_skip(backend).watch
        self._wait: Callable[[], bool] = lambda: watch(stream, after=after, timeout=timeout)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._wait()
        except BaseException as error:  # noqa: BLE001 - checked by the test
            self.error = error
        self.ended = time.monotonic()

    def join(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the wait did not end"


def _append_on_signal(open_backend: OpenBackend, go: Any, done: Any) -> None:
    backend = open_backend()
    try:
        for position in range(1, 4):
            go.wait()
            go.clear()
            append_all(backend, append_of("s", position, position))
            done.put(time.monotonic())
    finally:
        backend.close()


class WatchContract:
    """Waiting for appends to a stream."""

    reopens: bool
    processes: bool

    def test_only_a_store_that_declares_watch_can_wait(self, backend: Backend) -> None:
        method: Callable[..., bool] | None = getattr(backend, "watch", None)
        if WATCH in backend.capabilities:
            assert method is not None
            assert method("s", after=0, timeout=0) is False
            return
        with pytest.raises(UnsupportedError, match=r"session\.watch"):
            require_watch(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                method("s", after=0, timeout=0)

    def test_watch_returns_at_once_if_the_head_is_past_the_position(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3))
        for after, expected in ((0, True), (2, True), (3, False), (9, False)):
            assert watch_or_skip(backend).watch("s", after=after, timeout=0) is expected
        assert watch_or_skip(backend).watch("s", after=2) is True
        assert watch_or_skip(backend).watch("s2", after=0, timeout=0) is False

    def test_watch_ends_at_its_timeout_and_not_before(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1))
        started = time.monotonic()
        assert watch_or_skip(backend).watch("s", after=1, timeout=0.1) is False
        assert 0.1 <= time.monotonic() - started < TIMEOUT

    def test_an_append_wakes_only_the_waiters_of_its_stream(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1), append_of("other", 1, 1))
        waiters = [_WatchThread(backend, "s", 1, None) for _ in range(3)]
        further = _WatchThread(backend, "s", 2, 0.4)
        other = _WatchThread(backend, "other", 1, 0.4)
        new = _WatchThread(backend, "new", 0, None)
        time.sleep(0.1)
        append_all(backend, append_of("s", 2, 2))
        for waiter in waiters:
            waiter.join()
            assert waiter.result is True
        append_all(backend, append_of("new", 1, 1))
        for waiter, expected in ((new, True), (further, False), (other, False)):
            waiter.join()
            assert waiter.result is expected

    def test_an_append_that_changes_no_head_wakes_no_waiter(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 3))
        waiter = _WatchThread(backend, "s", 3, 0.3)
        time.sleep(0.05)
        assert append_all(backend, append_of("s", 3, 3)) == ["stored"]
        assert append_all(backend, append_of("s", 3, 3, mark="other")) == ["conflict"]
        backend.drop("s", before=3)
        waiter.join()
        assert waiter.result is False

    def test_an_append_by_another_handle_is_seen(self, open_handle: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store loses its data on close")
        first, second = open_handle(), open_handle()
        waiter = _WatchThread(first, "s", 0, TIMEOUT)
        time.sleep(0.1)
        appended_at = time.monotonic()
        append_all(second, append_of("s", 1, 1))
        waiter.join()
        assert waiter.result is True
        assert waiter.ended - appended_at < TIMEOUT

    def test_an_append_by_another_process_is_seen(
        self, open_backend: OpenBackend, backend: Backend
    ) -> None:
        if not self.processes or "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("other processes cannot reach this store")
        watch_or_skip(backend)
        context = multiprocessing.get_context("fork")
        go, done = context.Event(), context.SimpleQueue()
        child = start_forked(_append_on_signal, open_backend, go, done)
        try:
            for position in range(3):
                waiter = _WatchThread(backend, "s", position, TIMEOUT)
                time.sleep(0.05)
                go.set()
                waiter.join()
                assert waiter.result is True
                assert waiter.ended - done.get() < TIMEOUT
        finally:
            backend.close()
            child.join(TIMEOUT)
            child.kill()  # after a failure it would wait forever
            child.join()
        assert child.exitcode == 0

    def test_no_append_is_missed_whatever_the_timing(self, backend: Backend) -> None:
        rounds = 100
        seen: list[int] = []

        def follow() -> None:
            while len(seen) < rounds and watch_or_skip(backend).watch(
                "s", after=len(seen), timeout=TIMEOUT
            ):
                seen.append(len(seen) + 1)

        watch_or_skip(backend)
        thread = threading.Thread(target=follow)
        thread.start()
        for position in range(1, rounds + 1):
            append_all(backend, append_of("s", position, position))
            time.sleep(0.0002 * (position % 4))
        thread.join()
        assert seen == [*range(1, rounds + 1)]

    def test_waiting_uses_almost_no_cpu_time(self, backend: Backend) -> None:
        watch_or_skip(backend).watch("s", after=0, timeout=0.2)
        spent = []
        for _ in range(5):  # other threads of the process count too, but not in every attempt
            started = time.process_time()
            assert watch_or_skip(backend).watch("s", after=0, timeout=0.8) is False
            spent.append(time.process_time() - started)
            if spent[-1] < 0.08:
                return
        assert min(spent) < 0.08, "a waiter must use less than a tenth of a core"

    def test_closing_the_store_ends_every_wait(self, backend: Backend) -> None:
        watch_or_skip(backend)
        waiter = _WatchThread(backend, "s", 0, None)
        time.sleep(0.1)
        backend.close()
        waiter.join()
        assert isinstance(waiter.error, UsageError)
        with pytest.raises(UsageError, match="closed"):
            watch_or_skip(backend).watch("s", after=0, timeout=0)
