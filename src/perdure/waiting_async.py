"""Wait for records: by the store's capability, or by looking at a head. Twin: `waiting`."""

import asyncio
import time

from perdure.backend import WATCH, AsyncBackend, knowing_watch
from perdure.waiting import FIRST_PAUSE, LONGEST_PAUSE


async def wait(backend: AsyncBackend, stream: str, *, after: int, timeout: float) -> bool:  # noqa: ASYNC109 - as its twin
    """Return True once a stream's head stands after a position, False when the time has passed."""
    if WATCH in backend.capabilities:
        return await knowing_watch(backend).watch(stream, after=after, timeout=timeout)
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while not await _stands_after(backend, stream, after):
        left = min(pause, deadline - time.monotonic())
        if left <= 0:
            return False
        await asyncio.sleep(left)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True


async def _stands_after(backend: AsyncBackend, stream: str, after: int) -> bool:
    async for head in backend.streams(prefix=stream, limit=1):
        return head.stream == stream and head.position > after
    return False
