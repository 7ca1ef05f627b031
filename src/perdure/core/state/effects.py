"""The state of a session's effects: intents and outcomes, by the identity of the call. Pure.

It keeps the effects of open turns and the effects whose outcome is unknown. All others are only in
the journal. One with a caller's own key is found there through the index (`core.index`); no call
can have the identity of another one again.
States are immutable: every method that changes one returns a new one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from perdure.backends.digests import digest_of
from perdure.core.state.approvals import ApprovalsState, ApprovalState
from perdure.core.state.persistent_map import PersistentMap
from perdure.journal import codec
from perdure.journal.records import (
    ApprovalDecided,
    ApprovalRequested,
    ApprovalRow,
    EffectIntent,
    EffectOutcome,
    EffectRow,
)

INTENDED = "intended"

UNKNOWN = "unknown"

KEYED_PREFIX = "key:"  # prefix of the identity of a call with a caller's own key

KEYED_IN_TURN_PREFIX = "within:"  # as KEYED_PREFIX, if the key is unique in its turn only

MODEL_PREFIX = "model:"  # prefix of the identity of a model call


def key_of(record_id: str, intent: EffectIntent) -> str:
    """Return the idempotency key of a call, given its intent and the id of that record."""
    return intent.key or record_id[1:]


class EffectState(NamedTuple):
    """One effect: the positions of its intent and outcome (0: none yet), its turn and owner.

    Snapshots store it as an array: the order of the fields is part of the format.
    """

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

    @classmethod
    def of_intent(cls, position: int, record_id: str, content: EffectIntent) -> "EffectState":
        """Return the state right after an intent."""
        return cls(
            effect=record_id,
            tool=content.tool,
            state=INTENDED,
            intent=position,
            outcome=0,
            turn=content.turn,
            owner=content.owner or content.turn,
            digest=content.digest or digest_of(codec.encode_tree(content.arguments)),
            key=key_of(record_id, content),
            policy=content.policy,
        )


class EffectsState(NamedTuple):
    """The effects by identity."""

    by_identity: PersistentMap[EffectState] = PersistentMap()
    unknown: int = 0
    """Number of unknown outcomes. Every write needs it, so it is kept up to date, not counted."""
    approvals: ApprovalsState = ApprovalsState()
    """The approvals of open turns."""

    @classmethod
    def of(
        cls,
        by_identity: Mapping[str, EffectState],
        approvals: dict[str, ApprovalState] | None = None,
    ) -> "EffectsState":
        """Return the state stored in a snapshot."""
        unknown = sum(effect.state == UNKNOWN for effect in by_identity.values())
        return cls(PersistentMap({**by_identity}), unknown, ApprovalsState.of(approvals or {}))

    def with_intent(self, position: int, record_id: str, content: EffectIntent) -> "EffectsState":
        """Apply an intent."""
        effect = EffectState.of_intent(position, record_id, content)
        previous = self.by_identity.get(content.identity)
        unknown = self.unknown - (previous is not None and previous.state == UNKNOWN)
        effects = self.by_identity.put(content.identity, effect)
        state = EffectsState(effects, unknown, self.approvals)
        if not content.approval:
            return state
        approvals = self.approvals.with_intent(content.identity, content.approval)
        return state._replace(approvals=approvals)

    def with_request(
        self, position: int, record_id: str, content: ApprovalRequested
    ) -> "EffectsState":
        """Apply a request for an approval."""
        return self._replace(approvals=self.approvals.with_request(position, record_id, content))

    def with_decision(self, position: int, content: ApprovalDecided) -> "EffectsState":
        """Apply a decision about an approval."""
        return self._replace(approvals=self.approvals.with_decision(position, content))

    def with_outcome(self, position: int, content: EffectOutcome, *, over: bool) -> "EffectsState":
        """Apply an outcome. `over` says that its turn has ended."""
        effect = self.by_identity.get(content.identity)
        if effect is None or effect.effect != content.effect:
            # Its turn has ended, a later attempt replaced it, or its approval was refused.
            approvals = self.approvals.with_refusal(content.identity, content.effect, position)
            return self if approvals is self.approvals else self._replace(approvals=approvals)
        unknown = self.unknown + (content.state == UNKNOWN) - (effect.state == UNKNOWN)
        effect = effect._replace(state=content.state, outcome=position)
        effects = self.by_identity.put(content.identity, effect)
        state = self._replace(by_identity=effects, unknown=unknown)
        return state.without_turn(content.turn) if over else state

    def with_turn(
        self, effects: Mapping[str, EffectRow], approvals: Mapping[str, ApprovalRow]
    ) -> "EffectsState":
        """Apply that a failed turn is open again, with its effects and approvals."""
        by_identity = {**self.by_identity}
        by_identity |= {identity: EffectState(*row) for identity, row in effects.items()}
        waiting = {**self.approvals.by_identity}
        waiting |= {identity: ApprovalState(*row) for identity, row in approvals.items()}
        return EffectsState.of(by_identity, waiting)

    def without_turn(self, turn: str) -> "EffectsState":
        """Apply the end of a turn: drop its effects, except unsettled and unknown ones."""
        kept = {
            identity: effect
            for identity, effect in self.by_identity.items()
            if effect.turn != turn or effect.state in (INTENDED, UNKNOWN)
        }
        approvals = self.approvals.without_turn(turn)
        if len(kept) == len(self.by_identity) and approvals is self.approvals:
            return self
        return self._replace(by_identity=PersistentMap(kept), approvals=approvals)
