"""Handle: a replica with the queue of those who write through it. Its twin is in `handle_async`."""

import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from perdure import events
from perdure.backends import fork_safety
from perdure.core.effects.calls import ActiveTurn, VersionMismatch
from perdure.core.effects.model_calls import CallReplayer
from perdure.core.plans import NO_OP, REFRESH, Plan
from perdure.core.replica import PlanResult, Replica
from perdure.errors import NotFoundError, PerdureError, UsageError
from perdure.events import ActiveEvent
from perdure.journal import requests
from perdure.journal.reader import History
from perdure.journal.requests import Steps
from perdure.sync.driver import Driver
from perdure.sync.group_commit import Batcher

T = TypeVar("T")


_beginning = fork_safety.fork_safe_lock()


class Handle:
    """What a session, its turns and its values have in common.

    At most one append of a session is in flight; plans that come meanwhile leave as one batch, so
    threads that share a handle never race for a position.
    """

    def __init__(self, driver: Driver, replica: Replica) -> None:
        self.driver = driver
        self.replica = replica
        self.own_turns: dict[str, ActiveTurn] = {}
        """The turns that are open here, and not only in the record."""
        self.replay: CallReplayer | None = None
        """What serves calls, where nothing is to be called."""
        self.changed: list[VersionMismatch] = []
        """Calls that another version of their tool had begun."""
        self._combiner: Batcher[Plan, PlanResult] = Batcher(
            lambda plans: driver.run(replica.write(plans))
        )
        self.on_close: set[Callable[[], None]] = set()
        """What is to be given back before this handle is let go."""
        self._closed = False
        self._threads: set[threading.Thread] = set()
        driver.handles.add(self)
        self.emit_notices()

    def write(self, plan: Plan) -> int:
        """Carry out a plan; on return it is durable. Return its answer."""
        if self._closed or self.replica.deleted:
            self.require_open()
        try:
            if events.enabled():
                answer = self._write_observed(plan)
            else:
                answer = self._combiner.submit(plan)
        finally:
            if self.replica.notices:
                self.emit_notices()
        if isinstance(answer, PerdureError):
            raise answer
        return answer

    def _write_observed(self, plan: Plan) -> PlanResult:
        with self.observed("append", plan=plan.kind, turn=plan.turn) as seen:
            answer = self._combiner.submit(plan)
            seen.fields["position"] = self.replica.tip.position
            if isinstance(answer, PerdureError):
                seen.fields["outcome"] = type(answer).__name__
        return answer

    def run(self, steps: Steps[T]) -> T:
        """Carry out steps that read."""
        self.require_open()
        return self.driver.run(steps)

    def wait(self, after: int, timeout: float | None) -> bool:
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
            steps = requests.wait(self.replica.name, after=after, timeout=max(left, 0.0))
            try:
                if self.driver.run(steps):
                    return True
            except UsageError:  # The store was closed.
                return False
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    def catch_up(self, after: int) -> History:
        """Take in what others wrote, unless the view has gone beyond a position; return its past.

        It may be that the session was deleted: then that is the newest record.
        """
        if self.replica.tip.position <= after:
            try:
                self.write(REFRESH)
            except NotFoundError:
                if not self.replica.deleted:
                    raise
        return self.replica.past

    def observed(self, event: str, **fields: object) -> AbstractContextManager[ActiveEvent]:
        """Tell of an event of this session when the block has ended."""
        return events.span(event, store=self.driver.name, session=self.replica.name, **fields)

    def emit_notices(self) -> None:
        """Tell of what was found on the way."""
        where = {"store": self.driver.name, "session": self.replica.name}
        while self.replica.notices:
            try:
                notice = self.replica.notices.pop(0)
            except IndexError:  # Another thread tells of it.
                return
            events.emit(notice.event, {**where, **notice.fields})

    def background(self, work: Callable[[], None]) -> None:
        """Do something while others go on; closing waits for it. It tells of its own errors."""
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name="perdure", daemon=True
        )
        with _beginning:
            thread.start()
            self._threads = {other for other in self._threads if other.is_alive()} | {thread}

    def drain(self) -> None:
        """Give back what is held, and wait for what is under way."""
        for leave in [*self.on_close]:
            leave()
        with _beginning:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join()
        if not self._closed and not self.replica.deleted:
            self._combiner.submit(NO_OP)

    def close(self) -> None:
        """Wait for what is under way, settle what is in doubt, and take no more."""
        if not self._closed:
            try:
                with self.observed("close", position=self.replica.tip.position):
                    self.drain()
            finally:
                self._closed = True
                self.driver.end_waits(self.replica.name)
                self.emit_notices()

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
