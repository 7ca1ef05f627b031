"""Wait for records in a store of this machine: woken by the own process, looking for the others'.

A store rings for the streams that it appended to, which costs nothing while nobody waits. Others'
appends are told by files: while somebody waits, one thread compares their sizes and times, for all
who wait. A server may tell of them, too (`told`). Nothing here knows a store.
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
TOLD = 10.0  # Seconds, at most, where a server tells: a notice may get lost.

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
        self._ended: dict[str, int] = {}
        self._count = 0
        self._looking = False
        self.told = False
        """Whether a server tells of all appends; who waits for one already is woken by it."""

    def trusted(self, before: float) -> float:
        """For how long whoever was not woken may believe that nothing came.

        `before` is how long it believed so the last time. A server tells those of whom the writer
        knows: what was under way when somebody began to wait is found by looking, soon at first.
        """
        if self.told:
            return min(max(before * 2, TRUSTED), TOLD)
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
        if self._pid != os.getpid() or wake not in self._waiting.get(stream, ()):
            return  # A child of a fork drops what waits in its parent, where the lock may be held.
        with self._lock:
            self._waiting[stream].remove(wake)
            self._count -= 1
            if not self._waiting[stream]:
                del self._waiting[stream]
                self._files.pop(stream, None)
                self._ended.pop(stream, None)

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
        """Wake everybody: the store was closed, or nobody knows what was not told of."""
        if self._waiting and self._pid == os.getpid():
            with self._lock:
                self._wake(self._waiting)

    def end(self, stream: str) -> None:
        """Have those who wait for a stream wait no longer: one of them has to go."""
        if stream in self._waiting and self._pid == os.getpid():
            with self._lock:
                self._ended[stream] = self.ended(stream) + 1
                self._wake([stream])

    def ended(self, stream: str) -> int:
        """How often those who wait for a stream were to wait no longer."""
        return self._ended.get(stream, 0)

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
        """Return True once the head stands after a position, or False when the time has passed.

        False also when somebody ended it (`end`).
        """

        def look() -> bool:
            found = head(stream)
            return found is not None and found.position > after

        if timeout is not None and timeout <= 0:
            return look()
        woken = threading.Event()
        with self.waking(stream, woken.set):
            vigil = Vigil(self, stream, timeout)
            while not look():
                left = vigil.pause()
                if left <= 0:
                    return False
                woken.wait(left)
                woken.clear()
            return True

    @contextlib.contextmanager
    def waking(self, stream: str, wake: Wake) -> Iterator[None]:
        """Have a function called while the block runs."""
        self.add(stream, wake)
        try:
            yield
        finally:
            self.remove(stream, wake)


class Vigil:
    """One who waits: how long to rest between two looks, until the time has passed."""

    def __init__(self, watchers: Watchers, stream: str, timeout: float | None) -> None:
        self._watchers = watchers
        self._stream = stream
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ended = watchers.ended(stream)
        self._pause = 0.0

    def pause(self) -> float:
        """Return for how many seconds to rest now; 0 or less is the end."""
        if self._watchers.ended(self._stream) != self._ended:
            return 0.0
        self._pause = self._watchers.trusted(self._pause)
        if self._deadline is None:
            return self._pause
        return min(self._pause, self._deadline - time.monotonic())
