"""AsyncBatch: several records in one commit, all or none. AsyncStoreBatch: of several sessions."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

from perdure.aio.driver import AsyncDriver
from perdure.aio.handle import AsyncHandle
from perdure.core import lifecycle
from perdure.core.batch import BatchPlans, BatchWriter, JointPlan, commit_together
from perdure.core.plans import REFRESH, TurnOwnership
from perdure.core.replay import guard
from perdure.core.settings import Settings
from perdure.core.turns import complete_turn
from perdure.core.validation import require_session_id
from perdure.errors import UnavailableError, UsageError
from perdure.journal import reader

if TYPE_CHECKING:
    from perdure.aio.session import AsyncSession


class AsyncBatch(BatchWriter):
    """Several records in one commit: all or none. Created by `session.batch`.

    The methods only collect: the records are written when the block ends, and not at all if it
    raises. After the block, `positions` is the range that they have.
    """

    def __init__(
        self,
        plans: BatchPlans,
        write: Callable[[JointPlan], Awaitable[range]],
        turn: TurnOwnership | None = None,
    ) -> None:
        super().__init__(plans, turn)
        self._write = write

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise UsageError("a batch is entered once: begin another with session.batch()")
        self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(range(0))
        if error is None and len(self._plans):
            self.end(await self._write(self._plans.join()))


class AsyncTurnBatch(AsyncBatch):
    """A batch of a turn, which may end the turn with it. Created by `turn.batch`."""

    completes = False
    """Whether the turn ends with this batch."""

    def complete(self) -> None:
        """End the turn as complete, in the same commit. Nothing can be added afterwards."""
        if self._turn is not None:
            self._add(complete_turn(self._plans.replica, self._turn), "complete")
            self.completes, self._open = True, False


class AsyncStoreBatch:
    """Records of several sessions in one commit: all or none. Created by `store.batch`."""

    def __init__(self, driver: AsyncDriver, settings: Callable[[], Awaitable[Settings]]) -> None:
        self._driver = driver
        self._settings = settings
        self._open: bool | None = None
        self._parts: dict[str, tuple[BatchWriter, BatchPlans]] = {}
        self._handles: list[AsyncHandle] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._driver.name}: {len(self._parts)} sessions>"

    def _require_live(self) -> None:
        guard.require_live(f"batch in the live store {self._driver.name}")

    async def session(
        self, session: "AsyncSession | str", *, id: str | None = None, expect: int | None = None
    ) -> BatchWriter:
        """Return the writer for a session, given as an object or by its id.

        The session must be where the object last saw it, or at the position `expect`; otherwise the
        batch is a ConflictError. `id` makes the records of this session repeatable.
        """
        self._require_live()
        if not self._open:
            raise UsageError("the batch is not open: use it inside `async with store.batch()`")
        handle = None if isinstance(session, str) else session._handle  # noqa: SLF001 - as a session
        name = require_session_id(session if handle is None else handle.replica.name)
        if name in self._parts:
            raise UsageError(f"session {name!r} is in this batch already: use the same writer")
        settings = await self._settings()
        replica = await self._driver.run(lifecycle.open_session(name, settings, must_exist=False))
        if handle is not None:
            past = handle.replica.history
            if past.tip != replica.tip:  # Moved, which `expect` tells, or put back.
                await handle.run(reader.require_tip(past), past)
            replica.held_lease = handle.replica.held_lease
            expect = handle.replica.tip.position if expect is None else expect
            self._handles.append(handle)
        plans = BatchPlans(replica, id, expect)
        writer = BatchWriter(plans)
        writer.open()
        self._parts[name] = writer, plans
        return writer

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise UsageError("a batch is entered once: begin another with store.batch()")
        self._open = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._require_live()
        self._open = False
        for writer, _ in self._parts.values():
            writer.end(range(0))
        parts = [part for part in self._parts.values() if len(part[1])]
        if error is not None or not parts:
            return
        stored = await self._driver.run(commit_together([plans for _, plans in parts]))
        for (writer, _), positions in zip(parts, stored, strict=True):
            writer.end(positions)
        for handle in self._handles:
            if not handle.closed:
                # The batch is stored. A handle that cannot catch up now does so at its next call.
                with contextlib.suppress(UnavailableError):
                    await handle.write(REFRESH)
