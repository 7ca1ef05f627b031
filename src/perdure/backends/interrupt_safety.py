"""Waiting that stays usable when a signal handler raises at any moment.

A signal handler runs in the main thread, between two instructions of Python code, and what it
raises (Ctrl-C, a time limit) comes out there. `threading.Condition`, and with it `Event` and
`Semaphore`, are Python code: interrupted after taking their inner lock and before the block that
releases it, they hang every other thread. Code that waits in the main thread must not use them.

What holds instead, in CPython:

- No handler runs inside a call of C code, except while it blocks; then the call has no effect.
- So `with lock:` is safe for a lock of C (`threading.Lock`, `RLock`), and a `finally:` whose first
  statement is one call of a C function makes that call.
- A result must not get lost between a C call and its variable: let C store it, in a list or a set.
- A handler may run before the first line of a function. What it raises in a callback of an event
  loop ends only that callback, so another one has to notice; and what it raises as a coroutine is
  resumed closes the coroutines that this one awaits, which get GeneratorExit and may not await.
- A signal may also reach a thread that runs no handlers, and ends its blocking call early. A lock
  then waits for the rest of its timeout. `queue.SimpleQueue.get` does not, before Python 3.13: if
  its time is over by then, it waits forever. It may only be called without a timeout.

To edit: state changes by one assignment, or by one call of C. Every wait has a timeout.
"""

import _thread
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

RECHECK_INTERVAL = 1.0  # seconds; a wake-up that was interrupted half-way is noticed after this


START_TIMEOUT = 10.0  # seconds; a thread starts in less than a millisecond


class WakeSignal:
    """Ends the sleep of one waiter, from any thread."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()  # Held except between a wake-up and the sleep that it ends.
        self._asleep.acquire()

    def wake(self) -> None:
        """End the sleep of the waiter, or its next one."""
        try:  # noqa: SIM105 - part of every call of an async store; `suppress` costs more than this
            self._asleep.release()
        except RuntimeError:
            pass  # It has been woken already.

    def sleep(self, seconds: float) -> bool:
        """Sleep until `wake` is called, but not longer; return whether it was called."""
        return self._asleep.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))


class AsyncWakeSignal:
    """As `WakeSignal`; the waiter is a task of the running event loop.

    `asyncio.timeout` is not used: it cancels the task, even if the task was interrupted here and
    does something else by then.
    """

    def __init__(self) -> None:
        import asyncio  # imported here to keep `import perdure` fast

        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()

    def wake(self) -> None:
        """As `WakeSignal.wake`."""
        with contextlib.suppress(RuntimeError):  # The loop may have been closed since.
            self._loop.call_soon_threadsafe(self._end_sleep)

    def _end_sleep(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """As `WakeSignal.sleep`."""
        if self._woken.cancelled():  # So was the last sleep.
            self._woken = self._loop.create_future()
        timers: list[asyncio.TimerHandle] = []
        try:
            # Several, because each can be interrupted just as the loop calls it.
            delays = [seconds + RECHECK_INTERVAL * count for count in (0, 1, 2, 4)]
            timers.extend(self._loop.call_later(delay, self._end_sleep) for delay in delays)
            await self._woken
        finally:
            for timer in timers:
                timer.cancel()
        self._woken = self._loop.create_future()


class AsyncLock:
    """As `asyncio.Lock`, but free again when the task that holds it has ended, in whatever way."""

    def __init__(self) -> None:
        self._holder: asyncio.Task[Any] | None = None
        self._waiting: dict[object, AsyncWakeSignal] = {}

    async def __aenter__(self) -> None:
        import asyncio

        task = asyncio.current_task()
        if self._take(task):
            return
        try:
            self._waiting[task] = signal = AsyncWakeSignal()
            while not self._take(task):
                await signal.sleep(RECHECK_INTERVAL)
        finally:
            self._waiting.pop(task, None)

    def _take(self, task: "asyncio.Task[Any] | None") -> bool:
        if self._holder is not None and not self._holder.done():
            return False
        self._holder = task
        return True

    async def __aexit__(self, *_: object) -> None:
        self._holder = None
        for signal in [*self._waiting.values()][:1]:
            signal.wake()


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: set[WakeSignal] = set()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake everything that waits for it."""
        self._is_set = True
        for signal in self._waiting.copy():
            signal.wake()

    def clear(self) -> None:
        """Unset the event."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once the event is set, False after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        signal = WakeSignal()
        try:
            self._waiting.add(signal)
            while not self._is_set:
                left = RECHECK_INTERVAL if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                if signal.sleep(min(left, RECHECK_INTERVAL)):
                    return True
        finally:
            self._waiting.discard(signal)
        return True


def start_thread(thread: threading.Thread) -> None:
    """Start a thread and return when it runs, as `Thread.start`, which waits in Python code.

    A thread that no signal handler can interrupt calls that instead.
    """
    begun, run = WakeSignal(), thread.run

    def begin() -> None:
        begun.wake()
        run()

    thread.run = begin  # type: ignore[method-assign]
    _thread.start_new_thread(thread.start, ())
    if not begun.sleep(START_TIMEOUT):
        raise RuntimeError(f"the thread {thread.name!r} did not start")
