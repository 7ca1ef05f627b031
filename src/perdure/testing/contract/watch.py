"""What a store must keep that declares the capability `watch`, as tests; others are skipped."""

# ruff: noqa: S101, PLR2004 - these are tests, though they are shipped.
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from perdure.backends.protocol import WATCH, Backend, WatchCapability, require_watch
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import OpenBackend, appended, status

LATE = 30.0  # Seconds; a busy machine may be slow, but not as slow as this.


def watching(backend: Backend) -> WatchCapability:
    """Return the backend as one that waits, or skip the test."""
    if WATCH not in backend.capabilities:
        pytest.skip("this store does not declare the capability `watch`")
    return require_watch(backend)


class _Waiting:
    """A thread that waits for a stream, and how it ended."""

    def __init__(self, backend: Backend, stream: str, after: int, timeout: float | None) -> None:
        self.answer: bool | None = None
        self.error: BaseException | None = None
        self.ended = 0.0
        watch = watching(backend).watch
        self._wait: Callable[[], bool] = lambda: watch(stream, after=after, timeout=timeout)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._wait()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.ended = time.monotonic()

    def join(self) -> None:
        self._thread.join(LATE)
        assert not self._thread.is_alive(), "it waits for ever"


def _append_elsewhere(open_backend: OpenBackend, go: Any, done: Any) -> None:
    backend = open_backend()
    try:
        for position in range(1, 4):
            go.wait()
            go.clear()
            status(backend, appended("s", position, position))
            done.put(time.monotonic())
    finally:
        backend.close()


class WatchContract:
    """Waiting for records."""

    reopens: bool
    processes: bool

    def test_a_store_that_declares_watch_has_the_method_and_others_refuse(
        self, backend: Backend
    ) -> None:
        method: Callable[..., bool] | None = getattr(backend, "watch", None)
        if WATCH in backend.capabilities:
            assert method is not None
            assert method("s", after=0, timeout=0) is False
            return
        with pytest.raises(UnsupportedError, match="look now and then"):
            require_watch(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                method("s", after=0, timeout=0)

    def test_a_head_that_stands_after_the_position_is_told_at_once(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3))
        for after, found in ((0, True), (2, True), (3, False), (9, False)):
            assert watching(backend).watch("s", after=after, timeout=0) is found
        assert watching(backend).watch("s", after=2) is True
        assert watching(backend).watch("s2", after=0, timeout=0) is False

    def test_waiting_ends_when_its_time_has_passed_and_not_before(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 1))
        began = time.monotonic()
        assert watching(backend).watch("s", after=1, timeout=0.1) is False
        assert 0.1 <= time.monotonic() - began < LATE

    def test_an_append_wakes_those_who_wait_for_its_stream_and_nobody_else(
        self, backend: Backend
    ) -> None:
        status(backend, appended("s", 1, 1), appended("other", 1, 1))
        waiting = [_Waiting(backend, "s", 1, None) for _ in range(3)]
        further = _Waiting(backend, "s", 2, 0.4)
        other = _Waiting(backend, "other", 1, 0.4)
        new = _Waiting(backend, "new", 0, None)
        time.sleep(0.1)
        status(backend, appended("s", 2, 2))
        for one in waiting:
            one.join()
            assert one.answer is True
        status(backend, appended("new", 1, 1))
        for one, answer in ((new, True), (further, False), (other, False)):
            one.join()
            assert one.answer is answer

    def test_what_changes_no_head_wakes_nobody(self, backend: Backend) -> None:
        status(backend, appended("s", 1, 3))
        one = _Waiting(backend, "s", 3, 0.3)
        time.sleep(0.05)
        assert status(backend, appended("s", 3, 3)) == ["stored"]
        assert status(backend, appended("s", 3, 3, mark="other")) == ["conflict"]
        backend.drop("s", before=3)
        one.join()
        assert one.answer is False

    def test_another_handles_append_is_seen(self, open_backend: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store is gone when it is closed")
        one, two = open_backend(), open_backend()
        waiting = _Waiting(one, "s", 0, LATE)
        time.sleep(0.1)
        appending = time.monotonic()
        status(two, appended("s", 1, 1))
        waiting.join()
        assert waiting.answer is True
        assert waiting.ended - appending < LATE
        one.close()
        two.close()

    def test_another_processes_append_is_seen(self, open_backend: OpenBackend) -> None:
        if not self.processes or "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("other processes can not reach this store")
        backend = open_backend()
        try:
            watching(backend)
        except BaseException:
            backend.close()
            raise
        context = multiprocessing.get_context("fork")  # A factory can not be sent elsewhere.
        go, done = context.Event(), context.SimpleQueue()
        child = context.Process(target=_append_elsewhere, args=(open_backend, go, done))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The child only opens a store.
            child.start()
        try:
            for position in range(3):
                waiting = _Waiting(backend, "s", position, LATE)
                time.sleep(0.05)
                go.set()
                waiting.join()
                assert waiting.answer is True
                assert waiting.ended - done.get() < LATE
        finally:
            backend.close()
            child.join(LATE)
            child.kill()  # Or it would wait for ever after a failure.
            child.join()
        assert child.exitcode == 0

    def test_no_append_is_missed_however_the_two_meet(self, backend: Backend) -> None:
        rounds = 100
        seen: list[int] = []

        def follow() -> None:
            while len(seen) < rounds and watching(backend).watch(
                "s", after=len(seen), timeout=LATE
            ):
                seen.append(len(seen) + 1)

        watching(backend)
        thread = threading.Thread(target=follow)
        thread.start()
        for position in range(1, rounds + 1):
            status(backend, appended("s", position, position))
            time.sleep(0.0002 * (position % 4))
        thread.join()
        assert seen == [*range(1, rounds + 1)]

    def test_waiting_costs_next_to_nothing(self, backend: Backend) -> None:
        watching(backend).watch("s", after=0, timeout=0.2)
        spent = []
        for _ in range(5):  # What other threads of the process do counts too, but not each time.
            before = time.process_time()
            assert watching(backend).watch("s", after=0, timeout=0.8) is False
            spent.append(time.process_time() - before)
            if spent[-1] < 0.08:
                return
        assert min(spent) < 0.08, "a tenth would be too much already"

    def test_closing_the_store_ends_the_wait(self, open_backend: OpenBackend) -> None:
        backend = open_backend()
        watching(backend)
        waiting = _Waiting(backend, "s", 0, None)
        time.sleep(0.1)
        backend.close()
        waiting.join()
        assert isinstance(waiting.error, UsageError)
        with pytest.raises(UsageError, match="closed"):
            watching(backend).watch("s", after=0, timeout=0)
