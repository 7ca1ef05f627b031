"""The state of a session's approvals: which calls wait for one, and the decisions. Pure.

It keeps the approvals of open turns, one for each call: a call whose tool or version has changed
needs a new approval, and the previous one is void. States are immutable: every method that changes
one returns a new one.
"""

from typing import NamedTuple

import msgspec

from perdure.backends.digests import digest_of
from perdure.core.state.persistent_map import PersistentMap
from perdure.journal.records import ApprovalDecided, ApprovalRequested

WAITING = "waiting"

APPROVED = "approved"

DENIED = "denied"

EXPIRED = "expired"

USED = "used"


class ApprovalState(NamedTuple):
    """One approval: its call, the positions of its request and its decision, and its expiry.

    Snapshots store it as an array: the order of the fields is part of the format.
    """

    id: str
    tool: str
    digest: str
    call_digest: str
    state: str
    request: int
    decision: int
    outcome: int
    """The position of the outcome of a refused call, or 0."""
    turn: str
    expires: str


def binding_digest(tool: str, version: str, digest: str) -> str:
    """Return the digest that a decision is bound to: of a tool, its version and its arguments."""
    return digest_of(msgspec.json.encode([tool, version, digest]))


class ApprovalsState(NamedTuple):
    """The approvals by the identity of their calls."""

    by_identity: PersistentMap[ApprovalState] = PersistentMap()
    waiting: int = 0
    """Number of undecided approvals. Every write in a turn needs it, so it is not recounted."""

    @classmethod
    def of(cls, by_identity: dict[str, ApprovalState]) -> "ApprovalsState":
        """Return the state stored in a snapshot."""
        waiting = sum(approval.state == WAITING for approval in by_identity.values())
        return cls(PersistentMap(by_identity), waiting)

    def find(self, id: str) -> tuple[str, ApprovalState] | None:
        """Return an approval by its id, with the identity of its call."""
        matches = (item for item in self.by_identity.items() if item[1].id == id)
        return next(matches, None)

    def with_request(
        self, position: int, record_id: str, content: ApprovalRequested
    ) -> "ApprovalsState":
        """Apply a request for an approval; the call's previous approval is void."""
        approval = ApprovalState(
            id=record_id,
            tool=content.tool,
            digest=content.digest,
            call_digest=binding_digest(content.tool, content.version, content.digest),
            state=WAITING,
            request=position,
            decision=0,
            outcome=0,
            turn=content.turn,
            expires=content.expires,
        )
        return self._with(content.identity, approval)

    def with_decision(self, position: int, content: ApprovalDecided) -> "ApprovalsState":
        """Apply a decision: only the first one, and only if it is bound to the requested call."""
        match = self.find(content.approval)
        if match is None or match[1].call_digest != content.call_digest:
            return self
        identity, approval = match
        expires = content.decision == EXPIRED and approval.state == APPROVED
        if approval.state != WAITING and not expires:
            return self
        return self._with(identity, approval._replace(state=content.decision, decision=position))

    def with_intent(self, identity: str, id: str) -> "ApprovalsState":
        """Apply an intent, which uses up its approval."""
        approval = self.by_identity.get(identity)
        if approval is None or approval.id != id or approval.state != APPROVED:
            return self
        return self._with(identity, approval._replace(state=USED))

    def with_refusal(self, identity: str, id: str, position: int) -> "ApprovalsState":
        """Apply the recorded outcome of a call that is not made."""
        approval = self.by_identity.get(identity)
        if approval is None or approval.id != id:
            return self
        return self._with(identity, approval._replace(outcome=position))

    def without_turn(self, turn: str) -> "ApprovalsState":
        """Apply the end of a turn: its calls cannot be made any more."""
        if not self.by_identity:
            return self
        approvals = self.by_identity.items()
        kept = {identity: approval for identity, approval in approvals if approval.turn != turn}
        return self if len(kept) == len(self.by_identity) else ApprovalsState.of(kept)

    def _with(self, identity: str, approval: ApprovalState) -> "ApprovalsState":
        previous = self.by_identity.get(identity)
        was_waiting = previous is not None and previous.state == WAITING
        waiting = self.waiting + (approval.state == WAITING) - was_waiting
        return ApprovalsState(self.by_identity.put(identity, approval), waiting)
