"""Wait for records: by the store's own ability, or by looking at a head. Twin: `waiting_async`."""

import time

from perdure.backend import WATCH, Backend, knowing_watch

FIRST_PAUSE = 0.01  # Seconds between looks at a store that can not wait by itself.
LONGEST_PAUSE = 0.5  # It may be far away, and each look may cost money.


def wait(backend: Backend, stream: str, *, after: int, timeout: float) -> bool:
    """Return True once a stream's head stands after a position, False when the time has passed."""
    if WATCH in backend.capabilities:
        return knowing_watch(backend).watch(stream, after=after, timeout=timeout)
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while not _stands_after(backend, stream, after):
        left = min(pause, deadline - time.monotonic())
        if left <= 0:
            return False
        time.sleep(left)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return True


def _stands_after(backend: Backend, stream: str, after: int) -> bool:
    for head in backend.streams(prefix=stream, limit=1):
        return head.stream == stream and head.position > after
    return False
