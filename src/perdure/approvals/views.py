"""Approvals as a person or a program looks at them: what is to be run, and who decided. Pure."""

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

    It is void where nobody can use it any more: its turn ended, the tool has another version now,
    or it was asked for in the past that a branch shares. `digest` is that of the tool, its version
    and the arguments together: what a decision is bound to.
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
    """Return the approvals that wait for a decision; it costs a read each."""
    found = []
    for consent in replica.fold.deeds.consents.by_identity.values():
        if consent.state == WAITING and not approving.is_over(replica.settings, consent.expires):
            linked = yield from reading.entry_at(replica.past, consent.asked)
            content = journal.decode(replica.name, linked, replica.past.cipher)
            if not isinstance(content, ApprovalAsked):
                raise ChainError(replica.name, consent.asked, "a request is expected here")
            found.append(_approval(replica, linked, content))
    return found


def listed(replica: Replica) -> Steps[list[Approval]]:
    """Return all approvals of a session in order; it reads the whole session."""
    kinds = {ApprovalAsked.kind, ApprovalDecided.kind, EffectIntended.kind, Branched.kind}
    kinds |= {"turn.completed", "turn.failed", "turn.abandoned"}
    found: dict[str, Approval] = {}
    forward = Forward(replica.past)
    while (whole := (yield from forward.page())) is not None:
        for linked in whole:
            if linked.header.kind in kinds:
                content = journal.decode(replica.name, linked, replica.past.cipher)
                _take(replica, found, linked, content)
    return [_timed(replica, one) for one in found.values()]


def _take(replica: Replica, found: dict[str, Approval], linked: Linked, content: Content) -> None:
    if isinstance(content, ApprovalAsked):
        _void(found, lambda one: one.identity == content.identity)
        found[linked.header.id] = _approval(replica, linked, content)
    elif isinstance(content, ApprovalDecided) and content.approval in found:
        one = found[content.approval]
        ends = content.decision == EXPIRED and one.state == APPROVED
        if content.bound == one.digest and (one.state == WAITING or ends):
            time = journal.record(replica.name, linked, content).time
            decided = one._replace(state=content.decision, decided=time)
            found[one.id] = decided._replace(by=content.by, reason=content.reason)
    elif isinstance(content, EffectIntended) and content.approval in found:
        found[content.approval] = found[content.approval]._replace(state=USED)
    elif isinstance(content, Branched):
        _void(found, lambda _: True)
    elif isinstance(content, TurnChange) and not isinstance(content, TurnContinued):
        _void(found, lambda one: one.turn == content.turn)


def _void(found: dict[str, Approval], which: Any) -> None:
    for one in found.values():
        if one.state in (WAITING, APPROVED) and which(one):
            found[one.id] = one._replace(state=VOID)


def _timed(replica: Replica, one: Approval) -> Approval:
    """An end that nobody has recorded yet is shown all the same."""
    if one.expires is None or one.state not in (WAITING, APPROVED):
        return one
    over = approving.is_over(replica.settings, one.expires.isoformat())
    return one._replace(state=EXPIRED) if over else one


def _approval(replica: Replica, linked: Linked, content: ApprovalAsked) -> Approval:
    position = linked.entry.position
    if digest_of(codec.encode_tree(content.arguments)) != content.digest:
        reason = "the arguments to approve are not those of their digest"
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


def missing(replica: Replica, approval: str) -> Steps[NotFoundError | ApprovalError]:
    """Return what to raise about an approval that does not wait: what became of it, if known."""
    found = yield from listed(replica)
    one = next((one for one in found if one.id == approval), None)
    if one is None:
        hint = "see session.approvals.list(), or `perdure approvals`"
        return NotFoundError(f"approval {approval!r} in session {replica.name!r}", hint)
    by = f"by {one.by!r}" if one.by else ""
    return ApprovalError(replica.name, approval, one.state, by)
