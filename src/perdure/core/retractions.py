"""Plans that take messages back or replace them. The records stay; windows leave them out. Pure.

In: positions of messages. Out: a `Plan`. The record says what follows from it (how many messages
are gone, which one is the newest now), so that the state can be computed without reading.
"""

from collections.abc import Sequence

import msgspec

from perdure.core.history import read_newest_messages
from perdure.core.messages import ANONYMOUS, encode_messages, parse_all
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.state.conversation import ConversationState
from perdure.core.validation import require_int, require_record_id, require_str
from perdure.errors import NotFoundError, UsageError
from perdure.journal import chain, codec
from perdure.journal.chain import PendingRecord
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.ranges import Positions, clip_ranges, merge_ranges
from perdure.journal.reader import PAGE
from perdure.journal.records import Message, MessagesReplaced, MessagesRetracted
from perdure.journal.requests import Steps

NEARBY = 16  # entries; most batches that end after a range do so within them

RANGES_MAX = 1024  # ranges; the state holds them all, and neighbors are joined


def retract_messages(
    replica: Replica, positions: Sequence[int | range], *, reason: str, record_id: str | None
) -> Plan[int]:
    """Plan to take messages back: single ones by position, or all in a range of positions."""
    if not positions:
        raise UsageError("nothing to retract: give the positions of messages")
    singles = tuple(sorted({_position(item) for item in positions if type(item) is not range}))
    ranges = merge_ranges(_range(item) for item in positions if isinstance(item, range))
    content = MessagesRetracted(
        positions=singles, ranges=ranges, reason=require_str(reason, "reason")
    )
    draft = _draft(replica, content, record_id)

    def make(batch: RecordBatch) -> Steps[int]:
        if record_id is not None and batch.may_know(draft.id):
            stored = yield from batch.find_stored([draft])
            if stored:
                return stored
        visible = {*singles}
        yield from _require_visible(batch, singles)
        for first, last in ranges:
            visible |= {*(yield from _visible(batch, first, last))}
        clipped = clip_ranges(ranges, batch.position)
        after = batch.state.conversation.with_retracted(clipped, singles)
        newest, payload = yield from _newest_message(batch, after)
        retracted = msgspec.structs.replace(content, count=len(visible), last_message=newest)
        return _add(batch, draft.id, retracted, payload)

    return Plan("retract", "", make)


def replace_messages(
    replica: Replica,
    first: int,
    last: int,
    messages: Sequence[object],
    *,
    record_id: str | None,
    opaque: bool = False,
) -> Plan[int]:
    """Plan to put messages in the place of those from one position to another, inclusive."""
    if not 1 <= require_int(first, "first") <= require_int(last, "last"):
        raise UsageError("replace needs the positions of a first and a last message, in order")
    parsed = parse_all(messages, opaque=opaque)
    drafts = encode_messages(replica, parsed, ANONYMOUS, "", None, opaque=opaque)
    content = MessagesReplaced(
        first=first, last=last, digest=codec.digest_payloads([draft.payload for draft in drafts])
    )
    draft = _draft(replica, content, record_id)

    def make(batch: RecordBatch) -> Steps[int]:
        if record_id is not None and batch.may_know(draft.id):
            stored = yield from batch.find_stored([draft])
            if stored:
                return stored
        visible = yield from _visible(batch, first, last)
        if not visible:
            raise NotFoundError(f"a message from {first} to {last}", _NOT_THERE)
        _require_closed(batch, first, last)
        start = batch.position + 1
        batch.add_all(drafts)
        replaced = msgspec.structs.replace(
            content, new_first=start, new_last=batch.position, count=len(visible)
        )
        after = batch.state.conversation.apply_replacement(0, replaced)
        newest, payload = yield from _newest_message(batch, after)
        return _add(
            batch, draft.id, msgspec.structs.replace(replaced, last_message=newest), payload
        )

    return Plan("retract", "", make)


_NOT_THERE = "it is another record, or it was retracted or replaced: see session.records()"


def _range(places: range) -> Positions:
    if places.step != 1 or not places or places.start < 1:
        raise UsageError("a range of positions must be ascending, without gaps, from 1 on")
    return places.start, places.stop - 1


def _position(position: int | range) -> int:
    if require_int(position, "position") < 1:
        raise NotFoundError(f"a message at {position}", "positions begin with 1")
    return position  # type: ignore[return-value] # `require_int` refuses a range


def _draft(
    replica: Replica, content: MessagesRetracted | MessagesReplaced, record_id: str | None
) -> PendingRecord:
    own_id = require_record_id(record_id) if record_id is not None else replica.new_id()
    return PendingRecord(own_id, content, codec.encode(content))


def _add(
    batch: RecordBatch,
    record_id: str,
    content: MessagesRetracted | MessagesReplaced,
    payload: bytes,
) -> int:
    position = batch.add_content(record_id, content)
    conversation = batch.state.conversation
    if len(conversation.hidden) + len(conversation.replacements) > RANGES_MAX:
        reason = f"messages are hidden in more than {RANGES_MAX} places"
        raise UsageError(f"{reason}: retract whole ranges, or compact the session")
    batch.last_payload = payload
    return position


def _require_visible(batch: RecordBatch, positions: Sequence[int]) -> Steps[None]:
    """Raise NotFoundError unless each position, in order, has a message that was not taken back."""
    for position in positions:
        kind = ""
        if max(batch.past.begin, 1) <= position <= batch.position:
            kind = (yield from batch.read_record(position)).content.kind
        if kind != Message.kind or batch.state.conversation.is_hidden(position):
            raise NotFoundError(f"a message at {position}", _NOT_THERE)


def _visible(batch: RecordBatch, first: int, last: int) -> Steps[list[int]]:
    """Return the positions of the messages whose place is in a range."""
    past, conversation = batch.past, batch.state.conversation
    positions: list[int] = []
    for item in conversation.replacements:
        if first <= item.last <= last:
            new = range(item.new_first, item.new_last + 1)
            positions += [position for position in new if not conversation.is_hidden(position)]
    forward = ForwardReader(past, after=first - 1)
    size = min(last - first + NEARBY, PAGE)
    while (page := (yield from forward.page(size))) is not None:
        for linked in page:
            position = linked.position
            if position > last:
                return positions
            is_message = linked.kind == Message.kind and linked.body is not None
            is_own = is_message and not conversation.is_replacement(position)
            if is_own and not conversation.is_hidden(position):
                positions.append(position)
    return positions


def _require_closed(batch: RecordBatch, first: int, last: int) -> None:
    """Raise UsageError if a call in a range waits for its result: it would have no place."""
    for call in batch.state.conversation.calls.values():
        if first <= call.position <= last:
            reason = f"the message at {call.position} has a call without a result"
            raise UsageError(f"{reason}: run it, or retract the message")


def _newest_message(batch: RecordBatch, after: ConversationState) -> Steps[tuple[int, bytes]]:
    """Return the position and payload of the newest message, (0, b"") if there is none."""
    past = batch.past
    pending = dict(enumerate(batch.pending, past.tip.position + 1))
    for position, draft in reversed(pending.items()):
        is_new = draft.content.kind == Message.kind and not after.is_replacement(position)
        if is_new and not after.is_hidden(position):
            return position, draft.payload
    stored = yield from read_newest_messages(past, after.visible_order(), 1)
    place = after.place_of(stored[0].position) if stored else 0
    later = [item for item in after.replacements if item.last > place and item.new_last in pending]
    if later:
        newest = max(later, key=lambda item: item.last).new_last
        return newest, pending[newest].payload
    if not stored:
        return 0, b""
    return stored[0].position, chain.open_body(batch.name, stored[0], past.cipher)
