"""Keep code from the network and from other programs while it runs, by Python's audit events.

An audit hook stays for ever, so there is one, and it does nothing unless the code that raised an
event is under guard: in the context that was put under guard, in its tasks, and in threads that
were started there (while there is a guard, `Thread.start` notes that). It does not see what raises
no event: extensions that open sockets of their own, connections that were open before, and threads
that were running before.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from perdure import forking
from perdure.errors import RefusedError

REFUSED = frozenset(
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
    """What was refused to the code that it is about."""

    def __init__(self) -> None:
        self.on = True
        self.refused: list[str] = []


_guard: ContextVar[Guard | None] = ContextVar("perdure_guard", default=None)
_lifted: ContextVar[bool] = ContextVar("perdure_guard_lifted", default=False)
_threads: WeakKeyDictionary[threading.Thread, Guard] = WeakKeyDictionary()
_hooked = threading.Lock()  # Taken once, and never given back.
_changing = forking.lock()
_active: list[Guard] = []


@contextmanager
def guarded() -> Iterator[Guard]:
    """Put the code of the block under guard; RefusedError is raised where it reaches out."""
    if _hooked.acquire(blocking=False):
        import platform  # Here, because it is slow to load.

        # It starts a program to ask for the processor, once, and then knows: clients of models put
        # the answer into their headers, and are not to be refused for it.
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
def lifted() -> Iterator[None]:
    """Let the code of the block reach out: the store's own reading."""
    token = _lifted.set(True)
    try:
        yield
    finally:
        _lifted.reset(token)


def _current() -> Guard | None:
    if _lifted.get():
        return None
    guard = _guard.get() or _threads.get(threading.current_thread())
    return guard if guard is not None and guard.on else None


def require_free(what: str) -> None:
    """Raise if this is under guard: what is live can not be done then."""
    guard = _current()
    if guard is not None:
        guard.refused.append(what)
        raise RefusedError(what)


def _hook(event: str, _args: tuple[Any, ...]) -> None:
    if event in REFUSED:
        guard = _current()
        if guard is not None:
            guard.refused.append(event)
            raise RefusedError(event)


_start = threading.Thread.start


def _start_under_guard(self: threading.Thread) -> None:
    guard = _current()
    if guard is not None:
        _threads[self] = guard
    _start(self)


def _watch_threads(guard: Guard, *, on: bool) -> None:
    """Know the threads that guarded code starts: a new one has no context, and tells of nothing."""
    with _changing:
        if on:
            _active.append(guard)
        else:
            _active.remove(guard)
        threading.Thread.start = _start_under_guard if _active else _start  # type: ignore[method-assign]
