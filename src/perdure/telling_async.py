"""Deliver commit results to waiters in order, at most 64 per event-loop iteration.

A waiter that is a step generator runs at once, up to its next request. With a thousand sessions in
one commit, delivering all results at once would block the loop for many milliseconds.

To edit: every waiter must get its result, even if one delivery raises or the loop is shutting down.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from perdure.parting import Parting

AT_ONCE = 64  # results per loop iteration; a few milliseconds of work

_Told_contra = TypeVar("_Told_contra", contravariant=True)


class Waiter(Protocol[_Told_contra]):
    """Receives a result: a future, or a step generator that continues with it."""

    def done(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, answer: _Told_contra, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


Waiting = Sequence[tuple[Any, Waiter[Any]]]
"""Items, each with the waiter for its result."""


def tell(waiting: Waiting, answers: Sequence[Any], error: BaseException | None) -> None:
    """Deliver results now, or one error for all. A `Parting` instead starts a retry of its item."""
    raised: BaseException | None = None
    for number, (item, waiter) in enumerate(waiting):
        if waiter.done():
            continue
        try:
            if error is None:
                answer = answers[number]
                if type(answer) is Parting:
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


class Teller:
    """Delivers large batches in slices, from a task that yields to the loop between them."""

    def __init__(self, tasks: set["asyncio.Task[Any]"]) -> None:
        self._tasks = tasks  # Holds the task, because an event loop has only a weak reference.
        self._pending: deque[tuple[Waiting, Sequence[Any], BaseException | None]] = deque()

    def dispatch(
        self, waiting: Waiting, answers: Sequence[Any], error: BaseException | None
    ) -> None:
        """Deliver a small batch now, and a large one over the next iterations, in order."""
        is_small = len(waiting) <= AT_ONCE and not self._pending
        # After a cancellation the loop may be shutting down: there may be no next iteration.
        if is_small or isinstance(error, asyncio.CancelledError):
            tell(waiting, answers, error)
            return
        is_idle = not self._pending
        for first in range(0, len(waiting), AT_ONCE):
            part = slice(first, first + AT_ONCE)
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
                tell(*self._pending.popleft())
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
                tell(*self._pending.popleft())
        finally:
            if self._pending:  # Interrupted again; that is raised after all deliveries.
                self._dispatch_rest()
