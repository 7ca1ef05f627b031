"""Read a session's messages for windows and summaries: counted, newest first.

A replica comes in, counted messages go out. Pure: reads are yielded as steps.

Messages are read in pages from the end, so the cost depends on how many are needed, not on the
length of the session.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure import journal, reading, views
from perdure.effects.calls import Call, closing
from perdure.effects.deeds import UNKNOWN
from perdure.errors import ChainError
from perdure.reading import Backward
from perdure.records import Message, Recovered, Summary
from perdure.replica import Replica
from perdure.steps import Steps
from perdure.tokens import Counter, counted
from perdure.transcript import Said, safe_cuts

PAGE = 32  # entries; windows are short, so most of a larger page would be wasted

SUMMARY_ROLE = "system"
SUMMARY_HEADING = "Summary of the conversation so far:\n"
SUMMARY_AUTHOR = "perdure:summary"


class Counted(NamedTuple):
    """A stored message and its number of tokens; 0 without a counter."""

    stored: Said
    tokens: int


class Counting(NamedTuple):
    """Counts the tokens of messages, reusing the counts in records made by the same counter."""

    counter: Counter | None
    notices: Mapping[int, int] = {}
    """By position: the tokens of the interruption notices that unanswered calls will get."""

    @classmethod
    def of(cls, replica: Replica, counter: Counter | None) -> "Counting":
        """Return the counter of a session's messages; None as `counter` counts every one as 0."""
        notices: dict[int, int] = {}
        if counter is not None:
            for call_id, call in replica.state.talk.calls.items():
                notice = closing({"role": "assistant"}, Call(call_id, call.name))
                notices[call.position] = notices.get(call.position, 0) + counter.count(notice)
        return cls(counter, notices)

    def message(self, message: dict[str, Any]) -> int:
        """Return the number of tokens of a message that has no record."""
        return 0 if self.counter is None else counted(self.counter, message)

    def record(self, position: int, content: Message) -> Counted:
        """Return the message of a record, counted."""
        stored = Said(
            position,
            content.message,
            content.author,
            content.recipient,
            content.channel,
            content.turn,
            content.interrupted,
        )
        if self.counter is None:
            return Counted(stored, 0)
        same_counter = content.counter == self.counter.name
        tokens = content.tokens if same_counter else counted(self.counter, content.message)
        return Counted(stored, tokens + self.notices.get(position, 0))

    def summary(self, last: int, content: Summary) -> Counted:
        """Return a summary as a counted message that replaces everything up to `last`."""
        message = summary_message(content.text)
        stored = Said(last, message, SUMMARY_AUTHOR)
        if self.counter is not None and content.counter == self.counter.name:
            return Counted(stored, content.tokens)
        return Counted(stored, self.message(message))


def still(replica: Replica) -> Replica:
    """Return a copy of a replica that later writes do not change: a consistent view."""
    copy = Replica(replica.name, replica.settings)
    copy.view = replica.view
    return copy


def summary_message(text: str) -> dict[str, Any]:
    """Return a summary's text as the message that replaces the summarized ones."""
    return {"role": SUMMARY_ROLE, "content": SUMMARY_HEADING + text}


def unknown_effects(replica: Replica, counting: Counting) -> list[Counted]:
    """Return a notice for each call of unknown outcome whose own notice was summarized away."""
    summary, notices = replica.state.talk.summary, []
    for deed in replica.state.deeds.by_identity.values():
        if deed.state == UNKNOWN and summary is not None and deed.outcome <= summary.last:
            text = f"A call of {deed.tool!r} may have happened; its outcome is still unknown."
            message = {"role": "system", "content": text}
            notices.append(Counted(Said(deed.outcome, message), counting.message(message)))
    return notices


class Reader:
    """Reads the messages after a position in pages, newest first, without torn batches."""

    def __init__(self, replica: Replica, *, after: int, counting: Counting) -> None:
        past = replica.past
        self._replica = replica
        self._after = after
        self._counting = counting
        self._backward = Backward(replica.name, past.cipher, past, tenant=past.stream.tenant)
        self._torn = past.torn or (0, 0)
        self._ids: set[str] = set()
        """Record ids so far: a whole answer has the id of the interrupted one it supersedes."""

    def page(self) -> Steps[list[Counted] | None]:
        """Return the next messages, newest first and perhaps none; None at the end."""
        if self._backward.ended:
            return None
        messages: list[Counted] = []
        name, cipher = self._replica.name, self._replica.past.cipher
        for linked in (yield from self._backward.page(PAGE)):
            position, kind = linked.entry.position, linked.header.kind
            if position <= self._after:
                self._backward.ended = True
                break
            if kind == Recovered.kind:
                content = journal.decode(name, linked, cipher)
                if isinstance(content, Recovered):
                    self._torn = (content.first, content.last)
            if kind == Message.kind and not self._torn[0] <= position <= self._torn[1]:
                payload = journal.open_body(name, linked, cipher)
                message = views.said_of(self._replica, payload, position)
                if not (message.interrupted and linked.header.id in self._ids):
                    messages.append(self._counting.record(position, message))
                self._ids.add(linked.header.id)
        return messages


def instructions(replica: Replica, counting: Counting) -> Steps[list[Counted]]:
    """Read the instructions and pinned messages, which are part of every window."""
    talk = replica.state.talk
    messages: list[Counted] = []
    for position in sorted({*talk.systems, *talk.pins}):
        linked = yield from reading.entry_at(replica.past, position)
        payload = journal.open_body(replica.name, linked, replica.past.cipher)
        messages.append(counting.record(position, views.said_of(replica, payload, position)))
    return messages


def summary_in_force(replica: Replica, counting: Counting) -> Steps[list[Counted]]:
    """Read the summary in force: a list of one message, or of none."""
    summary = replica.state.talk.summary
    if summary is None:
        return []
    content = yield from reading.content_at(replica.past, summary.position)
    if not isinstance(content, Summary):
        raise ChainError(replica.name, summary.position, "a summary is expected here")
    return [counting.summary(summary.last, content)]


def begins_turn(message: Counted, previous: Counted | None) -> bool:
    """Whether a message is the first of its turn; without a turn, every user message is."""
    turn = message.stored.turn
    if turn:
        return previous is None or previous.stored.turn != turn
    return message.stored.message.get("role") == "user"


def starts(ordered: Sequence[Counted], *, whole: bool) -> list[int]:
    """Return the indexes at which a window may begin: starts of turns that are safe cuts.

    Without any turn or user message, every safe cut is one. Unless the messages are the `whole`
    conversation, the turn of the first message is skipped: it may have begun earlier.
    """
    safe = safe_cuts([message.stored for message in ordered])
    indexes, seen_turns = [], set() if whole or not ordered else {ordered[0].stored.turn}
    for index, message in enumerate(ordered):
        turn = message.stored.turn
        begins = turn not in seen_turns if turn else begins_turn(message, None)
        seen_turns.add(turn)
        if begins and safe[index]:
            indexes.append(index)
    if whole and ordered and 0 not in indexes:
        indexes.insert(0, 0)
    if any(
        message.stored.turn or message.stored.message.get("role") == "user" for message in ordered
    ):
        return indexes
    return [index for index in range(len(ordered)) if safe[index]]
