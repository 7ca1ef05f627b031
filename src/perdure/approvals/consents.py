"""What a session knows of approvals: which calls wait for one, and what was decided. Pure.

Kept are those of turns that have not ended, one for each call: a call whose tool or version has
changed needs another one, and the one before is void. A state is never changed: what changes it
returns another.
"""

from typing import NamedTuple

import msgspec

from perdure.approvals.records import ApprovalAsked, ApprovalDecided
from perdure.backend import digest_of
from perdure.layered import Layered

WAITING = "waiting"
APPROVED = "approved"
DENIED = "denied"
EXPIRED = "expired"
USED = "used"


class Consent(NamedTuple):
    """An approval: what it is about, where it was asked for and decided, and when it ends."""

    approval: str
    tool: str
    digest: str
    bound: str
    state: str
    asked: int
    decided: int
    outcome: int
    """Where it is recorded that the call is not made, or 0."""
    turn: str
    expires: str


def binding(tool: str, version: str, digest: str) -> str:
    """Return what a decision is bound to: the digest of a tool, its version and its arguments."""
    return digest_of(msgspec.json.encode([tool, version, digest]))


class Consents(NamedTuple):
    """The approvals by the identity of their calls."""

    by_identity: Layered[Consent] = Layered()
    waiting: int = 0
    """How many wait for a decision: every write in a turn asks, so it is not counted each time."""

    @classmethod
    def of(cls, by_identity: dict[str, Consent]) -> "Consents":
        """Return the state that a snapshot holds."""
        waiting = sum(consent.state == WAITING for consent in by_identity.values())
        return cls(Layered(by_identity), waiting)

    def find(self, approval: str) -> tuple[str, Consent] | None:
        """Return an approval by its id, with the identity of its call."""
        found = (item for item in self.by_identity.items() if item[1].approval == approval)
        return next(found, None)

    def asked(self, position: int, record_id: str, content: ApprovalAsked) -> "Consents":
        """Take in that a call waits for an approval; one that it had before is void."""
        consent = Consent(
            approval=record_id,
            tool=content.tool,
            digest=content.digest,
            bound=binding(content.tool, content.version, content.digest),
            state=WAITING,
            asked=position,
            decided=0,
            outcome=0,
            turn=content.turn,
            expires=content.expires,
        )
        return self._with(content.identity, consent)

    def decided(self, position: int, content: ApprovalDecided) -> "Consents":
        """Take in a decision: the first one, and only about what was asked."""
        found = self.find(content.approval)
        if found is None or found[1].bound != content.bound:
            return self
        identity, consent = found
        ends = content.decision == EXPIRED and consent.state == APPROVED
        if consent.state != WAITING and not ends:
            return self
        return self._with(identity, consent._replace(state=content.decision, decided=position))

    def used(self, identity: str, approval: str) -> "Consents":
        """Take in an intent: it uses its approval up."""
        consent = self.by_identity.get(identity)
        if consent is None or consent.approval != approval or consent.state != APPROVED:
            return self
        return self._with(identity, consent._replace(state=USED))

    def refused(self, identity: str, approval: str, position: int) -> "Consents":
        """Take in that a call is not made, and its outcome recorded."""
        consent = self.by_identity.get(identity)
        if consent is None or consent.approval != approval:
            return self
        return self._with(identity, consent._replace(outcome=position))

    def ended(self, turn: str) -> "Consents":
        """Take in that a turn is over: nobody will make its calls any more."""
        if not self.by_identity:
            return self
        consents = self.by_identity.items()
        left = {identity: consent for identity, consent in consents if consent.turn != turn}
        return self if len(left) == len(self.by_identity) else Consents.of(left)

    def _with(self, identity: str, consent: Consent) -> "Consents":
        before = self.by_identity.get(identity)
        was = before is not None and before.state == WAITING
        waiting = self.waiting + (consent.state == WAITING) - was
        return Consents(self.by_identity.put(identity, consent), waiting)
