"""What stands in a session's record, laid out so that it can be walked along again. Pure.

A step is a record. A call is an effect with all its attempts and outcomes, and the messages that
told the model of them. Calls that overlapped ran side by side: their order says nothing.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure import journal
from perdure.approvals.records import ApprovalAsked
from perdure.content import Content
from perdure.conversations.talking import INTERRUPTED
from perdure.effects import effecting, retelling
from perdure.effects.deed_views import RECONCILED
from perdure.effects.effecting import Called
from perdure.journal import Linked, Tip
from perdure.reading import Forward
from perdure.records import EffectIntended, EffectSettled, Message
from perdure.replica import Replica
from perdure.saying import Ownership
from perdure.steps import Steps
from perdure.transcript import answers

FAR = 1 << 62

# What perdure writes by itself, or somebody beside the agent.
NOT_THE_AGENTS = frozenset(
    {"branched", "kept", "piece", "recovered", "released", "snapshot", "turn.continued"}
)


class Step(NamedTuple):
    """A record, by its number among those that are walked along."""

    number: int
    id: str
    content: Content
    payload: bytes
    tip: Tip
    left: int

    @property
    def position(self) -> int:
        return self.tip.position

    @property
    def kind(self) -> str:
        return self.content.kind

    def said_in(self, turn: str) -> bool:
        """Whether it is a message of a turn."""
        return isinstance(self.content, Message) and self.content.turn == turn


class Call:
    """An effect, whoever tried it and however often."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.attempts: list[tuple[int, EffectIntended]] = []
        self.outcomes: list[tuple[int, EffectSettled]] = []
        self.told: list[int] = []
        self.refused = False
        """Whether it was never made, because somebody denied it: then nothing was intended."""
        self.group = 0
        """The same for calls that ran side by side."""

    @property
    def first(self) -> int:
        return self.attempts[0][0]

    @property
    def last(self) -> int:
        """Where the call ended: with its first outcome after its last attempt."""
        begun = self.attempts[-1][0]
        return next((index for index, _ in self.outcomes if index > begun), FAR)

    @property
    def intent(self) -> EffectIntended:
        return self.attempts[-1][1]

    @property
    def outcome(self) -> EffectSettled | None:
        """What became of it when it was made; what was found out later is not part of that."""
        return next((content for index, content in self.outcomes if index == self.last), None)

    @property
    def indexes(self) -> list[int]:
        """The steps that belong to it."""
        return [*(index for index, _ in (*self.attempts, *self.outcomes)), *self.told]


def is_own(content: Content) -> bool:
    """Whether perdure wrote it as part of something else: what is left of a cut answer, for one."""
    if isinstance(content, Message):
        return content.interrupted or content.origin in (INTERRUPTED, RECONCILED)
    return content.kind in ("recovered", "snapshot")


def as_intent(made: Called) -> EffectIntended:
    """Return a call as it would be recorded."""
    return effecting.intent(made, Ownership("", ""), "", retries=0)


def read(replica: Replica) -> Steps[list[Step]]:
    """Return all records in the view of a session; it reads the whole past."""
    found: list[Linked] = []
    forward = Forward(replica.past)
    while (whole := (yield from forward.page())) is not None:
        found += whole
    name, cipher = replica.name, replica.past.cipher
    return [
        Step(
            index,
            linked.header.id,
            journal.decode(name, linked, cipher),
            journal.open_body(name, linked, cipher),
            linked.tip,
            linked.header.left,
        )
        for index, linked in enumerate(found)
    ]


def calls(steps: Sequence[Step]) -> dict[str, Call]:
    """Return the calls in a record by their identity."""
    found: dict[str, Call] = {}
    waiting: dict[str, Step] = {}
    for step in steps:
        content = step.content
        if isinstance(content, EffectIntended):
            call = found.setdefault(content.identity, Call(content.identity))
            call.attempts.append((step.number, content))
        elif isinstance(content, ApprovalAsked):
            waiting[content.identity] = step
        elif isinstance(content, EffectSettled):
            if content.identity not in found and content.identity in waiting:
                found[content.identity] = _refused(waiting[content.identity])
            if content.identity in found:
                _settle(found[content.identity], steps, step, content)
    _group(found.values())
    return found


def _refused(asked: Step) -> Call:
    """Return a call that waited for an approval and did not get it."""
    content = asked.content
    assert isinstance(content, ApprovalAsked)  # noqa: S101 - the caller saw to it
    call = Call(content.identity)
    call.refused = True
    made = Called(
        identity=content.identity,
        tool=content.tool,
        arguments=content.arguments,
        digest=content.digest,
        policy="unsafe",
        version=content.version,
        actor=content.actor,
    )
    call.attempts.append((asked.number, as_intent(made)))
    return call


def _settle(call: Call, steps: Sequence[Step], step: Step, content: EffectSettled) -> None:
    """Take in an outcome, and the message by which the model was told of it in the same append."""
    if content.told:  # The message before it has its result.
        message = steps[step.number - 1].content
        told = (
            retelling.restored(content, message.message) if isinstance(message, Message) else None
        )
        call.outcomes.append((step.number, told or content))
        call.told.append(step.number - 1)
        return
    call.outcomes.append((step.number, content))
    if step.left and content.identity.startswith("issued:"):
        after = steps[step.number + 1]
        if isinstance(after.content, Message) and answers(after.content.message):
            call.told.append(after.number)


def _group(found: Iterable[Call]) -> None:
    number, reached = 0, -1
    for call in sorted(found, key=lambda call: call.first):
        if call.first > reached:
            number += 1
        reached = max(reached, call.last)
        call.group = number
