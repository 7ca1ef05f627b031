"""Messages of a session as windows and summaries want them: counted, newest first. Pure.

What is read is read by the page from the end, so it costs what is wanted of it.
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

PAGE = 32  # Entries read at once: windows are short, and most of a larger page would be wasted.

SUMMARY_ROLE = "system"
SUMMARY_HEADING = "Summary of the conversation so far:\n"
SUMMARY_AUTHOR = "perdure:summary"


class Counted(NamedTuple):
    """A message, and how many tokens it takes; 0 where nobody counts."""

    said: Said
    tokens: int


class Counting(NamedTuple):
    """Counts messages: from their records where the same counter counted them before."""

    counter: Counter | None
    notices: Mapping[int, int] = {}
    """By position, the tokens of the results that calls without one will get."""

    @classmethod
    def of(cls, replica: Replica, counter: Counter | None) -> "Counting":
        """Return how the messages of a session are counted."""
        notices: dict[int, int] = {}
        if counter is not None:
            for call_id, call in replica.fold.talk.calls.items():
                notice = closing({"role": "assistant"}, Call(call_id, call.name))
                notices[call.position] = notices.get(call.position, 0) + counter.count(notice)
        return cls(counter, notices)

    def message(self, message: dict[str, Any]) -> int:
        """Return how many tokens a message takes that has no record."""
        return 0 if self.counter is None else counted(self.counter, message)

    def record(self, position: int, content: Message) -> Counted:
        """Return a message's record, counted."""
        said = Said(
            position,
            content.message,
            content.author,
            content.recipient,
            content.channel,
            content.turn,
            content.interrupted,
        )
        if self.counter is None:
            return Counted(said, 0)
        known = content.counter == self.counter.name
        tokens = content.tokens if known else counted(self.counter, content.message)
        return Counted(said, tokens + self.notices.get(position, 0))

    def summary(self, last: int, content: Summary) -> Counted:
        """Return a summary as the message that stands for everything up to `last`."""
        message = summary_message(content.text)
        said = Said(last, message, SUMMARY_AUTHOR)
        if self.counter is not None and content.counter == self.counter.name:
            return Counted(said, content.tokens)
        return Counted(said, self.message(message))


def still(replica: Replica) -> Replica:
    """Return a replica that stays as it is now while others write, so that all of it agrees."""
    twin = Replica(replica.name, replica.settings)
    twin.view = replica.view
    return twin


def summary_message(text: str) -> dict[str, Any]:
    """Return a summary as the message that stands for what it sums up."""
    return {"role": SUMMARY_ROLE, "content": SUMMARY_HEADING + text}


def unknown_effects(replica: Replica, counting: Counting) -> list[Counted]:
    """Return a line for each call that may have happened and whose notice was summed up."""
    summary, found = replica.fold.talk.summary, []
    for deed in replica.fold.deeds.by_identity.values():
        if deed.state == UNKNOWN and summary is not None and deed.outcome <= summary.last:
            text = f"A call of {deed.tool!r} may have happened; its outcome is still unknown."
            message = {"role": "system", "content": text}
            found.append(Counted(Said(deed.outcome, message), counting.message(message)))
    return found


class Reader:
    """Messages after a position, newest first, by the page; torn batches are left out."""

    def __init__(self, replica: Replica, *, after: int, counting: Counting) -> None:
        past = replica.past
        self._replica = replica
        self._after = after
        self._counting = counting
        self._backward = Backward(replica.name, past.cipher, past, tenant=past.stream.tenant)
        self._torn = past.torn or (0, 0)
        self._ids: set[str] = set()
        """Of messages; what a whole answer supersedes bears the same id."""

    def page(self) -> Steps[list[Counted] | None]:
        """Return some messages, perhaps none, or None at the end."""
        if self._backward.ended:
            return None
        found: list[Counted] = []
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
                said = views.said_of(self._replica, payload, position)
                if not (said.interrupted and linked.header.id in self._ids):
                    found.append(self._counting.record(position, said))
                self._ids.add(linked.header.id)
        return found


def instructions(replica: Replica, counting: Counting) -> Steps[list[Counted]]:
    """Return the instructions and pinned messages, which every window has."""
    talk = replica.fold.talk
    found: list[Counted] = []
    for position in sorted({*talk.systems, *talk.pins}):
        linked = yield from reading.entry_at(replica.past, position)
        payload = journal.open_body(replica.name, linked, replica.past.cipher)
        found.append(counting.record(position, views.said_of(replica, payload, position)))
    return found


def summary_in_force(replica: Replica, counting: Counting) -> Steps[list[Counted]]:
    """Return the summary in force as a message, or nothing."""
    found = replica.fold.talk.summary
    if found is None:
        return []
    content = yield from reading.content_at(replica.past, found.position)
    if not isinstance(content, Summary):
        raise ChainError(replica.name, found.position, "a summary is expected here")
    return [counting.summary(found.last, content)]


def begins_turn(one: Counted, before: Counted | None) -> bool:
    """Whether a message is the first of its turn; without turns, every user's message is."""
    turn = one.said.turn
    if turn:
        return before is None or before.said.turn != turn
    return one.said.message.get("role") == "user"


def starts(ordered: Sequence[Counted], *, whole: bool) -> list[int]:
    """Return the indexes at which a window may begin: turns, where nothing is torn.

    Where nobody has turns and no user speaks, it is every message that nothing is torn at. Unless
    they are the `whole` conversation, the first message may be anywhere in its turn.
    """
    safe = safe_cuts([one.said for one in ordered])
    found, turns = [], set() if whole or not ordered else {ordered[0].said.turn}
    for index, one in enumerate(ordered):
        turn = one.said.turn
        begins = turn not in turns if turn else begins_turn(one, None)
        turns.add(turn)
        if begins and safe[index]:
            found.append(index)
    if whole and ordered and 0 not in found:
        found.insert(0, 0)
    if any(one.said.turn or one.said.message.get("role") == "user" for one in ordered):
        return found
    return [index for index in range(len(ordered)) if safe[index]]
