"""Effects as plans: an intent before the call, an outcome after it, and the decision on resuming.

Pure. `plan_intent` decides on the newest state each time it is executed and returns a
`CallDecision`: run the tool, return the recorded result, call the reconcile function, wait for an
approval, or report that the outcome is unknown. `decide_rerun` decides about a call that was begun
before, and `conclude` gives the caller the result of a call that must not run. A plan may be
executed several times, so it must not keep anything from an earlier execution.
"""

from typing import Any

import msgspec

from perdure.core.effects import results
from perdure.core.effects.approvals import require_approval, require_same_call
from perdure.core.effects.calls import (
    POLICIES,
    ActiveTurn,
    CallDecision,
    CallOutcome,
    CallRequest,
    MessageBuilder,
    ResultMessage,
)
from perdure.core.messages import ANONYMOUS, Attribution, encode_messages
from perdure.core.plans import Plan, RecordBatch, TurnOwnership, require_turn_owner
from perdure.core.replica import Replica
from perdure.core.state.effects import (
    INTENDED,
    KEYED_IN_TURN_PREFIX,
    KEYED_PREFIX,
    MODEL_PREFIX,
    UNKNOWN,
    EffectsState,
    EffectState,
)
from perdure.errors import InFlightError, UnknownOutcomeError, UsageError
from perdure.formats.intake import IncomingMessage
from perdure.journal import codec, reader
from perdure.journal.chain import PendingRecord
from perdure.journal.codec import PAYLOAD_MAX
from perdure.journal.large import join_content
from perdure.journal.records import Content, EffectIntent, EffectOutcome, Message
from perdure.journal.requests import Steps

_RERUN_POLICIES = ("read_only", "idempotent")  # Calls that may run again without an outcome.

_SHARED_APPEND_MAX = 64 * 2**10  # bytes of an intent that is stored together with its outcome


def plan_intent(
    replica: Replica,
    turn: ActiveTurn,
    call: CallRequest,
    *,
    again: bool = False,
    overdue: bool = False,
    notice: IncomingMessage | None = None,
    build: MessageBuilder | None = None,
) -> tuple[Plan[CallDecision], str]:
    """Plan to record an intent, or to decide why the call must not run; also return its id.

    `again` says that a call without an outcome is known not to have happened, `overdue` that the
    waiting caller measured the expiry of the approval. `notice` is the message for the model about
    a call that may have happened, stored in the same append. `build` builds the message about a
    call that was not approved.
    """
    owner = turn.ownership
    notices = encode_messages(replica, [notice], ANONYMOUS, owner.turn, None) if notice else []
    request = replica.new_id() if call.approval else ""
    attempt = replica.new_id()

    def make(batch: RecordBatch) -> Steps[CallDecision]:
        require_turn_owner(batch, owner)
        decision = CallDecision("run")
        prior = batch.state.effects.by_identity.get(call.identity)
        if prior is None and call.identity.startswith(KEYED_PREFIX):
            prior = yield from _find_settled(batch, call.identity)
        if prior is not None:
            decision = yield from decide_rerun(replica, batch, turn, call, prior)
            if decision.action == "unknown":
                batch.add_all(notices)
            if decision.action != "run" and not (again and decision.action == "reconcile"):
                return decision
        approvals = batch.state.effects.approvals.by_identity
        # A recorded request counts even if the tool no longer needs an approval.
        if call.approval or (approvals and call.identity in approvals):
            decision = yield from require_approval(
                replica, batch, owner, call, decision, request, build, overdue=overdue
            )
            if decision.action not in ("run", "reconcile"):
                return decision
        # Every attempt has the key of the first one: services use it to detect duplicates.
        key, retry_of = (prior.key, prior.intent) if prior is not None else ("", 0)
        content = intent_record(call, owner, key, retry_of=retry_of, approval=decision.approval)
        decision = decision._replace(action="run", effect=attempt, key=key or attempt[1:])
        if prior is None and not decision.approval and _is_recorded_once(call):
            content = msgspec.structs.replace(content, begun_after=batch.position)
            intent = PendingRecord(attempt, content, codec.encode(content))
            if len(intent.payload) <= _SHARED_APPEND_MAX:
                return decision._replace(intent=intent)
            content = msgspec.structs.replace(content, begun_after=0)
        batch.add_content(attempt, content)
        return decision

    return Plan("effect.intend", call.identity, make), attempt


def _is_recorded_once(call: CallRequest) -> bool:
    """Whether a call is recorded once, after it was made: intent and outcome in one append.

    It saves the append before the call, which is not needed: a call that changes nothing may run
    again. If its arguments are large, they are stored before it all the same, so that what cannot
    be stored does not run, and the result has an append of its own. A call with a caller's own key
    has an intent, by which a second one sees that it is under way; a model call has one, because it
    costs money.
    """
    return (
        call.policy == "read_only"
        and call.kind == "tool"
        and not call.identity.startswith((KEYED_PREFIX, KEYED_IN_TURN_PREFIX))
    )


def intent_record(
    call: CallRequest, turn: TurnOwnership, key: str, *, retry_of: int, approval: str = ""
) -> EffectIntent:
    """Return the record of a call that is about to be made."""
    return EffectIntent(
        identity=call.identity,
        tool=call.tool,
        version=call.version,
        arguments=call.arguments,
        digest="" if call.kind == "tool" else call.digest,
        key=key,
        policy=call.policy,
        turn=turn.turn,
        owner="" if turn.owner == turn.turn else turn.owner,
        actor=call.actor,
        parent=call.parent,
        retry_of=retry_of,
        approval=approval,
        call_type=call.kind,
    )


def _find_settled(batch: RecordBatch, identity: str) -> Steps[EffectState | None]:
    """Return the state of an effect with a caller's own key in a past turn; None if it is new."""
    found = (yield from batch.find(identity)) if batch.may_know(identity) else None
    if found is None:
        return None
    settled = reader.require_kind(batch.name, found.position, found.record.content, EffectOutcome)
    intent = yield from batch.read(settled.intent, EffectIntent)
    state = EffectState.of_intent(settled.intent, settled.effect, intent)
    return state._replace(state=settled.state, outcome=found.position)


def decide_rerun(
    replica: Replica, batch: RecordBatch, turn: ActiveTurn, call: CallRequest, prior: EffectState
) -> Steps[CallDecision]:
    """Decide about a call that was begun before; "run" means that it may run again."""
    begun = yield from batch.read(prior.intent, EffectIntent)
    require_same_call(batch.name, call, prior)
    begun_version = begun.version if begun.version != call.version else None
    decision = CallDecision("run", prior.effect, prior.key, begun_version=begun_version)
    # The stricter of the recorded and the declared policy applies.
    policy = max(call.policy, prior.policy, key=POLICIES.index)
    if policy == "reconcile" != call.policy:
        policy = "unsafe"  # There is no function that could find out.
    if prior.outcome and not (call.kind == "model" and prior.state == "failed"):
        outcome = yield from _read_outcome(batch, prior.outcome)
        if not results.may_run_again(outcome, policy):
            return decision._replace(action="serve", outcome=outcome, position=prior.outcome)
    ran = turn.sequence.ended_attempts.get(prior.effect)
    if ran is False and prior.outcome == 0:
        return decision  # This process abandoned it while its intent was in doubt; it never ran.
    own = prior.owner == turn.ownership.owner and ran is None
    in_open_turn = prior.turn != turn.ownership.turn and prior.turn in batch.state.turns
    if prior.outcome == 0 and (own or in_open_turn):
        # A call of another open turn may only be decided after taking over that turn.
        raise InFlightError(batch.name, prior.tool, call.identity)
    if policy in _RERUN_POLICIES:
        return decision
    if policy == "reconcile":
        return decision._replace(action="reconcile")
    unknown = CallOutcome("unknown", reason=PROCESS_DIED_REASON)
    add_outcome(replica, batch, call.identity, unknown)
    return decision._replace(action="unknown")


def read_recorded(replica: Replica, turn: ActiveTurn, call: CallRequest) -> Steps[CallDecision]:
    """Return the recorded outcome of a call in a turn that has ended, in which no call is made."""
    effects, batch = turn.sequence.recorded or EffectsState(), replica.new_batch()
    prior = effects.by_identity.get(call.identity)
    if call.identity.startswith(KEYED_PREFIX):  # It may have been made in another turn.
        prior = batch.state.effects.by_identity.get(call.identity)
        prior = prior or (yield from _find_settled(batch, call.identity))
    recorded = prior or effects.approvals.by_identity.get(call.identity)
    if recorded is None or not recorded.outcome:
        ended = f"the turn {turn.ownership.turn!r} has ended ({turn.ended})"
        raise UsageError(
            f"{ended}, and this call of {call.tool!r} is not part of it: begin another"
        )
    require_same_call(batch.name, call, recorded)
    outcome = yield from _read_outcome(batch, recorded.outcome)
    key = prior.key if prior else ""
    return CallDecision("serve", outcome.effect, key, outcome, position=recorded.outcome)


def conclude(
    replica: Replica, call: CallRequest, decision: CallDecision, reply: ResultMessage | None
) -> Any:
    """Return the recorded result of a call that must not run, or raise why there is none.

    `reply` has built the message for the model, if one was stored with the decision. With it, a
    result that could not be stored is returned as the text that the model gets.
    """
    if reply is not None and decision.action in ("unknown", "refused"):
        reply.stored = reply.latest
    if decision.outcome is None:
        attempt, key = decision.effect, decision.key
        raise UnknownOutcomeError(replica.name, call.tool, attempt, key, PROCESS_DIED_REASON)
    result = replica.settings.codec.unpack(decision.outcome.result, stream=replica.name)
    return results.replay_result(
        replica.name,
        call.tool,
        decision.outcome,
        result,
        key=decision.key,
        position=decision.position,
        as_text=reply is not None,
    )


PROCESS_DIED_REASON = (
    "The process died after this call was begun and before its outcome was recorded: it may have "
    "happened."
)


TURN_ENDED_REASON = "The turn ended before the outcome was recorded: it may have happened."


def _read_outcome(batch: RecordBatch, position: int) -> Steps[EffectOutcome]:
    """Return an outcome with its result, which may be stored in the message before it."""
    settled = yield from batch.read(position, EffectOutcome)
    if not settled.shared_form:
        return settled
    message: Content = yield from batch.read(position - 1, Message)
    message = yield from join_content(batch.past, message, PAYLOAD_MAX)
    return results.require_result(batch.name, position - 1, settled, message)


def plan_outcome(
    replica: Replica,
    identity: str,
    effect: str,
    outcome: CallOutcome,
    *,
    message: IncomingMessage | None = None,
    turn: str = "",
    origin: str = "",
) -> Plan[int]:
    """Plan to record an outcome, in one append with the message that reports it to the model.

    The first outcome counts. An outcome that arrives after another process marked the effect as
    unknown is recorded as its reconciliation.
    """
    drafts: list[PendingRecord] = []
    if message is not None:
        drafts = encode_messages(replica, [message], Attribution(origin=origin), turn, None)
        form = results.shared_form(outcome.result, message.message)
        outcome = outcome._replace(result=None, shared_form=form) if form else outcome

    def make(batch: RecordBatch) -> int:
        state = batch.state.effects.by_identity.get(identity)
        if state is None:
            raise batch.conflict("another process has ended the turn of the effect, or settled it")
        if state.effect != effect:
            raise batch.conflict("another process has retried the effect")
        if state.state not in (INTENDED, UNKNOWN):
            raise batch.conflict(f"the effect is already settled: {state.state}")
        if state.state == outcome.state == UNKNOWN:
            return batch.position  # Nothing more is known than when its turn ended.
        split = batch.split(drafts) if drafts else drafts  # Outcome and message are side by side.
        if outcome.shared_form:  # The outcome refers to the message right before it.
            batch.add_all(split)
            return add_outcome(replica, batch, identity, outcome)
        position = add_outcome(replica, batch, identity, outcome)
        return batch.add_all(split) if drafts else position

    return Plan("effect.settle", identity, make)


def plan_whole_call(intent: PendingRecord, outcome: Plan[int]) -> Plan[int]:
    """Plan to record a call that was made already: its intent, and the plan of its outcome."""
    content = intent.content
    assert isinstance(content, EffectIntent)  # noqa: S101 - made by `plan_intent`
    owner = TurnOwnership(content.turn, content.owner or content.turn)

    def make(batch: RecordBatch) -> Steps[int]:
        saved = batch.savepoint()
        try:
            if content.identity not in batch.state.effects.by_identity:
                require_turn_owner(batch, owner)
                batch.add_all([intent])
            return (yield from outcome.execute(batch))
        except BaseException:
            batch.rollback(saved)  # Such an intent is never stored without its outcome.
            raise

    # Not "effect.settle": it is written only by who may begin a call.
    return Plan("effect.intend", content.identity, make)


def mark_unknown(
    replica: Replica, batch: RecordBatch, turn: str, error: str = "", reason: str = ""
) -> None:
    """Mark calls that have no outcome when their turn ends as `unknown`.

    `error` and `reason` are those of a turn that failed: if it is continued, the policies of the
    calls decide about them. A model call has no side effects, so one without an answer has failed,
    with the turn's error.
    """
    for identity, state in [*batch.state.effects.by_identity.items()]:
        if state.turn == turn and state.state == INTENDED:
            outcome = CallOutcome("unknown", error=error, reason=TURN_ENDED_REASON)
            if identity.startswith(MODEL_PREFIX):
                reason = reason or "The turn ended before an answer was recorded."
                outcome = CallOutcome("failed", error=error or "Unanswered", reason=reason)
            add_outcome(replica, batch, identity, outcome)


def add_outcome(replica: Replica, batch: RecordBatch, identity: str, outcome: CallOutcome) -> int:
    """Add the outcome of an effect to a batch; return its position."""
    state = batch.state.effects.by_identity[identity]
    late = state.state == UNKNOWN
    content = EffectOutcome(
        effect=state.effect,
        identity=identity,
        state="reconciled" if late else outcome.state,
        result=outcome.result,
        error=outcome.error,
        reason=outcome.reason,
        duration=round(outcome.duration, 6),
        turn=state.turn,
        intent=state.intent if identity.startswith(KEYED_PREFIX) else 0,
        message_count=outcome.message_count,
        shared_form=outcome.shared_form,
        unstored=outcome.unstored,
    )
    return batch.add_content(replica.new_id(), content)
