"""AsyncHandle: a replica with a queue of writes, shared by a session, its turns and its values.

In: plans and steps. Out: results, or errors raised in the caller. It also emits the replica's
notices as events. Nothing is decided here.
"""

import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from weakref import ref

from perdure import events
from perdure.aio.concurrency import AsyncBackground
from perdure.aio.driver import AsyncDriver
from perdure.aio.group_commit import plan_batcher
from perdure.aio.large_body import AsyncLargeBody
from perdure.core import rollback
from perdure.core.effects.calls import ActiveTurn, VersionMismatch
from perdure.core.effects.model_calls import CallReplayer
from perdure.core.plans import ACCEPT_ROLLBACK, NO_OP, REFRESH, Plan
from perdure.core.replay.guard import Guard
from perdure.core.replica import Replica
from perdure.errors import (
    DamagedError,
    HistoryReplacedError,
    NotFoundError,
    PerdureError,
    UsageError,
)
from perdure.events import ActiveEvent
from perdure.formats.bodies import Body, Citation
from perdure.journal import reader, requests
from perdure.journal.codec import refuse_body
from perdure.journal.reader import History
from perdure.journal.requests import Steps

T = TypeVar("T")


class AsyncHandle:
    """The object that a session, its turns and its values write through.

    At most one append of a handle is in flight. Plans that arrive meanwhile share the next one, so
    tasks that share a handle never race for a position.
    """

    def __init__(self, driver: AsyncDriver, replica: Replica) -> None:
        self.driver = driver
        self.replica = replica
        self.active_turns: dict[str, ActiveTurn] = {}
        """The turns that are running in this handle, by id."""
        self.replay: CallReplayer | None = None
        """Serves recorded results in a replay, where no call may run; otherwise None."""
        self.version_mismatches: list[VersionMismatch] = []
        """Calls that were started by another version of their tool."""
        self._batcher = plan_batcher(driver, replica)
        self.on_close: set[Callable[[], Coroutine[Any, Any, None]]] = set()
        """Called before this handle closes, to release what it holds."""
        self._closed = False
        self.background = AsyncBackground()
        """Work besides writes, which closing waits for."""
        # Weak, or a handle that is no longer used would be freed much later.
        own = replica.settings.codec
        handle = ref(self)
        own.make_body = lambda citation: _alive(handle).make_body(citation)
        own.require_own = lambda body: _alive(handle).require_own(body)
        driver.handles.add(self)
        self.emit_pending_events()

    def make_body(self, citation: Citation) -> AsyncLargeBody:
        """Return what stands for a body in messages and values of this session."""
        return AsyncLargeBody(citation, self._home, self)

    @property
    def _home(self) -> tuple[str, int]:
        return self.replica.history.stream.id, self.replica.rollbacks

    def require_own(self, body: Body) -> None:
        """Raise UsageError for a body whose parts are not in this session's history."""
        if body.home != self._home:
            refuse_body(body)
        self.replica.bodies.may_be_cited = True

    @property
    def history(self) -> History:
        """The history of the current view."""
        return self.replica.history

    async def write(self, plan: Plan[T]) -> T:
        """Execute a plan and return its result. On return it is durable."""
        replica = self.replica
        if self._closed or replica.deleted or replica.replaced is not None or Guard.used:
            self.require_open(plan.kind)
        try:
            submit = self._write_observed if events.enabled() else self._batcher.submit
            result = await submit(plan)
        finally:
            if self.replica.pending_events:
                self.emit_pending_events()
        if isinstance(result, PerdureError):
            raise result
        return result  # type: ignore[no-any-return] # plans of one batch have different results

    async def _write_observed(self, plan: Plan[Any]) -> Any:
        with self.span("append", plan=plan.kind, turn=plan.turn) as span:
            result = await self._batcher.submit(plan)
            span.fields["position"] = self.replica.tip.position
            if isinstance(result, PerdureError):
                span.fields["outcome"] = type(result).__name__
        return result

    async def run(self, steps: Steps[T], past: History | None = None) -> T:
        """Run steps that read, and return their result.

        `past` is the history that they read, by default that of the current view.
        """
        self.require_open()
        tip = (past or self.replica.history).tip
        try:
            return await self.driver.run(steps)
        except DamagedError as error:
            try:
                await self.driver.run(rollback.explain_damage(self.replica, error, tip))
            finally:
                self.emit_pending_events()
            raise

    async def wait(self, after: int, timeout: float | None) -> bool:  # noqa: ASYNC109 - the same as for threads
        """Return True once there are records after a position, here or in the store.

        False after the timeout, or when the session or its store is closed meanwhile.
        """
        self.require_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            if self.replica.tip.position > after:
                return True
            longest = self.driver.longest_wait
            pause = longest if deadline is None else min(longest, deadline - time.monotonic())
            steps = requests.wait(self.replica.name, after=after, timeout=max(pause, 0.0))
            try:
                if await self.driver.run(steps):
                    return True
                # A history that was replaced by a shorter one has no record to wait for.
                await self.run(reader.require_tip(self.replica.history))
            except UsageError:  # The store was closed.
                return False
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    async def refresh(self, *, accept_rollback: bool) -> int:
        """Apply other writers' records; return the position of the newest record."""
        if not isinstance(accept_rollback, bool):
            kind = type(accept_rollback).__name__
            raise UsageError(f"accept_rollback must be True or False, not {kind}")
        return await self.write(ACCEPT_ROLLBACK if accept_rollback else REFRESH)

    async def catch_up(self, after: int) -> History:
        """Apply other writers' records if the view ends at a position; return its history.

        If the session was deleted, the deletion is the newest record in the history.
        """
        if self.replica.tip.position <= after:
            try:
                await self.write(REFRESH)
            except NotFoundError:
                if not self.replica.deleted:
                    raise
        return self.replica.history

    def span(self, event: str, **fields: object) -> AbstractContextManager[ActiveEvent]:
        """Emit an event of this session, with its duration, when the block ends."""
        return events.span(event, store=self.driver.name, session=self.replica.name, **fields)

    def emit_pending_events(self) -> None:
        """Emit the replica's pending notices as events."""
        context = {"store": self.driver.name, "session": self.replica.name}
        while self.replica.pending_events:
            try:
                notice = self.replica.pending_events.pop(0)
            except IndexError:  # Another thread emitted it.
                return
            events.emit(notice.event, {**context, **notice.fields})

    async def drain(self) -> None:
        """Release what this handle holds, and wait for everything in flight."""
        for release in [*self.on_close]:
            await release()
        await self.background.join()
        is_idle = self._batcher.is_idle and self.replica.doubt is None
        if not self._closed and not self.replica.deleted and not is_idle:
            was_told = self.replica.replaced is not None
            try:
                await self._batcher.submit(NO_OP)
            except HistoryReplacedError:
                if not was_told:
                    raise

    async def close(self) -> None:
        """Wait for everything in flight, resolve a write in doubt, and accept no more calls."""
        self.replica.require_live("close")
        if not self._closed:
            try:
                with self.span("close", position=self.replica.tip.position):
                    await self.drain()
            finally:
                self._closed = True
                self.driver.end_waits(self.replica.name)
                self.emit_pending_events()

    @property
    def closed(self) -> bool:
        """Whether this handle or its store is closed."""
        return self._closed or self.driver.closed

    def require_open(self, action: str = "read") -> None:
        """Raise UsageError if this handle is closed, NotFoundError if its session is deleted.

        ReplayBlockedError if a replayed agent uses a session other than the replayed one;
        HistoryReplacedError if the store's history was replaced, unless the action accepts that.
        """
        self.replica.require_live(action)
        if self._closed:
            name = self.replica.name
            raise UsageError(f"session {name!r} is closed: open it again from the store")
        self.replica.require_present()
        if action != ACCEPT_ROLLBACK.kind:
            self.replica.require_not_replaced()


def _alive(handle: "ref[AsyncHandle]") -> AsyncHandle:
    """Return the handle of a codec: it is used only by what the handle runs."""
    found = handle()
    assert found is not None  # noqa: S101 - see above
    return found
