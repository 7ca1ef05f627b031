"""Waiting for a connection, blocking or in an event loop: the part of a pool written twice.

The names differ by `Async` or `_async` alone, which the generator of the sync modules removes.
"""

import asyncio
import threading
import time

from perdure.backends.interrupt_safety import RECHECK_INTERVAL, AsyncWakeSignal, WakeSignal

sleep = time.sleep

sleep_async = asyncio.sleep


def current_loop() -> object:
    """Return None: any thread may use any connection."""
    return None


def current_loop_async() -> asyncio.AbstractEventLoop:
    """Return the running event loop, which owns the connections that it opened."""
    return asyncio.get_running_loop()


class _Slots:
    """A number of slots. A caller that takes one identifies itself by an object, its ticket.

    A ticket that is freed twice, or that never got a slot, changes nothing: so a caller that was
    interrupted anywhere only has to free its ticket in `finally`.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._taken: set[object] = set()
        self._waiting: dict[object, WakeSignal | AsyncWakeSignal] = {}
        # A call of C alone, which no signal handler can keep from being made. See interrupt_safety.
        self.free = self._taken.discard

    def wake_next(self) -> None:
        """Wake the first in the queue. If this is interrupted, it wakes by itself, a little later.

        Call it after `free`.
        """
        for signal in [*self._waiting.values()][:1]:
            signal.wake()

    def _take(self, ticket: object) -> bool:
        with self._lock:
            if len(self._taken) < self._count and next(iter(self._waiting), ticket) is ticket:
                self._taken.add(ticket)
                return True
            return False


class ConnectionSlots(_Slots):
    """Limits how many connections are in use at the same time."""

    def acquire(self, ticket: object, deadline: float) -> bool:
        """Wait for a free slot, first come, first served; False if there is none in time."""
        if self._take(ticket):
            return True
        signal = WakeSignal()
        try:
            self._waiting[ticket] = signal
            while not self._take(ticket):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                signal.sleep(min(remaining, RECHECK_INTERVAL))
        finally:
            self._waiting.pop(ticket, None)
        self.wake_next()  # More than one may have become free.
        return True


class AsyncConnectionSlots(_Slots):
    """As `ConnectionSlots`, for an event loop."""

    async def acquire(self, ticket: object, deadline: float) -> bool:
        """As `ConnectionSlots.acquire`."""
        if self._take(ticket):
            return True
        signal = AsyncWakeSignal()
        try:
            self._waiting[ticket] = signal
            while not self._take(ticket):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                await signal.sleep(min(remaining, RECHECK_INTERVAL))
        finally:
            self._waiting.pop(ticket, None)
        self.wake_next()
        return True
