"""Plan conversation writes: pieces of answers, open calls, pins, summaries, tools.

A replica and arguments come in, plans go out. Pure: reads are yielded as steps, nothing is written.

An interrupted answer becomes a message, marked as interrupted, when its turn ends or the next one
begins, unless the turn got another answer. Unanswered calls are closed by a notice when the next
turn begins. So the journal contains everything that the model is shown.
"""

from collections.abc import Collection, Sequence
from typing import Any

from perdure import codec, reading
from perdure.conversations.collecting import rebuild
from perdure.conversations.intake import Taken
from perdure.conversations.talk import PINS_MAX, SUMMARIES_MAX, Partial
from perdure.effects import catalogue
from perdure.effects.calls import Call, answers, closing, open_calls
from perdure.errors import (
    ChainError,
    ConflictError,
    NotFoundError,
    UsageError,
    VersionError,
)
from perdure.journal import Draft
from perdure.plain import exported
from perdure.plans import Batch, Made, Plan, require_int
from perdure.records import Message, Piece, Pinned, Summary, SummaryUndone, Tools
from perdure.replica import Replica
from perdure.steps import Steps

INTERRUPTED = "perdure:interrupted"  # Origin of the notices that stand in for missing results.


def settle_answers(replica: Replica, batch: Batch, *, turns: Collection[str] | None) -> Steps[None]:
    """Add interrupted answers to the batch as messages: those of `turns`, or all if it is None."""
    for answer, partial in batch.state.talk.cut.items():
        if turns is not None and partial.turn not in turns:
            continue
        messages = yield from said_so_far(replica, partial, batch)
        ids = [answer, *(replica.settings.new_id() for _ in messages[1:])]
        for record_id, (message, meta) in zip(ids, messages, strict=False):
            content = Message(
                message=replica.settings.codec.pack(message),
                meta=replica.settings.codec.pack(meta),
                turn=partial.turn,
                interrupted=True,
            )
            batch.add(Draft(record_id, content, codec.encode(content)))


def said_so_far(
    replica: Replica, partial: Partial, batch: Batch | None = None
) -> Steps[list[Taken]]:
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
        return [Taken({"role": "assistant", "content": text}, {"unreadable": str(error)})]


def _content_at(replica: Replica, batch: Batch | None, position: int) -> Steps[object]:
    if batch is not None and position > batch.tip.position:
        return batch.drafts[position - batch.tip.position - 1].content
    return (yield from reading.content_at(replica.past, position))


def close_calls(replica: Replica, batch: Batch, *, live: Collection[str]) -> Steps[None]:
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
            message=closing(content.message, issued), turn=call.turn, origin=INTERRUPTED
        )
        batch.add_content(replica.settings.new_id(), notice)


def add_piece(replica: Replica, turn: str, answer: str, data: dict[str, Any]) -> Plan:
    """Plan to store a piece of an answer."""
    record_id = replica.settings.new_id()
    packed = replica.settings.codec.pack(data)

    def make(batch: Batch) -> Made:
        yield from ()
        if turn not in batch.state.turns:
            raise ConflictError(batch.name, batch.position, batch.position, "the turn has ended")
        partial = batch.state.talk.partials.get(answer)
        content = Piece(
            answer=answer, data=packed, turn=turn, previous=partial.position if partial else 0
        )
        return batch.add_content(record_id, content)

    return Plan("piece", turn, make)


def pin(replica: Replica, position: int, *, on: bool) -> Plan:
    """Plan to pin a message, so that every window has it, or to unpin it."""
    require_int(position, "position")
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        if not on and position not in batch.state.talk.pins:
            raise NotFoundError(f"a pin on the message at {position}")
        if on:
            yield from _require_message(replica, position)
            if len({*batch.state.talk.pins, position}) > PINS_MAX:
                raise UsageError(f"at most {PINS_MAX} messages can be pinned: unpin one first")
        return batch.add_content(record_id, Pinned(message=position, on=on))

    return Plan("pin", "", make)


def _require_message(replica: Replica, position: int) -> Steps[None]:
    if not 1 <= position <= replica.tip.position:
        raise NotFoundError(f"a record at {position}", f"the newest is at {replica.tip.position}")
    content = yield from reading.content_at(replica.past, position)
    if not isinstance(content, Message):
        raise UsageError(f"the record at {position} is a {content.kind}: only messages are pinned")
    if open_calls(content.message) or answers(content.message):
        raise UsageError(f"the message at {position} is part of a tool call: pin another message")


def summary(replica: Replica, content: Summary) -> Plan:
    """Plan to put a summary in force; ConflictError if another summary came first."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        current = batch.state.talk.summary
        if (current.position if current else 0) != content.previous:
            reason = "another summary came first"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        return batch.add_content(record_id, content)

    return Plan("summary", "", make)


def undo_summary(replica: Replica) -> Plan:
    """Plan to restore the previous summary, or the messages themselves if there is none."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        current = batch.state.talk.summary
        if current is None:
            raise NotFoundError("a summary to undo")
        if current.previous and len(batch.state.talk.summaries) == 1:
            hint = f"at most {SUMMARIES_MAX} summaries can be undone in a row"
            raise NotFoundError(f"the summary before the one at {current.position}", hint)
        return batch.add_content(record_id, SummaryUndone(summary=current.position))

    return Plan("summary", "", make)


def offer_tools(replica: Replica, tools: Sequence[Any], turn: str) -> Plan:
    """Plan to record the tools offered to the model, unless they are the same as before."""
    record_id = replica.settings.new_id()
    normalized = catalogue.normal(tools)
    content = Tools(
        digest=catalogue.digest(normalized),
        catalogue=normalized,
        tools=replica.settings.codec.pack([exported(tool) for tool in tools]),
        turn=turn,
    )

    def make(batch: Batch) -> Made:
        yield from ()
        if batch.state.talk.tools[0] == content.digest:
            return batch.state.talk.tools[1]
        return batch.add_content(record_id, content)

    return Plan("tools", turn, make)


def tools_before(replica: Replica) -> Steps[dict[str, str]]:
    """Return the latest catalogue offered to the model: names and digests."""
    _, position = replica.state.talk.tools
    if not position:
        return {}
    content = yield from reading.content_at(replica.past, position)
    if not isinstance(content, Tools):
        raise ChainError(replica.name, position, "a catalogue of tools is expected here")
    return content.catalogue
