"""Tell those who wait what became of theirs: in order, and a few in each round of the event loop.

Whoever is told goes on at once, up to its next request. With a thousand sessions in one commit that
would keep the loop from everything else for many milliseconds.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from perdure.parting import Parting

AT_ONCE = 64  # A few milliseconds of work.

_Told_contra = TypeVar("_Told_contra", contravariant=True)


class Waiter(Protocol[_Told_contra]):
    """What waits for an answer: a future, or steps that go on with it."""

    def done(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, answer: _Told_contra, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


Waiting = Sequence[tuple[Any, Waiter[Any]]]
"""What was asked for, and who waits for the answer."""


def tell(waiting: Waiting, answers: Sequence[Any], error: BaseException | None) -> None:
    """Tell everybody now: their answers, or an error of them all. Some go on alone (`parting`)."""
    raised: BaseException | None = None
    for number, (item, waiter) in enumerate(waiting):
        if waiter.done():
            continue
        try:
            if error is None:
                answer = answers[number]
                if type(answer) is Parting:
                    answer.part(item, waiter)
                else:
                    waiter.set_result(answer)
            elif isinstance(error, asyncio.CancelledError):
                with contextlib.suppress(RuntimeError):  # Nobody waits in a loop that was closed.
                    waiter.cancel()
            else:
                waiter.set_exception(error)
        except BaseException as interrupt:  # noqa: BLE001 - the others must hear of theirs first
            raised = interrupt
    if raised is not None:
        raise raised


class Teller:
    """Tells many in turns. A task hands the loop back in between; there is none for a few."""

    def __init__(self, tasks: set["asyncio.Task[Any]"]) -> None:
        self._tasks = tasks  # They hold it meanwhile: an event loop does so only weakly.
        self._left: deque[tuple[Waiting, Sequence[Any], BaseException | None]] = deque()

    def tell(self, waiting: Waiting, answers: Sequence[Any], error: BaseException | None) -> None:
        """Tell a few now; of many, some in each of the next rounds, after those from before."""
        few = len(waiting) <= AT_ONCE and not self._left
        if few or isinstance(error, asyncio.CancelledError):  # The loop ends, perhaps.
            tell(waiting, answers, error)
            return
        begins = not self._left
        for first in range(0, len(waiting), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            self._left.append((waiting[part], answers[part], error))
        if begins:
            task = asyncio.create_task(self._tell_in_turns())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if task.cancelled():  # Perhaps before it began: then nothing of it was ever run.
            self._tell_rest()

    @property
    def is_telling(self) -> bool:
        """Whether some of those who wait have not been told yet."""
        return bool(self._left)

    def forsake(self) -> list[tuple[Any, Waiter[Any]]]:
        """Return those who were not told yet; nobody will: the loop that was to do it has ended."""
        left = [one for waiting, _, _ in self._left for one in waiting]
        self._left.clear()
        return left

    async def _tell_in_turns(self) -> None:
        try:
            while self._left:
                tell(*self._left.popleft())
                if self._left:
                    await asyncio.sleep(0)
        except GeneratorExit:
            raise  # The loop was closed: nobody is left in it.
        except BaseException:
            # The loop ends, or was interrupted. What became of theirs is known, so they hear of it.
            self._tell_rest()
            raise

    def _tell_rest(self) -> None:
        try:
            while self._left:
                tell(*self._left.popleft())
        finally:
            if self._left:  # Another interrupt; it is raised when all have been told.
                self._tell_rest()
