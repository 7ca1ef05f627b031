"""Effects as users see them: list them, find the unknown ones, reconcile one. Pure.

In: the records of a session. Out: `Found` values with unpacked arguments and results, and a plan
for a reconciliation.
"""

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
RECONCILED = "perdure:reconciled"  # origin of the message that reports a reconciled outcome


class Found(NamedTuple):
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


class Wanted(NamedTuple):
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

    def matches(self, effect: Found) -> bool:
        """Whether an effect passes the filter."""
        return (
            self.tool in (None, effect.tool)
            and self.turn in (None, effect.turn)
            and self.kind in (None, effect.kind)
            and (self.since is None or effect.time >= self.since)
            and (self.until is None or effect.time < self.until)
        )


def listed(replica: Replica, wanted: Wanted) -> Steps[list[Found]]:
    """Return the effects of a session that match a filter, in order. Reads the whole session."""
    wanted.check()
    listing = _Listing(replica)
    forward = Forward(replica.past)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            listing.add(linked)
    return [effect for effect in listing.effects.values() if wanted.matches(effect)]


class _Listing:
    """Builds effects from records, which are added in order."""

    def __init__(self, replica: Replica) -> None:
        self.effects: dict[str, Found] = {}
        self._replica = replica
        self._id_at: dict[int, str] = {}
        self._requests: dict[str, Found] = {}
        self._messages: list[Linked] = []
        """The messages right before the next record: an outcome may refer to the last of them."""

    def add(self, linked: Linked) -> None:
        if linked.header.kind == Message.kind:
            self._messages.append(linked)
        elif linked.header.kind not in _KINDS:
            self._messages = []
        else:
            content = journal.decode(self._replica.name, linked, self._replica.past.cipher)
            self._add_effect(linked, content)

    def _add_effect(self, linked: Linked, content: Content) -> None:
        replica, effects = self._replica, self.effects
        if isinstance(content, EffectIntended):
            time = journal.record(replica.name, linked, content).time
            id = linked.header.id
            effects[id] = _found(replica, id, content, linked.entry.position, time)
            self._id_at[linked.entry.position] = id
            previous = effects.get(self._id_at.get(content.retries, ""))
            if previous is not None and previous.version != content.version:
                effects[id] = effects[id]._replace(before=previous.version)
            if previous is not None and previous.state == INTENDED:
                effects[previous.id] = previous._replace(state=REPEATED)
        elif isinstance(content, ApprovalAsked):
            self._requests[linked.header.id] = _asked(replica, linked, content)
        elif isinstance(content, EffectSettled):
            begun = effects.get(content.effect) or self._requests.get(content.effect)
            if begun is not None:
                effects[content.effect] = _settled(replica, begun, content, self._messages)


def _found(
    replica: Replica, id: str, content: EffectIntended, position: int, time: datetime
) -> Found:
    return Found(
        id=id,
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
    """Return a call that waits for an approval: it has no intent yet."""
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
    effect = _found(replica, linked.header.id, intent, linked.entry.position, time)
    return effect._replace(policy="")


def _settled(
    replica: Replica, effect: Found, content: EffectSettled, messages: Sequence[Linked] = ()
) -> Found:
    if content.told and messages:
        message = journal.decode(replica.name, messages[-1], replica.past.cipher)
        restored = isinstance(message, Message) and retelling.restored(content, message.message)
        if not restored:
            position = messages[-1].entry.position
            raise ChainError(replica.name, position, "the result of a call is expected here")
        content = restored
    result = replica.settings.codec.unpack(content.result, stream=replica.name)
    usage = result.get("usage") if effect.kind == "model" and isinstance(result, dict) else None
    if content.said:
        answers = [_message(replica, linked) for linked in messages[-content.said :]]
        result = [answer.message for answer in answers]
        result = result if content.said > 1 else answers[0].message
        usage = answers[-1].meta.get("usage")
    return effect._replace(
        state=content.state,
        result=result,
        usage=usage if isinstance(usage, dict) else {},
        error=content.error,
        reason=content.reason,
        duration=content.duration or effect.duration,
    )


def before(replica: Replica, effect: str) -> Steps[int]:
    """Return the last position before an effect at which no call was in flight."""
    in_flight: dict[str, str] = {}
    quiet = 0
    forward = Forward(replica.past)
    name, cipher = replica.name, replica.past.cipher
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.header.id == effect and linked.header.kind in _KINDS:
                return quiet
            if linked.header.kind == EffectIntended.kind:
                content = journal.decode(name, linked, cipher)
                in_flight[content.subject] = linked.header.id
            elif linked.header.kind == EffectSettled.kind:
                content = journal.decode(name, linked, cipher)
                in_flight.pop(content.subject, None)
            if not in_flight:
                quiet = linked.entry.position
    raise NotFoundError(f"effect {effect!r}", "see session.effects.list()")


def _message(replica: Replica, linked: Linked) -> Message:
    payload = journal.open_body(replica.name, linked, replica.past.cipher)
    return views.said_of(replica, payload, linked.entry.position)


def unknown(replica: Replica) -> Steps[list[Found]]:
    """Return the effects whose outcome is unknown; costs two reads per effect."""
    effects = []
    for state in replica.state.deeds.by_identity.values():
        if state.state == UNKNOWN:
            linked = yield from reading.entry_at(replica.past, state.intent)
            intent = journal.decode(replica.name, linked, replica.past.cipher)
            outcome = yield from reading.content_at(replica.past, state.outcome)
            if not isinstance(intent, EffectIntended) or not isinstance(outcome, EffectSettled):
                raise ChainError(replica.name, state.intent, "an effect is expected here")
            time = journal.record(replica.name, linked, intent).time
            effect = _found(replica, state.effect, intent, state.intent, time)
            effects.append(_settled(replica, effect, outcome))
    return effects


def reconcile(replica: Replica, effect: str | Found, outcome: object) -> Plan:
    """Plan to record the real outcome of an unknown effect, and a message for the model."""
    id = effect.id if isinstance(effect, Found) else effect
    states = replica.state.deeds.by_identity
    matches = [(identity, state) for identity, state in states.items() if state.effect == id]
    if not matches or matches[0][1].state != UNKNOWN:
        raise NotFoundError(f"an unknown effect {id!r}", "see session.effects.unknown()")
    identity, state = matches[0]
    if isinstance(outcome, Done):
        packed = replica.settings.codec.pack(outcome.result, root="$.result")
        settled = Outcome("reconciled", packed)
        verdict = f"It took effect, with this result: {text_of(outcome.result)}"
    elif isinstance(outcome, NotDone):
        settled = Outcome("reconciled", error="NotDone", reason="It did not happen.")
        verdict = "It did not take effect."
    else:
        raise UsageError(f"give Done(result) or NotDone(), not {type(outcome).__name__}")
    text = f"The outcome of an earlier call of {state.tool!r}, unknown until now: {verdict}"
    message = Taken({"role": "user", "content": text}, {})
    return effecting.settle(replica, identity, id, settled, message=message, origin=RECONCILED)
