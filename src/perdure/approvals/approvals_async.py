"""Approvals: who may do what, reached as `session.approvals`. Its twin is in `approvals`."""

from perdure.approvals import approving
from perdure.approvals import views as approval_views
from perdure.approvals.approving import Decision
from perdure.approvals.views import Approval
from perdure.errors import ApprovalError, NotFoundError
from perdure.handle_async import AsyncHandle
from perdure.writing import CATCH_UP

Listing = list[Approval]


class AsyncApprovals:
    """The calls of a session that need somebody's approval, and what was decided about them."""

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    async def pending(self) -> Listing:
        """Return the approvals that wait for a decision, in this view."""
        return await self._handle.run(approval_views.pending(self._handle.replica))

    async def list(self) -> Listing:
        """Return all approvals in order, and what became of them. It reads the whole session."""
        return await self._handle.run(approval_views.listed(self._handle.replica))

    async def approve(
        self, id: str, *, by: str, reason: str = "", digest: str | None = None
    ) -> None:
        """Let a call happen, once; on return that is durable, and whoever waits goes on.

        Anybody may decide, in any process; `by` says who it was. With the `digest` of the approval
        that was looked at, a decision can not be taken for anything else. ApprovalError if it does
        not wait any more: the first decision counts.
        """
        await self._decide(id, "approved", by, reason, digest)

    async def deny(self, id: str, *, by: str, reason: str = "", digest: str | None = None) -> None:
        """Have a call not made; its caller, and the model, are told the reason."""
        await self._decide(id, "denied", by, reason, digest)

    async def _decide(
        self, id: str, decision: Decision, by: str, reason: str, digest: str | None
    ) -> None:
        handle, replica = self._handle, self._handle.replica
        plan, was_late = approving.decide(
            replica, id, decision, by=by, reason=reason, digest=digest
        )
        await handle.write(CATCH_UP)
        try:
            await handle.write(plan)
        except NotFoundError:
            found = await handle.run(approval_views.missing(replica, id))
            raise found from None
        if was_late():
            raise ApprovalError(replica.name, id, "expired", "and nothing was decided")
