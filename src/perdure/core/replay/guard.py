"""Block network access and subprocesses of guarded code, by Python's audit events.

An audit hook cannot be removed, so there is only one, and it does nothing unless the code that
raised an event is guarded: in the guarded context, in its tasks, and in threads started there
(while a guard is active, `Thread.start` is patched to track them). It does not see code that raises
no events: extensions that open their own sockets, and connections and threads from before.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from perdure.backends import fork_safety
from perdure.errors import ReplayBlockedError

REFUSED_EVENTS = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "pty.spawn",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
    }
)


class Guard:
    """One guarded block, and the events that were refused to it."""

    def __init__(self) -> None:
        self.on = True
        self.refused: list[str] = []


_guard: ContextVar[Guard | None] = ContextVar("perdure_guard", default=None)

_suspended: ContextVar[bool] = ContextVar("perdure_guard_lifted", default=False)

_threads: WeakKeyDictionary[threading.Thread, Guard] = WeakKeyDictionary()

_hook_installed = threading.Lock()  # Acquired once, when the hook is installed; never released.

_active_lock = fork_safety.fork_safe_lock()

active: list[Guard] = []
"""The guards in force in this process. Nothing has to be checked while there are none."""


@contextmanager
def guarded() -> Iterator[Guard]:
    """Guard the code of the block: network access and subprocesses raise ReplayBlockedError."""
    if _hook_installed.acquire(blocking=False):
        import platform  # Imported here: it is slow to load.

        # `platform` starts a program once to find the processor, and caches the answer. Model
        # clients send it in their headers, and must not be refused for that.
        platform.platform()
        sys.addaudithook(_hook)
    guard = Guard()
    _watch_threads(guard, on=True)
    token = _guard.set(guard)
    try:
        yield guard
    finally:
        guard.on = False
        _guard.reset(token)
        _watch_threads(guard, on=False)


@contextmanager
def suspended() -> Iterator[None]:
    """Suspend the guard in the block, for the store's own reads."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)


def _current_guard() -> Guard | None:
    if _suspended.get():
        return None
    guard = _guard.get() or _threads.get(threading.current_thread())
    return guard if guard is not None and guard.on else None


def require_live(what: str) -> None:
    """Raise ReplayBlockedError in guarded code, where live calls are not allowed."""
    guard = _current_guard()
    if guard is not None:
        guard.refused.append(what)
        raise ReplayBlockedError(what)


def _hook(event: str, _args: tuple[Any, ...]) -> None:
    if event in REFUSED_EVENTS:
        require_live(event)


_original_start = threading.Thread.start


def _start_tracked(self: threading.Thread) -> None:
    guard = _current_guard()
    if guard is not None:
        _threads[self] = guard
    _original_start(self)


def _watch_threads(guard: Guard, *, on: bool) -> None:
    """Track the threads that guarded code starts: a new thread does not inherit the context."""
    with _active_lock:
        if on:
            active.append(guard)
        else:
            active.remove(guard)
        threading.Thread.start = _start_tracked if active else _original_start  # type: ignore[method-assign]
