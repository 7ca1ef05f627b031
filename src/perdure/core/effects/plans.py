"""Effects as plans: an intent before the call, an outcome after it, and the decision on resuming.

Pure. A plan decides on the newest state each time it is executed, and writes its decision to a
`Verdict`: run the tool, return the recorded result, call the reconcile function, or report that the
outcome is unknown. A plan may be executed several times, so it must not keep anything from an
earlier execution.
"""

from typing import TypeVar

from perdure.core.effects import results
from perdure.core.effects.approvals import SAME_CALL_HINT, describe_call, require_approval
from perdure.core.effects.calls import (
    _RERUN_POLICIES,
    POLICIES,
    CallDecision,
    CallOutcome,
    CallRequest,
    MessageBuilder,
)
from perdure.core.messages import ANONYMOUS, Attribution, encode_messages
from perdure.core.plans import Plan, PlanSteps, RecordBatch, TurnOwnership, require_turn_owner
from perdure.core.replica import Replica
from perdure.core.state.effects import INTENDED, MODEL_PREFIX, UNKNOWN, EffectState
from perdure.errors import ChainError, ConflictError, DivergenceError, InFlightError
from perdure.formats.intake import IncomingMessage
from perdure.journal import reader
from perdure.journal.chain import PendingRecord
from perdure.journal.records import EffectIntended, EffectSettled, Message
from perdure.journal.requests import Steps

EffectContent = TypeVar("EffectContent", EffectIntended, EffectSettled, Message)


def plan_intent(
    replica: Replica,
    turn: TurnOwnership,
    call: CallRequest,
    decision: CallDecision,
    *,
    again: bool = False,
    notice: IncomingMessage | None = None,
    build: MessageBuilder | None = None,
) -> Plan:
    """Plan to record an intent, or to decide why the call must not run.

    `again` says that a call without an outcome is known not to have happened. `notice` is the
    message for the model about a call that may have happened, stored in the same append. `build`
    builds the message about a call that was not approved.
    """
    notices = encode_messages(replica, [notice], ANONYMOUS, turn.turn, None) if notice else []
    record_id = decision.attempt = replica.settings.new_id()
    request = replica.settings.new_id() if call.approval else ""
    key = replica.settings.token()

    def make(batch: RecordBatch) -> PlanSteps:
        require_turn_owner(batch, turn)
        decision.approval = ""
        prior = batch.state.deeds.by_identity.get(call.identity)
        if prior is not None:
            yield from _require_same_call(replica, batch, call, prior)
            position = yield from decide_rerun(replica, batch, turn, call, prior, decision)
            if position is not None and not (again and decision.action == "reconcile"):
                for draft in notices if decision.action == "unknown" else ():
                    batch.add(draft)
                return position
        approvals = batch.state.deeds.consents.by_identity
        # A recorded request counts even if the tool no longer needs an approval.
        if call.approval or (approvals and call.identity in approvals):
            position = yield from require_approval(
                replica, batch, turn, call, decision, request, build
            )
            if position is not None:
                return position
        decision.action, decision.effect = "run", record_id
        # Every attempt has the key of the first one: services use it to detect duplicates.
        decision.key = prior.key if prior is not None else key
        retries = prior.intent if prior is not None else 0
        content = intent_record(
            call, turn, decision.key, retries=retries, approval=decision.approval
        )
        return batch.add_content(record_id, content)

    return Plan("effect.intend", call.identity, make)


def intent_record(
    call: CallRequest, turn: TurnOwnership, key: str, *, retries: int, approval: str = ""
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


def decide_rerun(
    replica: Replica,
    batch: RecordBatch,
    turn: TurnOwnership,
    call: CallRequest,
    prior: EffectState,
    decision: CallDecision,
) -> Steps[int | None]:
    """Decide about a call that was begun before; None means that it may run again."""
    decision.effect, decision.key = prior.effect, prior.key
    begun = yield from _read_content(replica, batch, prior.intent, EffectIntended)
    decision.begun_version = begun.version if begun.version != call.version else None
    if prior.outcome and not (call.kind == "model" and prior.state == "failed"):
        decision.action = "serve"
        decision.outcome = yield from _read_outcome(replica, batch, prior.outcome)
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
    if policy in _RERUN_POLICIES:
        return None
    if policy == "reconcile" and call.policy == "reconcile":
        decision.action = "reconcile"
        return prior.intent
    decision.action = "unknown"
    return _add_outcome(
        replica, batch, call.identity, prior, CallOutcome("unknown", reason=PROCESS_DIED_REASON)
    )


PROCESS_DIED_REASON = (
    "The process died after this call was begun and before its outcome was recorded: it may have "
    "happened."
)


TURN_ENDED_REASON = "The turn ended before the outcome was recorded: it may have happened."


def _require_same_call(
    replica: Replica, batch: RecordBatch, call: CallRequest, prior: EffectState
) -> Steps[None]:
    if (call.tool, call.digest) == (prior.tool, prior.digest):
        return
    begun = yield from _read_content(replica, batch, prior.intent, EffectIntended)
    was = describe_call(prior.tool, begun.arguments, prior.digest)
    now = describe_call(call.tool, call.arguments, call.digest)
    raise DivergenceError(batch.name, call.identity, was, now, SAME_CALL_HINT)


def _read_outcome(replica: Replica, batch: RecordBatch, position: int) -> Steps[EffectSettled]:
    """Return an outcome with its result, which may be stored in the message before it."""
    settled = yield from _read_content(replica, batch, position, EffectSettled)
    if not settled.told:
        return settled
    message = yield from _read_content(replica, batch, position - 1, Message)
    restored = results.restore_result(settled, message.message)
    if restored is None:
        raise ChainError(batch.name, position - 1, "the result of a call is expected here")
    return restored


def _read_content(
    replica: Replica, batch: RecordBatch, position: int, kind: type[EffectContent]
) -> Steps[EffectContent]:
    if position > batch.tip.position:
        content: object = batch.drafts[position - batch.tip.position - 1].content
    else:
        content = yield from reader.read_content(replica.past, position)
    if not isinstance(content, kind):
        raise ChainError(batch.name, position, f"an {kind.kind} record is expected here")
    return content


def plan_outcome(
    replica: Replica,
    identity: str,
    effect: str,
    outcome: CallOutcome,
    *,
    message: IncomingMessage | None = None,
    turn: str = "",
    origin: str = "",
) -> Plan:
    """Plan to record an outcome, in one append with the message that reports it to the model.

    The first outcome counts. An outcome that arrives after another process marked the effect as
    unknown is recorded as its reconciliation.
    """
    drafts: list[PendingRecord] = []
    if message is not None:
        drafts = encode_messages(replica, [message], Attribution(origin=origin), turn, None)
        form = results.shared_form(outcome.result, message.message)
        outcome = outcome._replace(result=None, told=form) if form else outcome

    def make(batch: RecordBatch) -> int:
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
            _add_outcome(replica, batch, identity, state, outcome)
        for draft in drafts:
            batch.add(draft)
        if outcome.told:  # The outcome refers to the message right before it.
            _add_outcome(replica, batch, identity, state, outcome)
        return batch.position

    return Plan("effect.settle", identity, make)


def add_outcome(replica: Replica, batch: RecordBatch, identity: str, outcome: CallOutcome) -> None:
    """Add an outcome to a batch of another plan."""
    _add_outcome(replica, batch, identity, batch.state.deeds.by_identity[identity], outcome)


def mark_unknown(
    replica: Replica, batch: RecordBatch, turn: str, error: str = "", reason: str = ""
) -> None:
    """Mark calls that have no outcome when their turn ends as `unknown`.

    A model call has no side effects, so one without an answer has failed, with the turn's error.
    """
    for identity, state in [*batch.state.deeds.by_identity.items()]:
        if state.turn == turn and state.state == INTENDED:
            outcome = CallOutcome("unknown", reason=TURN_ENDED_REASON)
            if identity.startswith(MODEL_PREFIX):
                reason = reason or "The turn ended before an answer was recorded."
                outcome = CallOutcome("failed", error=error or "Unanswered", reason=reason)
            _add_outcome(replica, batch, identity, state, outcome)


def _add_outcome(
    replica: Replica, batch: RecordBatch, identity: str, state: EffectState, outcome: CallOutcome
) -> int:
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
