"""AsyncReplaySession: a session that is replayed.

For the agent it behaves like the recorded session, but its calls are served from the record and its
writes are compared with it. It never writes to the store.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from perdure.aio.concurrency import exclusive, require_plain_agent, resolve
from perdure.aio.driver import AsyncDriver
from perdure.aio.handle import AsyncHandle
from perdure.aio.session import AsyncSession
from perdure.aio.turn import AsyncTurn
from perdure.core.bodies import NOT_SPLIT
from perdure.core.effects.listing import EffectInfo
from perdure.core.plans import Plan
from perdure.core.replay import guard
from perdure.core.replay.cursor import ReplayCursor, ReplayStopped, require_read_only
from perdure.core.replay.result import (
    Replay,
    ReplayRequest,
    prepare_replay,
    replay_outcome,
    require_agent_error,
)
from perdure.core.replay.served_calls import RecordedCalls
from perdure.core.replica import Replica
from perdure.core.turn_context import execution_lane
from perdure.journal.reader import History
from perdure.journal.requests import Steps

T = TypeVar("T")


class AsyncReplayHandle(AsyncHandle):
    """A handle that compares writes with the record instead of storing them."""

    def __init__(
        self, driver: AsyncDriver, replica: Replica, cursor: ReplayCursor, serving: RecordedCalls
    ) -> None:
        super().__init__(driver, replica)
        self.replay = serving
        self._cursor = cursor
        self._lock = exclusive(serving.lock)

    async def write(self, plan: Plan[T]) -> T:
        """Compare the records of a plan with the recorded ones; return the recorded position."""
        self.require_open()
        async with self._lock:
            self._cursor.require_running()
            batch = self.replica.new_batch()
            batch.bodies = NOT_SPLIT  # The record has its bodies in place, too.
            result = await self.run(plan.execute(batch))
            return self._cursor.match(plan, batch, result, execution_lane())

    async def run(self, steps: Steps[T], past: History | None = None) -> T:
        """Run steps that only read. The guard does not apply to the store's own I/O."""
        return await super().run(require_read_only(steps), past)

    async def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ARG002, ASYNC109
        """Return False: a replayed session gets no new records."""
        return False

    async def drain(self) -> None:
        """Return at once: no write is in flight."""


class AsyncReplaySession(AsyncSession):
    """A session that is replayed."""

    _cursor: ReplayCursor

    @classmethod
    def over(
        cls,
        driver: AsyncDriver,
        replica: Replica,
        cursor: ReplayCursor,
        errors: Iterable[type[BaseException]] = (),
    ) -> Self:
        """Return a session whose handle moves a cursor along the record."""
        handle = AsyncReplayHandle(driver, replica, cursor, RecordedCalls(replica, cursor, errors))
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

    async def branch(self, id: str, *, at: int | str | EffectInfo | None = None) -> "AsyncSession":  # noqa: ARG002
        """Raise ReplayBlockedError: a replay writes nothing. Branch the recorded session."""
        guard.refuse(f"branching session {self.id!r}")

    async def copy(self, id: str) -> "AsyncSession":  # noqa: ARG002
        """Raise ReplayBlockedError: a replay writes nothing. Copy the recorded session."""
        guard.refuse(f"copying session {self.id!r}")


async def replay_async(
    session: AsyncSession, agent: Callable[[AsyncSession], Any], request: ReplayRequest
) -> Replay:
    """Run an agent again on the record of a session, and compare."""
    guard.require_live("a replay inside a replay")
    require_plain_agent(agent)
    handle = session._handle  # noqa: SLF001 - the replay shares the session's driver
    replica, cursor = await handle.run(prepare_replay(handle.replica, request))
    replayed = AsyncReplaySession.over(handle.driver, replica, cursor, request.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = await resolve(agent(replayed))
        except ReplayStopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - re-raised unless the agent raised it
            error = require_agent_error(raised)
    await replayed.close()
    return replay_outcome(cursor, guarding, returned, error)
