"""Effects as a person or a program looks at them: what was called, and what became of it. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from perdure import journal, reading, views
from perdure.approvals.records import ApprovalAsked
from perdure.content import Content
from perdure.conversations.intake import Taken
from perdure.effects import effecting, retelling
from perdure.effects.deeds import INTENDED, UNKNOWN
from perdure.effects.effecting import Kind, Outcome
from perdure.effects.tools import Done, NotDone, text_of
from perdure.errors import ChainError, NotFoundError, UsageError
from perdure.journal import Linked
from perdure.plans import Plan
from perdure.reading import Forward
from perdure.records import EffectIntended, EffectSettled, Message
from perdure.replica import Replica
from perdure.steps import Steps

REPEATED = "repeated"
_KINDS = (EffectIntended.kind, EffectSettled.kind, ApprovalAsked.kind)
RECONCILED = "perdure:reconciled"  # The origin of messages that tell of an outcome found later.


class Found(NamedTuple):
    """An effect. `state` is intended, succeeded, failed, unknown or reconciled.

    It is `repeated` where the call was made again with the same key, because its policy allows it.
    A call that nobody approved has failed, and its id is that of the approval.
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
    """The version that was tried before, where this is another attempt with another one."""
    usage: dict[str, Any]
    """What a model's answer says that it took."""


class Wanted(NamedTuple):
    """Which effects are to be listed; None is for any."""

    tool: str | None
    turn: str | None
    kind: str | None
    since: datetime | None
    until: datetime | None

    def check(self) -> None:
        """Raise unless it can be answered."""
        if self.kind not in (None, "tool", "model"):
            raise UsageError(f'no kind {self.kind!r} of effect: choose "tool" or "model"')
        times: tuple[object, ...] = (self.since, self.until)
        for time in times:
            if time is not None and not (isinstance(time, datetime) and time.tzinfo):
                raise UsageError(f"since and until are datetimes with a zone, not {time!r}")

    def has(self, one: Found) -> bool:
        """Whether an effect is one of them."""
        return (
            self.tool in (None, one.tool)
            and self.turn in (None, one.turn)
            and self.kind in (None, one.kind)
            and (self.since is None or one.time >= self.since)
            and (self.until is None or one.time < self.until)
        )


def listed(replica: Replica, wanted: Wanted) -> Steps[list[Found]]:
    """Return the effects of a session in order, those that are wanted."""
    wanted.check()
    listing = _Listing(replica)
    forward = Forward(replica.past)
    while (whole := (yield from forward.page())) is not None:
        for linked in whole:
            listing.take(linked)
    return [one for one in listing.found.values() if wanted.has(one)]


class _Listing:
    """Puts effects together from records in order."""

    def __init__(self, replica: Replica) -> None:
        self.found: dict[str, Found] = {}
        self._replica = replica
        self._at: dict[int, str] = {}
        self._asked: dict[str, Found] = {}
        self._said: list[Linked] = []

    def take(self, linked: Linked) -> None:
        if linked.header.kind == Message.kind:
            self._said.append(linked)
        elif linked.header.kind not in _KINDS:
            self._said = []
        else:
            content = journal.decode(self._replica.name, linked, self._replica.past.cipher)
            self._effect(linked, content)

    def _effect(self, linked: Linked, content: Content) -> None:
        replica, found = self._replica, self.found
        if isinstance(content, EffectIntended):
            time = journal.record(replica.name, linked, content).time
            effect = linked.header.id
            found[effect] = _found(replica, effect, content, linked.entry.position, time)
            self._at[linked.entry.position] = effect
            before = found.get(self._at.get(content.retries, ""))
            if before is not None and before.version != content.version:
                found[effect] = found[effect]._replace(before=before.version)
            if before is not None and before.state == INTENDED:
                found[before.id] = before._replace(state=REPEATED)
        elif isinstance(content, ApprovalAsked):
            self._asked[linked.header.id] = _asked(replica, linked, content)
        elif isinstance(content, EffectSettled):
            begun = found.get(content.effect) or self._asked.get(content.effect)
            if begun is not None:
                found[content.effect] = _settled(replica, begun, content, self._said)


def _found(
    replica: Replica, effect: str, content: EffectIntended, position: int, time: datetime
) -> Found:
    return Found(
        id=effect,
        kind=content.called,
        tool=content.tool,
        state=INTENDED,
        arguments=replica.settings.codec.unpack(content.arguments, stream=replica.name),
        result=None,
        error="",
        reason="",
        key=content.key,
        policy=content.policy,
        version=content.version,
        turn=content.turn,
        position=position,
        time=time,
        duration=0.0,
        identity=content.identity,
        before="",
        usage={},
    )


def _asked(replica: Replica, linked: Linked, content: ApprovalAsked) -> Found:
    """Return a call that is not made unless somebody approves it: it has no intent yet."""
    time = journal.record(replica.name, linked, content).time
    intent = EffectIntended(
        identity=content.identity,
        tool=content.tool,
        arguments=content.arguments,
        digest=content.digest,
        key="",
        policy="unsafe",
        turn=content.turn,
        owner="",
        version=content.version,
    )
    found = _found(replica, linked.header.id, intent, linked.entry.position, time)
    return found._replace(policy="")


def _settled(
    replica: Replica, one: Found, content: EffectSettled, said: Sequence[Linked] = ()
) -> Found:
    if content.told and said:
        message = journal.decode(replica.name, said[-1], replica.past.cipher)
        found = isinstance(message, Message) and retelling.restored(content, message.message)
        if not found:
            position = said[-1].entry.position
            raise ChainError(replica.name, position, "the result of a call is expected here")
        content = found
    result = replica.settings.codec.unpack(content.result, stream=replica.name)
    usage = result.get("usage") if one.kind == "model" and isinstance(result, dict) else None
    if content.said:
        answer = [_message(replica, linked) for linked in said[-content.said :]]
        result = [one.message for one in answer] if content.said > 1 else answer[0].message
        usage = answer[-1].meta.get("usage")
    return one._replace(
        state=content.state,
        result=result,
        usage=usage if isinstance(usage, dict) else {},
        error=content.error,
        reason=content.reason,
        duration=content.duration or one.duration,
    )


def before(replica: Replica, effect: str) -> Steps[int]:
    """Return the last position before an effect at which no call was under way."""
    open_: dict[str, str] = {}
    quiet = 0
    forward = Forward(replica.past)
    name, cipher = replica.name, replica.past.cipher
    while (whole := (yield from forward.page())) is not None:
        for linked in whole:
            if linked.header.id == effect and linked.header.kind in _KINDS:
                return quiet
            if linked.header.kind == EffectIntended.kind:
                content = journal.decode(name, linked, cipher)
                open_[content.subject] = linked.header.id
            elif linked.header.kind == EffectSettled.kind:
                content = journal.decode(name, linked, cipher)
                open_.pop(content.subject, None)
            if not open_:
                quiet = linked.entry.position
    raise NotFoundError(f"effect {effect!r}", "see session.effects.list()")


def _message(replica: Replica, linked: Linked) -> Message:
    payload = journal.open_body(replica.name, linked, replica.past.cipher)
    return views.said_of(replica, payload, linked.entry.position)


def unknown(replica: Replica) -> Steps[list[Found]]:
    """Return the effects whose outcome nobody knows; it costs a read each."""
    found = []
    for deed in replica.fold.deeds.by_identity.values():
        if deed.state == UNKNOWN:
            linked = yield from reading.entry_at(replica.past, deed.intent)
            content = journal.decode(replica.name, linked, replica.past.cipher)
            settled = yield from reading.content_at(replica.past, deed.outcome)
            if not isinstance(content, EffectIntended) or not isinstance(settled, EffectSettled):
                raise ChainError(replica.name, deed.intent, "an effect is expected here")
            time = journal.record(replica.name, linked, content).time
            one = _found(replica, deed.effect, content, deed.intent, time)
            found.append(_settled(replica, one, settled))
    return found


def reconcile(replica: Replica, given: str | Found, outcome: object) -> Plan:
    """Plan to record what an unknown effect turned out to be, and to tell the model of it."""
    effect = given.id if isinstance(given, Found) else given
    deeds = replica.fold.deeds.by_identity
    found = [(identity, deed) for identity, deed in deeds.items() if deed.effect == effect]
    if not found or found[0][1].state != UNKNOWN:
        raise NotFoundError(f"an unknown effect {effect!r}", "see session.effects.unknown()")
    identity, deed = found[0]
    if isinstance(outcome, Done):
        packed = replica.settings.codec.pack(outcome.result, root="$.result")
        settled = Outcome("reconciled", packed)
        told = f"It took effect, with this result: {text_of(outcome.result)}"
    elif isinstance(outcome, NotDone):
        settled = Outcome("reconciled", error="NotDone", reason="It did not happen.")
        told = "It did not take effect."
    else:
        raise UsageError(f"give Done(result) or NotDone(), not {type(outcome).__name__}")
    text = f"The outcome of an earlier call of {deed.tool!r}, unknown until now: {told}"
    said = Taken({"role": "user", "content": text}, {})
    return effecting.settle(replica, identity, effect, settled, said=said, origin=RECONCILED)
