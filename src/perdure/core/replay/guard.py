"""Block what a replayed agent must not do: live stores, network access, other processes.

The methods of live stores and sessions call `require_live`. Everything else is seen by Python's
audit events. Both do nothing unless the running code is guarded: it runs in the context of a
replayed agent, in its thread or task, in a thread that it started, or as an item that it submitted
to a `ThreadPoolExecutor`. A guard outlives its replay, because the agent's threads and tasks do.

An audit hook cannot be removed, so there is one, installed with a few wrappers by the first replay.
It does not see code that raises no events: extensions that open their own sockets, connections from
before the replay, and work that is passed to other threads and processes from before.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, ClassVar, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from perdure.backends import fork_safety
from perdure.core.turn_context import current_task
from perdure.errors import ReplayBlockedError

REFUSED_EVENTS = frozenset(
    {
        "_winapi.CreateProcess",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "pty.spawn",
        "signal.pthread_kill",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
        "syslog.syslog",
    }
)

T = TypeVar("T")


class Guard:
    """The block on one replayed agent, and what was refused to it."""

    used: ClassVar[bool] = False
    """Whether this process has replayed anything. Until then, nothing has to be checked."""

    follows_tasks: ClassVar[bool] = False
    """Whether event loops are wrapped. Programs that do not use asyncio must not import it."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Guard the code of the block, whatever context it runs its functions in."""
        # The owner is noted too, because `Context().run(function)` does not see the variable.
        owner = current_task() or threading.current_thread()
        outer, token = _owners.get(owner), _guard.set(self)
        _owners[owner] = self
        try:
            yield
        finally:
            _guard.reset(token)
            if outer is None:
                _owners.pop(owner, None)
            else:
                _owners[owner] = outer

    def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function with this guard in force."""
        with self.in_force():
            return function(*args, **kwargs)


_guard: ContextVar[Guard | None] = ContextVar("perdure_guard", default=None)

_suspended: ContextVar[bool] = ContextVar("perdure_guard_suspended", default=False)

_owners: WeakKeyDictionary[Any, Guard] = WeakKeyDictionary()
"""The threads and tasks that run guarded code only."""

_install_lock = fork_safety.fork_safe_lock()


@contextmanager
def guarded() -> Iterator[Guard]:
    """Guard the code of the block: live sessions, the network and other processes are blocked."""
    with _install_lock:
        if not Guard.used:
            _install()
            Guard.used = True
        if "asyncio" in sys.modules and not Guard.follows_tasks:
            _wrap(sys.modules["asyncio"].BaseEventLoop, "create_task", _create_task)
            Guard.follows_tasks = True
    guard = Guard()
    with guard.in_force():
        yield guard


@contextmanager
def suspended() -> Iterator[None]:
    """Suspend the guard in the block, for the store's own reads."""
    outer = _suspended.get()
    _suspended.set(True)
    try:
        yield
    finally:
        _suspended.set(outer)


def _current_guard() -> Guard | None:
    if not Guard.used or _suspended.get():
        return None
    guard, task = _guard.get(), current_task()
    if guard is None and task is not None:
        guard = _owners.get(task)
    return guard or _owners.get(threading.current_thread())


def require_live(action: str) -> None:
    """Raise ReplayBlockedError in guarded code, and add the action to what was refused."""
    if _current_guard() is not None:
        refuse(action)


def refuse(action: str) -> NoReturn:
    """Raise ReplayBlockedError, and add the action to what was refused to the running code."""
    guard = _current_guard()
    if guard is not None:
        guard.refused.append(action)
    raise ReplayBlockedError(action)


def _hook(event: str, _args: tuple[Any, ...]) -> None:
    if event in REFUSED_EVENTS:
        require_live(event)


def _install() -> None:
    """Add the audit hook, and wrap the functions that raise no event or lose the context."""
    import _thread
    import platform  # Imported here, as the rest: only replays need it.
    from concurrent.futures import ThreadPoolExecutor

    # `platform` starts a program once to find the processor, and caches the answer. Model clients
    # send it in their headers, and must not be refused for that.
    platform.platform()
    _wrap(threading.Thread, "start", _start_thread)
    for name in ("start_new_thread", "start_new", "start_joinable_thread"):
        _wrap(_thread, name, _start_raw_thread)
    _wrap(ThreadPoolExecutor, "submit", _submit)
    with suppress(ImportError):  # Windows has none: `_winapi.CreateProcess` is an event.
        import _posixsubprocess

        _wrap(_posixsubprocess, "fork_exec", _fork_exec)
    sys.addaudithook(_hook)


def _wrap(holder: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function by a wrapper, which gets the original as its first argument."""
    original = getattr(holder, name, None)
    if original is None:  # Some are of newer Python versions only.
        return

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(holder, name, wrapped)


def _start_thread(start: Callable[..., None], thread: threading.Thread) -> None:
    guard = _current_guard()
    if guard is not None:
        _owners[thread] = guard
    start(thread)


def _start_raw_thread(
    start: Callable[..., Any], function: Callable[..., Any], *rest: Any, **kwargs: Any
) -> Any:
    guard = _current_guard()
    if guard is None:
        return start(function, *rest, **kwargs)
    return start(lambda *args, **named: guard.run(function, *args, **named), *rest, **kwargs)


def _submit(
    submit: Callable[..., Any], pool: Any, function: Callable[..., Any], /, *args: Any, **kw: Any
) -> Any:
    guard = _current_guard()
    if guard is None:
        return submit(pool, function, *args, **kw)
    # The guard goes with the item. A thread that the pool starts for it serves other callers too.
    with suspended():
        return submit(pool, guard.run, function, *args, **kw)


def _create_task(create_task: Callable[..., Any], loop: Any, *args: Any, **kwargs: Any) -> Any:
    """Follow a task, which need not inherit the context: `create_task(…, context=Context())`."""
    task, guard = create_task(loop, *args, **kwargs), _current_guard()
    if guard is not None:
        _owners[task] = guard
    return task


def _fork_exec(fork_exec: Callable[..., Any], *args: Any) -> Any:
    """Refuse what `multiprocessing` starts processes with: it raises no audit event."""
    require_live("_posixsubprocess.fork_exec")
    return fork_exec(*args)
