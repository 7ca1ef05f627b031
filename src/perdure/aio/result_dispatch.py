"""Delivery of the results of a group commit to tasks and steps of an event loop.

In: items, each with the waiter for its result, and the results. Out: every waiter has its result.

To edit: a signal handler may raise between any two lines (`group_commit`). Results stay in
`pending` until all of them are delivered, so some may be delivered twice; a waiter that has its
result, or waits for something else by now, is skipped.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from perdure.core.batching import RetryAlone

DISPATCH_MAX = 64  # results per loop iteration; a few milliseconds of work


_Result_contra = TypeVar("_Result_contra", contravariant=True)


class Waiter(Protocol[_Result_contra]):
    """Receives a result: a future, or a step generator that continues with it."""

    def done(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, answer: _Result_contra, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class StepWaiter:
    """A waiter that waits for one item after the other, until it is done."""

    __slots__ = ("awaited",)
    awaited: object
    """The item whose result it waits for now; None if it waits for none."""


WaitingItems = Sequence[tuple[Any, Waiter[Any]]]

"""Items, each with the waiter for its result."""


def deliver(waiting: WaitingItems, answers: Sequence[Any], error: BaseException | None) -> None:
    """Deliver results now, or one error for all. A `RetryAlone` starts a retry of its item.

    Calling this again is harmless. Do so if it raises: then some results may be undelivered.
    """
    raised: BaseException | None = None
    for number, (item, waiter) in enumerate(waiting):
        is_waiting = waiter.awaited is item if isinstance(waiter, StepWaiter) else not waiter.done()
        if not is_waiting:
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


_Results = tuple[WaitingItems, Sequence[Any], BaseException | None]


class ResultDispatcher:
    """Delivers results. If `sliced`, a task delivers large batches in slices, with pauses."""

    def __init__(self, *, sliced: bool) -> None:
        self._sliced = sliced
        self.pending: list[_Results] = []
        self.task: asyncio.Task[None] | None = None

    def add(
        self, waiting: WaitingItems, answers: Sequence[Any], error: BaseException | None
    ) -> None:
        """Take over results that have to be delivered; call `dispatch` then.

        A small batch may be appended to `pending` instead.
        """
        size = DISPATCH_MAX
        # After a cancellation the loop may be shutting down: there may be no next iteration.
        is_whole = len(waiting) <= size or not self._sliced
        if is_whole or isinstance(error, asyncio.CancelledError):
            self.pending.append((waiting, answers, error))
            return
        parts = [slice(first, first + size) for first in range(0, len(waiting), size)]
        self.pending += [(waiting[part], answers[part], error) for part in parts]

    def dispatch(self) -> None:
        """Deliver a small batch now, and a large one over the next iterations, in order."""
        if self.task is not None and not self.task.done():
            if self.pending and not isinstance(self.pending[-1][2], asyncio.CancelledError):
                return
        elif self._sliced and len(self.pending) > 1:
            self.task = asyncio.create_task(self._dispatch_slices())
            self.task.add_done_callback(self._on_done)
            return
        self.dispatch_rest()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        # If it was canceled before its first step, its own handler never ran.
        self.task = None
        if task.cancelled():
            self.dispatch_rest()

    @property
    def is_busy(self) -> bool:
        """Whether some results have not been delivered yet."""
        return bool(self.pending)

    def recheck(self) -> None:
        """Deliver what an interrupt left undelivered."""
        if self.pending and (self.task is None or self.task.done()):
            self.dispatch_rest()

    def waiting_items(self) -> list[tuple[Any, Waiter[Any]]]:
        """Return the items whose results have not been delivered yet."""
        return [item for waiting, _, _ in self.pending for item in waiting]

    def reset(self) -> None:
        """Forget all items: the loop that should deliver their results has ended."""
        self.pending, self.task = [], None

    async def _dispatch_slices(self) -> None:
        try:
            while self.pending:
                self._deliver(self.pending[0])
                if self.pending:
                    await asyncio.sleep(0)
        except GeneratorExit:
            raise  # The loop was closed: no waiter is left in it.
        except BaseException:
            # The loop is shutting down or was interrupted. The results are known, so deliver them.
            self.dispatch_rest()
            raise

    def dispatch_rest(self) -> None:
        """Deliver everything that is pending, now."""
        raised: BaseException | None = None
        for results in [*self.pending]:
            try:
                self._deliver(results)
            except BaseException as interrupt:  # noqa: BLE001 - raised after all deliveries
                raised = interrupt
        if raised is not None:
            raise raised

    def _deliver(self, results: _Results) -> None:
        raised: BaseException | None = None
        try:
            deliver(*results)
        except BaseException as interrupt:  # noqa: BLE001 - raised when all are delivered
            deliver(*results)  # If this is interrupted as well, `recheck` does it again.
            raised = interrupt
        self.pending = [other for other in self.pending if other is not results]
        if raised is not None:
            raise raised
