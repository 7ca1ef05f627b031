"""AsyncReplaySession: a session that is replayed. Its twin is in `replay_session`.

It is the same session to the agent, but that its calls are served and its writes are compared.
"""

import asyncio
from collections.abc import Iterable
from typing import Self, TypeVar

from perdure.commit_async import AsyncDriver
from perdure.effects.deed_views import Found
from perdure.effects.serving import Serving
from perdure.entering import lane
from perdure.errors import UsageError
from perdure.handle_async import AsyncHandle
from perdure.plans import Batch, Plan
from perdure.replays import guard
from perdure.replays.replay_session import reading_only
from perdure.replays.walking import Walk
from perdure.replica import Replica
from perdure.session_async import AsyncSession
from perdure.steps import Steps
from perdure.turn_async import AsyncTurn

T = TypeVar("T")


class AsyncReplayHandle(AsyncHandle):
    """A handle that writes nothing: what would be written is compared with the record."""

    def __init__(self, driver: AsyncDriver, replica: Replica, walk: Walk, serving: Serving) -> None:
        super().__init__(driver, replica)
        self.replay = serving
        self._walk = walk
        self._lock = asyncio.Lock()

    async def write(self, plan: Plan) -> int:
        """Compare what a plan would write with what is recorded; return the recorded answer."""
        self.require_open()
        async with self._lock:
            self._walk.require_going()
            batch = Batch(self.replica.name, self.replica.fold, self.replica.tip)
            answer = await self.run(plan.made(batch))
            return self._walk.take(plan, batch, answer, lane())

    async def run(self, steps: Steps[T]) -> T:
        """Carry out steps that read."""
        with guard.lifted():
            return await super().run(reading_only(steps))

    async def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ARG002, ASYNC109
        """Return False: nobody writes to what is replayed."""
        return False

    async def drain(self) -> None:
        """Wait for nothing: nothing is under way."""


class AsyncReplaySession(AsyncSession):
    """A session that is replayed."""

    _walk: Walk

    @classmethod
    def over(
        cls,
        driver: AsyncDriver,
        replica: Replica,
        walk: Walk,
        errors: Iterable[type[BaseException]] = (),
    ) -> Self:
        """Return a session whose handle moves along a record."""
        handle = AsyncReplayHandle(driver, replica, walk, Serving(replica, walk, errors))
        made = cls(driver, replica, handle)
        made._walk = walk
        return made

    def turn(
        self,
        message: object | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
        id: str | None = None,
    ) -> AsyncTurn:
        """Return the next turn, under the id that it had."""
        made = super().turn(message, correlation_id=correlation_id, author=author, id=id)
        if id is None:
            made.id = self._walk.next_turn() or made.id
        return made

    async def branch(self, id: str, *, at: int | str | Found | None = None) -> "AsyncSession":  # noqa: ARG002
        """Refuse: a replay writes nothing."""
        raise UsageError("a replayed session can not be branched: branch the one that it is of")
