"""Group commit for tasks of an event loop: the same promises as `sync/group_commit`.

In: plans of one session, or appends of many. Out: a future per item.

A write continues whether or not its caller still waits, so a canceled caller leaves the other
callers and the session in a known state. This needs no task per write: the callback that delivers a
reply also runs the steps up to their next request. One task sends the appends of all sessions;
after a commit that failed because of one stream, each append is retried in a task of its own
(`core.batching`).

To edit: a batcher serves one event loop at a time; it switches to another only after the first one
has ended. A fork or a closed loop may leave items in flight whose replies never come (`_abandon`).

A signal handler may raise between any two lines, and before the first line of a callback. Then the
rest of that callback does not happen, and the loop continues or ends. So no callback is relied on:
`StallDetector` looks for work that nothing drives any more, and completes it or reports it as
interrupted. An item is in `_queue`, `_in_flight` or the dispatcher until it has its result; it is
added to the next place before it is removed from the last, and results may be delivered twice.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from perdure.aio.result_dispatch import (
    DISPATCH_MAX,
    ResultDispatcher,
    StepWaiter,
    Waiter,
    deliver,
)
from perdure.backends import fork_safety
from perdure.backends.interrupt_safety import AsyncLock
from perdure.backends.protocol import STORED, Append, AsyncBackend, Outcome, require_atomic
from perdure.core.batching import (
    ItemT,
    ResultT,
    RetryAlone,
    batch_size,
    copy_for_waiter,
    group_by_stream,
    is_store_down,
    isolates_stream,
    require_retriable,
)
from perdure.core.plans import Plan
from perdure.core.replica import Replica
from perdure.core.writes import write_steps
from perdure.errors import UnavailableError, UsageError
from perdure.journal.requests import Commit, Request, Steps

if TYPE_CHECKING:
    from perdure.aio.driver import AsyncDriver


STALL_CHECK_INTERVAL = 0.1  # seconds; an interrupted callback delays a write by this at most twice

STALL_CHECKS = (1, 2, 4, 8, 16, 32)  # intervals; more than one, as a check can be interrupted too


AsyncCommitResult = Outcome | RetryAlone[AsyncLock]


_QueuedItem = tuple[ItemT, Waiter[ResultT]]

_loop_switch_lock = fork_safety.fork_safe_lock()


class StallDetector:
    """Checks batchers that are in use, now and then, for work that nothing drives any more."""

    def __init__(self) -> None:
        self._batchers: set[AsyncBatcher[Any, Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def watch(self, batcher: "AsyncBatcher[Any, Any]", loop: asyncio.AbstractEventLoop) -> None:
        """Check a batcher until it is idle."""
        self._batchers.add(batcher)
        timers = self._timers
        if self._loop is not loop or not timers or timers[-1].when() < loop.time():
            self._set_timers(loop)
            self._loop = loop

    def _set_timers(self, loop: asyncio.AbstractEventLoop) -> None:
        timers = [
            loop.call_later(count * STALL_CHECK_INTERVAL, self._check) for count in STALL_CHECKS
        ]
        self._replace_timers(timers)

    def _replace_timers(self, timers: list[asyncio.TimerHandle]) -> None:
        # In this order: with timers that were canceled, `watch` would set no others.
        previous, self._timers = self._timers, timers
        for timer in previous:
            timer.cancel()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            return
        self._set_timers(loop)  # First, as the rest may be interrupted.
        for batcher in [*self._batchers]:
            if not batcher.recheck():
                self._batchers.discard(batcher)
        if not self._batchers:
            self._replace_timers([])


class AsyncBatcher(Generic[ItemT, ResultT]):
    """Processes the items of many tasks together; `run` must call `finish` when they are done.

    `run` sets `process` to what drives the items: a task, or steps.
    """

    def __init__(
        self,
        run: Callable[[list[ItemT], "AsyncBatcher[ItemT, ResultT]"], object],
        stalls: StallDetector,
        batch_size: Callable[[int, int], int] = lambda queued, _: queued,
        dispatcher: ResultDispatcher | None = None,
    ) -> None:
        self._run = run
        self._batch_size = batch_size
        self._dispatcher = dispatcher or ResultDispatcher(sliced=False)
        self._previous_size = 0
        self._in_flight: list[_QueuedItem[ItemT, ResultT]] | None = None
        self._queue: list[_QueuedItem[ItemT, ResultT]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.process: asyncio.Future[Any] | StepRunner | None = None
        """The work on the items in flight."""
        self._stalls = stalls
        self._is_watched = False

    def submit(self, item: ItemT) -> asyncio.Future[ResultT]:
        """Return a future of an item's result. If canceled, the item may still be processed."""
        # A future instead of a coroutine: one object less to create and resume in every write.
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        try:
            self.enqueue(item, future)
        except BaseException:
            if not future.cancel() and not future.cancelled():
                future.exception()  # Otherwise it would be logged as never retrieved.
            raise
        return future

    def enqueue(self, item: ItemT, waiter: Waiter[ResultT]) -> None:
        """Queue an item; its result is delivered to a waiter.

        UsageError if this batcher serves another event loop that is still running.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._switch_loop(loop)
        if not self._is_watched:
            self._stalls.watch(self, loop)
            self._is_watched = True
        self._queue.append((item, waiter))
        if self._in_flight is None:
            self._start()

    def _switch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop from now on."""
        with _loop_switch_lock:  # Event loops of two threads may call this at the same time.
            previous = self._loop
            if previous is loop:
                return
            if previous is not None and self._is_busy_in(previous):
                raise UsageError("another event loop uses this store: open it once for each loop")
            self._abandon()  # First: if it is interrupted, the next call does it again.
            self._loop, self._pid = loop, os.getpid()

    def _is_busy_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a loop is running, or could still deliver the results of items in flight.

        After a fork the loop belongs to the parent, even if its copy in the child seems to run.
        """
        if self._pid != os.getpid():
            return False
        pending = self._dispatcher.is_busy or self._in_flight is not None
        return loop.is_running() or (pending and not loop.is_closed())

    def _abandon(self) -> None:
        """Abandon what was in flight in a loop that has ended: no reply can arrive any more.

        Steps are canceled, so that their session has a write in doubt. Futures ended with the
        loop.
        """
        pending = [*self._dispatcher.waiting_items(), *(self._in_flight or ()), *self._queue]
        waiters = [self.process, *(waiter for _, waiter in pending)]
        for steps in [waiter for waiter in waiters if isinstance(waiter, StepRunner)]:
            if not steps.done():
                steps.cancel()
        self._dispatcher.reset()
        self._in_flight, self._queue = None, []
        self.process, self._is_watched = None, False

    def _start(self) -> None:
        size = self._batch_size(len(self._queue), self._previous_size)
        batch, rest = self._queue[:size], self._queue[size:]
        self._previous_size = len(batch)
        self._in_flight, self._queue, self.process = batch, rest, None
        self._run([item for item, _ in batch], self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, queued or undelivered."""
        return not (self._in_flight or self._queue or self._dispatcher.is_busy)

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits any more for the items in flight."""
        return all(waiter.done() for _, waiter in self._in_flight or ())

    def on_done(self, task: "asyncio.Future[Any]") -> None:
        """Deliver the results of a task that was the process."""
        if task.cancelled():
            self.finish((), asyncio.CancelledError(), task)
        elif (error := task.exception()) is not None:
            self.finish((), error, task)
        else:
            self.finish(task.result(), None, task)

    def finish(
        self,
        answers: Sequence[ResultT],
        error: BaseException | None,
        process: "asyncio.Future[Any] | StepRunner | None" = None,
    ) -> None:
        """Deliver the results of the items in flight, and start on those queued since.

        Nothing happens if these are not the items of that process: they were given up.
        """
        batch, queue = self._in_flight, self._queue
        if batch is None or process is not self.process:
            return
        if error is not None:
            batch, queue, error = _failed(batch, queue, error)
        elif len(answers) != len(batch):  # Otherwise a caller would wait forever.
            error = ValueError(f"{len(answers)} answers for {len(batch)} items")
        if queue:
            queue = [queued for queued in queue if not queued[1].done()]
        dispatcher = self._dispatcher
        if len(batch) <= DISPATCH_MAX:
            dispatcher.pending.append((batch, answers, error))  # The usual case, in fewer calls.
        else:
            dispatcher.add(batch, answers, error)
        self._in_flight, self._queue, self.process = None, queue, None
        try:
            if queue and self._loop is asyncio.get_running_loop():
                self._start()  # First, so that the next commit overlaps with the deliveries.
        finally:
            if len(dispatcher.pending) == 1 and dispatcher.task is None:
                try:
                    deliver(*dispatcher.pending[0])
                except BaseException:
                    dispatcher.dispatch_rest()  # Some results may be undelivered.
                    raise
                del dispatcher.pending[0]
            else:
                dispatcher.dispatch()

    def recheck(self) -> bool:
        """Complete what an interrupt left undone; return whether there is still work here.

        Called by the event loop, so nothing else is running here.
        """
        if self._loop is not asyncio.get_running_loop():
            return False
        process = self.process
        if isinstance(process, StepRunner):
            process.recheck()
        elif process is not None and process.done():
            self.on_done(process)
        elif process is None and self._in_flight is not None:
            self.finish((), interrupted())
        self._dispatcher.recheck()
        if self._in_flight is None and self._queue:
            self._start()
        self._is_watched = self._in_flight is not None or self._dispatcher.is_busy
        return self._is_watched


def _failed(
    batch: list[_QueuedItem[ItemT, ResultT]],
    queue: list[_QueuedItem[ItemT, ResultT]],
    error: BaseException,
) -> tuple[list[_QueuedItem[ItemT, ResultT]], list[_QueuedItem[ItemT, ResultT]], BaseException]:
    """Return the items that failed, those to continue with, and the error to deliver."""
    if isinstance(error, asyncio.CancelledError):
        # The event loop may be shutting down. Continue only with items that are waited for.
        batch = batch + [queued for queued in queue if _is_abandoned(queued[1])]
        queue = [queued for queued in queue if not _is_abandoned(queued[1])]
    elif isinstance(error, KeyboardInterrupt | SystemExit):
        error = copy_for_waiter(error)  # It was raised already; each task would end the loop.
    return batch, queue, error


def interrupted() -> UnavailableError:
    """Return the error of an item whose work a signal handler interrupted."""
    return UnavailableError("the commit", "it was interrupted by a signal handler")


def _is_abandoned(waiter: Waiter[Any]) -> bool:
    return waiter.is_abandoned if isinstance(waiter, StepRunner) else waiter.done()


class AsyncGroupCommitter:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        self.stalls = StallDetector()
        self.batcher: AsyncBatcher[Append | None, Outcome] = self._new_batcher()
        self._isolated: dict[str, AsyncBatcher[Append | None, Outcome]] = {}
        """Batchers of streams whose last append failed on its own: they share no commit."""

    def append(self, append: Append) -> asyncio.Future[Outcome]:
        """Return the outcome of an append; what was stored is durable."""
        return self.batcher_for(append).submit(append)

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Store appends of several streams, all or none, in a commit of their own."""
        backend = require_atomic(self._backend)
        try:
            return await backend.append_together(appends)
        except UnavailableError as error:
            require_retriable(error, appends)
            return await backend.append_together(appends)

    async def drain(self) -> None:
        """Return when everything submitted before has its result."""
        for batcher in (self.batcher, *self._isolated.copy().values()):
            await batcher.submit(None)

    def batcher_for(self, append: Append) -> AsyncBatcher[Append | None, Outcome]:
        """Return the batcher for an append: the shared one, unless its stream is isolated."""
        isolated = self._isolated.get(append.stream) if self._isolated else None
        return self.batcher if isolated is None else isolated

    def _new_batcher(self) -> AsyncBatcher[Append | None, Outcome]:
        return AsyncBatcher(self._start, self.stalls, batch_size, ResultDispatcher(sliced=True))

    def _start(
        self, appends: list[Append | None], batcher: AsyncBatcher[Append | None, Outcome]
    ) -> None:
        # The short path: the task of a lone append calls the backend from its first frame.
        first = appends[0] if len(appends) == 1 else None
        work = self._send(appends) if first is None else self._send_alone(first)
        batcher.process = task = asyncio.create_task(work)
        task.add_done_callback(batcher.on_done)

    async def _send(self, appends: list[Append | None]) -> Sequence[AsyncCommitResult]:
        results: list[AsyncCommitResult] = [STORED] * len(appends)
        for group in group_by_stream(appends):
            for (number, _), result in zip(group, await self._send_group(group), strict=True):
                results[number] = result
        return results

    async def _send_group(self, group: list[tuple[int, Append]]) -> Sequence[AsyncCommitResult]:
        try:
            if len(group) == 1:
                return await self._send_alone(group[0][1])
            return await self._append([append for _, append in group])
        except Exception as error:
            if is_store_down(error):
                raise

            return [RetryAlone(error, len(group), AsyncLock, self._start_retry)] * len(group)

    def _start_retry(
        self, failed: RetryAlone[AsyncLock], append: Append, waiter: Waiter[Outcome]
    ) -> None:
        """Retry an append in a batcher of its own, which delivers the result to the waiter."""

        def run(appends: list[Append], batcher: AsyncBatcher[Append, Outcome]) -> None:
            work = self._retry_alone(appends[0], failed)
            batcher.process = task = asyncio.create_task(work)
            task.add_done_callback(batcher.on_done)

        batcher: AsyncBatcher[Append, Outcome] = AsyncBatcher(run, self.stalls)
        batcher.enqueue(append, waiter)

    async def _retry_alone(
        self, append: Append, failed: RetryAlone[AsyncLock]
    ) -> Sequence[Outcome]:
        """Send an append of a failed commit again, on its own."""
        async with failed.lock:
            with failed.attempt():
                return await self._send_alone(append)

    async def _send_alone(self, append: Append) -> Sequence[Outcome]:
        """Send one append that shares its commit with no other."""
        try:
            outcomes = await self._append([append])
        except Exception as error:
            if isolates_stream(error):
                self._isolated.setdefault(append.stream, self._new_batcher())
            raise
        if self._isolated:
            self._isolated.pop(append.stream, None)
        return outcomes

    async def _append(self, batch: list[Append]) -> Sequence[Outcome]:
        """Append a batch; repeat it once if it failed, unless that is pointless."""
        try:
            return await self._backend.append(batch)
        except UnavailableError as error:
            require_retriable(error, batch)
            try:
                return await self._backend.append(batch)
            except UsageError:  # Closed meanwhile: the first attempt's outcome stays unknown.
                raise error from None


def plan_batcher(driver: "AsyncDriver", replica: Replica) -> AsyncBatcher[Plan[Any], Any]:
    """Return the batcher of a session's writes."""

    def run(plans: list[Plan[Any]], batcher: AsyncBatcher[Plan[Any], Any]) -> None:
        start_steps(driver, write_steps(replica, plans), batcher)

    return AsyncBatcher(run, driver.committer.stalls)


def start_steps(driver: "AsyncDriver", steps: Steps[Any], batcher: AsyncBatcher[Any, Any]) -> None:
    """Run steps, even if all callers are canceled; pass their result or error to a batcher."""
    batcher.process = runner = StepRunner(driver, steps, batcher)
    runner.set_result(None)


class StepRunner(StepWaiter):
    """Drives a step generator by callbacks.

    Each reply resumes the steps in the context that delivers the reply.
    """

    __slots__ = ("_batcher", "_driver", "_ended", "_steps", "_task")

    def __init__(
        self, driver: "AsyncDriver", steps: Steps[Any], batcher: AsyncBatcher[Any, Any]
    ) -> None:
        self._driver = driver
        self._steps = steps
        self._batcher = batcher
        self._ended = False
        self.awaited: Append | Request | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits any more for the result of the steps."""
        return self._batcher.is_abandoned

    def done(self) -> bool:
        return self._ended  # Unlike a future, steps are not canceled by their callers.

    def cancel(self) -> None:
        self.set_exception(asyncio.CancelledError())

    def set_result(self, answer: Any, /) -> None:
        self._resume(self._steps.send, answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._resume(self._steps.throw, error)

    def _resume(self, advance: Callable[[Any], Request], reply: Any) -> None:
        """Advance the steps with a reply or an error, up to their next request or their end."""
        self.awaited = None
        try:
            self._perform(advance(reply))
        except StopIteration as end:
            self._ended = True
            self._batcher.finish(end.value, None, self)
        except BaseException as error:
            self._fail(error)
            # As a task does. An error that was the reply itself was raised at its source already.
            if error is not reply and isinstance(error, KeyboardInterrupt | SystemExit):
                raise

    def _perform(self, request: Request) -> None:
        driver = self._driver
        if type(request) is Commit:  # The most frequent request: it needs no task.
            append = request.append
            try:
                driver.committer.batcher_for(append).enqueue(append, self)
            except UsageError as error:
                self.set_exception(error)
            else:
                self.awaited, self._task = append, None
        else:
            task = asyncio.create_task(driver.answer(request))
            task.add_done_callback(self._on_done)
            self.awaited, self._task = request, task

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        """Resume the steps with the reply to a request."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if task is not self._task or self.awaited is None:
            return  # The steps were given up meanwhile.
        if error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)

    def recheck(self) -> None:
        """Continue steps that were interrupted between two callbacks, or end them."""
        if self.awaited is None and not getattr(self._steps, "gi_running", False):
            self._fail(interrupted())
        elif self._task is not None and self._task.done():
            self._on_done(self._task)

    def _fail(self, error: BaseException) -> None:
        """End the steps with an error, wherever they are. May be called again, if interrupted."""
        try:
            self._steps.throw(error)
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - the steps may describe the error better
            error = raised
        else:
            self._steps.close()  # They would continue, but nothing would drive them.
        self._ended = True
        self._batcher.finish((), error, self)
