"""Approvals as users see them: the call to run, its state, and the decision. Pure.

In: the records of a session. Out: `Approval` values with unpacked arguments. Arguments that do not
match their digest raise DamagedError: a person must see exactly the call that will run.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from perdure import codec, journal, reading
from perdure.approvals import approving
from perdure.approvals.consents import APPROVED, EXPIRED, USED, WAITING, binding
from perdure.approvals.records import ApprovalAsked, ApprovalDecided
from perdure.backend import digest_of
from perdure.content import Content
from perdure.errors import ApprovalError, ChainError, DamagedError, NotFoundError
from perdure.journal import Linked
from perdure.reading import Forward
from perdure.records import Branched, EffectIntended, TurnChange, TurnContinued
from perdure.replica import Replica
from perdure.steps import Steps

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


def pending(replica: Replica) -> Steps[list[Approval]]:
    """Return the approvals that wait for a decision; costs one read per approval."""
    approvals = []
    for state in replica.state.deeds.consents.by_identity.values():
        if state.state == WAITING and not approving.is_over(replica.settings, state.expires):
            linked = yield from reading.entry_at(replica.past, state.request)
            content = journal.decode(replica.name, linked, replica.past.cipher)
            if not isinstance(content, ApprovalAsked):
                raise ChainError(replica.name, state.request, "a request is expected here")
            approvals.append(_approval(replica, linked, content))
    return approvals


def listed(replica: Replica) -> Steps[list[Approval]]:
    """Return all approvals of a session in order; reads the whole session."""
    kinds = {ApprovalAsked.kind, ApprovalDecided.kind, EffectIntended.kind, Branched.kind}
    kinds |= {"turn.completed", "turn.failed", "turn.abandoned"}
    approvals: dict[str, Approval] = {}
    forward = Forward(replica.past)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.header.kind in kinds:
                content = journal.decode(replica.name, linked, replica.past.cipher)
                _take(replica, approvals, linked, content)
    return [_timed(replica, approval) for approval in approvals.values()]


def _take(
    replica: Replica, approvals: dict[str, Approval], linked: Linked, content: Content
) -> None:
    """Apply a record to the approvals by id."""
    if isinstance(content, ApprovalAsked):
        _void(approvals, lambda approval: approval.identity == content.identity)
        approvals[linked.header.id] = _approval(replica, linked, content)
    elif isinstance(content, ApprovalDecided) and content.approval in approvals:
        approval = approvals[content.approval]
        expires = content.decision == EXPIRED and approval.state == APPROVED
        if content.bound == approval.digest and (approval.state == WAITING or expires):
            time = journal.record(replica.name, linked, content).time
            decided = approval._replace(state=content.decision, decided=time)
            approvals[approval.id] = decided._replace(by=content.by, reason=content.reason)
    elif isinstance(content, EffectIntended) and content.approval in approvals:
        approvals[content.approval] = approvals[content.approval]._replace(state=USED)
    elif isinstance(content, Branched):
        _void(approvals, lambda _: True)
    elif isinstance(content, TurnChange) and not isinstance(content, TurnContinued):
        _void(approvals, lambda approval: approval.turn == content.turn)


def _void(approvals: dict[str, Approval], matches: Callable[[Approval], bool]) -> None:
    for approval in approvals.values():
        if approval.state in (WAITING, APPROVED) and matches(approval):
            approvals[approval.id] = approval._replace(state=VOID)


def _timed(replica: Replica, approval: Approval) -> Approval:
    """Return an approval as expired if its time is over, even if no record says so yet."""
    if approval.expires is None or approval.state not in (WAITING, APPROVED):
        return approval
    expired = approving.is_over(replica.settings, approval.expires.isoformat())
    return approval._replace(state=EXPIRED) if expired else approval


def _approval(replica: Replica, linked: Linked, content: ApprovalAsked) -> Approval:
    position = linked.entry.position
    if digest_of(codec.encode_tree(content.arguments)) != content.digest:
        reason = "the arguments to approve do not match their digest"
        raise DamagedError(replica.name, position, reason)
    return Approval(
        session=replica.name,
        id=linked.header.id,
        tool=content.tool,
        version=content.version,
        arguments=replica.settings.codec.unpack(content.arguments, stream=replica.name),
        digest=binding(content.tool, content.version, content.digest),
        state=WAITING,
        actor=content.actor,
        turn=content.turn,
        identity=content.identity,
        position=position,
        time=journal.record(replica.name, linked, content).time,
        expires=datetime.fromisoformat(content.expires) if content.expires else None,
        by="",
        reason="",
        decided=None,
    )


def missing(replica: Replica, id: str) -> Steps[NotFoundError | ApprovalError]:
    """Return the error for an approval that is not pending, with its state if it is known."""
    approvals = yield from listed(replica)
    approval = next((approval for approval in approvals if approval.id == id), None)
    if approval is None:
        hint = "see session.approvals.list(), or `perdure approvals`"
        return NotFoundError(f"approval {id!r} in session {replica.name!r}", hint)
    by = f"by {approval.by!r}" if approval.by else ""
    return ApprovalError(replica.name, id, approval.state, by)
