"""Effects as plans: an intent before the call, an outcome after it; what resuming makes of both.

Pure. A plan decides in view of the newest state each time it is made, and leaves its decision in a
`Verdict`: run the tool, serve what was recorded, ask the user's function, or say that nobody knows.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from perdure import codec, reading
from perdure.approvals import approving
from perdure.approvals.approving import Say
from perdure.backend import digest_of
from perdure.conversations.intake import Taken
from perdure.effects import retelling
from perdure.effects.deeds import INTENDED, MODEL, UNKNOWN, Deed
from perdure.effects.retelling import Form
from perdure.errors import (
    ChainError,
    ConflictError,
    DivergenceError,
    InFlightError,
)
from perdure.journal import Draft
from perdure.plans import Batch, Made, Plan
from perdure.records import EffectIntended, EffectSettled, Message
from perdure.replica import Replica
from perdure.saying import NOBODY, Ownership, Voice, message_drafts, require_turn
from perdure.steps import Steps

C = TypeVar("C", EffectIntended, EffectSettled, Message)
Kind = Literal["tool", "model"]
Policy = Literal["read_only", "idempotent", "reconcile", "unsafe"]
POLICIES: tuple[Policy, ...] = ("read_only", "idempotent", "reconcile", "unsafe")  # By strictness.
_RUN_AGAIN = ("read_only", "idempotent")

State = Literal["succeeded", "failed", "unknown", "reconciled"]


class Called(NamedTuple):
    """A call as it is about to be made. `arguments` are packed, and `digest` is theirs."""

    identity: str
    tool: str
    arguments: Any
    digest: str
    policy: Policy
    version: str = ""
    actor: str = ""
    parent: str = ""
    called: Kind = "tool"
    approval: bool = False
    """Whether somebody has to let it happen, until `approval_ttl` seconds after it was asked."""
    approval_ttl: float | None = None


class Outcome(NamedTuple):
    """What became of a call. `result` is packed; `reason` says what went wrong, for people."""

    state: State
    result: Any = None
    error: str = ""
    reason: str = ""
    duration: float = 0.0
    said: int = 0
    told: Form = ""


class Verdict:
    """What is to be done about a call: `run`, `serve`, `reconcile` or `unknown`.

    Or to `wait` for its approval; one that was `refused` has its outcome already.
    """

    def __init__(self, turn: str, ended: Mapping[str, bool]) -> None:
        self.turn = turn
        self.ended = ended
        """Attempts of this process that are over, and whether they ran."""
        self.action: Literal["run", "serve", "reconcile", "unknown", "wait", "refused"] = "run"
        self.effect = ""
        self.attempt = ""
        """The id of the intent that is to be recorded, if one is."""
        self.key = ""
        self.outcome: EffectSettled | None = None
        """What was recorded, where it is served."""
        self.before: str | None = None
        """The version that began the call, where it is another one than now."""
        self.approval = ""
        self.overdue = False
        """Whether whoever waits knows that the approval's time is over, whatever clocks say."""
        self.seen = 0
        """The position up to which there is no decision."""


def encoded(replica: Replica, arguments: Any) -> tuple[Any, str]:
    """Return arguments packed, and their digest; what a tool does to them changes neither."""
    packed = replica.settings.codec.pack(arguments, root="$.arguments")
    return packed, digest_of(codec.encode_tree(packed))


def intend(
    replica: Replica,
    turn: Ownership,
    call: Called,
    verdict: Verdict,
    *,
    again: bool = False,
    notice: Taken | None = None,
    say: Say | None = None,
) -> Plan:
    """Plan to record an intent, or to find out why that is not to be done.

    `again` says that a call without an outcome is known not to have happened. `notice` tells the
    model of a call that may have happened, in the same append; `say` makes what tells it of one
    that nobody approved.
    """
    told = message_drafts(replica, [notice], NOBODY, turn.turn, None) if notice else []
    record_id = verdict.attempt = replica.settings.new_id()
    request = replica.settings.new_id() if call.approval else ""
    key = replica.settings.token()

    def make(batch: Batch) -> Made:
        require_turn(batch, turn)
        verdict.approval = ""
        deed = batch.fold.deeds.by_identity.get(call.identity)
        if deed is not None:
            yield from _require_same(replica, batch, call, deed)
            found = yield from _judge(replica, batch, turn, call, deed, verdict)
            if found is not None and not (again and verdict.action == "reconcile"):
                for draft in told if verdict.action == "unknown" else ():
                    batch.add(draft)
                return found
        held = batch.fold.deeds.consents.by_identity
        if call.approval or (held and call.identity in held):
            found = yield from approving.seek(replica, batch, turn, call, verdict, request, say)
            if found is not None:
                return found
        verdict.action, verdict.effect = "run", record_id
        verdict.key = deed.key if deed is not None else key
        retries = deed.intent if deed is not None else 0
        content = intent(call, turn, verdict.key, retries=retries, approval=verdict.approval)
        return batch.add_content(record_id, content)

    return Plan("effect.intend", call.identity, make)


def intent(
    call: Called, turn: Ownership, key: str, *, retries: int, approval: str = ""
) -> EffectIntended:
    """Return a call as it is recorded before it is made."""
    return EffectIntended(
        identity=call.identity,
        tool=call.tool,
        version=call.version,
        arguments=call.arguments,
        digest=call.digest,
        key=key,
        policy=call.policy,
        turn=turn.turn,
        owner=turn.owner,
        actor=call.actor,
        parent=call.parent,
        retries=retries,
        approval=approval,
        called=call.called,
    )


def _judge(
    replica: Replica, batch: Batch, turn: Ownership, call: Called, deed: Deed, verdict: Verdict
) -> Steps[int | None]:
    """Decide about a call that was begun before; None means that it may run again."""
    verdict.effect, verdict.key = deed.effect, deed.key
    begun = yield from _content_at(replica, batch, deed.intent, EffectIntended)
    verdict.before = begun.version if begun.version != call.version else None
    if deed.outcome and not (call.called == "model" and deed.state == "failed"):
        verdict.action = "serve"
        verdict.outcome = yield from _outcome_at(replica, batch, deed.outcome)
        return deed.outcome
    ran = verdict.ended.get(deed.effect)
    if ran is False and deed.outcome == 0:
        return None  # Its intent was in doubt when it was given up here, and it was not made.
    own = deed.owner == turn.owner and ran is None
    going_on = deed.turn != turn.turn and deed.turn in batch.fold.turns
    if deed.outcome == 0 and (own or going_on):
        # Of another turn, only who takes that over may judge.
        raise InFlightError(batch.name, deed.tool, call.identity)
    policy = max(call.policy, deed.policy, key=POLICIES.index)
    if policy in _RUN_AGAIN:
        return None
    if policy == "reconcile" and call.policy == "reconcile":
        verdict.action = "reconcile"
        return deed.intent
    verdict.action = "unknown"
    return _settle(replica, batch, call.identity, deed, Outcome("unknown", reason=NOTICE))


NOTICE = (
    "The process died after this call was begun and before its outcome was recorded: it may have "
    "happened."
)


FORSAKEN = "The turn ended before the outcome was recorded: it may have happened."


def _require_same(replica: Replica, batch: Batch, call: Called, deed: Deed) -> Steps[None]:
    if (call.tool, call.digest) == (deed.tool, deed.digest):
        return
    begun = yield from _content_at(replica, batch, deed.intent, EffectIntended)
    was = approving.named(deed.tool, begun.arguments, deed.digest)
    now = approving.named(call.tool, call.arguments, call.digest)
    raise DivergenceError(batch.name, call.identity, was, now, approving.SAME_CALL)


def _outcome_at(replica: Replica, batch: Batch, position: int) -> Steps[EffectSettled]:
    """Return an outcome with its result, wherever that stands."""
    settled = yield from _content_at(replica, batch, position, EffectSettled)
    if not settled.told:
        return settled
    message = yield from _content_at(replica, batch, position - 1, Message)
    found = retelling.restored(settled, message.message)
    if found is None:
        raise ChainError(batch.name, position - 1, "the result of a call is expected here")
    return found


def _content_at(replica: Replica, batch: Batch, position: int, kind: type[C]) -> Steps[C]:
    if position > batch.tip.position:
        content: object = batch.drafts[position - batch.tip.position - 1].content
    else:
        content = yield from reading.content_at(replica.past, position)
    if not isinstance(content, kind):
        raise ChainError(batch.name, position, f"an {kind.kind} record is expected here")
    return content


def settle(
    replica: Replica,
    identity: str,
    effect: str,
    outcome: Outcome,
    *,
    said: Taken | None = None,
    turn: str = "",
    origin: str = "",
) -> Plan:
    """Plan to record an outcome, in one append with the message that tells the model of it.

    The first outcome counts. One that comes after somebody else judged the effect to be unknown is
    its reconciliation.
    """
    drafts: list[Draft] = []
    if said is not None:
        drafts = message_drafts(replica, [said], Voice(origin=origin), turn, None)
        form = retelling.form_of(outcome.result, said.message)
        outcome = outcome._replace(result=None, told=form) if form else outcome

    def make(batch: Batch) -> int:
        deed = batch.fold.deeds.by_identity.get(identity)
        if deed is None:
            reason = "another process has ended the turn of the effect, or settled it"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if deed.effect != effect:
            reason = "the effect was tried again by another process"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if deed.state not in (INTENDED, UNKNOWN):
            reason = f"the effect is settled already: {deed.state}"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if not outcome.told:
            _settle(replica, batch, identity, deed, outcome)
        for draft in drafts:
            batch.add(draft)
        if outcome.told:  # It refers to the message before it.
            _settle(replica, batch, identity, deed, outcome)
        return batch.position

    return Plan("effect.settle", identity, make)


def settle_in(replica: Replica, batch: Batch, identity: str, outcome: Outcome) -> None:
    """Add an outcome to an append that is made for something else."""
    _settle(replica, batch, identity, batch.fold.deeds.by_identity[identity], outcome)


def forsake(replica: Replica, batch: Batch, turn: str, error: str = "", reason: str = "") -> None:
    """Add that nobody knows about calls that have no outcome when their turn ends.

    Asking a model changed nothing: that it did not answer is a failure, with the turn's own error.
    """
    for identity, deed in [*batch.fold.deeds.by_identity.items()]:
        if deed.turn == turn and deed.state == INTENDED:
            outcome = Outcome("unknown", reason=FORSAKEN)
            if identity.startswith(MODEL):
                reason = reason or "The turn ended before an answer was recorded."
                outcome = Outcome("failed", error=error or "Unanswered", reason=reason)
            _settle(replica, batch, identity, deed, outcome)


def _settle(replica: Replica, batch: Batch, identity: str, deed: Deed, outcome: Outcome) -> int:
    late = deed.state == UNKNOWN
    content = EffectSettled(
        effect=deed.effect,
        identity=identity,
        state="reconciled" if late else outcome.state,
        result=outcome.result,
        error=outcome.error,
        reason=outcome.reason,
        duration=round(outcome.duration, 6),
        turn=deed.turn,
        said=outcome.said,
        told=outcome.told,
    )
    return batch.add_content(replica.settings.new_id(), content)
