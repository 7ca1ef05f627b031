"""AsyncReplaySession: a session that is replayed.

For the agent it behaves like the recorded session, but its calls are served from the record and its
writes are compared with it. It never writes to the store.
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
    """A handle that compares writes with the record instead of storing them."""

    def __init__(
        self, driver: AsyncDriver, replica: Replica, cursor: Walk, serving: Serving
    ) -> None:
        super().__init__(driver, replica)
        self.replay = serving
        self._cursor = cursor
        self._lock = asyncio.Lock()

    async def write(self, plan: Plan) -> int:
        """Compare the records of a plan with the recorded ones; return the recorded position."""
        self.require_open()
        async with self._lock:
            self._cursor.require_running()
            batch = Batch(self.replica.name, self.replica.state, self.replica.tip)
            answer = await self.run(plan.execute(batch))
            return self._cursor.match(plan, batch, answer, lane())

    async def run(self, steps: Steps[T]) -> T:
        """Run steps that only read. The guard does not apply to the store's own I/O."""
        with guard.lifted():
            return await super().run(reading_only(steps))

    async def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ARG002, ASYNC109
        """Return False: a replayed session gets no new records."""
        return False

    async def drain(self) -> None:
        """Return at once: no write is in flight."""


class AsyncReplaySession(AsyncSession):
    """A session that is replayed."""

    _cursor: Walk

    @classmethod
    def over(
        cls,
        driver: AsyncDriver,
        replica: Replica,
        cursor: Walk,
        errors: Iterable[type[BaseException]] = (),
    ) -> Self:
        """Return a session whose handle moves a cursor along the record."""
        handle = AsyncReplayHandle(driver, replica, cursor, Serving(replica, cursor, errors))
        session = cls(driver, replica, handle)
        session._cursor = cursor
        return session

    def turn(
        self,
        message: object | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
        id: str | None = None,
    ) -> AsyncTurn:
        """Return the next turn, with its recorded id."""
        turn = super().turn(message, correlation_id=correlation_id, author=author, id=id)
        if id is None:
            turn.id = self._cursor.next_turn() or turn.id
        return turn

    async def branch(self, id: str, *, at: int | str | Found | None = None) -> "AsyncSession":  # noqa: ARG002
        """Raise UsageError: a replay writes nothing."""
        raise UsageError("a replayed session cannot be branched: branch the recorded session")
