"""Approvals as plans: a call requests one, a person decides, and the intent uses it up. Pure.

A decision is bound to the digest of the tool, its version and its arguments. Expiry is judged by
the clock of the process that looks; a recorded expiry is final: no clock revives an approval.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from perdure import codec, journal, reading
from perdure.approvals.consents import APPROVED, EXPIRED, USED, WAITING, Consent, binding
from perdure.approvals.records import ApprovalAsked, ApprovalDecided
from perdure.backend import digest_of
from perdure.conversations.intake import Taken
from perdure.errors import (
    ApprovalError,
    ChainError,
    DamagedError,
    DivergenceError,
    NotFoundError,
    UsageError,
)
from perdure.plans import Batch, Made, Plan, require_str, require_timeout
from perdure.records import EffectSettled
from perdure.replica import Replica
from perdure.saying import NOBODY, Ownership, message_drafts
from perdure.settings import Settings
from perdure.steps import Steps

if TYPE_CHECKING:
    from perdure.effects.effecting import Called, Verdict

Decision = Literal["approved", "denied"]
Say = Callable[[str], Taken]

TTL_MAX = 100 * 366 * 86_400.0  # seconds; a century: later dates overflow in some calendars
DENIED_ERROR, EXPIRED_ERROR = "ApprovalDenied", "ApprovalExpired"
_EXPIRED = (EXPIRED_ERROR, "The approval expired, and the call was not made.")


def require_approval(need: object, ttl: object, wait: object) -> None:
    """Raise UsageError unless a tool's approval options are valid.

    An approval can be given and used for `ttl` seconds; a caller waits for it for `wait` seconds.
    """
    if not isinstance(need, bool) and not callable(need):
        kind = type(need).__name__
        raise UsageError(f"approval must be True, False or a function of the arguments, not {kind}")
    require_timeout(wait, "approval_wait")
    if ttl is None:
        return
    if need is False:
        raise UsageError("approval_ttl is for tools that need an approval: give approval=")
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= TTL_MAX:
        most = f"{TTL_MAX:.0f}"
        raise UsageError(f"approval_ttl must be seconds above 0 and at most {most}, not {ttl!r}")


def seek(
    replica: Replica,
    batch: Batch,
    turn: Ownership,
    call: "Called",
    decision: "Verdict",
    request: str,
    build: Say | None,
) -> Steps[int | None]:
    """Find or request the approval of a call; None means that the call may be made.

    `request` is the id for the record of a new request. A call that must not be made gets its
    outcome, and the message for the model, in the same append.
    """
    approval = batch.state.deeds.consents.by_identity.get(call.identity)
    bound = binding(call.tool, call.version, call.digest)
    if approval is not None and (approval.tool, approval.digest) != (call.tool, call.digest):
        was = f"{approval.tool} {approval.digest}"
        now = named(call.tool, call.arguments, call.digest)
        raise DivergenceError(batch.name, call.identity, was, now, SAME_CALL)
    if approval is not None and approval.outcome:
        decision.action, decision.approval = "serve", approval.id
        decision.outcome = yield from _settled_at(replica, batch, approval.outcome)
        return approval.outcome
    if approval is None or approval.bound != bound:
        id = request or replica.settings.new_id()
        position = batch.add_content(id, _asked(replica.settings, turn, call))
        return _wait(batch, decision, id, position)
    decision.approval = approval.id
    if approval.state == USED:
        return None  # The policy allows another attempt, and the approval is for the effect.
    if approval.state in (WAITING, APPROVED):
        if not decision.overdue and not is_over(replica.settings, approval.expires):
            return None if approval.state == APPROVED else _wait(batch, decision, approval.id, 0)
        _decide(replica, batch, approval, EXPIRED, "", "")
        return _refuse(replica, batch, call, decision, _EXPIRED, build)
    decided = yield from _decision_at(replica, batch, approval.decision)
    why = _EXPIRED if decided.decision == EXPIRED else (DENIED_ERROR, _denied(decided))
    return _refuse(replica, batch, call, decision, why, build)


SAME_CALL = "make the same call as before, or choose another key"
_SHOWN = 200  # characters of arguments in an error text


def named(tool: str, arguments: object, digest: str) -> str:
    """Describe a call in an error text: its packed arguments, shortened, and their digest."""
    if arguments is None:
        return f"{tool} {digest}"
    text = codec.encode_tree(arguments).decode()
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"{tool} {text} {digest}"


def _asked(settings: Settings, turn: Ownership, call: "Called") -> ApprovalAsked:
    expires = ""
    if call.approval_ttl is not None:
        now = datetime.fromisoformat(settings.now()).timestamp()
        expires = journal.timestamp(now + call.approval_ttl)
    return ApprovalAsked(
        identity=call.identity,
        tool=call.tool,
        version=call.version,
        arguments=call.arguments,
        digest=call.digest,
        turn=turn.turn,
        actor=call.actor,
        expires=expires,
    )


def _wait(batch: Batch, decision: "Verdict", approval: str, position: int) -> int:
    decision.action, decision.approval, decision.wait_after = "wait", approval, batch.position
    return position or batch.position


def _refuse(
    replica: Replica,
    batch: Batch,
    call: "Called",
    decision: "Verdict",
    why: tuple[str, str],
    build: Say | None,
) -> int:
    """Add the outcome of a call that is not made. There is no intent: it never began."""
    error, reason = why
    outcome = EffectSettled(
        effect=decision.approval,
        identity=call.identity,
        state="failed",
        error=error,
        reason=reason,
        turn=decision.turn,
    )
    decision.action, decision.outcome = "refused", outcome
    position = batch.add_content(replica.settings.new_id(), outcome)
    if build is not None:
        for draft in message_drafts(replica, [build(reason)], NOBODY, decision.turn, None):
            position = batch.add(draft)
    return position


def _denied(decided: ApprovalDecided) -> str:
    by = f" by {decided.by}" if decided.by else ""
    why = f" Reason: {decided.reason}" if decided.reason else ""
    return f"The call was denied{by} and was not made.{why}"


def seconds_left(settings: Settings, expires: str) -> float | None:
    """Return how many seconds an approval can still be used, by this clock; None: no limit."""
    if not expires:
        return None
    now = datetime.fromisoformat(settings.now())
    return (datetime.fromisoformat(expires) - now).total_seconds()


def is_over(settings: Settings, expires: str) -> bool:
    """Whether an approval has expired, by this clock."""
    seconds = seconds_left(settings, expires)
    return seconds is not None and seconds <= 0


def decide(
    replica: Replica, approval: str, decision: Decision, *, by: str, reason: str, digest: str | None
) -> tuple[Plan, Callable[[], bool]]:
    """Plan to decide an approval. The returned function says afterwards whether it had expired.

    `digest` is that of the approval that was reviewed; ApprovalError if it is another one.
    """
    require_str(approval, "an approval")
    if not require_str(by, "by"):
        raise UsageError("say who decides: by= must not be empty")
    require_str(reason, "reason")
    late: list[bool] = []

    def make(batch: Batch) -> Made:
        late.clear()  # The plan may be executed again after a conflict.
        match = batch.state.deeds.consents.find(approval)
        if match is None:
            raise NotFoundError(f"approval {approval!r}", "see session.approvals.list()")
        state = match[1]
        if state.state != WAITING:
            raise (yield from _decided_before(replica, batch, state))
        if digest is not None and digest != state.bound:
            raise ApprovalError(
                batch.name, approval, WAITING, f"for {state.bound}, and not for {digest}"
            )
        yield from _require_asked(replica, batch, state)
        if is_over(replica.settings, state.expires):
            late.append(True)
            return _decide(replica, batch, state, EXPIRED, "", "")
        return _decide(replica, batch, state, decision, by, reason)

    return Plan("approval.decide", approval, make), lambda: bool(late)


def _decide(
    replica: Replica, batch: Batch, approval: Consent, decision: str, by: str, reason: str
) -> int:
    content = ApprovalDecided(
        approval=approval.id,
        decision=decision,  # type: ignore[arg-type] # approved, denied or expired; callers ensure it
        bound=approval.bound,
        by=by,
        reason=reason,
    )
    return batch.add_content(replica.settings.new_id(), content)


def _decided_before(replica: Replica, batch: Batch, approval: Consent) -> Steps[ApprovalError]:
    decided = yield from _decision_at(replica, batch, approval.decision)
    by = f"by {decided.by!r} " if decided.by else ""
    detail = f"{by}at position {approval.decision}"
    if approval.state == USED:
        detail = f"already, after it was approved {detail}"
    return ApprovalError(batch.name, approval.id, approval.state, detail)


def _require_asked(replica: Replica, batch: Batch, approval: Consent) -> Steps[None]:
    """Raise DamagedError unless the arguments shown to the person match the digest."""
    content = yield from _content_at(replica, batch, approval.request)
    if not isinstance(content, ApprovalAsked):
        raise ChainError(batch.name, approval.request, "a request for approval is expected here")
    if digest_of(codec.encode_tree(content.arguments)) != approval.digest:
        reason = "the arguments to approve do not match their digest"
        raise DamagedError(batch.name, approval.request, reason)


def _decision_at(replica: Replica, batch: Batch, position: int) -> Steps[ApprovalDecided]:
    content = yield from _content_at(replica, batch, position)
    if not isinstance(content, ApprovalDecided):
        raise ChainError(batch.name, position, "a decision is expected here")
    return content


def _settled_at(replica: Replica, batch: Batch, position: int) -> Steps[EffectSettled]:
    content = yield from _content_at(replica, batch, position)
    if not isinstance(content, EffectSettled):
        raise ChainError(batch.name, position, "an outcome is expected here")
    return content


def _content_at(replica: Replica, batch: Batch, position: int) -> Steps[object]:
    if position > batch.tip.position:
        return batch.drafts[position - batch.tip.position - 1].content
    return (yield from reading.content_at(replica.past, position))
