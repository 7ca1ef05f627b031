"""Read the messages and records of a session, newest first or in order. Pure.

In: a replica, a published view or a history, and the codec of the caller's types. Out: steps that
return messages and records. Nothing here writes. Damage is raised, never skipped in silence.

To edit: take the view or the history once and pass it on. Another step may replace the view of the
replica, and a window must not mix two states.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure.core.replica import Replica, StateView
from perdure.core.settings import Settings
from perdure.core.state.conversation import SummaryRef
from perdure.core.state.effects import UNKNOWN
from perdure.core.state.message_order import MessageOrder
from perdure.core.state.session_state import SessionState
from perdure.core.validation import require_int, require_record_id
from perdure.errors import DamagedError, NotFoundError, UsageError
from perdure.formats.bodies import Citation
from perdure.formats.parts import StoredMessage
from perdure.formats.tokens import Counter, count_tokens
from perdure.formats.tool_calls import Call, closing
from perdure.formats.transcript import safe_cuts
from perdure.journal import chain, codec, reader
from perdure.journal.chain import VerifiedRecord
from perdure.journal.codec import Codec
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.kinds import KINDS
from perdure.journal.large import join_records
from perdure.journal.parts import Part
from perdure.journal.reader import History, OnDamage
from perdure.journal.records import (
    Content,
    Erased,
    FieldsChanged,
    Message,
    Note,
    Record,
    Summary,
    TurnEnd,
)
from perdure.journal.requests import Steps


def read_messages(replica: Replica, *, last: int | None) -> Steps[list[dict[str, Any]]]:
    """Return all messages in order, or the last few of them."""
    if last is not None and require_int(last, "last") < 0:
        raise UsageError(f"last must be 0 or more, not {last}")
    state, past, _ = replica.view
    total = state.messages
    count = total if last is None else min(last, total)
    hidden = state.conversation.hidden
    order = state.conversation.visible_order() if hidden else None
    entries = yield from read_newest_messages(past, order, count)
    if len(entries) != count:
        raise DamagedError(replica.name, 0, f"{len(entries)} of {count} messages were found")
    own = replica.settings.codec
    yield from join_records(past, entries, replica.settings.part_size)
    return [decode_message(past, own, linked).message for linked in reversed(entries)]


def read_newest_messages(
    past: History, order: MessageOrder | None, count: int
) -> Steps[list[VerifiedRecord]]:
    """Return the records of the newest messages, at most `count`, newest first.

    Erased ones are skipped. `order` is None if no message was ever retracted.
    """
    matches: list[VerifiedRecord] = []
    backward = reader.read_backward(past)
    limit, read = 2 * count + 2, 0
    while not backward.ended and len(matches) < count:
        known = len(matches)
        page = yield from backward.page(min(limit, reader.PAGE))
        read += len(page)
        for linked in page:
            is_message = linked.kind == Message.kind and linked.body is not None
            if order is not None:
                matches += order.place(linked, is_message=is_message)
            elif is_message:
                matches.append(linked)
        missing = count - len(matches)
        # If messages are rare, small pages would be many reads.
        limit = missing * read // len(matches) + 2 if len(matches) > known else 2 * limit
    if order is not None and backward.ended:
        matches += order.flush()
    return matches[:count]


def read_last_message(replica: Replica) -> dict[str, Any] | None:
    """Return the newest message, or None. It is part of the view, so nothing is read."""
    state, past, payload = replica.view
    if payload is None:
        return None
    name, position = past.stream.session, state.last_message
    content = codec.decode(Message.kind, payload, stream=name, position=position)
    unpacked = _unpack(replica.settings.codec, content, payload, name, position)
    return reader.require_kind(name, position, unpacked, Message).message


def read_last_role(replica: Replica) -> str:
    """Return the role of the newest message, or "". Needs none of the caller's types."""
    state, _, payload = replica.view
    if payload is None:
        return ""
    content = codec.decode(Message.kind, payload, stream=replica.name, position=state.last_message)
    role = content.message.get("role", "") if isinstance(content, Message) else ""
    return role if isinstance(role, str) else ""


def decode_message(past: History, own: Codec, linked: VerifiedRecord) -> Message:
    """Return the message in an entry, with values of the caller's types restored by `own`."""
    name, position = past.stream.session, linked.position
    record = chain.decode_record(name, linked, past.cipher)
    content = reader.require_kind(name, position, record.content, Message)
    return _unpack(own, content, record.payload, name, position)  # type: ignore[return-value] # It returns the same class.


def _unpack(own: Codec, content: Content, payload: bytes, name: str, position: int) -> Content:
    """Restore values of the caller's types in a record."""
    # Every tagged value contains `"$` in JSON; most records contain none and need no unpacking.
    if b'"$' not in payload or not isinstance(content, Message | Note | FieldsChanged):
        return content
    unpack = partial(own.unpack, stream=name, position=position)
    if isinstance(content, Note):
        return msgspec.structs.replace(content, data=unpack(content.data))
    if isinstance(content, FieldsChanged):
        return msgspec.structs.replace(content, fields=unpack(content.fields))
    message, meta = unpack(content.message), unpack(content.meta)
    return msgspec.structs.replace(content, message=message, meta=meta)


class RecordFilter(NamedTuple):
    """Selects records after a position: of some kinds, and at most so many of them."""

    after: int = 0
    kinds: Collection[str] = ()
    """The kinds to return; all if there is none."""
    limit: int | None = None

    def checked(self) -> "RecordFilter":
        """Return the filter, or raise UsageError that says what is wrong with it."""
        if isinstance(self.kinds, str) or not {*self.kinds} <= {*KINDS}:
            unknown = [self.kinds] if isinstance(self.kinds, str) else {*self.kinds} - {*KINDS}
            raise UsageError(f"kinds must be kinds of record, not {', '.join(sorted(unknown))}")
        if self.limit is not None and require_int(self.limit, "limit") < 0:
            raise UsageError(f"limit must be 0 or more, not {self.limit}")
        after = max(require_int(self.after, "after"), 0)
        return RecordFilter(after, frozenset(self.kinds), self.limit)

    def page_size(self, found: int) -> int:
        """Return how many entries to read next, given how many records were found so far."""
        if self.limit is None or self.kinds:
            return reader.PAGE
        # One more: the last entry of a page is confirmed by its successor.
        return min(self.limit - found + 1, reader.PAGE)


class RecordReader:
    """Reads the records of a history in order, one page at a time."""

    def __init__(
        self,
        past: History,
        settings: Settings,
        filter: RecordFilter,
        *,
        on_damage: OnDamage | None = None,
    ) -> None:
        self._past = past
        self._settings = settings
        self._on_damage = on_damage
        self._filter = filter.checked()
        self._found = 0
        self._forward = ForwardReader(past, after=self._filter.after, on_damage=on_damage)

    def page(self) -> Steps[list[Record] | None]:
        """Return the next records, or None at the end. A page may be empty before that."""
        if self._found == self._filter.limit:
            return None
        whole = yield from self._forward.page(self._filter.page_size(self._found))
        if whole is None:
            return None
        if self._past.erasures is None and any(linked.body is None for linked in whole):
            erasures = yield from _find_erasures(self._past)
            self._past = msgspec.structs.replace(self._past, erasures=erasures)
        return (yield from self._take(whole))

    def _take(self, whole: Sequence[VerifiedRecord]) -> Steps[list[Record]]:
        """Return the records that the filter selects, up to its limit."""
        kinds, limit = self._filter.kinds, self._filter.limit
        records: list[Record] = []
        for linked in whole:
            if self._found == limit:
                break
            if kinds and linked.kind not in kinds:
                continue
            try:
                past = self._past
                reader.require_body(past.stream.session, linked, past.erasures, past.cipher)
                yield from self._join(linked)
                records.append(decode_record(self._past, self._settings, linked))
                self._found += 1
            except DamagedError as error:
                if self._on_damage is None:
                    raise
                self._on_damage(error)
        return records

    def _join(self, linked: VerifiedRecord) -> Steps[None]:
        """Read the bodies of a record. If they are damaged, they stay cited, and it is reported."""
        try:
            yield from join_records(self._past, [linked], self._settings.part_size)
        except NotFoundError:  # A part was emptied. Whether it was erased may not be known yet.
            if self._past.erasures is None:
                erasures = yield from _find_erasures(self._past)
                self._past = msgspec.structs.replace(self._past, erasures=erasures)
                yield from self._join(linked)
        except DamagedError as error:
            if self._on_damage is None:
                raise
            self._on_damage(error)


def _find_erasures(past: History) -> Steps[Erasures]:
    """Return what the `erased` records of a history name, as far as it can be read."""
    forward, erasures = ForwardReader(past, on_damage=lambda _: None), NOTHING_ERASED
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.kind == Erased.kind:
                with contextlib.suppress(DamagedError):  # It is reported when its turn comes.
                    content = chain.decode_content(past.stream.session, linked, past.cipher)
                    erasures = erasures.add(content)
    return erasures


class NewestRecordReader(RecordReader):
    """Reads the records of a history from its end, one page at a time."""

    def __init__(self, past: History, settings: Settings, filter: RecordFilter) -> None:
        super().__init__(past, settings, filter)
        self._backward = reader.read_backward(past)

    def page(self) -> Steps[list[Record] | None]:
        """Return the next records, newest first, or None at the beginning."""
        if self._backward.ended or self._found == self._filter.limit:
            return None
        size = self._filter.page_size(self._found)
        entries = yield from self._backward.page(size)
        whole = []
        for linked in entries:
            if linked.position <= self._filter.after:
                self._backward.ended = True
                break
            whole.append(linked)
        return (yield from self._take(whole))


def record_reader(
    replica: Replica, filter: RecordFilter, *, reverse: bool, on_damage: OnDamage | None
) -> RecordReader:
    """Return a reader of the records in a replica's view, in order or from the end."""
    past, settings = replica.history, replica.settings
    if not reverse:
        return RecordReader(past, settings, filter, on_damage=on_damage)
    if on_damage is not None:
        raise UsageError("on_damage cannot be combined with reverse: read the records in order")
    return NewestRecordReader(past, settings, filter)


def find_position(past: History, position: int) -> Steps[VerifiedRecord | None]:
    """Return the record at a position that a caller chose; None if the session has none there.

    CompactedError if a compaction dropped it.
    """
    # A dropped record may be carried; if not, reading it says that it was compacted.
    earliest = 1 if past.compacted else past.first
    if not earliest <= position <= past.tip.position:
        return None
    return (yield from reader.read_record(past, position))


def read_record(past: History, settings: Settings, position: int) -> Steps[Record]:
    """Return the record at a position; NotFoundError if the session has none there."""
    linked = yield from find_position(past, require_int(position, "position"))
    if linked is None:
        hint = f"it has records from {past.first} to {past.tip.position}"
        raise NotFoundError(f"a record at {position} in session {past.stream.session!r}", hint)
    yield from join_records(past, [linked], settings.part_size)
    return decode_record(past, settings, linked)


def find_record(replica: Replica, record_id: str) -> Steps[Record]:
    """Return the record under a caller's id; NotFoundError if there is none."""
    require_record_id(record_id)
    batch = replica.new_batch()
    found = yield from batch.find(record_id)
    if found is None:
        yield from reader.require_tip(batch.past)  # Index pages do not link to it.
        hint = "ids are those that a caller passed as id="
        raise NotFoundError(f"a record with the id {record_id!r}", hint)
    content = found.record.content  # The index has a turn at its end.
    position = content.begun if isinstance(content, TurnEnd) else found.position
    return (yield from read_record(batch.past, replica.settings, position))


def previous_note(record: Record) -> int:
    """Return the position of the note before one with the same topic, or 0."""
    return record.content.previous if isinstance(record.content, Note) else 0


def decode_record(past: History, settings: Settings, linked: VerifiedRecord) -> Record:
    """Return a record, with values of the caller's types restored."""
    name = past.stream.session
    record = chain.decode_record(name, linked, past.cipher)
    if isinstance(record.content, Part):
        record = msgspec.structs.replace(record, content=_readable_part(settings, linked))
    unpacked = _unpack(settings.codec, record.content, record.payload, name, linked.position)
    if unpacked is not record.content:
        record = msgspec.structs.replace(record, content=unpacked)
    return chain.to_record(name, linked, record)


def _readable_part(settings: Settings, linked: VerifiedRecord) -> Part:
    """Return a part as applications see it, with a body of its own."""
    size, at = linked.size, (linked.position, linked.position)
    citation = Citation(form="bytes", size=size, digest="", parts=(at,))
    return Part(size=size, data=settings.codec.make_body(citation))


PAGE_ENTRIES = 32  # entries; windows are short, so most of a larger page would be wasted


SUMMARY_ROLE = "system"

SUMMARY_HEADING = "Summary of the conversation so far:\n"

SUMMARY_AUTHOR = "perdure:summary"


class MessageCounter(NamedTuple):
    """Counts the tokens of messages, reusing the counts in records made by the same counter."""

    counter: Counter | None
    below: int
    """Bodies of fewer bytes are read with their messages."""
    texts_below: int = 0
    """Texts of fewer bytes are, too: they are counted."""
    notices: Mapping[int, int] = {}
    """By position: the tokens of the interruption notices that unanswered calls will get."""

    @classmethod
    def of(
        cls, state: SessionState, counter: Counter | None, below: int, texts_below: int = 0
    ) -> "MessageCounter":
        """Return the counter of a session's messages; None as `counter` counts every one as 0."""
        notices: dict[int, int] = {}
        if counter is not None:
            for call_id, call in state.conversation.calls.items():
                notice = closing({"role": "assistant"}, Call(call_id, call.name))
                notices[call.position] = notices.get(call.position, 0) + counter.count(notice)
        return cls(counter, below, texts_below, notices)

    def read_whole(self, past: History, own: Codec, linked: VerifiedRecord) -> Steps[StoredMessage]:
        """Return the message in an entry, counted, with the bodies that are read with it."""
        yield from join_records(past, [linked], self.below, self.texts_below)
        return self.read(past, own, linked)

    def message(self, message: dict[str, Any]) -> int:
        """Return the number of tokens of a message that has no record."""
        return 0 if self.counter is None else count_tokens(self.counter, message)

    def read(self, past: History, own: Codec, linked: VerifiedRecord) -> StoredMessage:
        """Return the message in an entry, counted."""
        position, content = linked.position, decode_message(past, own, linked)
        tokens = 0
        if self.counter is not None and not content.opaque:
            same = content.counter == self.counter.name
            tokens = content.tokens if same else count_tokens(self.counter, content.message)
            tokens += self.notices.get(position, 0)
        return StoredMessage(
            position,
            content.message,
            content.author,
            content.recipient,
            content.channel,
            content.turn,
            content.interrupted,
            tokens,
            content.opaque,
            bool(content.parts),
        )

    def summary(self, last: int, content: Summary) -> StoredMessage:
        """Return a summary as a counted message that replaces everything up to `last`."""
        message = summary_message(content.text)
        same_counter = self.counter is not None and content.counter == self.counter.name
        tokens = content.tokens if same_counter else self.message(message)
        return StoredMessage(last, message, SUMMARY_AUTHOR, tokens=tokens)


def summary_message(text: str) -> dict[str, Any]:
    """Return a summary's text as the message that replaces the summarized ones."""
    return {"role": SUMMARY_ROLE, "content": SUMMARY_HEADING + text}


def unknown_effect_notices(
    state: SessionState, summary: SummaryRef, counting: MessageCounter
) -> list[StoredMessage]:
    """Return a notice for each call of unknown outcome whose own notice was summarized away."""
    notices = []
    for effect in state.effects.by_identity.values():
        if effect.state == UNKNOWN and effect.outcome <= summary.last:
            text = f"A call of {effect.tool!r} may have happened; its outcome is still unknown."
            message = {"role": "system", "content": text}
            tokens = counting.message(message)
            notices.append(StoredMessage(effect.outcome, message, tokens=tokens))
    return notices


class MessageReader:
    """Reads the messages after a position in pages, newest first, without erased ones."""

    def __init__(
        self,
        view: StateView,
        own: Codec,
        *,
        after: int,
        counting: MessageCounter,
    ) -> None:
        past, conversation = view.history, view.state.conversation
        self._past = past
        self._order = conversation.visible_order() if conversation.hidden else None
        self._own = own
        self._after = after
        self._counting = counting
        self._backward = reader.read_backward(past)
        self._ids: set[str] = set()
        """Record ids so far: a whole answer has the id of the interrupted one it supersedes."""

    def page(self) -> Steps[list[StoredMessage] | None]:
        """Return the next messages, newest first and perhaps none; None at the end."""
        if self._backward.ended:
            return None
        messages: list[StoredMessage] = []
        past = self._past
        for linked in (yield from self._backward.page(PAGE_ENTRIES)):
            if linked.position <= self._after:
                self._backward.ended = True
                break
            is_message = linked.kind == Message.kind and linked.body is not None
            placed = [linked] if is_message else []
            if self._order is not None:
                placed = self._order.place(linked, is_message=is_message)
            messages += yield from self._read(placed)
        if self._order is not None and self._backward.ended and past.compacted:
            messages += yield from self._read(self._order.flush())
        return messages

    def _read(self, placed: Sequence[VerifiedRecord]) -> Steps[list[StoredMessage]]:
        past, messages = self._past, []
        for item in placed:
            message = self._counting.read(past, self._own, item)
            if message.has_bodies:
                message = yield from self._counting.read_whole(past, self._own, item)
            record_id = chain.decode_record(past.stream.session, item, past.cipher).id
            if not (message.interrupted and record_id in self._ids):
                messages.append(message)
            self._ids.add(record_id)
        return messages


def read_instructions(
    view: StateView, own: Codec, counting: MessageCounter
) -> Steps[list[StoredMessage]]:
    """Read the instructions and pinned messages, which are part of every window.

    The caller reads the newest messages after them, so the tip need not be checked here.
    """
    conversation, past = view.state.conversation, view.history
    messages: list[StoredMessage] = []
    for position in sorted({*conversation.systems, *conversation.pins}):
        linked = yield from reader.read_record(past, position, check_tip=False)
        message = counting.read(past, own, linked)
        if message.has_bodies:
            message = yield from counting.read_whole(past, own, linked)
        messages.append(message)
    return messages


def read_summary(
    past: History, summary: SummaryRef, counting: MessageCounter
) -> Steps[list[StoredMessage]]:
    """Read the summary in force as a list of one message; the tip is not checked, as above."""
    content = yield from reader.read_kind(past, summary.position, Summary, check_tip=False)
    return [counting.summary(summary.last, content)]


def is_turn_start(message: StoredMessage, previous: StoredMessage | None) -> bool:
    """Whether a message is the first of its turn; without a turn, every user message is."""
    if message.turn:
        return previous is None or previous.turn != message.turn
    return message.message.get("role") == "user"


def window_starts(ordered: Sequence[StoredMessage], *, whole: bool) -> list[int]:
    """Return the indexes at which a window may begin: starts of turns that are safe cuts.

    Without any turn or user message, every safe cut is one. Unless the messages are the `whole`
    conversation, the turn of the first message is skipped: it may have begun earlier.
    """
    safe = safe_cuts(ordered)
    indexes, seen_turns = [], set() if whole or not ordered else {ordered[0].turn}
    for index, message in enumerate(ordered):
        turn = message.turn
        begins = turn not in seen_turns if turn else is_turn_start(message, None)
        seen_turns.add(turn)
        if begins and safe[index]:
            indexes.append(index)
    if whole and ordered and 0 not in indexes:
        indexes.insert(0, 0)
    if any(message.turn or message.message.get("role") == "user" for message in ordered):
        return indexes
    return [index for index in range(len(ordered)) if safe[index]]
