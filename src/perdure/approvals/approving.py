"""Approvals as plans: a call asks for one, somebody decides, and the intent uses it up. Pure.

A decision is bound to the digest of the tool, its version and its arguments. Time is the clock of
whoever looks, and an end that was recorded is final: no clock brings an approval back.
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

TTL_MAX = 100 * 366 * 86_400.0  # A century: what lies further off is no date in some calendars.
DENIED_ERROR, EXPIRED_ERROR = "ApprovalDenied", "ApprovalExpired"
_EXPIRED = (EXPIRED_ERROR, "The time for an approval was over, and the call was not made.")


def require_approval(need: object, ttl: object, wait: object) -> None:
    """Raise unless a tool says in a known way whether its calls need an approval, and until when.

    An approval can be given and used for `ttl` seconds; a caller waits for one for `wait` seconds.
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
    verdict: "Verdict",
    request: str,
    say: Say | None,
) -> Steps[int | None]:
    """Look for the approval of a call, and ask for one; None means that the call may be made.

    `request` is the id of the record that asks. A call that must not be made gets its outcome, and
    the model is told of it in the same append.
    """
    consent = batch.fold.deeds.consents.by_identity.get(call.identity)
    bound = binding(call.tool, call.version, call.digest)
    if consent is not None and (consent.tool, consent.digest) != (call.tool, call.digest):
        was = f"{consent.tool} {consent.digest}"
        now = named(call.tool, call.arguments, call.digest)
        raise DivergenceError(batch.name, call.identity, was, now, SAME_CALL)
    if consent is not None and consent.outcome:
        verdict.action, verdict.approval = "serve", consent.approval
        verdict.outcome = yield from _settled_at(replica, batch, consent.outcome)
        return consent.outcome
    if consent is None or consent.bound != bound:
        asking = request or replica.settings.new_id()
        position = batch.add_content(asking, _asked(replica.settings, turn, call))
        return _wait(batch, verdict, asking, position)
    verdict.approval = consent.approval
    if consent.state == USED:
        return None  # The same effect is tried again, as its policy allows.
    if consent.state in (WAITING, APPROVED):
        if not verdict.overdue and not is_over(replica.settings, consent.expires):
            return None if consent.state == APPROVED else _wait(batch, verdict, consent.approval, 0)
        _decide(replica, batch, consent, EXPIRED, "", "")
        return _refuse(replica, batch, call, verdict, _EXPIRED, say)
    decided = yield from _decision_at(replica, batch, consent.decided)
    why = _EXPIRED if decided.decision == EXPIRED else (DENIED_ERROR, _denied(decided))
    return _refuse(replica, batch, call, verdict, why, say)


SAME_CALL = "make the same call as before, or choose another key"
_SHOWN = 200  # Characters of arguments in an error.


def named(tool: str, arguments: object, digest: str) -> str:
    """Return a call as an error names it: its packed arguments, shortened, and their digest."""
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


def _wait(batch: Batch, verdict: "Verdict", approval: str, position: int) -> int:
    verdict.action, verdict.approval, verdict.seen = "wait", approval, batch.position
    return position or batch.position


def _refuse(
    replica: Replica,
    batch: Batch,
    call: "Called",
    verdict: "Verdict",
    why: tuple[str, str],
    say: Say | None,
) -> int:
    """Add the outcome of a call that is not made. There is no intent: it never began."""
    error, reason = why
    outcome = EffectSettled(
        effect=verdict.approval,
        identity=call.identity,
        state="failed",
        error=error,
        reason=reason,
        turn=verdict.turn,
    )
    verdict.action, verdict.outcome = "refused", outcome
    position = batch.add_content(replica.settings.new_id(), outcome)
    if say is not None:
        for draft in message_drafts(replica, [say(reason)], NOBODY, verdict.turn, None):
            position = batch.add(draft)
    return position


def _denied(decided: ApprovalDecided) -> str:
    by = f" by {decided.by}" if decided.by else ""
    why = f" Reason: {decided.reason}" if decided.reason else ""
    return f"The call was denied{by} and was not made.{why}"


def seconds_left(settings: Settings, expires: str) -> float | None:
    """Return for how long an approval can still be used by this clock; None is for ever."""
    if not expires:
        return None
    now = datetime.fromisoformat(settings.now())
    return (datetime.fromisoformat(expires) - now).total_seconds()


def is_over(settings: Settings, expires: str) -> bool:
    """Whether an approval has come to its end by this clock."""
    left = seconds_left(settings, expires)
    return left is not None and left <= 0


def decide(
    replica: Replica, approval: str, decision: Decision, *, by: str, reason: str, digest: str | None
) -> tuple[Plan, Callable[[], bool]]:
    """Plan to decide about an approval. After it, the function says whether it was too late.

    `digest` is that of what the decision is meant for; another one is refused.
    """
    require_str(approval, "an approval")
    if not require_str(by, "by"):
        raise UsageError("say who decides: by= must not be empty")
    require_str(reason, "reason")
    late: list[bool] = []

    def make(batch: Batch) -> Made:
        late.clear()
        found = batch.fold.deeds.consents.find(approval)
        if found is None:
            raise NotFoundError(f"approval {approval!r}", "see session.approvals.list()")
        consent = found[1]
        if consent.state != WAITING:
            raise (yield from _decided_before(replica, batch, consent))
        if digest is not None and digest != consent.bound:
            raise ApprovalError(
                batch.name, approval, WAITING, f"for {consent.bound}, and not for {digest}"
            )
        yield from _require_asked(replica, batch, consent)
        if is_over(replica.settings, consent.expires):
            late.append(True)
            return _decide(replica, batch, consent, EXPIRED, "", "")
        return _decide(replica, batch, consent, decision, by, reason)

    return Plan("approval.decide", approval, make), lambda: bool(late)


def _decide(
    replica: Replica, batch: Batch, consent: Consent, decision: str, by: str, reason: str
) -> int:
    content = ApprovalDecided(
        approval=consent.approval,
        decision=decision,  # type: ignore[arg-type] # One of three words, by whoever calls.
        bound=consent.bound,
        by=by,
        reason=reason,
    )
    return batch.add_content(replica.settings.new_id(), content)


def _decided_before(replica: Replica, batch: Batch, consent: Consent) -> Steps[ApprovalError]:
    decided = yield from _decision_at(replica, batch, consent.decided)
    by = f"by {decided.by!r} " if decided.by else ""
    detail = f"{by}at position {consent.decided}"
    if consent.state == USED:
        detail = f"already, after it was approved {detail}"
    return ApprovalError(batch.name, consent.approval, consent.state, detail)


def _require_asked(replica: Replica, batch: Batch, consent: Consent) -> Steps[None]:
    """Raise unless the arguments that a person is shown are those that the digest is of."""
    content = yield from _content_at(replica, batch, consent.asked)
    if not isinstance(content, ApprovalAsked):
        raise ChainError(batch.name, consent.asked, "a request for approval is expected here")
    if digest_of(codec.encode_tree(content.arguments)) != consent.digest:
        reason = "the arguments to approve are not those of their digest"
        raise DamagedError(batch.name, consent.asked, reason)


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
