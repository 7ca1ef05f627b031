"""AsyncStore: opens sessions, lists and deletes them. For code in an event loop.

Every method here has its twin in `store`, in the same order, with the same parameters.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from perdure import events, lifecycle, salvage, views
from perdure.approvals import views as approval_views
from perdure.approvals.views import Approval
from perdure.backend import AsyncBackend, Head, knowing_recency
from perdure.commit_async import AsyncCommitter, AsyncDriver
from perdure.errors import UsageError
from perdure.fold import APPROVAL_WAITING
from perdure.guarantees import Guarantees, guarantees_of
from perdure.handle_async import AsyncHandle
from perdure.reading import OnDamage
from perdure.records import Record
from perdure.replica import Replica
from perdure.session_async import AsyncSession
from perdure.settings import Settings
from perdure.values_async import AsyncValues
from perdure.writing import require_session_id


class AsyncStore:
    """Many sessions in one place. Made by `perdure.open_async`. Tasks of one loop may share it."""

    def __init__(self, backend: AsyncBackend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._committer = AsyncCommitter(backend)
        self._driver = AsyncDriver(backend, self._committer)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend.name}>"

    async def session(self, id: str) -> AsyncSession:
        """Open a session where it stopped, or a new one; a new one exists from its first record."""
        return AsyncSession(self._driver, await self._open(id, must_exist=False))

    async def resume(self, id: str) -> AsyncSession:
        """Open a session where it stopped; an unknown or deleted one is NotFoundError."""
        return AsyncSession(self._driver, await self._open(id, must_exist=True))

    async def values(self, id: str) -> AsyncValues:
        """Open the values under an id, for what is known apart from any one conversation.

        They are those of the session of that id, should there be one: the ids are shared.
        """
        return AsyncValues(AsyncHandle(self._driver, await self._open(id, must_exist=False)))

    async def _open(self, id: str, *, must_exist: bool) -> Replica:
        name = require_session_id(id)
        steps = lifecycle.opened(name, self._settings, must_exist=must_exist)
        with events.observed("open", store=self._backend.name, session=name) as seen:
            replica = await self._driver.run(steps)
            if replica.exists:
                count, position = replica.fold.messages, replica.tip.position
                seen.event = "resume"
                seen.fields.update(count=count, role=views.last_role(replica), position=position)
        return replica

    async def sessions(
        self,
        *,
        prefix: str = "",
        labels: Sequence[str] = (),
        after: str = "",
        deleted: bool = False,
        recent: bool = False,
    ) -> AsyncIterator[Head]:
        """Yield the heads of sessions in order of their ids, a page at a time from the store.

        Only those whose id begins with `prefix`, comes after `after` and that bear all `labels`;
        deleted ones only where asked for. With `recent`, the most recently changed one comes
        first, and `after` can not be given; a store that does not know is UnsupportedError.
        """
        if recent:
            if after:
                raise UsageError("`after` goes by id: with `recent` it can not be given")
            lifecycle.require_choice(prefix, after, labels)
            without = lifecycle.left_out(deleted=deleted)
            known = knowing_recency(self._backend)
            heads = known.recent(prefix=prefix, labels=labels, without=without)
            async for head in heads:
                yield head
            return
        going_on: str | None = after
        limit = lifecycle.FIRST_PAGE
        while going_on is not None:
            chosen = lifecycle.listed(
                prefix=prefix, after=going_on, labels=labels, deleted=deleted, limit=limit
            )
            page, going_on = await self._driver.run(chosen)
            limit = lifecycle.PAGE
            for head in page:
                yield head

    async def records(
        self, id: str, *, after: int = 0, on_damage: OnDamage | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of a session without opening it, which damage may prevent.

        Damage is raised; given `on_damage`, it is called with each error instead, and reading
        goes on with the next record that can be read.
        """
        name = require_session_id(id)
        past = await self._driver.run(salvage.past_of(name, self._settings, on_damage))
        records = views.Records(past, self._settings, after=after, on_damage=on_damage)
        while (page := await self._driver.run(records.page())) is not None:
            for record in page:
                yield record

    async def approvals(self, *, prefix: str = "") -> AsyncIterator[Approval]:
        """Yield the approvals that wait for a decision, in all sessions or those of a prefix."""
        async for head in self.sessions(prefix=prefix, labels=[APPROVAL_WAITING]):
            steps = lifecycle.opened(head.id, self._settings, must_exist=False)
            replica = await self._driver.run(steps)
            for approval in await self._driver.run(approval_views.pending(replica)):
                yield approval

    async def delete(self, id: str, *, reason: str = "") -> None:
        """Delete a session: a last record stays, and says why; everything before it is dropped.

        InUseError while branches of it live, LeaseHeldError while a worker holds it, NotFoundError
        if there is none.
        """
        name = require_session_id(id)
        with events.observed("delete", store=self._backend.name, session=name):
            await self._driver.run(lifecycle.delete(name, self._settings, reason=reason))

    def guarantees(self) -> Guarantees:
        """Say what survives when an append has returned, who may share the store, and what else.

        It is what the backend found when it was opened; nothing is asked anew.
        """
        return guarantees_of(self._backend)

    async def close(self) -> None:
        """Finish what is under way and let the store go. Closing twice is harmless."""
        if not self._closed:
            self._closed = self._driver.closed = True
            with events.observed("close", store=self._backend.name, session=""):
                async with AsyncExitStack() as last:  # Whatever one raises, the others are drained.
                    last.push_async_callback(self._backend.close)
                    last.push_async_callback(self._committer.drain)
                    for handle in [*self._driver.handles]:
                        last.push_async_callback(handle.drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
