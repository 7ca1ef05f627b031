"""Find a turn by its id, read its records, and restore what the state held of a failed turn. Pure.

A turn is open in one or more spans of the history: from its beginning to its end, and, if it failed
and was continued, from there to its next end. An open turn is in the state. An ended one is found
by its id, at its newest end, which says where its span began. So the cost depends on the turn, not
on the length of the history.

In: a batch, as a plan gets it, or `replica.new_batch()`. Out: steps. Nothing here writes.
"""

from typing import Any, NamedTuple

from perdure.core.dropped_ids import DroppedRecord
from perdure.core.history import decode_message
from perdure.core.plans import FoundRecord, RecordBatch
from perdure.core.replica import Replica
from perdure.core.state.conversation import ConversationState
from perdure.core.state.effects import KEYED_PREFIX, UNKNOWN, EffectsState
from perdure.core.state.session_state import SessionState
from perdure.core.streaming import INTERRUPTED_ORIGIN
from perdure.errors import CompactedError, DivergenceError
from perdure.formats.tool_calls import open_calls
from perdure.journal import chain, reader
from perdure.journal.chain import VerifiedRecord
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.large import join_content, join_records
from perdure.journal.reader import History
from perdure.journal.records import (
    ApprovalDecided,
    ApprovalRequested,
    Content,
    EffectIntent,
    EffectOutcome,
    Message,
    TurnBegun,
    TurnContinued,
    TurnEnd,
)
from perdure.journal.requests import Steps

_FIRST_PAGE = 8  # entries; the end of a turn is often near the tip, and its answer right before it

_ENDS = frozenset({"turn.completed", "turn.failed", "turn.abandoned"})


class TurnSpan(NamedTuple):
    """Positions between which a turn was open, both included."""

    first: int
    last: int


class TurnPlace(NamedTuple):
    """The place of a turn in the history. `end` is the position of its end, 0 while it is open."""

    turn: str
    begun: int
    end: int = 0
    ended_by: TurnEnd | None = None

    @property
    def outcome(self) -> str:
        """How the turn ended: "completed", "failed" or "abandoned"; "" while it is open."""
        return self.ended_by.kind.removeprefix("turn.") if self.ended_by is not None else ""


def find_turn(batch: RecordBatch, turn: str) -> Steps[TurnPlace | None]:
    """Return where a turn is, or None if none of that id has begun.

    Only ids of callers are indexed. The end of a turn without one is searched for, newest first.
    DivergenceError if the id is that of another record, CompactedError if its records were dropped.
    """
    if turn in batch.state.turns:
        return TurnPlace(turn, batch.state.turns[turn].position)
    if turn.startswith(GENERATED_PREFIX):
        found = yield from _search_end(batch, turn)
    else:
        found = (yield from batch.find(turn)) if batch.may_know(turn) else None
    if found is None:
        return None
    content = found.record.content
    if isinstance(content, DroppedRecord) and content.is_turn:
        raise CompactedError(batch.name, found.position, batch.past.begin)
    if not isinstance(content, TurnEnd):
        raise DivergenceError(batch.name, turn, "a record", "a turn")
    return TurnPlace(turn, content.begun, found.position, content)


def _search_end(batch: RecordBatch, turn: str) -> Steps[FoundRecord | None]:
    """Return the newest end of a turn, or None."""
    for number, draft in enumerate(reversed(batch.pending)):
        if draft.content.kind in _ENDS and draft.content.subject == turn:
            return FoundRecord(batch.position - number, draft)
    entries = _NewestRecords(batch.past)
    while (page := (yield from entries.page())) is not None:
        for linked in page:
            if linked.kind in _ENDS:
                content = chain.decode_content(batch.name, linked, batch.past.cipher)
                if content.subject == turn:
                    position = linked.position
                    return FoundRecord(position, (yield from batch.read_record(position)))
    return None


class _NewestRecords:
    """Reads the records of a history from its end. Pages grow."""

    def __init__(self, past: History) -> None:
        self._backward = reader.read_backward(past)
        self._limit = _FIRST_PAGE

    def page(self) -> Steps[list[VerifiedRecord] | None]:
        """Return the next records, newest first, or None at the beginning."""
        if self._backward.ended:
            return None
        records = yield from self._backward.page(self._limit)
        self._limit = min(reader.PAGE, 4 * self._limit)
        return records


def _spans(batch: RecordBatch, place: TurnPlace) -> Steps[list[TurnSpan]]:
    """Return the spans of a turn, newest first."""
    if place.ended_by is None:
        reopened, last = batch.state.turns[place.turn].reopened, batch.position
    else:
        reopened, last = place.ended_by.reopened, place.end
    spans = [TurnSpan(reopened or place.begun, last)]
    while reopened:
        continued = yield from batch.read(reopened, TurnContinued)
        end = yield from batch.read(continued.ended, TurnEnd)
        reopened = end.reopened
        spans.append(TurnSpan(reopened or place.begun, continued.ended))
    return spans


class TurnRecord(NamedTuple):
    """A record of a turn. `content` has values of callers' types in stored form."""

    position: int
    id: str
    content: Content


def read_turn(batch: RecordBatch, place: TurnPlace) -> Steps[list[TurnRecord]]:
    """Return the records of a turn in order, from its beginning to its end or the tip."""
    records: list[TurnRecord] = []
    for span in reversed((yield from _spans(batch, place))):
        records += yield from _read_span(batch, place.turn, span)
    return records


def _read_span(batch: RecordBatch, turn: str, span: TurnSpan) -> Steps[list[TurnRecord]]:
    records: list[TurnRecord] = []
    past = yield from _until(batch, span.last)
    if span.first <= past.tip.position:
        forward = ForwardReader(past, after=span.first - 1)
        while (page := (yield from forward.page())) is not None:
            for linked in page:
                record = chain.decode_record(batch.name, linked, past.cipher)
                records.append(TurnRecord(linked.position, record.id, record.content))
    # Records of the same append, such as the failure of a turn that another thread tries again.
    for number, draft in enumerate(batch.pending, start=batch.tip.position + 1):
        if span.first <= number <= span.last:
            records.append(TurnRecord(number, draft.id, draft.content))
    return [
        record
        for record in records
        if is_record_of(turn, record.id, record.content)
        # A decision names its approval only. It is applied to approvals of the turn, if any.
        or isinstance(record.content, ApprovalDecided)
    ]


def read_parts(replica: Replica, turn: str) -> Steps[list[tuple[History, TurnSpan]]]:
    """Return the spans in which a turn was open, in order, each with a history that has it whole.

    Others may have written there too: `is_record_of` tells whose a record is.
    """
    batch = replica.new_batch()
    place = yield from find_turn(batch, turn)
    parts = []
    for span in (yield from _spans(batch, place)) if place else ():
        past = yield from _until(batch, span.last)
        parts.append((past, span))
    return parts[::-1]


def is_record_of(turn: str, record_id: str, content: Content) -> bool:
    """Whether a record belongs to a turn."""
    return record_id == turn or getattr(content, "turn", "") == turn


def _until(batch: RecordBatch, last: int) -> Steps[History]:
    """Return the stored history up to a position, to read it backward."""
    if last >= batch.tip.position:
        return batch.past
    return batch.past.until((yield from reader.read_record(batch.past, last)).tip)


def read_effects(replica: Replica, turn: str) -> Steps[EffectsState]:
    """Return the effects of a turn that has ended, as the state held them before."""
    batch = replica.new_batch()
    place = yield from find_turn(batch, turn)
    if place is None:
        return EffectsState()
    facts = yield from _read_facts(batch, place)
    return facts.effects


# Messages.


def read_turn_messages(replica: Replica, turn: str, *, opaque: bool) -> Steps[list[dict[str, Any]]]:
    """Return the messages of a turn in order, without those that were retracted or replaced.

    Opaque messages are among them only if `opaque` says so.
    """
    batch = replica.new_batch()
    place = yield from find_turn(batch, turn)
    if place is None:
        return []
    unpack, below = replica.settings.codec.unpack, replica.settings.part_size
    messages, is_hidden = [], batch.state.conversation.is_hidden
    for record in (yield from read_turn(batch, place)):
        content = yield from join_content(batch.past, record.content, below)
        if isinstance(content, Message) and (opaque or not content.opaque):
            message = unpack(content.message, stream=replica.name, position=record.position)
            messages += [] if is_hidden(record.position) else [message]
    return messages


def read_answer(replica: Replica, turn: str) -> Steps[dict[str, Any] | None]:
    """Return the answer of a turn: its last message of the assistant that calls no tool.

    Reads backwards, so it costs about one read.
    """
    batch = replica.new_batch()
    place = yield from find_turn(batch, turn)
    if place is None:
        return None
    for span in (yield from _spans(batch, place)):
        answer = yield from _newest_answer(replica, batch, turn, span)
        if answer is not None:
            return answer
    return None


def _newest_answer(
    replica: Replica, batch: RecordBatch, turn: str, span: TurnSpan
) -> Steps[dict[str, Any] | None]:
    past = yield from _until(batch, span.last)
    entries = _NewestRecords(past)
    while (page := (yield from entries.page())) is not None:
        for linked in page:
            position = linked.position
            if position < span.first:
                return None
            is_hidden = batch.state.conversation.is_hidden(position)
            if linked.kind == Message.kind and linked.body is not None and not is_hidden:
                yield from join_records(past, [linked], replica.settings.part_size)
                content = decode_message(past, replica.settings.codec, linked)
                if content.turn == turn and is_answer(content):
                    return content.message
    return None


def is_answer(content: Message) -> bool:
    """Whether a message is a whole message of the assistant that calls no tool."""
    message = content.message
    by_model = message.get("role") in ("assistant", "model") and not content.opaque
    return by_model and not content.interrupted and not open_calls(message)


# Continuing a failed turn.


def continuation(batch: RecordBatch, place: TurnPlace) -> Steps[TurnContinued]:
    """Return the record that opens a failed turn again, with all that the state held of it."""
    facts = yield from _read_facts(batch, place)
    own = batch.state.lineage[0].at if batch.state.lineage else 0
    effects, approvals = facts.effects.by_identity, facts.effects.approvals.by_identity
    return TurnContinued(
        turn=place.turn,
        ended=place.end,
        begun=place.begun,
        correlation_id=facts.correlation_id,
        # A call with a caller's own key belongs to the session: it may have been made again.
        effects={
            identity: effect
            for identity, effect in effects.items()
            if not identity.startswith(KEYED_PREFIX)
        },
        # A branch does not have the approvals of its parent.
        approvals={
            identity: approval for identity, approval in approvals.items() if approval.request > own
        },
        calls={
            call_id: call
            for call_id, call in facts.conversation.calls.items()
            if not batch.state.conversation.is_hidden(call.position)
        },
    )


def _read_facts(batch: RecordBatch, place: TurnPlace) -> Steps["_TurnFacts"]:
    """Return what the state held of an ended turn, with the outcomes that were recorded since."""
    newest, *_ = yield from _spans(batch, place)
    facts = _TurnFacts()
    for record in (yield from _read_span(batch, place.turn, newest)):
        facts.apply(record)
    if not facts.is_current(batch.state):
        later = TurnSpan(place.end + 1, batch.position)
        for record in (yield from _read_span(batch, place.turn, later)):
            facts.apply_late(record)
    return facts


class _TurnFacts:
    """The facts that the state held of a turn, computed from the records of its newest span."""

    def __init__(self) -> None:
        self.correlation_id = ""
        self.effects = EffectsState()
        self.conversation = ConversationState()

    def apply(self, record: TurnRecord) -> None:
        """Apply the next record."""
        position, record_id, content = record
        match content:
            case TurnBegun():
                self.correlation_id = content.correlation_id
            case TurnContinued() if content.ended:
                self.correlation_id = content.correlation_id
                self.effects = self.effects.with_turn(content.effects, content.approvals)
                self.conversation = self.conversation.with_calls(content.calls)
            case Message():
                turns = (content.turn,)
                conversation = self.conversation.apply_message(position, record_id, content, turns)
                self.conversation = conversation
            case EffectIntent():
                self.effects = self.effects.with_intent(position, record_id, content)
            case EffectOutcome():
                self.effects = self.effects.with_outcome(position, content, over=False)
            case ApprovalRequested():
                self.effects = self.effects.with_request(position, record_id, content)
            case ApprovalDecided():
                self.effects = self.effects.with_decision(position, content)

    def is_current(self, state: SessionState) -> bool:
        """Whether no outcome and no result of the turn's calls can have come after its end.

        The state has the unknown effects of ended turns, and the open calls until the next turn.
        """
        effects, calls = state.effects.by_identity, state.conversation.calls
        return all(call_id in calls for call_id in self.conversation.calls) and all(
            identity in effects
            for identity, effect in self.effects.by_identity.items()
            if effect.state == UNKNOWN
        )

    def apply_late(self, record: TurnRecord) -> None:
        """Apply a record that came after the turn's end: an outcome, or a result for the model."""
        content = record.content
        is_notice = isinstance(content, Message) and content.origin == INTERRUPTED_ORIGIN
        if not is_notice:  # The next turn closes open calls with such a notice.
            self.apply(record)
