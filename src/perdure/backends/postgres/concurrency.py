"""Waiting, blocking or in an event loop: the only code of the pool written twice.

The names differ by `Async` or `_async` alone, which the generator of the sync modules removes.
"""

import asyncio
import threading
import time

sleep = time.sleep

sleep_async = asyncio.sleep


def current_loop() -> object:
    """Return None: any thread may use any connection."""
    return None


def current_loop_async() -> asyncio.AbstractEventLoop:
    """Return the running event loop, which owns the connections that it opened."""
    return asyncio.get_running_loop()


class ConnectionSlots:
    """Limits how many connections are in use at the same time."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    def acquire(self, deadline: float) -> bool:
        """Wait for a free slot; return False if there is none until the deadline."""
        return self._semaphore.acquire(timeout=max(deadline - time.monotonic(), 0))

    def release(self) -> None:
        """Free a slot."""
        self._semaphore.release()


class AsyncConnectionSlots:
    """As `ConnectionSlots`, for an event loop."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)

    async def acquire(self, deadline: float) -> bool:
        """Wait for a free slot; return False if there is none until the deadline."""
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        try:
            remaining = max(deadline - time.monotonic(), 0)
            return await asyncio.wait_for(self._semaphore.acquire(), remaining)
        except TimeoutError:
            return False

    def release(self) -> None:
        """Free a slot."""
        self._semaphore.release()
