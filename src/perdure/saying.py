"""What is said, as plans: messages, in somebody's voice, in a turn or outside of one. Pure.

What a caller gives is checked and encoded at once, so a message that can not be stored is refused
before anything is written, and one that is changed after the call has no effect on the record.
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

RECORD_ID_BYTES_MAX = 128  # Ids are kept in fold snapshots, a thousand at a time.


class Ownership(NamedTuple):
    """A turn as one handle holds it: void as soon as another handle took it over."""

    turn: str
    owner: str


class Voice(NamedTuple):
    """Who speaks to whom, where, and where the words came from."""

    author: str = ""
    recipient: str = ""
    channel: str = ""
    origin: str = ""


NOBODY = Voice()


def voice_of(author: str, recipient: str, channel: str, origin: str) -> Voice:
    """Return who speaks; mostly nobody is named, and that one is always the same."""
    voice = (author, recipient, channel, origin)
    return NOBODY if voice == NOBODY else Voice(*voice)


Taking = tuple[dict[str, Any], dict[str, Any]]
"""A message and what came with it: a `Taken`, or as much."""


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
    taken: list[Taking] = []
    for message in messages:
        taken += taken_in(message)
    return say_taken(replica, taken, voice=voice, turn=turn, record_id=record_id)


def taken_in(message: Any) -> Sequence[Taking]:
    """Return the messages in what a caller gave, with a role that is known."""
    # Most are a role and a text; that they need no look is part of the cost of every write.
    if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:  # noqa: PLR2004
        role = message.get("role")
        if role in ("user", "assistant", "system"):
            return ((message, {}),)
    taken = take(message)
    for one in taken:
        if type(one.message) is not dict:
            kind = with_article(type(one.message).__name__)
            raise UsageError(f"{kind} stands where a message is expected")
        require_role(one.message)
    return taken


def say_taken(
    replica: Replica,
    taken: Sequence[Taking],
    *,
    voice: Voice = NOBODY,
    turn: Ownership | None = None,
    record_id: str | None = None,
    answer: str = "",
) -> Plan:
    """Plan to append what was taken in, all or none: the end of a streamed `answer`, for one."""
    turn_id = turn.turn if turn else ""
    drafts = message_drafts(replica, taken, voice, turn_id, record_id)
    if answer:
        drafts[0] = msgspec.structs.replace(drafts[0], id=answer)
    make = add_drafts(drafts)
    if turn is not None:
        make = partial(_say_in_turn, turn, drafts)
    return Plan("answer" if answer else "message", turn_id, make)


def _say_in_turn(turn: Ownership, drafts: Sequence[Draft], batch: Batch) -> int:
    if batch.known(drafts) is None:
        require_turn(batch, turn)
    return add_drafts(drafts)(batch)


def message_drafts(
    replica: Replica, taken: Sequence[Taking], voice: Voice, turn: str, record_id: str | None
) -> list[Draft]:
    """Return messages as records; what can not be stored is refused."""
    drafts = []
    settings = replica.settings
    token, pack, counter = settings.token, settings.codec.pack, settings.counter
    if voice is not NOBODY:
        for field, text in voice._asdict().items():
            require_str(text, field)
    for message, meta in taken:
        if voice is NOBODY and counter is None and not meta:  # Most are, in half the time.
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
    """Return the first of some drafts under the caller's id, with a digest of them all."""
    content = drafts[0].content
    if len(drafts) > 1 and isinstance(content, Message):
        digest = fingerprint(b"\0".join(said(one.content, one.payload) for one in drafts))
        content = msgspec.structs.replace(content, call=digest)
    return Draft(record_id, content, codec.encode(content))


def require_open(batch: Batch, turn: str) -> OpenTurn:
    """Return a turn that has not ended; otherwise it is a conflict."""
    state = batch.fold.turns.get(turn)
    if state is None:
        raise ConflictError(batch.name, batch.position, batch.position, "the turn has ended")
    return state


def require_turn(batch: Batch, turn: Ownership) -> None:
    """Raise ConflictError unless the turn is open and nobody took it over."""
    if require_open(batch, turn.turn).owner != turn.owner:
        reason = "another handle continued the turn"
        raise ConflictError(batch.name, batch.position, batch.position, reason)


def require_id(record_id: object) -> str:
    """Return a record id that the caller chose, or say what is wrong with it."""
    text = require_text(record_id, "an id", longest=RECORD_ID_BYTES_MAX)
    if text.startswith(GENERATED):
        raise UsageError(f"an id must not begin with {GENERATED!r}: those are perdure's own")
    return text
