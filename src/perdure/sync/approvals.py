# Generated from aio/approvals.py by scripts/generate_sync.py: do not edit.
"""Approvals: list and decide the approvals of a session, reached as `session.approvals`."""

from perdure.core.effects import approvals, listing
from perdure.core.effects.calls import Decision
from perdure.core.effects.listing import Approval
from perdure.core.plans import REFRESH_SILENTLY
from perdure.core.state.approvals import EXPIRED
from perdure.errors import ApprovalError, NotFoundError
from perdure.sync.handle import Handle

ApprovalList = list[Approval]


class Approvals:
    """The calls of a session that need an approval, and the decisions about them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pending(self) -> ApprovalList:
        """Return the approvals that wait for a decision, in this view."""
        return self._handle.run(listing.pending_approvals(self._handle.replica))

    def list(self) -> ApprovalList:
        """Return all approvals in order, with their states. Reads the whole session."""
        return self._handle.run(listing.list_approvals(self._handle.replica))

    def approve(self, id: str, *, by: str, reason: str = "", digest: str | None = None) -> None:
        """Approve a pending call, once. On return the decision is durable and its caller is woken.

        Any process may decide; `by` names the person. With the `digest` of the approval that was
        reviewed, the decision cannot apply to anything else. ApprovalError if the approval is no
        longer pending: the first decision counts.
        """
        self._decide(id, "approved", by, reason, digest)

    def deny(self, id: str, *, by: str, reason: str = "", digest: str | None = None) -> None:
        """Deny a pending call; its caller and the model get the reason."""
        self._decide(id, "denied", by, reason, digest)

    def _decide(
        self, id: str, decision: Decision, by: str, reason: str, digest: str | None
    ) -> None:
        handle, replica = self._handle, self._handle.replica
        plan = approvals.plan_decision(replica, id, decision, by=by, reason=reason, digest=digest)
        handle.write(REFRESH_SILENTLY)
        try:
            recorded = handle.write(plan)
        except NotFoundError:
            error = handle.run(listing.explain_not_pending(replica, id))
            raise error from None
        if recorded == EXPIRED:
            raise ApprovalError(replica.name, id, "expired", "and nothing was decided")
