"""Wait for records: by the store's capability, or by looking at a head. Twin: `waiting_async`."""

import time

from perdure.backend import WATCH, AsyncBackend, Backend, knowing_watch
from perdure.backends.watching import Watchers

FIRST_PAUSE = 0.01  # seconds between polls of a store without `watch`, at first
LONGEST_PAUSE = 0.5  # seconds; the store may be remote, and each poll may cost money
SLICE, LONG = 0.5, 60.0  # seconds of one wait that cannot be cancelled, and of one that can


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


def longest(backend: Backend | AsyncBackend) -> float:
    """Return how many seconds one call may wait; short if the wait cannot be cancelled."""
    return SLICE if _watchers(backend) is None else LONG


def end(backend: Backend | AsyncBackend, stream: str) -> None:
    """Cancel this process's waiters on a stream, if the backend supports it."""
    watchers = _watchers(backend)
    if watchers is not None:
        watchers.end(stream)


def _watchers(backend: Backend | AsyncBackend) -> Watchers | None:
    if WATCH not in getattr(backend, "capabilities", ()):  # Optional.
        return None
    watchers = getattr(backend, "watchers", None)
    return watchers if isinstance(watchers, Watchers) else None
