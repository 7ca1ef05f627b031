"""Wait for records: with the store's `watch` capability, or by polling a stream's head.

A backend, a stream and a position come in; whether the head is beyond the position goes out.
"""

import asyncio
import time

from perdure.backend import WATCH, AsyncBackend, knowing_watch
from perdure.waiting import FIRST_PAUSE, LONGEST_PAUSE


async def wait(backend: AsyncBackend, stream: str, *, after: int, timeout: float) -> bool:  # noqa: ASYNC109 - as in `Watch`
    """Return True once a stream's head is beyond a position, False after `timeout` seconds."""
    if WATCH in backend.capabilities:
        return await knowing_watch(backend).watch(stream, after=after, timeout=timeout)
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while not await _stands_after(backend, stream, after):
        delay = min(pause, deadline - time.monotonic())
        if delay <= 0:
            return False
        await asyncio.sleep(delay)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True


async def _stands_after(backend: AsyncBackend, stream: str, after: int) -> bool:
    async for head in backend.streams(prefix=stream, limit=1):
        return head.stream == stream and head.position > after
    return False
