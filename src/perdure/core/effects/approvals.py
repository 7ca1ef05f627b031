"""Approvals as plans: a call requests one, a person decides, and the intent uses it up. Pure.

A decision is bound to the digest of the tool, its version and its arguments. Expiry is judged by
the clock of the process that looks; a recorded expiry is final: no clock revives an approval.
"""

from datetime import datetime
from typing import Any, Literal

from perdure import events
from perdure.backends.digests import digest_of
from perdure.core.effects.calls import (
    DENIED_ERROR,
    EXPIRED_ERROR,
    CallDecision,
    CallRequest,
    Decision,
    MessageBuilder,
    ToolSpec,
)
from perdure.core.messages import ANONYMOUS, encode_messages
from perdure.core.plans import Plan, RecordBatch, TurnOwnership
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.core.state.approvals import (
    APPROVED,
    EXPIRED,
    USED,
    WAITING,
    ApprovalState,
    binding_digest,
)
from perdure.core.state.effects import EffectState
from perdure.core.validation import require_str
from perdure.errors import (
    ApprovalError,
    ApprovalPendingError,
    DamagedError,
    DivergenceError,
    NotFoundError,
    UsageError,
)
from perdure.journal import chain, codec
from perdure.journal.records import ApprovalDecided, ApprovalRequested, EffectOutcome
from perdure.journal.requests import Steps

_EXPIRED_OUTCOME = (EXPIRED_ERROR, "The approval expired, and the call was not made.")


def require_approval(  # noqa: PLR0913 - it is the second half of `plan_intent`
    replica: Replica,
    batch: RecordBatch,
    turn: TurnOwnership,
    call: CallRequest,
    decision: CallDecision,
    request: str,
    build: MessageBuilder | None,
    *,
    overdue: bool,
) -> Steps[CallDecision]:
    """Find or request the approval of a call; the decision is unchanged if the call may be made.

    `request` is the id for the record of a new request. `overdue` says that the waiting caller
    measured the expiry of the approval, whatever the clock says. A call that must not be made gets
    its outcome, and the message for the model, in the same append.
    """
    approval = batch.state.effects.approvals.by_identity.get(call.identity)
    call_digest = binding_digest(call.tool, call.version, call.digest)
    if approval is not None:
        require_same_call(batch.name, call, approval)
    if approval is not None and approval.outcome:
        outcome = yield from batch.read(approval.outcome, EffectOutcome)
        return decision._replace(action="serve", approval=approval.id, outcome=outcome)
    if approval is None or approval.call_digest != call_digest:
        id = request or replica.new_id()
        batch.add_content(id, _request_record(replica.settings, turn, call))
        return decision._replace(action="wait", approval=id, wait_after=batch.position)
    decision = decision._replace(approval=approval.id)
    if approval.state == USED:
        return decision  # The policy allows another attempt, and the approval is for the effect.
    if approval.state in (WAITING, APPROVED):
        if overdue or is_expired(replica.settings, approval.expires):
            _add_decision(replica, batch, approval, EXPIRED)
            return _refuse(replica, batch, turn, call, decision, _EXPIRED_OUTCOME, build)
        if approval.state == APPROVED:
            return decision
        return decision._replace(action="wait", wait_after=batch.position)
    decided = yield from batch.read(approval.decision, ApprovalDecided)
    why = _EXPIRED_OUTCOME if decided.decision == EXPIRED else (DENIED_ERROR, _denial_text(decided))
    return _refuse(replica, batch, turn, call, decision, why, build)


def require_same_call(name: str, call: CallRequest, recorded: ApprovalState | EffectState) -> None:
    """Raise DivergenceError if a call has another tool or other arguments than the recorded one.

    It names the record and the digests, not the arguments: these may hold secrets.
    """
    if (call.tool, call.digest) != (recorded.tool, recorded.digest):
        at = recorded.intent if isinstance(recorded, EffectState) else recorded.request
        was = f"{recorded.tool} {recorded.digest} at position {at}"
        hint = "make the same call as before, or choose another key"
        now = f"{call.tool} {call.digest}"
        raise DivergenceError(name, call.identity, was, now, hint)


def _request_record(
    settings: Settings, turn: TurnOwnership, call: CallRequest
) -> ApprovalRequested:
    expires = ""
    if call.approval_ttl is not None:
        now = datetime.fromisoformat(settings.now()).timestamp()
        expires = chain.timestamp(now + call.approval_ttl)
    return ApprovalRequested(
        identity=call.identity,
        tool=call.tool,
        version=call.version,
        arguments=call.arguments,
        digest=call.digest,
        turn=turn.turn,
        actor=call.actor,
        expires=expires,
    )


def _refuse(
    replica: Replica,
    batch: RecordBatch,
    turn: TurnOwnership,
    call: CallRequest,
    decision: CallDecision,
    why: tuple[str, str],
    build: MessageBuilder | None,
) -> CallDecision:
    """Add the outcome of a call that is not made. There is no intent: it never began."""
    error, reason = why
    outcome = EffectOutcome(
        effect=decision.approval,
        identity=call.identity,
        state="failed",
        error=error,
        reason=reason,
        turn=turn.turn,
    )
    batch.add_content(replica.new_id(), outcome)
    if build is not None:
        batch.add_all(encode_messages(replica, [build(reason)], ANONYMOUS, turn.turn, None))
    return decision._replace(action="refused", outcome=outcome)


def _denial_text(decided: ApprovalDecided) -> str:
    by = f" by {decided.by}" if decided.by else ""
    why = f" Reason: {decided.reason}" if decided.reason else ""
    return f"The call was denied{by} and was not made.{why}"


def seconds_left(settings: Settings, expires: str) -> float | None:
    """Return how many seconds an approval can still be used, by this clock; None: no limit."""
    if not expires:
        return None
    now = datetime.fromisoformat(settings.now())
    return (datetime.fromisoformat(expires) - now).total_seconds()


def is_expired(settings: Settings, expires: str) -> bool:
    """Whether an approval has expired, by this clock."""
    seconds = seconds_left(settings, expires)
    return seconds is not None and seconds <= 0


def plan_decision(
    replica: Replica, approval: str, decision: Decision, *, by: str, reason: str, digest: str | None
) -> Plan[Decision | Literal["expired"]]:
    """Plan to decide an approval. The result is the recorded decision: "expired" if it was late.

    `digest` is that of the approval that was reviewed; ApprovalError if it is another one.
    """
    require_str(approval, "an approval")
    if not require_str(by, "by"):
        raise UsageError("say who decides: by= must not be empty")
    require_str(reason, "reason")

    def make(batch: RecordBatch) -> Steps[Decision | Literal["expired"]]:
        match = batch.state.effects.approvals.find(approval)
        if match is None:
            raise NotFoundError(f"approval {approval!r}", "see session.approvals.list()")
        state = match[1]
        if state.state != WAITING:
            raise (yield from _already_decided(batch, state))
        if digest is not None and digest != state.call_digest:
            detail = f"for {state.call_digest}, and not for {digest}"
            raise ApprovalError(batch.name, approval, WAITING, detail)
        request = yield from batch.read(state.request, ApprovalRequested)
        require_intact_request(batch.name, state.request, request)
        if is_expired(replica.settings, state.expires):
            _add_decision(replica, batch, state, EXPIRED)
            return "expired"
        _add_decision(replica, batch, state, decision, by, reason)
        return decision

    return Plan("approval.decide", approval, make)


def _add_decision(
    replica: Replica,
    batch: RecordBatch,
    approval: ApprovalState,
    decision: str,
    by: str = "",
    reason: str = "",
) -> None:
    content = ApprovalDecided(
        approval=approval.id,
        decision=decision,  # type: ignore[arg-type] # approved, denied or expired; callers ensure it
        call_digest=approval.call_digest,
        by=by,
        reason=reason,
    )
    batch.add_content(replica.new_id(), content)


def _already_decided(batch: RecordBatch, approval: ApprovalState) -> Steps[ApprovalError]:
    decided = yield from batch.read(approval.decision, ApprovalDecided)
    by = f"by {decided.by!r} " if decided.by else ""
    detail = f"{by}at position {approval.decision}"
    if approval.state == USED:
        detail = f"already, after it was approved {detail}"
    return ApprovalError(batch.name, approval.id, approval.state, detail)


def require_intact_request(name: str, position: int, request: ApprovalRequested) -> None:
    """Raise DamagedError unless the arguments shown to the person match the digest."""
    if digest_of(codec.encode_tree(request.arguments)) != request.digest:
        raise DamagedError(name, position, "the arguments to approve do not match their digest")


# seconds; how often a waiting caller compares the recorded expiry with the clock
LOOK_INTERVAL = 30.0


def needs_approval(replica: Replica, spec: ToolSpec, call: CallRequest) -> Any:
    """Return whether the tool requires an approval, or an awaitable for it.

    The tool's function gets a copy of the arguments, so that it cannot change the call.
    """
    if isinstance(spec.approval, bool):
        return spec.approval
    arguments = replica.settings.codec.unpack(call.arguments, stream=replica.name)
    try:
        return spec.approval(arguments)
    except Exception as error:
        raise approval_check_failed(spec, error) from error


def approval_check_failed(spec: ToolSpec, error: Exception) -> UsageError:
    """Return the error for a tool whose approval function raised."""
    what = f"the approval function of {spec.name!r} raised {type(error).__qualname__}"
    return UsageError(f"{what}: nothing was called")


def with_approval(call: CallRequest, spec: ToolSpec, needed: object) -> CallRequest:
    """Return the call with its approval requirement set."""
    if not isinstance(needed, bool):
        what = f"the approval function of {spec.name!r} must return True or False"
        raise UsageError(f"{what}, not {type(needed).__name__}: nothing was called")
    return call._replace(approval=needed, approval_ttl=spec.approval_ttl) if needed else call


class ApprovalWait:
    """The wait of one caller for an approval, measured on a monotonic clock."""

    def __init__(self, store: str, wait: float | None, now: float) -> None:
        self._store = store
        self._deadline = None if wait is None else now + wait
        self._approval = ""
        self._expiry: float | None = None
        self._looked = False
        self.overdue = False
        """Whether this caller measured that the approval expired, whatever the clock says."""

    def seconds(
        self, replica: Replica, call: CallRequest, decision: CallDecision, now: float
    ) -> float:
        """Return how long to wait before the next look, or raise ApprovalPendingError."""
        if decision.approval != self._approval:
            self._begin(replica, call, decision, now)
        if self._expiry is not None and now >= self._expiry:
            self.overdue = True
            return 0.0
        if self._deadline is not None and now >= self._deadline and self._looked:
            raise ApprovalPendingError(replica.name, call.tool, decision.approval, self._store)
        self._looked = True  # Even a caller that does not wait looks once: its view may be stale.
        ends = [end - now for end in (self._deadline, self._expiry) if end is not None]
        return max(min([LOOK_INTERVAL, *ends]), 0.0)

    def _begin(
        self, replica: Replica, call: CallRequest, decision: CallDecision, now: float
    ) -> None:
        self._approval, self._expiry, self._looked = decision.approval, None, False
        self.overdue = False
        match = replica.state.effects.approvals.find(decision.approval)
        seconds = seconds_left(replica.settings, match[1].expires) if match else None
        if seconds is not None:
            # At most the TTL, even if the clock was set back since the request.
            most = seconds if call.approval_ttl is None else call.approval_ttl
            self._expiry = now + min(seconds, most)
        if self._deadline is None or now < self._deadline:
            pending = ApprovalPendingError(replica.name, call.tool, decision.approval, self._store)
            where = {"store": self._store, "session": replica.name, "tool": call.tool}
            details = {**where, "approval": decision.approval, "decide": pending.command}
            events.emit("approval", details)
