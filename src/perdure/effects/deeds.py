"""What a session knows of its effects: which were intended, and what became of them. Pure.

Kept are those of turns that have not ended, those whose outcome is unknown, and the newest of those
that a caller gave a key of its own. The others are in the journal, and nobody will ask for them by
their identity again. A state is never changed: what changes it returns another.
"""

from collections.abc import Mapping
from typing import NamedTuple

from perdure.approvals.consents import Consent, Consents
from perdure.approvals.records import ApprovalAsked, ApprovalDecided
from perdure.layered import Layered
from perdure.records import EffectIntended, EffectSettled

INTENDED = "intended"
UNKNOWN = "unknown"
KEYED = "key:"  # Identities that a caller chose begin with this.
MODEL = "model:"  # And those of calls of a model with this.
KEYED_MAX = 1_024  # How far back a caller's own key is recognised.
_SLACK = 256  # So many more are kept before the oldest are let go, all at once.


class Deed(NamedTuple):
    """An effect: where its intent and its outcome stand, and whose it is."""

    effect: str
    tool: str
    state: str
    intent: int
    outcome: int
    turn: str
    owner: str
    digest: str
    key: str
    policy: str


class Deeds(NamedTuple):
    """The effects by identity."""

    by_identity: Layered[Deed] = Layered()
    unknown: int = 0
    """Of how many the outcome is unknown: every write asks, so it is not counted each time."""
    keyed: int = 0
    """How many a caller gave a key of its own."""
    consents: Consents = Consents()
    """Who may do what: the approvals of turns that have not ended."""

    @classmethod
    def of(
        cls, by_identity: Mapping[str, Deed], consents: dict[str, Consent] | None = None
    ) -> "Deeds":
        """Return the state that a snapshot holds."""
        unknown = sum(deed.state == UNKNOWN for deed in by_identity.values())
        keyed = sum(identity.startswith(KEYED) for identity in by_identity)
        return cls(Layered({**by_identity}), unknown, keyed, Consents.of(consents or {}))

    def intended(self, position: int, record_id: str, content: EffectIntended) -> "Deeds":
        """Take in an intent."""
        deed = Deed(
            effect=record_id,
            tool=content.tool,
            state=INTENDED,
            intent=position,
            outcome=0,
            turn=content.turn,
            owner=content.owner,
            digest=content.digest,
            key=content.key,
            policy=content.policy,
        )
        deeds = self._with(content.identity, deed)
        if not content.approval:
            return deeds
        return deeds._replace(consents=self.consents.used(content.identity, content.approval))

    def asked(self, position: int, record_id: str, content: ApprovalAsked) -> "Deeds":
        """Take in that a call waits for an approval."""
        return self._replace(consents=self.consents.asked(position, record_id, content))

    def decided(self, position: int, content: ApprovalDecided) -> "Deeds":
        """Take in what was decided about an approval."""
        return self._replace(consents=self.consents.decided(position, content))

    def settled(self, position: int, content: EffectSettled, *, over: bool) -> "Deeds":
        """Take in an outcome. `over` says that its turn has ended."""
        deed = self.by_identity.get(content.identity)
        if deed is None or deed.effect != content.effect:
            # Its turn has ended, it was tried again since, or nobody let it happen.
            refused = self.consents.refused(content.identity, content.effect, position)
            return self if refused is self.consents else self._replace(consents=refused)
        deed = deed._replace(state=content.state, outcome=position)
        deeds = self._with(content.identity, deed)
        return deeds.ended(content.turn) if over else deeds

    def ended(self, turn: str) -> "Deeds":
        """Take in that a turn is over: what is known of its effects is not asked for any more."""
        left = {
            identity: deed
            for identity, deed in self.by_identity.items()
            if deed.turn != turn or deed.state in (INTENDED, UNKNOWN) or identity.startswith(KEYED)
        }
        consents = self.consents.ended(turn)
        if len(left) == len(self.by_identity) and consents is self.consents:
            return self
        return self._replace(by_identity=Layered(left), consents=consents)

    def _with(self, identity: str, deed: Deed) -> "Deeds":
        before = self.by_identity.get(identity)
        was = before is not None and before.state == UNKNOWN
        unknown = self.unknown + (deed.state == UNKNOWN) - was
        keyed = self.keyed + (before is None and identity.startswith(KEYED))
        deeds = Deeds(self.by_identity.put(identity, deed), unknown, keyed, self.consents)
        return deeds if keyed == self.keyed else deeds._pruned()

    def _pruned(self) -> "Deeds":
        """Let the oldest go that a caller gave a key of its own, if they have become too many."""
        if self.keyed <= KEYED_MAX + _SLACK:
            return self
        keyed = [one for one in self.by_identity if one.startswith(KEYED)]
        old = {*keyed[:-KEYED_MAX]}
        left = {
            identity: deed
            for identity, deed in self.by_identity.items()
            if identity not in old or deed.state in (INTENDED, UNKNOWN)
        }
        gone = len(self.by_identity) - len(left)
        return Deeds(Layered(left), self.unknown, self.keyed - gone, self.consents)
