"""Effects as plans: an intent before the call, an outcome after it, and the decision on resuming.

Pure. A plan decides on the newest state each time it is executed, and writes its decision to a
`Verdict`: run the tool, return the recorded result, call the reconcile function, or report that the
outcome is unknown. A plan may be executed several times, so it must not keep anything from an
earlier execution.
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
# From the most lenient to the strictest: the index decides which of two policies applies.
POLICIES: tuple[Policy, ...] = ("read_only", "idempotent", "reconcile", "unsafe")
_RUN_AGAIN = ("read_only", "idempotent")

State = Literal["succeeded", "failed", "unknown", "reconciled"]


class Called(NamedTuple):
    """A call before it is made. `arguments` are packed; `digest` is the digest of the arguments."""

    identity: str
    tool: str
    arguments: Any
    digest: str
    policy: Policy
    version: str = ""
    actor: str = ""
    parent: str = ""
    kind: Kind = "tool"
    approval: bool = False
    """Whether the call needs an approval, given within `approval_ttl` seconds of the request."""
    approval_ttl: float | None = None


class Outcome(NamedTuple):
    """The outcome of a call. `result` is packed; `reason` says what went wrong, for people."""

    state: State
    result: Any = None
    error: str = ""
    reason: str = ""
    duration: float = 0.0
    said: int = 0
    told: Form = ""


class Verdict:
    """The decision about a call: `run`, `serve`, `reconcile`, `unknown`, `wait` or `refused`.

    `serve` returns the recorded outcome, `wait` waits for an approval, and a `refused` call has its
    outcome already.
    """

    def __init__(self, turn: str, ended_attempts: Mapping[str, bool]) -> None:
        self.turn = turn
        self.ended_attempts = ended_attempts
        """Attempts of this process that are over: whether the tool ran."""
        self.action: Literal["run", "serve", "reconcile", "unknown", "wait", "refused"] = "run"
        self.effect = ""
        self.attempt = ""
        """The id of the intent, if the plan records one."""
        self.key = ""
        self.outcome: EffectSettled | None = None
        """The recorded outcome, for `serve` and `refused`."""
        self.begun_version: str | None = None
        """The tool's version that began the call, if it differs from the current one."""
        self.approval = ""
        self.overdue = False
        """Whether the waiting caller measured that the approval expired, whatever the clock says.
        """
        self.wait_after = 0
        """The position up to which there is no decision, for `wait`."""


def encoded(replica: Replica, arguments: Any) -> tuple[Any, str]:
    """Return packed arguments and their digest: copies, which the tool cannot change."""
    packed = replica.settings.codec.pack(arguments, root="$.arguments")
    return packed, digest_of(codec.encode_tree(packed))


def intend(
    replica: Replica,
    turn: Ownership,
    call: Called,
    decision: Verdict,
    *,
    again: bool = False,
    notice: Taken | None = None,
    build: Say | None = None,
) -> Plan:
    """Plan to record an intent, or to decide why the call must not run.

    `again` says that a call without an outcome is known not to have happened. `notice` is the
    message for the model about a call that may have happened, stored in the same append. `build`
    builds the message about a call that was not approved.
    """
    notices = message_drafts(replica, [notice], NOBODY, turn.turn, None) if notice else []
    record_id = decision.attempt = replica.settings.new_id()
    request = replica.settings.new_id() if call.approval else ""
    key = replica.settings.token()

    def make(batch: Batch) -> Made:
        require_turn(batch, turn)
        decision.approval = ""
        prior = batch.state.deeds.by_identity.get(call.identity)
        if prior is not None:
            yield from _require_same(replica, batch, call, prior)
            position = yield from _judge(replica, batch, turn, call, prior, decision)
            if position is not None and not (again and decision.action == "reconcile"):
                for draft in notices if decision.action == "unknown" else ():
                    batch.add(draft)
                return position
        approvals = batch.state.deeds.consents.by_identity
        # A recorded request counts even if the tool no longer needs an approval.
        if call.approval or (approvals and call.identity in approvals):
            position = yield from approving.seek(
                replica, batch, turn, call, decision, request, build
            )
            if position is not None:
                return position
        decision.action, decision.effect = "run", record_id
        # Every attempt has the key of the first one: services use it to detect duplicates.
        decision.key = prior.key if prior is not None else key
        retries = prior.intent if prior is not None else 0
        content = intent(call, turn, decision.key, retries=retries, approval=decision.approval)
        return batch.add_content(record_id, content)

    return Plan("effect.intend", call.identity, make)


def intent(
    call: Called, turn: Ownership, key: str, *, retries: int, approval: str = ""
) -> EffectIntended:
    """Return the record of a call that is about to be made."""
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
        called=call.kind,
    )


def _judge(
    replica: Replica, batch: Batch, turn: Ownership, call: Called, prior: Deed, decision: Verdict
) -> Steps[int | None]:
    """Decide about a call that was begun before; None means that it may run again."""
    decision.effect, decision.key = prior.effect, prior.key
    begun = yield from _content_at(replica, batch, prior.intent, EffectIntended)
    decision.begun_version = begun.version if begun.version != call.version else None
    if prior.outcome and not (call.kind == "model" and prior.state == "failed"):
        decision.action = "serve"
        decision.outcome = yield from _outcome_at(replica, batch, prior.outcome)
        return prior.outcome
    ran = decision.ended_attempts.get(prior.effect)
    if ran is False and prior.outcome == 0:
        return None  # This process abandoned it while its intent was in doubt; it never ran.
    own = prior.owner == turn.owner and ran is None
    in_open_turn = prior.turn != turn.turn and prior.turn in batch.state.turns
    if prior.outcome == 0 and (own or in_open_turn):
        # A call of another open turn may only be decided after taking over that turn.
        raise InFlightError(batch.name, prior.tool, call.identity)
    # The stricter of the recorded and the declared policy applies.
    policy = max(call.policy, prior.policy, key=POLICIES.index)
    if policy in _RUN_AGAIN:
        return None
    if policy == "reconcile" and call.policy == "reconcile":
        decision.action = "reconcile"
        return prior.intent
    decision.action = "unknown"
    return _settle(replica, batch, call.identity, prior, Outcome("unknown", reason=NOTICE))


NOTICE = (
    "The process died after this call was begun and before its outcome was recorded: it may have "
    "happened."
)


FORSAKEN = "The turn ended before the outcome was recorded: it may have happened."


def _require_same(replica: Replica, batch: Batch, call: Called, prior: Deed) -> Steps[None]:
    if (call.tool, call.digest) == (prior.tool, prior.digest):
        return
    begun = yield from _content_at(replica, batch, prior.intent, EffectIntended)
    was = approving.named(prior.tool, begun.arguments, prior.digest)
    now = approving.named(call.tool, call.arguments, call.digest)
    raise DivergenceError(batch.name, call.identity, was, now, approving.SAME_CALL)


def _outcome_at(replica: Replica, batch: Batch, position: int) -> Steps[EffectSettled]:
    """Return an outcome with its result, which may be stored in the message before it."""
    settled = yield from _content_at(replica, batch, position, EffectSettled)
    if not settled.told:
        return settled
    message = yield from _content_at(replica, batch, position - 1, Message)
    restored = retelling.restored(settled, message.message)
    if restored is None:
        raise ChainError(batch.name, position - 1, "the result of a call is expected here")
    return restored


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
    message: Taken | None = None,
    turn: str = "",
    origin: str = "",
) -> Plan:
    """Plan to record an outcome, in one append with the message that reports it to the model.

    The first outcome counts. An outcome that arrives after another process marked the effect as
    unknown is recorded as its reconciliation.
    """
    drafts: list[Draft] = []
    if message is not None:
        drafts = message_drafts(replica, [message], Voice(origin=origin), turn, None)
        form = retelling.form_of(outcome.result, message.message)
        outcome = outcome._replace(result=None, told=form) if form else outcome

    def make(batch: Batch) -> int:
        state = batch.state.deeds.by_identity.get(identity)
        if state is None:
            reason = "another process has ended the turn of the effect, or settled it"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if state.effect != effect:
            reason = "another process has retried the effect"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if state.state not in (INTENDED, UNKNOWN):
            reason = f"the effect is already settled: {state.state}"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        if not outcome.told:
            _settle(replica, batch, identity, state, outcome)
        for draft in drafts:
            batch.add(draft)
        if outcome.told:  # The outcome refers to the message right before it.
            _settle(replica, batch, identity, state, outcome)
        return batch.position

    return Plan("effect.settle", identity, make)


def settle_in(replica: Replica, batch: Batch, identity: str, outcome: Outcome) -> None:
    """Add an outcome to a batch of another plan."""
    _settle(replica, batch, identity, batch.state.deeds.by_identity[identity], outcome)


def forsake(replica: Replica, batch: Batch, turn: str, error: str = "", reason: str = "") -> None:
    """Mark calls that have no outcome when their turn ends as `unknown`.

    A model call has no side effects, so one without an answer has failed, with the turn's error.
    """
    for identity, state in [*batch.state.deeds.by_identity.items()]:
        if state.turn == turn and state.state == INTENDED:
            outcome = Outcome("unknown", reason=FORSAKEN)
            if identity.startswith(MODEL):
                reason = reason or "The turn ended before an answer was recorded."
                outcome = Outcome("failed", error=error or "Unanswered", reason=reason)
            _settle(replica, batch, identity, state, outcome)


def _settle(replica: Replica, batch: Batch, identity: str, state: Deed, outcome: Outcome) -> int:
    late = state.state == UNKNOWN
    content = EffectSettled(
        effect=state.effect,
        identity=identity,
        state="reconciled" if late else outcome.state,
        result=outcome.result,
        error=outcome.error,
        reason=outcome.reason,
        duration=round(outcome.duration, 6),
        turn=state.turn,
        said=outcome.said,
        told=outcome.told,
    )
    return batch.add_content(replica.settings.new_id(), content)
