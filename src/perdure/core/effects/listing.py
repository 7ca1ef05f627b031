"""Effects as users see them: list them, find the unknown ones, reconcile one. Pure.

In: the records of a session. Out: `Approval` and `EffectInfo` values with unpacked arguments and
results, and a plan for a reconciliation.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.core import history
from perdure.core.effects import plans, results
from perdure.core.effects.approvals import is_expired, require_intact_request
from perdure.core.effects.calls import CallOutcome, DidNotHappen, Happened, Kind
from perdure.core.effects.results import to_model_text
from perdure.core.plans import Plan
from perdure.core.replica import Replica
from perdure.core.state.approvals import (
    APPROVED,
    EXPIRED,
    USED,
    WAITING,
    ApprovalState,
    binding_digest,
)
from perdure.core.state.effects import INTENDED, UNKNOWN, key_of
from perdure.errors import ApprovalError, NotFoundError, UsageError
from perdure.formats.intake import IncomingMessage
from perdure.journal import chain, reader
from perdure.journal.chain import VerifiedRecord
from perdure.journal.codec import PAYLOAD_MAX
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.large import join_records
from perdure.journal.records import (
    ApprovalDecided,
    ApprovalRequested,
    Branched,
    Content,
    EffectIntent,
    EffectOutcome,
    Message,
    TurnContinued,
    TurnEnd,
)
from perdure.journal.requests import Steps

VOID = "void"


class Approval(NamedTuple):
    """An approval. `state` is waiting, approved, denied, expired, used or void.

    It is void if it cannot be used any more: its turn ended, the tool has another version now, or
    it was requested in the history that a branch shares. `digest` covers the tool, its version and
    the arguments: a decision is bound to it.
    """

    session: str
    id: str
    tool: str
    version: str
    arguments: Any
    digest: str
    state: str
    actor: str
    turn: str
    identity: str
    position: int
    time: datetime
    expires: datetime | None
    by: str
    reason: str
    decided: datetime | None


def pending_approvals(replica: Replica) -> Steps[list[Approval]]:
    """Return the approvals that wait for a decision; costs two reads per approval."""
    approvals = []
    session, past, _ = replica.view
    for state in session.effects.approvals.by_identity.values():
        if state.state == WAITING and not is_expired(replica.settings, state.expires):
            linked = yield from reader.read_record(past, state.request)
            content = _decode(replica, linked)
            content = reader.require_kind(replica.name, state.request, content, ApprovalRequested)
            approvals.append(_from_approval_request(replica, linked, content))
    return approvals


def _decode(replica: Replica, linked: VerifiedRecord) -> Content:
    return chain.decode_content(replica.name, linked, replica.history.cipher)


def _time(replica: Replica, linked: VerifiedRecord) -> datetime:
    record = chain.decode_record(replica.name, linked, replica.history.cipher)
    return chain.to_record(replica.name, linked, record).time


def list_approvals(replica: Replica) -> Steps[list[Approval]]:
    """Return all approvals of a session in order; reads the whole session."""
    kinds = {ApprovalRequested.kind, ApprovalDecided.kind, EffectIntent.kind, Branched.kind}
    kinds |= {"turn.completed", "turn.failed", "turn.abandoned", "turn.continued"}
    approvals: dict[str, Approval] = {}
    forward = ForwardReader(replica.history)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.kind in kinds:
                _apply_record(replica, approvals, linked, _decode(replica, linked))
    return [_with_expiry(replica, approval) for approval in approvals.values()]


def _apply_record(
    replica: Replica, approvals: dict[str, Approval], linked: VerifiedRecord, content: Content
) -> None:
    """Apply a record to the approvals by id."""
    if isinstance(content, ApprovalRequested):
        _mark_void(approvals, lambda approval: approval.identity == content.identity)
        approvals[linked.id] = _from_approval_request(replica, linked, content)
    elif isinstance(content, ApprovalDecided) and content.approval in approvals:
        approval = approvals[content.approval]
        expires = content.decision == EXPIRED and approval.state == APPROVED
        if content.call_digest == approval.digest and (approval.state == WAITING or expires):
            time = _time(replica, linked)
            decided = approval._replace(state=content.decision, decided=time)
            approvals[approval.id] = decided._replace(by=content.by, reason=content.reason)
    elif isinstance(content, EffectIntent) and content.approval in approvals:
        approvals[content.approval] = approvals[content.approval]._replace(state=USED)
    elif isinstance(content, Branched):
        _mark_void(approvals, lambda _: True)
    elif isinstance(content, TurnEnd):
        _mark_void(approvals, lambda approval: approval.turn == content.turn)
    elif isinstance(content, TurnContinued):
        for row in content.approvals.values():  # Those of a failed turn that is open again.
            restored = ApprovalState(*row)
            if restored.id in approvals:
                approval = approvals[restored.id]._replace(state=restored.state)
                approvals[restored.id] = approval


def _mark_void(approvals: dict[str, Approval], matches: Callable[[Approval], bool]) -> None:
    for approval in approvals.values():
        if approval.state in (WAITING, APPROVED) and matches(approval):
            approvals[approval.id] = approval._replace(state=VOID)


def _with_expiry(replica: Replica, approval: Approval) -> Approval:
    """Return an approval as expired if its time is over, even if no record says so yet."""
    if approval.expires is None or approval.state not in (WAITING, APPROVED):
        return approval
    expired = is_expired(replica.settings, approval.expires.isoformat())
    return approval._replace(state=EXPIRED) if expired else approval


def _from_approval_request(
    replica: Replica, linked: VerifiedRecord, content: ApprovalRequested
) -> Approval:
    position = linked.position
    require_intact_request(replica.name, position, content)
    return Approval(
        session=replica.name,
        id=linked.id,
        tool=content.tool,
        version=content.version,
        arguments=replica.settings.codec.unpack(content.arguments, stream=replica.name),
        digest=binding_digest(content.tool, content.version, content.digest),
        state=WAITING,
        actor=content.actor,
        turn=content.turn,
        identity=content.identity,
        position=position,
        time=_time(replica, linked),
        expires=datetime.fromisoformat(content.expires) if content.expires else None,
        by="",
        reason="",
        decided=None,
    )


def explain_not_pending(replica: Replica, id: str) -> Steps[NotFoundError | ApprovalError]:
    """Return the error for an approval that is not pending, with its state if it is known."""
    approvals = yield from list_approvals(replica)
    approval = next((approval for approval in approvals if approval.id == id), None)
    if approval is None:
        hint = "see session.approvals.list(), or `perdure approvals`"
        return NotFoundError(f"approval {id!r} in session {replica.name!r}", hint)
    by = f"by {approval.by!r}" if approval.by else ""
    return ApprovalError(replica.name, id, approval.state, by)


REPEATED = "repeated"

_EFFECT_KINDS = (EffectIntent.kind, EffectOutcome.kind, ApprovalRequested.kind)

RECONCILED = "perdure:reconciled"  # origin of the message that reports a reconciled outcome


class EffectInfo(NamedTuple):
    """An effect. `state` is intended, succeeded, failed, unknown or reconciled.

    It is `repeated` if the call was made again with the same key, because its policy allows it.
    A call that was not approved is listed as failed, and its id is that of the approval.
    """

    id: str
    kind: Kind
    tool: str
    state: str
    arguments: Any
    result: Any
    error: str
    reason: str
    key: str
    policy: str
    version: str
    turn: str
    position: int
    time: datetime
    duration: float
    identity: str
    before: str
    """The version of the previous attempt, if this attempt has another version."""
    usage: dict[str, Any]
    """The usage that a model's answer reports."""
    unstored: str
    """The type of a result that could not be stored; `result` is then its text."""


class EffectFilter(NamedTuple):
    """A filter for listing effects; None matches any."""

    tool: str | None
    turn: str | None
    kind: str | None
    since: datetime | None
    until: datetime | None

    def check(self) -> None:
        """Raise UsageError if the filter is invalid."""
        if self.kind not in (None, "tool", "model"):
            raise UsageError(f'no effects of kind {self.kind!r}: choose "tool" or "model"')
        times: tuple[object, ...] = (self.since, self.until)
        for time in times:
            if time is not None and not (isinstance(time, datetime) and time.tzinfo):
                raise UsageError(f"since and until must be datetimes with a zone, not {time!r}")

    def matches(self, effect: EffectInfo) -> bool:
        """Whether an effect passes the filter."""
        return (
            self.tool in (None, effect.tool)
            and self.turn in (None, effect.turn)
            and self.kind in (None, effect.kind)
            and (self.since is None or effect.time >= self.since)
            and (self.until is None or effect.time < self.until)
        )


def list_effects(replica: Replica, wanted: EffectFilter) -> Steps[list[EffectInfo]]:
    """Return the effects of a session that match a filter, in order. Reads the whole session."""
    wanted.check()
    listing = _EffectLister(replica)
    for position in sorted(replica.history.carried):  # What a compaction kept of earlier calls.
        listing.add((yield from reader.read_record(replica.history, position, check_tip=False)))
    forward = ForwardReader(replica.history)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            yield from join_records(replica.history, [linked], PAYLOAD_MAX)
            listing.add(linked)
    return [effect for effect in listing.effects.values() if wanted.matches(effect)]


class _EffectLister:
    """Builds effects from records, which are added in order."""

    def __init__(self, replica: Replica) -> None:
        self.effects: dict[str, EffectInfo] = {}
        self._replica = replica
        self._id_at: dict[int, str] = {}
        self._recorded_once: set[str] = set()
        """The calls whose intent was recorded together with their outcome."""
        self._requests: dict[str, EffectInfo] = {}
        self._messages: list[VerifiedRecord] = []
        """The messages right before the next record: an outcome may refer to the last of them."""

    def add(self, linked: VerifiedRecord) -> None:
        if linked.kind == Message.kind:
            self._messages.append(linked)
        elif linked.kind not in _EFFECT_KINDS:
            self._messages = []
        else:
            self._add_effect(linked, _decode(self._replica, linked))

    def _add_effect(self, linked: VerifiedRecord, content: Content) -> None:
        replica, effects = self._replica, self.effects
        if isinstance(content, EffectIntent):
            id = linked.id
            effects[id] = _from_call(replica, linked, content)
            self._id_at[linked.position] = id
            if content.begun_after:
                self._recorded_once.add(id)
            previous = effects.get(self._id_at.get(content.retry_of, ""))
            if previous is not None and previous.version != content.version:
                effects[id] = effects[id]._replace(before=previous.version)
            if previous is not None and previous.state == INTENDED:
                effects[previous.id] = previous._replace(state=REPEATED)
        elif isinstance(content, ApprovalRequested):
            self._requests[linked.id] = _from_call(replica, linked, content)
        elif isinstance(content, EffectOutcome):
            begun = effects.get(content.effect) or self._requests.get(content.effect)
            if begun is not None:
                ended = _with_outcome(replica, begun, content, self._messages)
                if begun.id in self._recorded_once:  # Its record has the time when it ended.
                    ended = ended._replace(time=begun.time - timedelta(seconds=ended.duration))
                effects[content.effect] = ended


def _from_call(
    replica: Replica, linked: VerifiedRecord, content: EffectIntent | ApprovalRequested
) -> EffectInfo:
    """Return a call that was begun, or one that waits for an approval and has no intent yet."""
    intent = content if isinstance(content, EffectIntent) else None
    return EffectInfo(
        id=linked.id,
        kind=intent.call_type if intent else "tool",
        tool=content.tool,
        state=INTENDED,
        arguments=replica.settings.codec.unpack(content.arguments, stream=replica.name),
        result=None,
        error="",
        reason="",
        key=key_of(linked.id, intent) if intent else "",
        policy=intent.policy if intent else "",
        version=content.version,
        turn=content.turn,
        position=linked.position,
        time=_time(replica, linked),
        duration=0.0,
        identity=content.identity,
        before="",
        usage={},
        unstored="",
    )


def _with_outcome(
    replica: Replica,
    effect: EffectInfo,
    content: EffectOutcome,
    messages: Sequence[VerifiedRecord] = (),
) -> EffectInfo:
    if content.shared_form and messages:
        position, message = messages[-1].position, _decode(replica, messages[-1])
        content = results.require_result(replica.name, position, content, message)
    result = replica.settings.codec.unpack(content.result, stream=replica.name)
    usage = result.get("usage") if effect.kind == "model" and isinstance(result, dict) else None
    if content.message_count:
        past, own, count = replica.history, replica.settings.codec, content.message_count
        answers = [history.decode_message(past, own, linked) for linked in messages[-count:]]
        result = [answer.message for answer in answers] if count > 1 else answers[0].message
        usage = answers[-1].meta.get("usage")
    return effect._replace(
        state=content.state,
        result=result,
        usage=usage if isinstance(usage, dict) else {},
        error=content.error,
        reason=content.reason,
        duration=content.duration or effect.duration,
        unstored=content.unstored,
    )


def position_before(replica: Replica, effect: str) -> Steps[int]:
    """Return the last position before an effect at which no call was in flight."""
    in_flight: set[str] = set()
    quiet = 0
    forward = ForwardReader(replica.history)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.id == effect and linked.kind in _EFFECT_KINDS:
                return quiet
            if linked.kind == EffectIntent.kind:
                in_flight.add(_decode(replica, linked).subject)
            elif linked.kind == EffectOutcome.kind:
                in_flight.discard(_decode(replica, linked).subject)
            if not in_flight:
                quiet = linked.position
    raise NotFoundError(f"effect {effect!r}", "see session.effects.list()")


def list_unknown(replica: Replica) -> Steps[list[EffectInfo]]:
    """Return the effects whose outcome is unknown; costs a few reads per effect."""
    effects = []
    session, past, _ = replica.view
    for state in session.effects.by_identity.values():
        if state.state == UNKNOWN:
            linked = yield from reader.read_record(past, state.intent, check_tip=False)
            intent = _decode(replica, linked)
            intent = reader.require_kind(replica.name, state.intent, intent, EffectIntent)
            outcome = yield from reader.read_kind(past, state.outcome, EffectOutcome)
            effects.append(_with_outcome(replica, _from_call(replica, linked, intent), outcome))
    return effects


def plan_reconciliation(replica: Replica, effect: str | EffectInfo, outcome: object) -> Plan[int]:
    """Plan to record the real outcome of an unknown effect, and a message for the model."""
    id = effect.id if isinstance(effect, EffectInfo) else effect
    states = replica.state.effects.by_identity
    matches = [(identity, state) for identity, state in states.items() if state.effect == id]
    if not matches or matches[0][1].state != UNKNOWN:
        raise NotFoundError(f"an unknown effect {id!r}", "see session.effects.unknown()")
    identity, state = matches[0]
    if isinstance(outcome, Happened):
        packed = replica.settings.codec.pack(outcome.result, root="$.result")
        settled = CallOutcome("reconciled", packed)
        verdict = f"It took effect, with this result: {to_model_text(outcome.result)}"
    elif isinstance(outcome, DidNotHappen):
        settled = CallOutcome("reconciled", error="DidNotHappen", reason="It did not happen.")
        verdict = "It did not take effect."
    else:
        raise UsageError(f"give Happened(result) or DidNotHappen(), not {type(outcome).__name__}")
    text = f"The outcome of an earlier call of {state.tool!r}, unknown until now: {verdict}"
    message = IncomingMessage({"role": "user", "content": text}, {})
    return plans.plan_outcome(replica, identity, id, settled, message=message, origin=RECONCILED)
