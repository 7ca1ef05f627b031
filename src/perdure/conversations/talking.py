"""Plans about a conversation: pieces of answers, open calls, pins, summaries, tools. Pure.

An answer whose stream was cut becomes a message, marked as interrupted, when its turn ends or the
next one begins, unless the turn got another answer. Calls that nobody answered are closed by a
notice when the next turn begins. So what the model is told stands in the record.
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

INTERRUPTED = "perdure:interrupted"  # The origin of results that nobody gave.


def settle_answers(replica: Replica, batch: Batch, *, turns: Collection[str] | None) -> Steps[None]:
    """Add what is left of cut answers as messages: of some turns, or of all but the live ones."""
    for answer, partial in batch.fold.talk.cut.items():
        if turns is not None and partial.turn not in turns:
            continue
        taken = yield from said_so_far(replica, partial, batch)
        ids = [answer, *(replica.settings.new_id() for _ in taken[1:])]
        for record_id, (message, meta) in zip(ids, taken, strict=False):
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
    """Return what an answer had said when its last piece was stored."""
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
        # What was said must not keep anybody from going on; the pieces stay in the record.
        text = "(An answer that was cut, and can not be put together again.)"
        return [Taken({"role": "assistant", "content": text}, {"unreadable": str(error)})]


def _content_at(replica: Replica, batch: Batch | None, position: int) -> Steps[object]:
    if batch is not None and position > batch.tip.position:
        return batch.drafts[position - batch.tip.position - 1].content
    return (yield from reading.content_at(replica.past, position))


def close_calls(replica: Replica, batch: Batch, *, live: Collection[str]) -> Steps[None]:
    """Answer calls that stayed open with a notice, but for those of turns that are going on."""
    for call_id, call in [*batch.fold.talk.calls.items()]:
        if call.turn and call.turn in live:
            continue
        content = yield from _content_at(replica, batch, call.position)
        if not isinstance(content, Message):
            raise ChainError(replica.name, call.position, "a message with a call is expected here")
        made = next(
            (one for one in open_calls(content.message) if one.id == call_id),
            Call(call_id, call.name),
        )
        notice = Message(message=closing(content.message, made), turn=call.turn, origin=INTERRUPTED)
        batch.add_content(replica.settings.new_id(), notice)


def add_piece(replica: Replica, turn: str, answer: str, data: dict[str, Any]) -> Plan:
    """Plan to store a part of an answer."""
    record_id = replica.settings.new_id()
    packed = replica.settings.codec.pack(data)

    def make(batch: Batch) -> Made:
        yield from ()
        if turn not in batch.fold.turns:
            raise ConflictError(batch.name, batch.position, batch.position, "the turn has ended")
        before = batch.fold.talk.partials.get(answer)
        content = Piece(
            answer=answer, data=packed, turn=turn, previous=before.position if before else 0
        )
        return batch.add_content(record_id, content)

    return Plan("piece", turn, make)


def pin(replica: Replica, position: int, *, on: bool) -> Plan:
    """Plan to have every window keep a message, or not any more."""
    require_int(position, "position")
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        if not on and position not in batch.fold.talk.pins:
            raise NotFoundError(f"a pin on the message at {position}")
        if on:
            yield from _require_message(replica, position)
            if len({*batch.fold.talk.pins, position}) > PINS_MAX:
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
        raise UsageError(
            f"the message at {position} is part of a tool call: pin what was said of it"
        )


def summary(replica: Replica, content: Summary) -> Plan:
    """Plan to put a summary in force; one that was made in view of another state is a conflict."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        found = batch.fold.talk.summary
        if (found.position if found else 0) != content.previous:
            reason = "another summary came first"
            raise ConflictError(batch.name, batch.position, batch.position, reason)
        return batch.add_content(record_id, content)

    return Plan("summary", "", make)


def undo_summary(replica: Replica) -> Plan:
    """Plan to go back to the summary before the one in force, or to the messages themselves."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        found = batch.fold.talk.summary
        if found is None:
            raise NotFoundError("a summary to undo")
        if found.previous and len(batch.fold.talk.summaries) == 1:
            hint = f"at most {SUMMARIES_MAX} are undone one after the other"
            raise NotFoundError(f"the summary before that at {found.position}", hint)
        return batch.add_content(record_id, SummaryUndone(summary=found.position))

    return Plan("summary", "", make)


def offer_tools(replica: Replica, tools: Sequence[Any], turn: str) -> Plan:
    """Plan to record which tools the model is offered, unless it was offered the same before."""
    record_id = replica.settings.new_id()
    found = catalogue.normal(tools)
    content = Tools(
        digest=catalogue.digest(found),
        catalogue=found,
        tools=replica.settings.codec.pack([exported(tool) for tool in tools]),
        turn=turn,
    )

    def make(batch: Batch) -> Made:
        yield from ()
        if batch.fold.talk.tools[0] == content.digest:
            return batch.fold.talk.tools[1]
        return batch.add_content(record_id, content)

    return Plan("tools", turn, make)


def tools_before(replica: Replica) -> Steps[dict[str, str]]:
    """Return the catalogue that the model was offered last, as names and digests."""
    _, position = replica.fold.talk.tools
    if not position:
        return {}
    content = yield from reading.content_at(replica.past, position)
    if not isinstance(content, Tools):
        raise ChainError(replica.name, position, "a catalogue of tools is expected here")
    return content.catalogue
