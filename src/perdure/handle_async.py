"""AsyncHandle: a replica with the queue of those who write through it. Its twin is in `handle`."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from perdure import events
from perdure import steps as steps_to
from perdure.commit_async import AsyncCombiner, AsyncDriver, begin
from perdure.effects.asking import Replaying
from perdure.effects.tools import Changed, Running
from perdure.errors import NotFoundError, PerdureError, UsageError
from perdure.events import Observed
from perdure.plans import Plan
from perdure.reading import Past
from perdure.replica import Answer, Replica
from perdure.steps import Steps
from perdure.writing import NOTHING, REFRESH

T = TypeVar("T")


class AsyncHandle:
    """What a session, its turns and its values have in common.

    At most one append of a session is in flight; plans that come meanwhile leave as one batch, so
    tasks that share a handle never race for a position.
    """

    def __init__(self, driver: AsyncDriver, replica: Replica) -> None:
        self.driver = driver
        self.replica = replica
        self.own_turns: dict[str, Running] = {}
        """The turns that are open here, and not only in the record."""
        self.replay: Replaying | None = None
        """What serves calls, where nothing is to be called."""
        self.changed: list[Changed] = []
        """Calls that another version of their tool had begun."""
        self._combiner: AsyncCombiner[Plan, Answer] = AsyncCombiner(
            lambda plans, combiner: begin(driver, replica.write(plans), combiner)
        )
        self.leaving: set[Callable[[], Coroutine[Any, Any, None]]] = set()
        """What is to be given back before this handle is let go."""
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        driver.handles.add(self)
        self.tell_notices()

    async def write(self, plan: Plan) -> int:
        """Carry out a plan; on return it is durable. Return its answer."""
        if self._closed or self.replica.gone:
            self.require_open()
        try:
            if events.listening():
                answer = await self._write_observed(plan)
            else:
                answer = await self._combiner.submit(plan)
        finally:
            if self.replica.notices:
                self.tell_notices()
        if isinstance(answer, PerdureError):
            raise answer
        return answer

    async def _write_observed(self, plan: Plan) -> Answer:
        with self.observed("append", plan=plan.kind, turn=plan.turn) as seen:
            answer = await self._combiner.submit(plan)
            seen.fields["position"] = self.replica.tip.position
            if isinstance(answer, PerdureError):
                seen.fields["outcome"] = type(answer).__name__
        return answer

    async def run(self, steps: Steps[T]) -> T:
        """Carry out steps that read."""
        self.require_open()
        return await self.driver.run(steps)

    async def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ASYNC109 - as its twin
        """Return True once there are records after a position, here or in the store.

        False when the time has passed, and when the session or its store was closed meanwhile.
        """
        self.require_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self.replica.tip.position > after:
                return True
            longest = self.driver.longest_wait
            left = longest if deadline is None else min(longest, deadline - time.monotonic())
            steps = steps_to.wait(self.replica.name, after=after, timeout=max(left, 0.0))
            try:
                if await self.driver.run(steps):
                    return True
            except UsageError:  # The store was closed.
                return False
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    async def take_in(self, after: int) -> Past:
        """Take in what others wrote, unless the view has gone beyond a position; return its past.

        It may be that the session was deleted: then that is the newest record.
        """
        if self.replica.tip.position <= after:
            try:
                await self.write(REFRESH)
            except NotFoundError:
                if not self.replica.gone:
                    raise
        return self.replica.past

    def observed(self, event: str, **fields: object) -> AbstractContextManager[Observed]:
        """Tell of an event of this session when the block has ended."""
        return events.observed(event, store=self.driver.name, session=self.replica.name, **fields)

    def tell_notices(self) -> None:
        """Tell of what was found on the way."""
        where = {"store": self.driver.name, "session": self.replica.name}
        while self.replica.notices:
            try:
                notice = self.replica.notices.pop(0)
            except IndexError:  # Another thread tells of it.
                return
            events.tell(notice.event, {**where, **notice.fields})

    def background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do something while others go on; closing waits for it. It tells of its own errors."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Give back what is held, and wait for what is under way."""
        for leave in [*self.leaving]:
            await leave()
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        # Those of a loop that was closed, or that runs in the parent of a fork, never end here.
        waiting = [one for one in self._tasks if one is not own and one.get_loop() is loop]
        if waiting:
            await asyncio.wait(waiting)
        if not self._closed and not self.replica.gone:
            await self._combiner.submit(NOTHING)

    async def close(self) -> None:
        """Wait for what is under way, settle what is in doubt, and take no more."""
        if not self._closed:
            try:
                with self.observed("close", position=self.replica.tip.position):
                    await self.drain()
            finally:
                self._closed = True
                self.driver.end_waits(self.replica.name)
                self.tell_notices()

    @property
    def closed(self) -> bool:
        """Whether this handle was closed, or its store."""
        return self._closed or self.driver.closed

    def require_open(self) -> None:
        """Raise if this handle was closed, or if its session was deleted."""
        if self._closed:
            name = self.replica.name
            raise UsageError(f"session {name!r} is closed: open it again from the store")
        self.replica.require_present()
