"""Replay: run an agent's code again, with its model and its tools served from the record.

Nothing is called and nothing is written. The agent gets a session in the recorded state, which
advances along the record as the agent does; the first difference ends the replay.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

from perdure.core.effects.listing import EffectInfo
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replay import guard
from perdure.core.replay.cursor import ReplayCursor, ReplayStopped, T, require_read_only
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
from perdure.errors import UsageError
from perdure.journal.requests import Steps
from perdure.sync.driver import Driver
from perdure.sync.handle import Handle
from perdure.sync.session import Session
from perdure.sync.turn import Turn


class ReplayHandle(Handle):
    """A handle that writes nothing: what would be written is compared with the record."""

    def __init__(
        self, driver: Driver, replica: Replica, walk: ReplayCursor, serving: RecordedCalls
    ) -> None:
        super().__init__(driver, replica)
        self.replay = serving
        self._walk = walk
        self._lock = serving.lock

    def write(self, plan: Plan) -> int:
        """Compare what a plan would write with what is recorded; return the recorded answer."""
        self.require_open()
        with self._lock:
            self._walk.require_running()
            batch = RecordBatch(self.replica.name, self.replica.state, self.replica.tip)
            answer = self.run(plan.execute(batch))
            return self._walk.match(plan, batch, answer, execution_lane())

    def run(self, steps: Steps[T]) -> T:
        """Carry out steps that read."""
        with guard.suspended():
            return super().run(require_read_only(steps))

    def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ARG002 - as it is overridden
        """Return False: nobody writes to what is replayed."""
        return False

    def drain(self) -> None:
        """Wait for nothing: nothing is under way."""


class ReplaySession(Session):
    """A session that is replayed."""

    _walk: ReplayCursor

    @classmethod
    def over(
        cls,
        driver: Driver,
        replica: Replica,
        walk: ReplayCursor,
        errors: Iterable[type[BaseException]] = (),
    ) -> Self:
        """Return a session whose handle moves along a record."""
        handle = ReplayHandle(driver, replica, walk, RecordedCalls(replica, walk, errors))
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
    ) -> Turn:
        """Return the next turn, under the id that it had."""
        made = super().turn(message, correlation_id=correlation_id, author=author, id=id)
        if id is None:
            made.id = self._walk.next_turn() or made.id
        return made

    def branch(self, id: str, *, at: int | str | EffectInfo | None = None) -> "Session":  # noqa: ARG002
        """Refuse: a replay writes nothing."""
        raise UsageError("a replayed session cannot be branched: branch the recorded session")


def _replay_sync(
    session: Session, agent: Callable[[Session], Any], request: ReplayRequest
) -> Replay:
    import inspect

    if inspect.iscoroutinefunction(agent):
        raise UsageError("an async agent needs a session of perdure.open_async(...)")
    handle = session._handle  # noqa: SLF001 - the replay shares the session's driver
    replica, cursor = handle.run(prepare_replay(handle.replica, request))
    replayed = ReplaySession.over(handle.driver, replica, cursor, request.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = agent(replayed)
        except ReplayStopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - re-raised unless the agent raised it
            error = require_agent_error(raised)
    replayed.close()
    return replay_outcome(cursor, guarding, returned, error)
