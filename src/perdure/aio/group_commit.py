"""Group commit for tasks of an event loop: the same promises as `sync/group_commit`.

In: plans of one session, or appends of many. Out: a future per item.

A write continues whether or not its caller still waits, so a cancelled caller leaves the other
callers and the session in a known state. This needs no task per write: the callback that delivers a
reply also runs the steps up to their next request. One task sends the appends of all sessions;
after a commit that failed because of one stream, each append is retried in a task of its own
(`core.batching`).

To edit: a batcher serves one event loop at a time; it switches to another only after the first one
has ended. A fork or a closed loop may leave items in flight whose replies never come (`_abandon`).
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from perdure.backends import fork_safety
from perdure.backends.protocol import STORED, Append, AsyncBackend, Outcome, require_atomic
from perdure.core.batching import (
    ItemT,
    ResultT,
    RetryAlone,
    batch_size,
    group_by_stream,
    is_store_down,
    isolates_stream,
    require_retriable,
)
from perdure.core.plans import Plan
from perdure.core.replica import Replica
from perdure.errors import UnavailableError, UsageError
from perdure.journal.requests import Commit, Request, Steps

if TYPE_CHECKING:
    from perdure.aio.driver import AsyncDriver


DISPATCH_MAX = 64  # results per loop iteration; a few milliseconds of work


_Result_contra = TypeVar("_Result_contra", contravariant=True)


class Waiter(Protocol[_Result_contra]):
    """Receives a result: a future, or a step generator that continues with it."""

    def done(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, answer: _Result_contra, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


WaitingItems = Sequence[tuple[Any, Waiter[Any]]]

"""Items, each with the waiter for its result."""


def deliver(waiting: WaitingItems, answers: Sequence[Any], error: BaseException | None) -> None:
    """Deliver results now, or one error for all. A `RetryAlone` starts a retry of its item."""
    raised: BaseException | None = None
    for number, (item, waiter) in enumerate(waiting):
        if waiter.done():
            continue
        try:
            if error is None:
                answer = answers[number]
                if type(answer) is RetryAlone:
                    answer.retry_for(item, waiter)
                else:
                    waiter.set_result(answer)
            elif isinstance(error, asyncio.CancelledError):
                with contextlib.suppress(RuntimeError):  # The waiter's loop is closed.
                    waiter.cancel()
            else:
                waiter.set_exception(error)
        except BaseException as interrupt:  # noqa: BLE001 - deliver to the other waiters first
            raised = interrupt
    if raised is not None:
        raise raised


class ResultDispatcher:
    """Delivers large batches in slices, from a task that yields to the loop between them."""

    def __init__(self, tasks: set["asyncio.Task[Any]"]) -> None:
        self._tasks = tasks  # Holds the task, because an event loop has only a weak reference.
        self._pending: deque[tuple[WaitingItems, Sequence[Any], BaseException | None]] = deque()

    def dispatch(
        self, waiting: WaitingItems, answers: Sequence[Any], error: BaseException | None
    ) -> None:
        """Deliver a small batch now, and a large one over the next iterations, in order."""
        is_small = len(waiting) <= DISPATCH_MAX and not self._pending
        # After a cancellation the loop may be shutting down: there may be no next iteration.
        if is_small or isinstance(error, asyncio.CancelledError):
            deliver(waiting, answers, error)
            return
        is_idle = not self._pending
        for first in range(0, len(waiting), DISPATCH_MAX):
            part = slice(first, first + DISPATCH_MAX)
            self._pending.append((waiting[part], answers[part], error))
        if is_idle:
            task = asyncio.create_task(self._dispatch_slices())
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():  # If that was before its first step, its own handler never ran.
            self._dispatch_rest()

    @property
    def is_busy(self) -> bool:
        """Whether some results have not been delivered yet."""
        return bool(self._pending)

    def drop_pending(self) -> list[tuple[Any, Waiter[Any]]]:
        """Return and forget the items not delivered yet: the loop that should do it has ended."""
        pending = [item for waiting, _, _ in self._pending for item in waiting]
        self._pending.clear()
        return pending

    async def _dispatch_slices(self) -> None:
        try:
            while self._pending:
                deliver(*self._pending.popleft())
                if self._pending:
                    await asyncio.sleep(0)
        except GeneratorExit:
            raise  # The loop was closed: no waiter is left in it.
        except BaseException:
            # The loop is shutting down or was interrupted. The results are known, so deliver them.
            self._dispatch_rest()
            raise

    def _dispatch_rest(self) -> None:
        try:
            while self._pending:
                deliver(*self._pending.popleft())
        finally:
            if self._pending:  # Interrupted again; that is raised after all deliveries.
                self._dispatch_rest()


OnDone = Callable[[Any, BaseException | None], None]

"""Called at the end of some work, with its result or its error."""


AsyncCommitResult = Outcome | RetryAlone[asyncio.Lock]


_QueuedItem = tuple[ItemT, Waiter[ResultT]]

_loop_switch_lock = fork_safety.fork_safe_lock()


class AsyncBatcher(Generic[ItemT, ResultT]):
    """Processes the items of many tasks together; `run` must call `finish` when they are done."""

    def __init__(
        self,
        run: Callable[[list[ItemT], "AsyncBatcher[ItemT, ResultT]"], object],
        batch_size: Callable[[int, int], int] = lambda queued, _: queued,
        dispatcher: ResultDispatcher | None = None,
    ) -> None:
        self._run = run
        self._batch_size = batch_size
        self._dispatcher = dispatcher
        self._previous_size = 0
        self._in_flight: list[_QueuedItem[ItemT, ResultT]] | None = None
        self._queue: list[_QueuedItem[ItemT, ResultT]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.steps: StepRunner | None = None
        """The steps that process the items in flight, if steps do."""

    def submit(self, item: ItemT) -> asyncio.Future[ResultT]:
        """Return a future of an item's result. If cancelled, the item may still be processed."""
        # A future instead of a coroutine: one object less to create and resume in every write.
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self.enqueue(item, future)
        return future

    def enqueue(self, item: ItemT, waiter: Waiter[ResultT]) -> None:
        """Queue an item; its result is delivered to a waiter.

        UsageError if this batcher serves another event loop that is still running.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._switch_loop(loop)
        self._queue.append((item, waiter))
        if self._in_flight is None:
            self._start()

    def _switch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop from now on."""
        with _loop_switch_lock:  # Event loops of two threads may call this at the same time.
            previous = self._loop
            if previous is not None and self._is_busy_in(previous):
                raise UsageError("another event loop uses this store: open it once for each loop")
            self._loop, self._pid = loop, os.getpid()
        self._abandon()

    def _is_busy_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a loop is running, or could still deliver the results of items in flight.

        After a fork the loop belongs to the parent, even if its copy in the child seems to run.
        """
        if self._pid != os.getpid():
            return False
        dispatching = self._dispatcher is not None and self._dispatcher.is_busy
        pending = dispatching or self._in_flight is not None
        return loop.is_running() or (pending and not loop.is_closed())

    def _abandon(self) -> None:
        """Abandon what was in flight in a loop that has ended: no reply can arrive any more.

        Steps are cancelled, so that their session has a write in doubt. Futures ended with the
        loop.
        """
        undelivered = self._dispatcher.drop_pending() if self._dispatcher is not None else ()
        pending = [*undelivered, *(self._in_flight or ()), *self._queue]
        self._in_flight, self._queue = None, []
        waiters = [self.steps, *(waiter for _, waiter in pending)]
        for steps in [waiter for waiter in waiters if isinstance(waiter, StepRunner)]:
            if not steps.done():
                steps.cancel()

    def _start(self) -> None:
        size = self._batch_size(len(self._queue), self._previous_size)
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._previous_size = len(batch)
        self._in_flight = batch
        self._run([item for item, _ in batch], self)

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits any more for the items in flight."""
        return all(waiter.done() for _, waiter in self._in_flight or ())

    def finish(self, answers: Sequence[ResultT], error: BaseException | None) -> None:
        """Deliver the results of the items in flight, and start on those queued since."""
        batch, self._in_flight = self._in_flight or [], None
        if error is None and len(answers) != len(batch):  # Otherwise a caller would wait forever.
            error = ValueError(f"{len(answers)} answers for {len(batch)} items")
        if isinstance(error, asyncio.CancelledError):
            # The event loop may be shutting down. Continue only with items that are waited for.
            batch += [queued for queued in self._queue if _is_abandoned(queued[1])]
            self._queue = [queued for queued in self._queue if not _is_abandoned(queued[1])]
        try:
            if self._queue:
                self._queue = [queued for queued in self._queue if not queued[1].done()]
            if self._queue:
                self._start()  # First, so that the next commit overlaps with the deliveries.
        finally:
            if self._dispatcher is None:
                deliver(batch, answers, error)
            else:
                self._dispatcher.dispatch(batch, answers, error)


def _is_abandoned(waiter: Waiter[Any]) -> bool:
    return waiter.is_abandoned if isinstance(waiter, StepRunner) else waiter.done()


def run_in_task(
    tasks: set["asyncio.Task[Any]"], work: Coroutine[Any, Any, Any], ended: OnDone
) -> None:
    """Run a coroutine in its own task, and call `ended` with its result or its error.

    `tasks` holds the task meanwhile, because an event loop has only a weak reference.
    """

    def on_done(task: "asyncio.Task[Any]") -> None:
        tasks.discard(task)
        if task.cancelled():
            ended((), asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            ended((), error)
        else:
            ended(task.result(), None)

    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(on_done)


class AsyncGroupCommitter:
    """Sends the appends of many sessions to a backend together."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        self.tasks: set[asyncio.Task[Any]] = set()
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
        return AsyncBatcher(self._start, batch_size, ResultDispatcher(self.tasks))

    def _start(
        self, appends: list[Append | None], batcher: AsyncBatcher[Append | None, Outcome]
    ) -> None:
        # The short path: the task of a lone append calls the backend from its first frame.
        first = appends[0] if len(appends) == 1 else None
        work = self._send(appends) if first is None else self._send_alone(first)
        run_in_task(self.tasks, work, batcher.finish)

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

            def retry(failed: RetryAlone[Any], append: Append, waiter: Waiter[Outcome]) -> None:
                work = self._retry_alone(append, failed)
                run_in_task(self.tasks, work, partial(deliver, [(append, waiter)]))

            return [RetryAlone(error, len(group), asyncio.Lock, retry)] * len(group)

    async def _retry_alone(
        self, append: Append, failed: RetryAlone[asyncio.Lock]
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
    return AsyncBatcher(lambda plans, batcher: start_steps(driver, replica.write(plans), batcher))


def start_steps(driver: "AsyncDriver", steps: Steps[Any], batcher: AsyncBatcher[Any, Any]) -> None:
    """Run steps, even if all callers are cancelled; pass their result or error to a batcher."""
    batcher.steps = StepRunner(driver, steps, batcher)
    batcher.steps.set_result(None)


class StepRunner:
    """Drives a step generator by callbacks.

    Each reply resumes the steps in the context that delivers the reply.
    """

    __slots__ = ("_batcher", "_driver", "_ended", "_steps")

    def __init__(
        self, driver: "AsyncDriver", steps: Steps[Any], batcher: AsyncBatcher[Any, Any]
    ) -> None:
        self._driver = driver
        self._steps = steps
        self._batcher = batcher
        self._ended = False

    @property
    def is_abandoned(self) -> bool:
        """Whether no caller waits any more for the result of the steps."""
        return self._batcher.is_abandoned

    def done(self) -> bool:
        return self._ended  # Unlike a future, steps are not cancelled by their callers.

    def cancel(self) -> None:
        self.set_exception(asyncio.CancelledError())

    def set_result(self, answer: Any, /) -> None:
        self._resume(self._steps.send, answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._resume(self._steps.throw, error)

    def _resume(self, advance: Callable[[Any], Request], reply: Any) -> None:
        """Advance the steps with a reply or an error, up to their next request or their end."""
        try:
            request = advance(reply)
        except StopIteration as end:
            self._ended = True
            self._batcher.finish(end.value, None)
        except BaseException as error:
            self._ended = True
            self._batcher.finish((), error)
            # As a task does. An error that was the reply itself was raised at its source already.
            if error is not reply and isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            self._perform(request)

    def _perform(self, request: Request) -> None:
        driver = self._driver
        if type(request) is Commit:  # The most frequent request: it needs no task.
            try:
                driver.committer.batcher_for(request.append).enqueue(request.append, self)
            except UsageError as error:
                self.set_exception(error)
        else:
            run_in_task(driver.committer.tasks, driver.answer(request), self._deliver)

    def _deliver(self, reply: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(reply)
        else:
            self.set_exception(error)
