"""What a session knows of its effects: which were intended, and what became of them. Pure.

Kept are those of turns that have not ended, those whose outcome is unknown, and the newest of those
that a caller gave a key of its own. The others are in the journal, and nobody will ask for them by
their identity again. A state is never changed: what changes it returns another.
"""

from typing import NamedTuple

from perdure.records import EffectIntended, EffectSettled

INTENDED = "intended"
UNKNOWN = "unknown"
KEYED = "key:"  # Identities that a caller chose begin with this.
KEYED_MAX = 1_024  # How far back a caller's own key is recognised.


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

    by_identity: dict[str, Deed] = {}  # noqa: RUF012 - nobody changes it
    unknown: int = 0
    """Of how many the outcome is unknown: every write asks, so it is not counted each time."""

    @classmethod
    def of(cls, by_identity: dict[str, Deed]) -> "Deeds":
        """Return the state that a snapshot holds."""
        return cls(by_identity, sum(deed.state == UNKNOWN for deed in by_identity.values()))

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
        return self._with(content.identity, deed)

    def settled(self, position: int, content: EffectSettled) -> "Deeds":
        """Take in an outcome."""
        deed = self.by_identity.get(content.identity)
        if deed is None or deed.effect != content.effect:
            return self  # Its turn has ended, or it was tried again since.
        return self._with(content.identity, deed._replace(state=content.state, outcome=position))

    def ended(self, turn: str) -> "Deeds":
        """Take in that a turn is over: what is known of its effects is not asked for any more."""
        left = {
            identity: deed
            for identity, deed in self.by_identity.items()
            if deed.turn != turn or deed.state in (INTENDED, UNKNOWN) or identity.startswith(KEYED)
        }
        return self if len(left) == len(self.by_identity) else Deeds(left, self.unknown)

    def _with(self, identity: str, deed: Deed) -> "Deeds":
        before = self.by_identity.get(identity)
        was = before is not None and before.state == UNKNOWN
        unknown = self.unknown + (deed.state == UNKNOWN) - was
        deeds = {**self.by_identity, identity: deed}
        if identity.startswith(KEYED):
            keyed = [one for one in deeds if one.startswith(KEYED)]
            for one in keyed[: max(len(keyed) - KEYED_MAX, 0)]:
                if deeds[one].state not in (INTENDED, UNKNOWN):
                    del deeds[one]
        return Deeds(deeds, unknown)
