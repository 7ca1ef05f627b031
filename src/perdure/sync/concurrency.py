"""Concurrency for threads. `aio/concurrency.py` has the same names for tasks of an event loop.

Both files are written by hand. Every other module here is generated from its namesake in `aio/`
(`scripts/generate_sync.py`), except `group_commit.py`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakMethod

from perdure.backends import fork_safety, interrupt_safety
from perdure.backends.interrupt_safety import start_thread
from perdure.core.effects.calls import ToolSpec
from perdure.core.turn_context import context_outside_turns
from perdure.errors import UsageError

if TYPE_CHECKING:
    # Imported at run time where they are used: they load `logging`, and `inspect` takes a fifth of
    # the time in which a store is opened.
    from concurrent.futures import Future

JobT = TypeVar("JobT")

LockT = TypeVar("LockT")

T = TypeVar("T")

Event = interrupt_safety.Event
Semaphore = threading.Semaphore  # Only for threads of `gather`, which no signal handler interrupts.
sleep = time.sleep
collect = list

CallResult = tuple[Any, BaseException | None]

"""The result and the error of a function that was called."""

_start_lock = fork_safety.fork_safe_lock()


def exclusive(lock: LockT) -> LockT:
    """Return the lock itself: threads share it with whatever else it guards."""
    return lock


def compute(work: Callable[[], T]) -> T:
    """Return the result of a long computation."""
    return work()


def resolve(value: T) -> T:
    """Return what an application's function returned."""
    return value


def require_resolved(value: object) -> None:
    """Raise UsageError if a plain function returned something to await."""
    from inspect import isawaitable

    if isawaitable(value):
        getattr(value, "close", bool)()
        raise UsageError("an async function or client needs open_async, or give a plain one")


def require_plain_tool(spec: ToolSpec) -> None:
    """Raise UsageError for an async function: no event loop would run it."""
    if spec.is_async:
        hint = "open the store with perdure.open_async"
        raise UsageError(f"{spec.name!r} is an async function: {hint}")


def require_plain_agent(agent: Callable[..., Any]) -> None:
    """Raise UsageError for an async function: no event loop would run it."""
    from inspect import iscoroutinefunction

    if iscoroutinefunction(agent):
        raise UsageError("an async agent needs a session of perdure.open_async(...)")


def iterate(source: object) -> Iterator[Any]:
    """Return an iterator over the chunks of a source; UsageError if it is no iterable."""
    if isinstance(source, Iterable):
        return iter(source)
    require_resolved(source)
    hint = "pass an iterator or a generator; for an async one use perdure.open_async"
    if hasattr(source, "__enter__"):
        hint = "enter it with `with` first"
    raise UsageError(f"a {type(source).__qualname__} is not an iterator of chunks: {hint}")


def close_source(source: object) -> None:
    """Close an iterator, a response or a generator, if it can be closed."""
    close = getattr(source, "close", None)
    if close is not None:
        close()


def gather(
    function: Callable[[JobT, threading.Semaphore | None], T],
    jobs: Sequence[JobT],
    *,
    parallel: int,
    may_wait: bool,
) -> Sequence[T | BaseException]:
    """Call a function for every job, so many at a time; return results and errors in order.

    With `may_wait`, a call gets the semaphore of which it holds a slot, to release it while it
    waits for a person. With parallel=1 the jobs are done strictly in order; an error ends them.
    """
    if parallel <= 1 or len(jobs) <= 1:
        return [function(job, None) for job in jobs]
    from concurrent.futures import ThreadPoolExecutor

    slots, threads = None, min(parallel, len(jobs))
    if may_wait:  # The calls that wait have threads of their own, and keep no other from running.
        slots, threads = threading.Semaphore(parallel), len(jobs)

    def run(job: JobT) -> T:
        if slots is None:
            return function(job, None)
        with slots:
            return function(job, slots)

    with ThreadPoolExecutor(threads, "perdure tools") as pool:
        futures = [pool.submit(copy_context().run, run, job) for job in jobs]
    return [future.exception() or future.result() for future in futures]


def call_function(
    function: Callable[[], Any],
    *,
    timeout: float | None,
    name: str,
    detached: bool = False,
) -> CallResult | None:
    """Call an application's function, in a daemon thread if there is a timeout or if `detached`.

    Return its result and its error; None if it did not return within `timeout` seconds. It may then
    still be running. A daemon thread does not delay the end of the process.
    """
    if timeout is None and not detached:
        return function(), None
    results: list[CallResult] = []
    done, context = Event(), copy_context()

    def run() -> None:
        try:
            results.append((context.run(function), None))
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            results.append((None, error))
        done.set()

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return results[0] if done.wait(timeout) else None


class Background:
    """The background work of a handle, which waits for it when it is closed."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def start(self, work: Callable[..., T], *args: Any) -> "Future[T]":
        """Start work in a daemon thread and return its future. The work reports its own errors."""
        from concurrent.futures import Future

        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(work(*args))
            except BaseException as error:  # noqa: BLE001 - raised where the future is waited for
                future.set_exception(error)

        context = copy_context()
        thread = threading.Thread(target=context.run, args=(run,), name="perdure", daemon=True)
        with _start_lock:
            start_thread(thread)
            self._threads = {other for other in self._threads if other.is_alive()} | {thread}
        return future

    def finish(self, work: Callable[..., None], *args: Any) -> None:
        """Do work now: a thread cannot be canceled."""
        work(*args)

    def clean_up(self, work: Callable[..., None], *args: Any) -> None:
        """Do work now, after an error."""
        work(*args)

    def join(self) -> None:
        """Wait for all work."""
        with _start_lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join()


def _call_if_alive(called: "WeakMethod[Callable[[], T]]") -> T | None:
    method = called()
    return None if method is None else method()


class Repeater:
    """Calls a method again and again in the background, until it returns None.

    It holds only weak references to the object: when nothing else refers to it, the calls end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = Event()
        self.task: threading.Thread | None = None
        """The thread, once it is started."""

    def start(
        self,
        method: Callable[[], float | None],
        *,
        first: float,
        at_end: Callable[[], None],
    ) -> None:
        """Call a method after `first` seconds, and then after as many as it returns."""
        called = WeakMethod(method, lambda _: self._stop.set())
        context, arguments = context_outside_turns(), (called, first, WeakMethod(at_end))
        self.task = threading.Thread(
            target=context.run, args=(self._repeat, *arguments), name=self._name, daemon=True
        )
        start_thread(self.task)

    def _repeat(
        self,
        called: "WeakMethod[Callable[[], float | None]]",
        first: float,
        at_end: "WeakMethod[Callable[[], None]]",
    ) -> None:
        pause: float | None = first
        while pause is not None and not self._stop.wait(pause):
            # No variable may hold the method during the wait.
            pause = _call_if_alive(called)
        _call_if_alive(at_end)

    def stop(self) -> None:
        """Call the function no more."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the last call to return."""
        if self.task is not None:
            self.task.join()


def within(seconds: float, function: Callable[[], T], *, name: str) -> T:
    """Return a function's result; TimeoutError if it does not return within `seconds`.

    It runs in a daemon thread: one that hangs must not delay the end of the process. The function
    handles its own errors; an exit that it raises counts as no result.
    """
    result = call_function(function, timeout=seconds, name=name)
    if result is None or result[1] is not None:
        raise TimeoutError
    return result[0]  # type: ignore[no-any-return]
