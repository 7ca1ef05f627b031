"""What a session knows of its conversation beyond the messages themselves. Pure.

Positions and small facts only: calls without a result, answers whose stream is not over, messages
that windows keep, the summary in force, the tools on offer. A state is never changed: what changes
it returns another, and most messages return the same.
"""

from typing import NamedTuple

from perdure.effects.calls import answers, open_calls
from perdure.records import Message, Piece, Pinned, Summary, SummaryUndone, Tools

CALLS_MAX = 256  # Calls that nobody answered; those before are closed in every transcript anyway.
SYSTEMS_MAX = 64  # Half of them the first ones, half the latest.
SUMMARIES_MAX = 64  # How many can be undone one after the other.
PINS_MAX = 256  # What is pinned is in every window: more would leave no room for anything else.


class OpenCall(NamedTuple):
    """A tool call without a result: where its message stands, and in which turn."""

    position: int
    turn: str
    name: str


class Partial(NamedTuple):
    """An answer whose stream is not over, or was cut: its turn, and the last of its pieces."""

    turn: str
    position: int


class Summarised(NamedTuple):
    """A summary: where it stands, and which positions it stands for."""

    position: int
    first: int
    last: int
    previous: int


class Talk(NamedTuple):
    """The state of a conversation after the records so far."""

    calls: dict[str, OpenCall] = {}  # noqa: RUF012 - nobody changes it
    partials: dict[str, Partial] = {}  # noqa: RUF012
    systems: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    summaries: tuple[Summarised, ...] = ()
    """The one in force is the last; before it, those that undoing brings back."""
    tools: tuple[str, int] = ("", 0)
    """The digest of the catalogue on offer, and the position of its record."""

    @property
    def summary(self) -> Summarised | None:
        """The summary in force."""
        return self.summaries[-1] if self.summaries else None

    @property
    def cut(self) -> dict[str, Partial]:
        """The answers that were cut: of each turn the newest, which was to replace the others."""
        newest: dict[str, int] = {}
        for partial in self.partials.values():
            newest[partial.turn] = max(partial.position, newest.get(partial.turn, 0))
        return {
            answer: partial
            for answer, partial in self.partials.items()
            if not partial.turn or newest[partial.turn] == partial.position
        }

    def message(self, position: int, record_id: str, content: Message) -> "Talk":
        """Take in a message. Most change nothing, and this is part of every write."""
        message, calls, systems = content.message, self.calls, self.systems
        role = message.get("role")
        quiet = not calls and not self.partials
        if quiet and len(message) == 2 and type(message.get("content")) is str:  # noqa: PLR2004
            if role in ("user", "assistant"):
                return self
            if role == "system":
                return self._instructed(position)
        opened = () if content.interrupted else open_calls(message)
        if role in ("system", "developer"):
            systems = _kept(systems, position)
        elif not opened and not calls and not self.partials:
            return self
        answered = answers(message) if calls else ()
        if answered or opened:
            calls = dict(calls)
            for call_id in answered:
                calls.pop(call_id, None)
            for call in opened:
                calls[call.id] = OpenCall(position, content.turn, call.name)
            while len(calls) > CALLS_MAX:
                del calls[next(iter(calls))]
        talk = Talk(calls, self.partials, systems, self.pins, self.summaries, self.tools)
        return talk.superseded(record_id, content) if self.partials else talk

    def _instructed(self, position: int) -> "Talk":
        systems = _kept(self.systems, position)
        talk = (self.calls, self.partials, systems, self.pins, self.summaries, self.tools)
        return tuple.__new__(Talk, talk)  # As calling the class does, in half the time.

    def superseded(self, record_id: str, content: Message) -> "Talk":
        """Drop what an answer supersedes: its own pieces, and those of its turn."""
        role = content.message.get("role")
        own = content.turn if role in ("assistant", "model", None) else ""
        left = {
            answer: partial
            for answer, partial in self.partials.items()
            if answer != record_id and not (own and partial.turn == own)
        }
        return self if len(left) == len(self.partials) else self._replace(partials=left)

    def piece(self, position: int, content: Piece) -> "Talk":
        """Take in a part of an answer."""
        partial = Partial(content.turn, position)
        return self._replace(partials={**self.partials, content.answer: partial})

    def ended(self, turn: str) -> "Talk":
        """Take in that a turn is over: what is left of its answers stands in messages."""
        left = {answer: one for answer, one in self.partials.items() if one.turn != turn}
        return self if len(left) == len(self.partials) else self._replace(partials=left)

    def pinned(self, content: Pinned) -> "Talk":
        """Take in that a message is to be kept, or not any more."""
        pins = {*self.pins, content.message} if content.on else {*self.pins} - {content.message}
        return self._replace(pins=tuple(sorted(pins)))

    def summarised(self, position: int, content: Summary) -> "Talk":
        """Take in a summary."""
        found = Summarised(position, content.first, content.last, content.previous)
        before = tuple(each for each in self.summaries if each.position <= content.previous)
        return self._replace(summaries=(*before, found)[-SUMMARIES_MAX:])

    def undone(self, content: SummaryUndone) -> "Talk":
        """Take in that a summary, and those that took it in, count no more."""
        left = tuple(each for each in self.summaries if each.position < content.summary)
        return self._replace(summaries=left)

    def offered(self, position: int, content: Tools) -> "Talk":
        """Take in which tools are on offer."""
        return self._replace(tools=(content.digest, position))


def _kept(systems: tuple[int, ...], position: int) -> tuple[int, ...]:
    if len(systems) < SYSTEMS_MAX:
        return (*systems, position)
    half = SYSTEMS_MAX // 2
    return systems[:half] + systems[half + 1 :] + (position,)
