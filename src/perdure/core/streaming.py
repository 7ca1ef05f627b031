"""Plan conversation writes: pieces of answers, open calls, pins, summaries, tools.

A replica and arguments come in, plans go out. Pure: reads are yielded as steps, nothing is written.

An interrupted answer becomes a message, marked as interrupted, when its turn ends or the next one
begins, unless the turn got another answer. Unanswered calls are closed by a notice when the next
turn begins. So the journal contains everything that the model is shown.
"""

from collections.abc import Collection
from typing import Any

from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.messages import Attribution, append_parsed
from perdure.core.plans import Plan, PlanSteps, RecordBatch, TurnOwnership
from perdure.core.replica import Replica
from perdure.core.state.conversation import PartialAnswer
from perdure.errors import ChainError, ConflictError, UsageError, VersionError
from perdure.formats.intake import IncomingMessage
from perdure.formats.streaming import Collector, collector_for, rebuild
from perdure.formats.tool_calls import Call, closing, open_calls
from perdure.journal import codec, reader
from perdure.journal.chain import PendingRecord
from perdure.journal.records import Message, Piece
from perdure.journal.requests import Steps


class AnswerRecorder:
    """Collects the chunks of one answer and plans the records that store it."""

    def __init__(
        self,
        replica: Replica,
        turn: TurnOwnership,
        voice: Attribution,
        model_call: PendingModelCall | None = None,
    ) -> None:
        self._replica = replica
        self._model_call = model_call
        self._turn = turn
        self._voice = voice
        self._id = replica.settings.new_id()
        self._collector: Collector | None = None

    def take(self, chunk: object) -> None:
        """Add the next chunk; UsageError if it is not a chunk."""
        if self._collector is None:
            self._collector = collector_for(chunk)
        try:
            self._collector.take(chunk)
        except (TypeError, AttributeError, LookupError, RecursionError) as error:
            raise UsageError(f"a {type(chunk).__qualname__} is not a chunk: {error}") from error

    @property
    def said(self) -> list[IncomingMessage]:
        """The messages of the answer so far."""
        return self._collector.messages() if self._collector else []

    def piece(self) -> Plan | None:
        """Return a plan that stores the chunks since the last piece; None if there are none."""
        data = self._collector.piece() if self._collector else None
        if data is None:
            return None
        return add_piece(self._replica, self._turn.turn, self._id, data)

    def end(self, duration: float = 0.0) -> Plan | None:
        """Return the plan for the end of the stream, or None if nothing is left to store.

        A finished answer is stored as messages, an unfinished one as its last piece.
        `duration` is in seconds.
        """
        messages = self.said
        if self._collector is None or not self._collector.finished() or not messages:
            return self.piece()
        plan = append_parsed(
            self._replica, messages, voice=self._voice, turn=self._turn, answer=self._id
        )
        model_call = self._model_call
        return plan if model_call is None else model_call.answering(plan, self._turn, duration)


INTERRUPTED_ORIGIN = (
    "perdure:interrupted"  # Origin of the notices that stand in for missing results.
)


def add_interrupted_answers(
    replica: Replica, batch: RecordBatch, *, turns: Collection[str] | None
) -> Steps[None]:
    """Add interrupted answers to the batch as messages: those of `turns`, or all if it is None."""
    for answer, partial in batch.state.talk.cut.items():
        if turns is not None and partial.turn not in turns:
            continue
        messages = yield from read_partial_answer(replica, partial, batch)
        ids = [answer, *(replica.settings.new_id() for _ in messages[1:])]
        for record_id, (message, meta) in zip(ids, messages, strict=False):
            content = Message(
                message=replica.settings.codec.pack(message),
                meta=replica.settings.codec.pack(meta),
                turn=partial.turn,
                interrupted=True,
            )
            batch.add(PendingRecord(record_id, content, codec.encode(content)))


def read_partial_answer(
    replica: Replica, partial: PartialAnswer, batch: RecordBatch | None = None
) -> Steps[list[IncomingMessage]]:
    """Return the messages of an answer as of its last stored piece."""
    pieces: list[dict[str, Any]] = []
    position = partial.position
    while position:
        content = yield from _content_at(replica, batch, position)
        if not isinstance(content, Piece):
            raise ChainError(replica.name, position, "a piece of an answer is expected here")
        pieces.append(replica.settings.codec.unpack(content.data, stream=replica.name))
        position = content.previous
    try:
        return rebuild(pieces[::-1])
    except (UsageError, VersionError) as error:
        # An unreadable answer must not block the session; its pieces stay in the journal.
        text = "(An interrupted answer that cannot be reconstructed.)"
        return [IncomingMessage({"role": "assistant", "content": text}, {"unreadable": str(error)})]


def _content_at(replica: Replica, batch: RecordBatch | None, position: int) -> Steps[object]:
    if batch is not None and position > batch.tip.position:
        return batch.drafts[position - batch.tip.position - 1].content
    return (yield from reader.read_content(replica.past, position))


def close_calls(replica: Replica, batch: RecordBatch, *, live: Collection[str]) -> Steps[None]:
    """Close unanswered calls with a notice, except those of `live` turns."""
    for call_id, call in [*batch.state.talk.calls.items()]:
        if call.turn and call.turn in live:
            continue
        content = yield from _content_at(replica, batch, call.position)
        if not isinstance(content, Message):
            raise ChainError(replica.name, call.position, "a message with a call is expected here")
        issued = next(
            (candidate for candidate in open_calls(content.message) if candidate.id == call_id),
            Call(call_id, call.name),
        )
        notice = Message(
            message=closing(content.message, issued), turn=call.turn, origin=INTERRUPTED_ORIGIN
        )
        batch.add_content(replica.settings.new_id(), notice)


def add_piece(replica: Replica, turn: str, answer: str, data: dict[str, Any]) -> Plan:
    """Plan to store a piece of an answer."""
    record_id = replica.settings.new_id()
    packed = replica.settings.codec.pack(data)

    def make(batch: RecordBatch) -> PlanSteps:
        yield from ()
        if turn not in batch.state.turns:
            raise ConflictError(batch.name, batch.position, batch.position, "the turn has ended")
        partial = batch.state.talk.partials.get(answer)
        content = Piece(
            answer=answer, data=packed, turn=turn, previous=partial.position if partial else 0
        )
        return batch.add_content(record_id, content)

    return Plan("piece", turn, make)
