"""Wait for appends to a store on this machine: woken by this process, polling for others.

A store notifies waiters of the streams that it appended to, which costs nothing while none wait.
Appends of other processes show in files: while anything waits, one thread compares their sizes and
times, for all waiters. A server may push notifications as well (`server_notifies`). This module
knows no store, and correctness never depends on a wake-up: waiters re-read the head now and then.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from weakref import ref

from perdure.backends.interrupt_safety import AsyncWakeSignal, WakeSignal, start_thread
from perdure.backends.protocol import WATCH, Append, AsyncBackend, Backend, Head

POLL_INTERVAL = 0.05  # seconds between polls; the longest that another process's record goes unseen

REREAD_INTERVAL = 1.0  # seconds between reads of a head; a file's coarse clock may hide a write

REREAD_PER_WAITER = 0.01  # seconds more per waiter, so that many waiters cost no more than a few

REREAD_MAX = 10.0  # seconds at most if a server notifies; a notification may get lost


def file_fingerprint(file: str) -> tuple[int, ...]:
    """Return a fingerprint that changes if a file is written to, replaced or removed."""
    try:
        status = os.stat(file)  # noqa: PTH116 - many times a second, and Path takes twice as long
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


Signal = WakeSignal | AsyncWakeSignal


class Watchers:
    """The signals of this process's waiters, by stream.

    `file` returns the file that other processes change when they append to a stream; None if no
    other process can append. References to signals are weak: a waiter that a signal handler
    interrupted before it could unregister is forgotten with its signal.
    """

    def __init__(self, file: Callable[[str], str] | None = None) -> None:
        self._file = file
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        # Reentrant: the garbage collector may run here and end a wait, of a loop that was closed.
        self._lock = threading.RLock()
        self.waiting: dict[str, set[ref[Signal]]] = {}
        """The waiters by stream. Backends need not call `notify` while it is empty."""
        self._signals: set[ref[Signal]] = set()
        self._files: dict[str, str] = {}
        self._traces: dict[str, tuple[int, ...]] = {}
        self._ended: dict[str, int] = {}
        self._poller: threading.Thread | None = None
        self.server_notifies = False
        """Whether a server pushes notifications of appends to this process."""

    def max_sleep(self, previous: float) -> float:
        """Return how long a waiter may sleep, in seconds, before it must re-read the head.

        `previous` is its last sleep. A server notifies only waiters that the writer could see: an
        append that was in progress when the wait began is found by re-reading, soon at first.
        """
        if self.server_notifies:
            return min(max(previous * 2, REREAD_INTERVAL), REREAD_MAX)
        return REREAD_INTERVAL + len(self._signals) * REREAD_PER_WAITER

    def add(self, stream: str, signal: Signal) -> None:
        """Register a signal to wake, in any thread, whenever a stream may have changed."""
        if self._pid != os.getpid():
            self._begin_in_this_process()  # Forked: the waiters exist only in the parent.
        with self._lock:
            waiting = self.waiting.get(stream, set())
            waiting.add(ref(signal, waiting.discard))
            self.waiting[stream] = waiting  # Last: a wait that ended meanwhile may have removed it.
            self._signals.add(ref(signal, self._signals.discard))
            if self._file is None:
                return
            file = self._files[stream] = self._file(stream)
            if file not in self._traces:  # An older fingerprint at worst wakes a waiter too early.
                self._traces[file] = file_fingerprint(file)
            if self._poller is None or not self._poller.is_alive():
                self._poller = threading.Thread(
                    target=self._poll, name="perdure watch", daemon=True
                )
                start_thread(self._poller)

    def remove(self, stream: str, signal: Signal) -> None:
        """Unregister a signal that `add` registered."""
        if self._pid != os.getpid() or stream not in self.waiting:
            return  # In a forked child the lock may be held forever, and nothing waits here.
        with self._lock:
            self._signals.discard(ref(signal))
            waiting = self.waiting.get(stream, set())
            waiting.discard(ref(signal))
            if not waiting:
                self._forget(stream)

    def _forget_interrupted(self) -> None:
        for stream in [*self.waiting]:
            if not self.waiting.get(stream):
                self._forget(stream)

    def _forget(self, stream: str) -> None:
        self.waiting.pop(stream, None)
        self._files.pop(stream, None)
        self._ended.pop(stream, None)

    def notify(self, appends: Iterable[Append]) -> None:
        """Wake the waiters of the streams that were appended to."""
        if self.waiting and self._pid == os.getpid():
            with self._lock:
                self._wake({append.stream for append in appends})

    def streams(self) -> list[str]:
        """Return the streams that have waiters."""
        if self._pid != os.getpid():
            return []
        with self._lock:
            self._forget_interrupted()
            return [*self.waiting]

    def notify_all(self) -> None:
        """Wake all waiters: the store was closed, or notifications may have been missed."""
        if self.waiting and self._pid == os.getpid():
            with self._lock:
                self._wake([*self.waiting])

    def cancel(self, stream: str) -> None:
        """Wake all waiters of a stream and end their wait (a session is closing)."""
        if stream in self.waiting and self._pid == os.getpid():
            with self._lock:
                self._ended[stream] = self.cancel_count(stream) + 1
                self._wake([stream])

    def cancel_count(self, stream: str) -> int:
        """Return how often `cancel` was called while this stream had waiters."""
        return self._ended.get(stream, 0)

    def _wake(self, streams: Iterable[str]) -> None:
        for stream in streams:
            for reference in [*self.waiting.get(stream, ())]:
                if (signal := reference()) is not None:
                    signal.wake()

    def _poll(self) -> None:
        while True:
            time.sleep(POLL_INTERVAL)
            with self._lock:
                if self._poller is not threading.current_thread():
                    return  # Its start was interrupted, and another thread polls.
                self._forget_interrupted()
                if not self.waiting:
                    self._poller = None
                    self._traces = {}
                    return
                files = self._files.copy()
                traces = {file: file_fingerprint(file) for file in set(files.values())}
                self._wake(
                    stream
                    for stream, file in files.items()
                    if traces[file] != self._traces.get(file)
                )
                self._traces = traces

    def wait(
        self, stream: str, after: int, timeout: float | None, head: Callable[[str], Head | None]
    ) -> bool:
        """Return True once the head is beyond a position, False after `timeout` seconds.

        Also False if `cancel` ended the wait.
        """

        def is_beyond() -> bool:
            current = head(stream)
            return current is not None and current.position > after

        if timeout is not None and timeout <= 0:
            return is_beyond()
        signal = WakeSignal()
        # Register before the first read of the head: an append in between must wake this waiter.
        with self.registered(stream, signal):
            timer = WaitTimer(self, stream, timeout)
            while not is_beyond():
                delay = timer.next_sleep()
                if delay <= 0:
                    return False
                signal.sleep(delay)
            return True

    @contextlib.contextmanager
    def registered(self, stream: str, signal: Signal) -> Iterator[None]:
        """Register a signal while the block runs."""
        try:
            self.add(stream, signal)
            yield
        finally:
            self.remove(stream, signal)


class WaitTimer:
    """The timing of one wait: how long to sleep between reads of the head, until its deadline."""

    def __init__(self, watchers: Watchers, stream: str, timeout: float | None) -> None:
        self._watchers = watchers
        self._stream = stream
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ended = watchers.cancel_count(stream)
        self._pause = 0.0

    def next_sleep(self) -> float:
        """Return how many seconds to sleep now; 0 or less ends the wait."""
        if self._watchers.cancel_count(self._stream) != self._ended:
            return 0.0
        self._pause = self._watchers.max_sleep(self._pause)
        if self._deadline is None:
            return self._pause
        return min(self._pause, self._deadline - time.monotonic())


FIRST_PAUSE = 0.01  # seconds between polls of a store without `watch`, at first

LONGEST_PAUSE = 0.5  # seconds; the store may be remote, and each poll may cost money

UNCANCELLABLE_WAIT = 0.5  # seconds of one wait, if closing the session cannot end it

CANCELLABLE_WAIT = 60.0  # seconds of one wait, if it can


def longest_wait(backend: Backend | AsyncBackend) -> float:
    """Return how many seconds one call may wait; short if the wait cannot be cancelled."""
    return UNCANCELLABLE_WAIT if _watchers(backend) is None else CANCELLABLE_WAIT


def cancel_waiters(backend: Backend | AsyncBackend, stream: str) -> None:
    """Cancel this process's waiters on a stream, if the backend supports it."""
    watchers = _watchers(backend)
    if watchers is not None:
        watchers.cancel(stream)


def _watchers(backend: Backend | AsyncBackend) -> Watchers | None:
    if WATCH not in getattr(backend, "capabilities", ()):  # Optional.
        return None
    watchers = getattr(backend, "watchers", None)
    return watchers if isinstance(watchers, Watchers) else None
