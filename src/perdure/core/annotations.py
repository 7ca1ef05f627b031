"""Plans for notes, labels and pins: what is recorded about a conversation. Pure.

In: arguments of public methods. Out: a `Plan`. Arguments are checked before anything is written.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from perdure.backends.protocol import DELETED, HALF_COPIED, LABELS_MAX
from perdure.core.history import find_position
from perdure.core.plans import Plan, RecordBatch, add_unless_stored
from perdure.core.replica import Replica
from perdure.core.state.conversation import PINS_MAX
from perdure.core.state.session_state import RESERVED_LABELS
from perdure.core.validation import (
    NAME_BYTES_MAX,
    require_int,
    require_labels,
    require_record_id,
    require_str,
    require_text,
)
from perdure.errors import ConflictError, NotFoundError, UsageError
from perdure.formats.tool_calls import answers, open_calls
from perdure.journal import chain, codec
from perdure.journal.chain import PendingRecord
from perdure.journal.records import LabelsChanged, Message, Note, Pinned
from perdure.journal.requests import Steps

LABEL_TEXT_MAX = 64  # bytes of UTF-8; keeps the head of a stream within one small row


def add_note(
    replica: Replica,
    data: object,
    *,
    author: str,
    record_id: str | None,
    topic: str = "",
    expect: int | None = None,
) -> Plan[int]:
    """Plan a note: data that is not part of the conversation.

    With `expect`, it conflicts unless the newest note of its topic is at that position.
    """
    if require_str(topic, "a topic"):
        require_text(topic, "a topic", longest=NAME_BYTES_MAX)
    if expect is not None and (require_int(expect, "expect") < 0 or not topic):
        raise UsageError("expect is the position of the newest note of a topic: 0 or more")
    data = replica.settings.codec.pack(data)
    content = Note(data=data, author=require_str(author, "author"), topic=topic)
    note_id = require_record_id(record_id) if record_id is not None else replica.new_id()
    draft = PendingRecord(note_id, content, codec.encode(content))
    if not topic:
        return Plan("note", "", partial(add_unless_stored, [draft], None))

    def make(batch: RecordBatch) -> Steps[int]:
        if record_id is not None and batch.may_know(note_id):
            stored = yield from batch.find_stored([draft])
            if stored:
                return stored
        newest = batch.state.topics.get(topic, 0)
        if expect is not None and newest != expect:
            reason = f"another note of the topic {topic!r} came first"
            raise ConflictError(batch.name, expect, newest, reason)
        return batch.add_content(note_id, msgspec.structs.replace(content, previous=newest))

    return Plan("note", "", make)


def change_labels(replica: Replica, add: Sequence[str], remove: Sequence[str]) -> Plan[int]:
    """Plan a change of labels."""
    require_labels(remove)
    for text in (*add, *remove):
        require_text(text, "a label", longest=LABEL_TEXT_MAX)
        if text in RESERVED_LABELS:
            raise UsageError(f"the label {text!r} is reserved: choose another")
    record_id = replica.new_id()
    content = LabelsChanged(add=tuple(add), remove=tuple(remove))
    # A head must have room for the reserved labels too. These two never occur with others.
    limit = LABELS_MAX - len(RESERVED_LABELS - {DELETED, HALF_COPIED})

    def make(batch: RecordBatch) -> int:
        if len((batch.state.labels | set(add)) - set(remove)) > limit:
            raise UsageError(f"a session has at most {limit} labels: remove one first")
        return batch.add_content(record_id, content)

    return Plan("label", "", make)


def pin_message(replica: Replica, position: int, *, on: bool) -> Plan[int]:
    """Plan to pin a message, so that every window has it, or to unpin it."""
    require_int(position, "position")
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> Steps[int]:
        if not on and position not in batch.state.conversation.pins:
            raise NotFoundError(
                f"a pin on the message at {position}", "only a pinned message can be unpinned"
            )
        if on:
            yield from _require_message(replica, position)
            if len({*batch.state.conversation.pins, position}) > PINS_MAX:
                raise UsageError(f"at most {PINS_MAX} messages can be pinned: unpin one first")
        return batch.add_content(record_id, Pinned(message=position, on=on))

    return Plan("pin", "", make)


def _require_message(replica: Replica, position: int) -> Steps[None]:
    past = replica.history
    linked = yield from find_position(past, position)
    if linked is None:
        raise NotFoundError(f"a record at {position}", f"the newest is at {replica.tip.position}")
    content = chain.decode_content(past.stream.session, linked, past.cipher)
    if not isinstance(content, Message):
        raise UsageError(f"the record at {position} is a {content.kind}: only messages are pinned")
    if content.opaque:
        raise UsageError(f"the message at {position} is opaque: no window for a model can have it")
    if open_calls(content.message) or answers(content.message):
        raise UsageError(f"the message at {position} is part of a tool call: pin another message")
