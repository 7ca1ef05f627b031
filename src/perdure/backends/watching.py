"""Wait for records in a store of this machine: woken by the own process, looking for the others'.

A store rings for the streams that it appended to, which costs nothing while nobody waits. Others'
appends are told by files: while somebody waits, one thread compares their sizes and times, for all
who wait. Nothing here knows a store.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from perdure.backend import Append, Head

PAUSE = 0.05  # Seconds; so long another process's record may go unseen.
TRUSTED = 1.0  # Seconds; a clock's tick may hide a write, so a head is looked at as often as this.
EACH = 0.01  # Seconds more for each that waits: many of them cost no more than some.

Wake = Callable[[], None]


def trace(file: str) -> tuple[int, ...]:
    """Return what changes when a file is written to, replaced or removed."""
    try:
        found = os.stat(file)  # noqa: PTH116 - many times a second, and Path takes twice as long
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


class Watchers:
    """Who waits in this process, for which stream.

    `file` returns the file that others change when they append to a stream; without it there are
    no others.
    """

    def __init__(self, file: Callable[[str], str] | None = None) -> None:
        self._file = file
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Wake]] = {}
        self._files: dict[str, str] = {}
        self._traces: dict[str, tuple[int, ...]] = {}
        self._count = 0
        self._looking = False

    @property
    def trusted(self) -> float:
        """For how long whoever was not woken may believe that nothing came."""
        return TRUSTED + self._count * EACH

    def add(self, stream: str, wake: Wake) -> None:
        """Have a function called, in any thread, whenever a stream may have been appended to."""
        if self._pid != os.getpid():
            self._begin_in_this_process()  # Those who waited stayed behind in the parent.
        with self._lock:
            self._waiting.setdefault(stream, []).append(wake)
            self._count += 1
            if self._file is None:
                return
            file = self._files[stream] = self._file(stream)
            if file not in self._traces:  # Else it is older, and may wake for nothing.
                self._traces[file] = trace(file)
            if not self._looking:
                thread = threading.Thread(target=self._look, name="perdure watch", daemon=True)
                thread.start()
                self._looking = True

    def remove(self, stream: str, wake: Wake) -> None:
        """Have it called no more."""
        with self._lock:
            self._waiting[stream].remove(wake)
            self._count -= 1
            if not self._waiting[stream]:
                del self._waiting[stream]
                self._files.pop(stream, None)

    def ring(self, appends: Iterable[Append]) -> None:
        """Wake those who wait for streams that were appended to."""
        if self._waiting and self._pid == os.getpid():
            with self._lock:
                self._wake({append.stream for append in appends})

    def streams(self) -> list[str]:
        """Return the streams that somebody waits for."""
        if self._pid != os.getpid():
            return []
        with self._lock:
            return [*self._waiting]

    def ring_all(self) -> None:
        """Wake everybody: the store was closed."""
        if self._waiting and self._pid == os.getpid():
            with self._lock:
                self._wake(self._waiting)

    def _wake(self, streams: Iterable[str]) -> None:
        for stream in streams:
            for wake in self._waiting.get(stream, ()):
                wake()

    def _look(self) -> None:
        while True:
            time.sleep(PAUSE)
            with self._lock:
                if not self._waiting:
                    self._looking = False
                    self._traces = {}
                    return
                found = {file: trace(file) for file in set(self._files.values())}
                self._wake(
                    stream
                    for stream, file in self._files.items()
                    if found[file] != self._traces.get(file)
                )
                self._traces = found

    def wait(
        self, stream: str, after: int, timeout: float | None, head: Callable[[str], Head | None]
    ) -> bool:
        """Return True once the head stands after a position, or False when the time has passed."""

        def look() -> bool:
            found = head(stream)
            return found is not None and found.position > after

        if timeout is not None and timeout <= 0:
            return look()
        deadline = None if timeout is None else time.monotonic() + timeout
        woken = threading.Event()
        with self.waking(stream, woken.set):
            while True:
                if look():
                    return True
                left = self.trusted
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return False
                woken.wait(left)
                woken.clear()

    @contextlib.contextmanager
    def waking(self, stream: str, wake: Wake) -> Iterator[None]:
        """Have a function called while the block runs."""
        self.add(stream, wake)
        try:
            yield
        finally:
            self.remove(stream, wake)
