"""Plans that append messages, with their attribution, in a turn or outside of one. Pure.

In: messages as callers and SDKs pass them. Out: a `Plan` with encoded records. Messages are checked
and encoded at once, so one that cannot be stored is refused before anything is written, and a
message object changed after the call does not change the record.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure import codec
from perdure.conversations.intake import require_role, take, with_article
from perdure.errors import ConflictError, UsageError
from perdure.fold import GENERATED, OpenTurn, fingerprint, said
from perdure.journal import Draft
from perdure.plans import Batch, Plan, add_drafts, require_str, require_text
from perdure.records import Message
from perdure.replica import Replica
from perdure.tokens import Counter, counted

RECORD_ID_BYTES_MAX = 128  # bytes of UTF-8; snapshots hold the newest thousand ids


class Ownership(NamedTuple):
    """A turn owned by one handle; invalid as soon as another handle takes the turn over."""

    turn: str
    owner: str


class Voice(NamedTuple):
    """The attribution of a message: author, recipient, channel, and origin of its text."""

    author: str = ""
    recipient: str = ""
    channel: str = ""
    origin: str = ""


NOBODY = Voice()


def voice_of(author: str, recipient: str, channel: str, origin: str) -> Voice:
    """Return an attribution; an empty one is always the same object, so `is` recognizes it."""
    fields = (author, recipient, channel, origin)
    return NOBODY if fields == NOBODY else Voice(*fields)


Taking = tuple[dict[str, Any], dict[str, Any]]
"""A message and its metadata: a `Taken`, or an equal pair."""


def say(
    replica: Replica,
    messages: Sequence[object],
    *,
    voice: Voice = NOBODY,
    turn: Ownership | None = None,
    record_id: str | None = None,
) -> Plan:
    """Plan to append messages, all or none."""
    if not messages:
        raise UsageError("nothing to append: give at least one message")
    parsed: list[Taking] = []
    for message in messages:
        parsed += taken_in(message)
    return say_taken(replica, parsed, voice=voice, turn=turn, record_id=record_id)


def taken_in(message: Any) -> Sequence[Taking]:
    """Return the messages in a caller's argument; UsageError if one has no valid role."""
    # Most messages are a role and a text. Skipping the parser for them makes every write cheaper.
    if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:  # noqa: PLR2004
        role = message.get("role")
        if role in ("user", "assistant", "system"):
            return ((message, {}),)
    parsed = take(message)
    for item in parsed:
        if type(item.message) is not dict:
            kind = with_article(type(item.message).__name__)
            raise UsageError(f"expected a message, not {kind}")
        require_role(item.message)
    return parsed


def say_taken(
    replica: Replica,
    parsed: Sequence[Taking],
    *,
    voice: Voice = NOBODY,
    turn: Ownership | None = None,
    record_id: str | None = None,
    answer: str = "",
) -> Plan:
    """Plan to append parsed messages, all or none.

    `answer` is the record id of a streamed answer that they complete.
    """
    turn_id = turn.turn if turn else ""
    drafts = message_drafts(replica, parsed, voice, turn_id, record_id)
    if answer:
        drafts[0] = msgspec.structs.replace(drafts[0], id=answer)
    make = add_drafts(drafts)
    if turn is not None:
        make = partial(_say_in_turn, turn, drafts)
    return Plan("answer" if answer else "message", turn_id, make)


def _say_in_turn(turn: Ownership, drafts: Sequence[Draft], batch: Batch) -> int:
    # Messages stored by an earlier attempt are no conflict, even if the turn has ended since.
    if batch.find_stored(drafts) is None:
        require_turn(batch, turn)
    return add_drafts(drafts)(batch)


def message_drafts(
    replica: Replica, parsed: Sequence[Taking], voice: Voice, turn: str, record_id: str | None
) -> list[Draft]:
    """Return messages as records; UsageError if one cannot be stored."""
    drafts = []
    settings = replica.settings
    token, pack, counter = settings.token, settings.codec.pack, settings.counter
    if voice is not NOBODY:
        for field, text in voice._asdict().items():
            require_str(text, field)
    for message, meta in parsed:
        if voice is NOBODY and counter is None and not meta:  # The usual case, in half the time.
            content = Message(message=pack(message), turn=turn)
        else:
            content = _message(pack(message), turn, voice, pack(meta), counter, message)
        drafts.append(Draft(GENERATED + token(), content, codec.encode(content)))
    if record_id is not None:
        drafts[0] = named(drafts, require_id(record_id))
    return drafts


def _message(
    packed: Any, turn: str, voice: Voice, meta: Any, counter: Counter | None, message: Any
) -> Message:
    return Message(
        message=packed,
        turn=turn,
        author=voice.author,
        recipient=voice.recipient,
        channel=voice.channel,
        origin=voice.origin,
        meta=meta,
        tokens=counted(counter, message) if counter else 0,
        counter=require_str(counter.name, "the name of a counter") if counter else "",
    )


def named(drafts: Sequence[Draft], record_id: str) -> Draft:
    """Return the first draft with the caller's id, and with a digest of all if there are more."""
    content = drafts[0].content
    if len(drafts) > 1 and isinstance(content, Message):
        digest = fingerprint(b"\0".join(said(draft.content, draft.payload) for draft in drafts))
        content = msgspec.structs.replace(content, call=digest)
    return Draft(record_id, content, codec.encode(content))


def require_open(batch: Batch, turn: str) -> OpenTurn:
    """Return a turn that has not ended; ConflictError if it has."""
    open_turn = batch.state.turns.get(turn)
    if open_turn is None:
        raise ConflictError(batch.name, batch.position, batch.position, "the turn has ended")
    return open_turn


def require_turn(batch: Batch, turn: Ownership) -> None:
    """Raise ConflictError unless the turn is open and still owned by this handle."""
    if require_open(batch, turn.turn).owner != turn.owner:
        reason = "another handle continued the turn"
        raise ConflictError(batch.name, batch.position, batch.position, reason)


def require_id(record_id: object) -> str:
    """Return a caller-chosen record id, or raise UsageError that says what is wrong with it."""
    text = require_text(record_id, "an id", longest=RECORD_ID_BYTES_MAX)
    if text.startswith(GENERATED):
        raise UsageError(f"an id must not begin with {GENERATED!r}: those ids are reserved")
    return text
