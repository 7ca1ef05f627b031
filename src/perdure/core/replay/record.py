"""The record of a session, structured for replay: steps, and calls with their attempts. Pure.

A step is one record. A call is an effect with all its attempts and outcomes, and its result
messages for the model. Calls that overlapped ran in parallel: their order carries no meaning.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.core.effects import plans, results
from perdure.core.effects.calls import CallRequest
from perdure.core.effects.listing import RECONCILED
from perdure.core.plans import TurnOwnership
from perdure.core.replica import Replica
from perdure.core.streaming import INTERRUPTED_ORIGIN
from perdure.formats.tool_calls import answers
from perdure.journal import chain
from perdure.journal.chain import ChainTip, VerifiedRecord
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.large import join_records
from perdure.journal.parts import Part
from perdure.journal.records import (
    ApprovalRequested,
    Content,
    EffectIntent,
    EffectOutcome,
    Message,
    UnknownContent,
    Value,
)
from perdure.journal.requests import Steps

NO_STEP = 1 << 62  # step index beyond every record, for calls without an outcome


# Kinds that perdure writes itself, or that other processes write while the agent runs.
SKIPPED_KINDS = frozenset(
    {
        *("branch.kept", "branch.released", "branched", "carried", "compacted", "copied"),
        *("erased", "ids.dropped", "index", "message.chunk", "omitted", "part", "snapshot"),
        *("turn.continued", "view"),
    }
)


class RecordedStep(NamedTuple):
    """A record with its index in the replay.

    `remaining` is the number of records after it in the same append.
    """

    number: int
    id: str
    content: Content
    payload: bytes
    tip: ChainTip
    remaining: int

    @property
    def position(self) -> int:
        return self.tip.position

    @property
    def kind(self) -> str:
        return self.content.kind

    def is_message_of(self, turn: str) -> bool:
        """Whether it is a message of a turn."""
        return isinstance(self.content, Message) and self.content.turn == turn


class RecordedCall:
    """An effect with all its attempts, by any process."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.attempts: list[tuple[int, EffectIntent]] = []
        self.outcomes: list[tuple[int, EffectOutcome]] = []
        self.messages: list[int] = []
        """The steps of its result messages."""
        self.refused = False
        """Whether it was never made because its approval was denied: then it has no intent."""
        self.group = 0
        """The same number for calls that ran in parallel."""
        self.begun = 0
        """The step at which it began: `first`, or an earlier one if it was recorded afterwards."""

    @property
    def first(self) -> int:
        return self.attempts[0][0]

    @property
    def last_begun(self) -> int:
        """The step at which its last attempt began."""
        return self.begun if len(self.attempts) == 1 else self.attempts[-1][0]

    @property
    def last(self) -> int:
        """The step where the call ended: the first outcome after the last attempt."""
        begun = self.attempts[-1][0]
        return next((index for index, _ in self.outcomes if index > begun), NO_STEP)

    @property
    def intent(self) -> EffectIntent:
        return self.attempts[-1][1]

    @property
    def outcome(self) -> EffectOutcome | None:
        """The outcome that the agent saw; a later reconciliation is not part of that."""
        return next((content for index, content in self.outcomes if index == self.last), None)

    @property
    def indexes(self) -> list[int]:
        """The steps that belong to it."""
        return [*(index for index, _ in (*self.attempts, *self.outcomes)), *self.messages]


def written_by_perdure(content: Content) -> bool:
    """Whether perdure wrote a record by itself, such as the rest of an interrupted answer."""
    if isinstance(content, Message):
        return content.interrupted or content.origin in (INTERRUPTED_ORIGIN, RECONCILED)
    # A record of a kind that this version may skip was not written by the agent either.
    is_unknown = isinstance(content, UnknownContent)
    return is_unknown or content.kind in ("index", "part", "snapshot", "view")


def to_intent(call: CallRequest) -> EffectIntent:
    """Return the intent that would be recorded for a call."""
    return plans.intent_record(call, TurnOwnership("", ""), "", retry_of=0)


def read_steps(replica: Replica) -> Steps[list[RecordedStep]]:
    """Return all records in the view of a session; reads the whole history."""
    records: list[VerifiedRecord] = []
    forward = ForwardReader(replica.history)
    while (page := (yield from forward.page())) is not None:
        records += [linked for linked in page if linked.kind != Part.kind]
    # Values are compared as documents, which their deltas make.
    others = [linked for linked in records if linked.kind != Value.kind]
    yield from join_records(replica.history, others, sys.maxsize)
    name, cipher = replica.name, replica.history.cipher
    return [
        RecordedStep(index, record.id, record.content, record.payload, linked.tip, linked.remaining)
        for index, linked in enumerate(records)
        for record in [chain.decode_record(name, linked, cipher)]
    ]


def calls_by_identity(steps: Sequence[RecordedStep]) -> dict[str, RecordedCall]:
    """Return the calls in a record by their identity."""
    by_identity: dict[str, RecordedCall] = {}
    requests: dict[str, RecordedStep] = {}
    for step in steps:
        content = step.content
        if isinstance(content, EffectIntent):
            call = by_identity.setdefault(content.identity, RecordedCall(content.identity))
            call.attempts.append((step.number, content))
        elif isinstance(content, ApprovalRequested):
            requests[content.identity] = step
        elif isinstance(content, EffectOutcome):
            if content.identity not in by_identity and content.identity in requests:
                by_identity[content.identity] = _refused_call(requests[content.identity])
            if content.identity in by_identity:
                _add_outcome(by_identity[content.identity], steps, step, content)
    _group_parallel(by_identity.values(), steps)
    return by_identity


def _refused_call(request: RecordedStep) -> RecordedCall:
    """Return a call whose approval was requested and not given."""
    content = request.content
    assert isinstance(content, ApprovalRequested)  # noqa: S101 - checked by the caller
    call = RecordedCall(content.identity)
    call.refused = True
    requested = CallRequest(
        identity=content.identity,
        tool=content.tool,
        arguments=content.arguments,
        digest=content.digest,
        policy="unsafe",
        version=content.version,
        actor=content.actor,
    )
    call.attempts.append((request.number, to_intent(requested)))
    return call


def _add_outcome(
    call: RecordedCall, steps: Sequence[RecordedStep], step: RecordedStep, content: EffectOutcome
) -> None:
    """Add an outcome, and the result message that was stored in the same append."""
    if content.shared_form:  # Its result is stored in the message before it.
        message = steps[step.number - 1].content
        if isinstance(message, Message):
            content = results.restore_result(content, message.message) or content
        call.outcomes.append((step.number, content))
        call.messages.append(step.number - 1)
        return
    call.outcomes.append((step.number, content))
    if step.remaining and content.identity.startswith("issued:"):
        after = steps[step.number + 1]
        result = after.content
        if isinstance(result, Message) and not result.opaque and answers(result.message):
            call.messages.append(after.number)


def _group_parallel(unordered: Iterable[RecordedCall], steps: Sequence[RecordedStep]) -> None:
    """Note where calls began, and number them so that overlapping ones have the same group."""
    number, reached = 0, -1
    calls = [*unordered]
    for call in calls:
        begun_after = call.attempts[0][1].begun_after
        call.begun = call.first
        if begun_after:
            call.begun = bisect_right(steps, begun_after, key=lambda step: step.position)
    for call in sorted(calls, key=lambda call: call.begun):
        if call.begun > reached:
            number += 1
        reached = max(reached, call.last)
        call.group = number
