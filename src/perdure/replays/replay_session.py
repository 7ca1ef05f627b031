"""ReplaySession: a session that is replayed. Its twin is in `replay_session_async`.

It is the same session to the agent, but that its calls are served and its writes are compared.
"""

from collections.abc import Iterable
from typing import Any, Self, TypeVar

from perdure.commit import Driver
from perdure.effects.deed_views import Found
from perdure.effects.serving import Serving
from perdure.entering import lane
from perdure.errors import UsageError
from perdure.handle import Handle
from perdure.plans import Batch, Plan
from perdure.replays import guard
from perdure.replays.walking import Walk
from perdure.replica import Replica
from perdure.session import Session
from perdure.steps import Commit, Drop, Steps
from perdure.turn import Turn

T = TypeVar("T")


def reading_only(steps: Steps[T]) -> Steps[T]:
    """Pass on what reads, and refuse what would write."""
    answer: Any = None
    resume: Any = steps.send
    while True:
        try:
            request = resume(answer)
        except StopIteration as end:
            found: T = end.value
            return found
        if isinstance(request, Commit | Drop):
            raise UsageError("a replay writes nothing")
        try:
            resume, answer = steps.send, (yield request)
        except Exception as error:  # noqa: BLE001 - thrown to where it belongs
            resume, answer = steps.throw, error


class ReplayHandle(Handle):
    """A handle that writes nothing: what would be written is compared with the record."""

    def __init__(self, driver: Driver, replica: Replica, walk: Walk, serving: Serving) -> None:
        super().__init__(driver, replica)
        self.replay = serving
        self._walk = walk
        self._lock = serving.lock

    def write(self, plan: Plan) -> int:
        """Compare what a plan would write with what is recorded; return the recorded answer."""
        self.require_open()
        with self._lock:
            self._walk.require_running()
            batch = Batch(self.replica.name, self.replica.state, self.replica.tip)
            answer = self.run(plan.execute(batch))
            return self._walk.match(plan, batch, answer, lane())

    def run(self, steps: Steps[T]) -> T:
        """Carry out steps that read."""
        with guard.lifted():
            return super().run(reading_only(steps))

    def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ARG002 - as it is overridden
        """Return False: nobody writes to what is replayed."""
        return False

    def drain(self) -> None:
        """Wait for nothing: nothing is under way."""


class ReplaySession(Session):
    """A session that is replayed."""

    _walk: Walk

    @classmethod
    def over(
        cls,
        driver: Driver,
        replica: Replica,
        walk: Walk,
        errors: Iterable[type[BaseException]] = (),
    ) -> Self:
        """Return a session whose handle moves along a record."""
        handle = ReplayHandle(driver, replica, walk, Serving(replica, walk, errors))
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

    def branch(self, id: str, *, at: int | str | Found | None = None) -> "Session":  # noqa: ARG002
        """Refuse: a replay writes nothing."""
        raise UsageError("a replayed session cannot be branched: branch the recorded session")
