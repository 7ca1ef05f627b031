"""Approvals: who may do what, reached as `session.approvals`. Its twin is in `approvals_async`."""

from perdure.core.effects import approvals, listing
from perdure.core.effects.calls import Decision
from perdure.core.effects.listing import Approval
from perdure.core.plans import REFRESH_SILENTLY
from perdure.errors import ApprovalError, NotFoundError
from perdure.sync.handle import Handle

ApprovalList = list[Approval]


class Approvals:
    """The calls of a session that need somebody's approval, and what was decided about them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pending(self) -> ApprovalList:
        """Return the approvals that wait for a decision, in this view."""
        return self._handle.run(listing.pending_approvals(self._handle.replica))

    def list(self) -> ApprovalList:
        """Return all approvals in order, and what became of them. It reads the whole session."""
        return self._handle.run(listing.list_approvals(self._handle.replica))

    def approve(self, id: str, *, by: str, reason: str = "", digest: str | None = None) -> None:
        """Let a call happen, once; on return that is durable, and whoever waits goes on.

        Anybody may decide, in any process; `by` says who it was. With the `digest` of the approval
        that was looked at, a decision can not be taken for anything else. ApprovalError if it does
        not wait any more: the first decision counts.
        """
        self._decide(id, "approved", by, reason, digest)

    def deny(self, id: str, *, by: str, reason: str = "", digest: str | None = None) -> None:
        """Have a call not made; its caller, and the model, are told the reason."""
        self._decide(id, "denied", by, reason, digest)

    def _decide(
        self, id: str, decision: Decision, by: str, reason: str, digest: str | None
    ) -> None:
        handle, replica = self._handle, self._handle.replica
        plan, was_late = approvals.plan_decision(
            replica, id, decision, by=by, reason=reason, digest=digest
        )
        handle.write(REFRESH_SILENTLY)
        try:
            handle.write(plan)
        except NotFoundError:
            found = handle.run(listing.explain_not_pending(replica, id))
            raise found from None
        if was_late():
            raise ApprovalError(replica.name, id, "expired", "and nothing was decided")
