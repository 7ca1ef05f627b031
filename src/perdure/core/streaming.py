"""Plan the storage of streamed answers: chunks, partial answers, and calls left open.

A replica and arguments come in, plans go out. Pure: reads are yielded as steps, nothing is written.

An interrupted answer becomes a message, marked as interrupted, when its turn ends or the next one
begins, unless the turn got another answer. Unanswered calls are closed by a notice when the next
turn begins. So the journal contains everything that the model is shown.
"""

from collections.abc import Collection
from itertools import groupby
from typing import Any

from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.messages import Attribution, append_parsed
from perdure.core.plans import Plan, RecordBatch, TurnOwnership, require_open_turn
from perdure.core.replica import Replica
from perdure.core.state.conversation import PartialAnswer
from perdure.errors import UsageError, VersionError
from perdure.formats.intake import IncomingMessage
from perdure.formats.streaming import Collector, collector_for, rebuild
from perdure.formats.tool_calls import Call, closing, open_calls
from perdure.journal import reader
from perdure.journal.codec import Codec
from perdure.journal.reader import History
from perdure.journal.records import Message, MessageChunk
from perdure.journal.requests import Steps

FLUSH_EVERY = 0.5  # seconds; a crash loses at most this much of an answer, at one commit each


class AnswerRecorder:
    """Collects the chunks of one answer and plans the records that store it."""

    def __init__(
        self,
        replica: Replica,
        turn: TurnOwnership,
        attribution: Attribution,
        model_call: PendingModelCall | None = None,
    ) -> None:
        self._replica = replica
        self._model_call = model_call
        self._turn = turn
        self._voice = attribution
        self._id = replica.new_id()
        self._collector: Collector | None = None

    def take(self, chunk: object) -> None:
        """Add the next chunk; UsageError if it is not a chunk."""
        if self._collector is None:
            self._collector = collector_for(chunk)
        try:
            self._collector.add(chunk)
        except (TypeError, AttributeError, LookupError, RecursionError) as error:
            reason = f"a {type(chunk).__qualname__} is not a chunk"
            hint = "pass the chunks as the client yields them"
            raise UsageError(f"{reason} ({type(error).__qualname__}): {hint}") from error

    @property
    def messages(self) -> list[IncomingMessage]:
        """The messages of the answer so far."""
        return self._collector.messages() if self._collector else []

    def require_answer(self) -> None:
        """Raise UsageError if the source has ended, and nothing of it is an answer.

        So it is after an event that reports an error of the provider. The turn would be complete,
        and have no answer.
        """
        collector = self._collector
        if collector is not None and not (collector.finished(exhausted=True) or self.messages):
            reason = "the stream ended without an answer, perhaps with an error of the provider"
            raise UsageError(f"{reason}: see its last chunk, and call the model again")

    def piece(self) -> Plan[int] | None:
        """Return a plan that stores the chunks since the last piece; None if there are none."""
        data = self._collector.piece() if self._collector else None
        if data is None:
            return None
        return add_piece(self._replica, self._turn.turn, self._id, data)

    def end(self, duration: float, *, exhausted: bool) -> Plan[int] | None:
        """Return the plan for the end of the stream, or None if nothing is left to store.

        A finished answer is stored as messages, an unfinished one as its last piece. `duration` is
        in seconds; `exhausted` says that the source has ended, and not the reader.
        """
        messages, collector = self.messages, self._collector
        if collector is None or not collector.finished(exhausted=exhausted) or not messages:
            return self.piece()
        replica, turn, attribution = self._replica, self._turn, self._voice
        plan = append_parsed(replica, messages, attribution=attribution, turn=turn, answer=self._id)
        model_call = self._model_call
        return plan if model_call is None else model_call.answered_by(plan, turn, duration)


# Origin of the notices that stand in for missing results.
INTERRUPTED_ORIGIN = "perdure:interrupted"


def add_interrupted_answers(
    replica: Replica, batch: RecordBatch, *, turns: Collection[str] | None
) -> Steps[None]:
    """Add interrupted answers to the batch as messages: those of `turns`, or all if it is None."""
    own_codec = replica.settings.codec
    for answer, partial in batch.state.conversation.interrupted.items():
        if turns is not None and partial.turn not in turns:
            continue
        messages = yield from read_partial_answer(batch.past, own_codec, partial, batch)
        ids = [answer, *(replica.new_id() for _ in messages[1:])]
        for record_id, (message, meta) in zip(ids, messages, strict=False):
            content = Message(
                message=own_codec.pack(message),
                meta=own_codec.pack(meta),
                turn=partial.turn,
                interrupted=True,
            )
            batch.add_content(record_id, content)


def read_partial_answer(
    past: History, own_codec: Codec, partial: PartialAnswer, batch: RecordBatch | None = None
) -> Steps[list[IncomingMessage]]:
    """Return the messages of an answer as of its last piece, stored or in a batch."""
    pieces: list[dict[str, Any]] = []
    position = partial.position
    while position:
        if batch is None:
            content = yield from reader.read_kind(past, position, MessageChunk)
        else:
            content = yield from batch.read(position, MessageChunk)
        pieces.append(own_codec.unpack(content.data, stream=past.stream.session))
        position = content.previous
    try:
        return rebuild(pieces[::-1])
    except (UsageError, VersionError) as error:
        # An unreadable answer must not block the session; its pieces stay in the journal.
        text = "(An interrupted answer that cannot be reconstructed.)"
        return [IncomingMessage({"role": "assistant", "content": text}, {"unreadable": str(error)})]


def close_calls(replica: Replica, batch: RecordBatch, *, live: Collection[str]) -> Steps[None]:
    """Close unanswered calls with a notice, except those of `live` turns."""
    waiting = [
        (call_id, call)
        for call_id, call in batch.state.conversation.calls.items()
        if not call.turn or call.turn not in live
    ]
    for position, calls in groupby(waiting, lambda item: item[1].position):
        content = yield from batch.read(position, Message)
        known = {item.id: item for item in open_calls(content.message)}
        for call_id, call in calls:
            message = closing(content.message, known.get(call_id, Call(call_id, call.name)))
            notice = Message(message=message, turn=call.turn, origin=INTERRUPTED_ORIGIN)
            batch.add_content(replica.new_id(), notice)


def add_piece(replica: Replica, turn: str, answer: str, data: dict[str, Any]) -> Plan[int]:
    """Plan to store a piece of an answer."""
    record_id = replica.new_id()
    packed = replica.settings.codec.pack(data)

    def make(batch: RecordBatch) -> int:
        require_open_turn(batch, turn)
        partial = batch.state.conversation.partials.get(answer)
        previous = partial.position if partial else 0
        content = MessageChunk(answer=answer, data=packed, turn=turn, previous=previous)
        return batch.add_content(record_id, content)

    return Plan("message.chunk", turn, make)
