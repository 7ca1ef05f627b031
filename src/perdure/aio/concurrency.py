"""Concurrency for tasks of an event loop. `sync/concurrency.py` has the same names for threads.

Both files are written by hand. Whatever the modules of `aio/` need that threads do differently
belongs here, so that the other modules of `sync/` can be generated (`scripts/generate_sync.py`).
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakMethod

from perdure.backends.interrupt_safety import AsyncWakeSignal, start_thread
from perdure.core.effects.calls import ToolSpec
from perdure.core.turn_context import context_outside_turns
from perdure.errors import UsageError

JobT = TypeVar("JobT")

T = TypeVar("T")

Event = asyncio.Event
Semaphore = asyncio.Semaphore
sleep = asyncio.sleep

CallResult = tuple[Any, BaseException | None]

"""The result and the error of a function that was called."""


def exclusive(lock: object) -> asyncio.Lock:
    """Return a lock for a section that awaits; a thread lock would block the loop."""
    del lock
    return asyncio.Lock()


async def collect(items: AsyncIterable[T]) -> list[T]:
    """Return all items of an iterator."""
    return [item async for item in items]


async def compute(work: Callable[[], T]) -> T:
    """Return the result of a long computation, which must not keep other tasks waiting."""
    return await asyncio.to_thread(work)


async def resolve(value: Any) -> Any:
    """Await what an application's function returned, if it was an async one."""
    return await value if inspect.isawaitable(value) else value


def require_resolved(value: object) -> None:
    """Do nothing: `call_function` has awaited the result."""


def require_plain_tool(spec: ToolSpec) -> None:
    """Do nothing: an event loop runs plain functions and async ones."""


def require_plain_agent(agent: object) -> None:
    """Do nothing: an event loop runs plain agents and async ones."""


def iterate(source: object) -> AsyncIterator[Any]:
    """Return an iterator over the chunks of a source; UsageError if it is no async iterable."""
    if isinstance(source, AsyncIterable):
        return aiter(source)
    if inspect.isawaitable(source):
        getattr(source, "close", bool)()
        hint = "await it first"
    elif hasattr(source, "__aenter__"):
        hint = "enter it with `async with` first"
    else:
        hint = "pass an async one, such as an async generator, or use a session of perdure.open"
    kind = type(source).__qualname__
    raise UsageError(f"a {kind} is not an async iterator of chunks: {hint}")


async def close_source(source: object) -> None:
    """Close an iterator, a response or a generator, if it can be closed."""
    close = getattr(source, "close", None) or getattr(source, "aclose", None)
    if close is not None:
        await resolve(close())


async def shielded(write: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Await a write to its end, even if the caller is canceled meanwhile."""
    writing = asyncio.ensure_future(write(*args))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await writing
        raise


async def gather(
    function: Callable[[JobT, asyncio.Semaphore | None], Coroutine[Any, Any, T]],
    jobs: Sequence[JobT],
    *,
    parallel: int,
    may_wait: bool,
) -> list[T | BaseException]:
    """Call a function for every job, so many at a time; return results and errors in order.

    A call gets the semaphore of which it holds a slot, to release it while it waits for a person.
    With parallel=1 it gets None: the jobs are done strictly in order.
    """
    del may_wait  # Tasks are cheap: every job has one.
    slots = asyncio.Semaphore(max(parallel, 1))

    async def run(job: JobT) -> T:
        async with slots:
            return await function(job, slots if parallel > 1 else None)

    return await asyncio.gather(*map(run, jobs), return_exceptions=True)


async def call_function(
    function: Callable[[], Any],
    *,
    timeout: float | None,  # noqa: ASYNC109 - the same parameters as for threads
    name: str,
    detached: bool = False,
) -> CallResult | None:
    """Call an application's function: an async one in the loop, a plain one in a thread.

    Return its result and its error; None if it did not return within `timeout` seconds. It may then
    still be running. With a timeout or `detached`, a thread that hangs does not delay the end of
    the process.
    """
    in_daemon = detached or timeout is not None
    if inspect.iscoroutinefunction(function):
        work = _in_loop(function)
    else:
        work = _in_thread(function, name, in_daemon=in_daemon)
    if timeout is None:
        return await work
    # Not `wait_for` or `timeout`: they would wait for a function that resists its cancellation.
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([task], timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        return None
    return task.result()


async def _in_loop(function: Callable[[], Any]) -> CallResult:
    try:
        return await function(), None
    except Exception as error:  # noqa: BLE001 - raised where the caller waits
        return None, error


async def _in_thread(function: Callable[[], Any], name: str, *, in_daemon: bool) -> CallResult:
    if in_daemon:
        result, error = await _in_daemon(function, name)
    else:
        result, error = await asyncio.to_thread(_capture, function)
    if error is None and inspect.isawaitable(result):
        return await _in_loop(lambda: result)
    return result, error


def _capture(function: Callable[[], Any]) -> CallResult:
    """Return a function's result and error: a SystemExit in a future would end the event loop."""
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - raised where the caller waits
        return None, error


async def _in_daemon(function: Callable[[], Any], name: str) -> CallResult:
    """Run a function in a daemon thread: the loop's own threads are joined at the end."""
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[CallResult] = loop.create_future()

    def deliver(result: CallResult) -> None:
        if not future.done():  # Otherwise the caller no longer waits.
            future.set_result(result)

    def run() -> None:
        result = context.run(_capture, function)
        with suppress(RuntimeError):  # The loop is closed: it is too late to deliver.
            loop.call_soon_threadsafe(deliver, result)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return await future


class AsyncBackground:
    """The background work of a handle, which waits for it when it is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # An event loop has only weak references.

    def start(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> "asyncio.Task[T]":
        """Start work in a task and return the task. The work reports its own errors."""
        task = asyncio.create_task(work(*args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Await work. If the caller is canceled, the work continues in the background."""
        await asyncio.shield(self.start(work, *args))

    def clean_up(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Start work after an error: a canceled caller must not wait for it."""
        self.start(work, *args)

    async def join(self) -> None:
        """Wait for all work of this event loop."""
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        # Tasks of another loop (closed, or running in the parent of a fork) would never end here.
        pending = [task for task in self._tasks if task is not own and task.get_loop() is loop]
        if pending:
            await asyncio.wait(pending)


class AsyncRepeater:
    """Calls a method again and again in the background, until it returns None.

    It holds only weak references to the object: when nothing else refers to it, the calls end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.task: asyncio.Task[None] | None = None
        """The task, once it is started."""

    def start(
        self,
        method: Callable[[], Coroutine[Any, Any, float | None]],
        *,
        first: float,
        at_end: Callable[[], None],
    ) -> None:
        """Call a method after `first` seconds, and then after as many as it returns."""
        wake = AsyncWakeSignal()  # The object may be collected in another thread.
        called = WeakMethod(method, lambda _: wake.wake())
        self.task = asyncio.create_task(
            self._repeat(called, first, WeakMethod(at_end), wake),
            name=self._name,
            context=context_outside_turns(),
        )

    async def _repeat(
        self,
        called: "WeakMethod[Callable[[], Coroutine[Any, Any, float | None]]]",
        first: float,
        at_end: "WeakMethod[Callable[[], None]]",
        wake: AsyncWakeSignal,
    ) -> None:
        pause: float | None = first
        while pause is not None:
            await wake.sleep(pause)
            # No variable may hold the method during the sleep.
            pause = await method() if (method := called()) is not None else None
            del method
        if (end := at_end()) is not None:
            end()

    def stop(self) -> None:
        """Call the function no more."""
        if self.task is not None:
            with suppress(RuntimeError):  # Its event loop may be closed.
                self.task.cancel()

    async def join(self) -> None:
        """Return at once: a canceled task needs no wait."""


async def within(seconds: float, function: Callable[[], Coroutine[Any, Any, T]], *, name: str) -> T:
    """Return a function's result; TimeoutError if it does not return within `seconds`."""
    del name
    async with asyncio.timeout(seconds):
        return await function()
