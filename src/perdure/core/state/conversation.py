"""The conversation part of a session's state: computed from records, without their content.

Records come in, a new state goes out. Pure. It holds positions and small facts only: unanswered
calls, unfinished answers, messages kept in every window, the summary in force, the tools on offer.

A state is immutable: each method returns a new one, or the same one if nothing changed, as for
most messages. Snapshots store these tuples.
"""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from perdure.core.state.message_order import MessageOrder, Replacement
from perdure.formats.tool_calls import answers, open_calls
from perdure.journal.ranges import Positions, clip_ranges, contains, exclude_ranges, merge_ranges
from perdure.journal.records import (
    CallRow,
    Message,
    MessageChunk,
    MessagesReplaced,
    MessagesRetracted,
    Pinned,
    Summary,
    SummaryUndone,
    Tools,
)

# unanswered calls; transcripts close older ones with a notice anyway. Those of open turns and of
# the newest message are kept beyond it: they are still to run.
CALLS_MAX = 256

SYSTEMS_MAX = 64  # system messages: the first half and the latest half are kept

SUMMARIES_MAX = 64  # summaries that can be undone in a row

PINS_MAX = 256  # messages; every window has them all, so more would leave room for nothing else


class OpenCall(NamedTuple):
    """A tool call without a result: the position of its message, and its turn."""

    position: int
    turn: str
    name: str


class PartialAnswer(NamedTuple):
    """An unfinished or interrupted answer: its turn, and the position of its last piece."""

    turn: str
    position: int


class SummaryRef(NamedTuple):
    """A summary: the position of its record, and the positions it replaces."""

    position: int
    first: int
    last: int
    previous: int


class ConversationState(NamedTuple):
    """The state of a conversation after the records so far."""

    calls: dict[str, OpenCall] = {}  # noqa: RUF012 - never mutated
    partials: dict[str, PartialAnswer] = {}  # noqa: RUF012
    systems: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    summaries: tuple[SummaryRef, ...] = ()
    """The last is in force; undo restores the one before it."""
    tools: tuple[str, int] = ("", 0)
    """The digest of the catalogue on offer, and the position of its record."""
    hidden: tuple[Positions, ...] = ()
    """The positions of messages that were retracted or replaced, in order."""
    replacements: tuple[Replacement, ...] = ()

    @property
    def summary(self) -> SummaryRef | None:
        """The summary in force."""
        return self.summaries[-1] if self.summaries else None

    @property
    def interrupted(self) -> dict[str, PartialAnswer]:
        """The unfinished answers: of each turn only the newest, which was to replace the others."""
        newest: dict[str, int] = {}
        for partial in self.partials.values():
            newest[partial.turn] = max(partial.position, newest.get(partial.turn, 0))
        return {
            answer: partial
            for answer, partial in self.partials.items()
            if not partial.turn or newest[partial.turn] == partial.position
        }

    def apply_message(
        self, position: int, record_id: str, content: Message, open_turns: Container[str]
    ) -> "ConversationState":
        """Apply a message. Part of every write, and most messages change nothing."""
        if content.opaque:
            return self
        message, calls, systems = content.message, self.calls, self.systems
        role = message.get("role")
        if (
            not calls
            and not self.partials
            and len(message) == 2  # noqa: PLR2004
            and role in ("user", "assistant")
            and type(message.get("content")) is str
        ):
            return self
        opened = () if content.interrupted else open_calls(message)
        if role in ("system", "developer"):
            systems = _add_system_position(systems, position)
        elif not opened and not calls and not self.partials:
            return self
        answered = answers(message) if calls else ()
        if answered or opened:
            closed = {*answered}
            calls = {id: call for id, call in calls.items() if id not in closed}
            for call in opened:
                calls[call.id] = OpenCall(position, content.turn, call.name)
            if len(calls) > CALLS_MAX:
                calls = _evict_calls(calls, position, open_turns)
        state = self._with(calls, systems)
        return state.drop_superseded(record_id, content) if self.partials else state

    def _with(self, calls: dict[str, OpenCall], systems: tuple[int, ...]) -> "ConversationState":
        # As `_replace`, in half the time: most calls of tools come through here.
        return ConversationState(calls, self.partials, systems, *self[3:])

    def drop_superseded(self, record_id: str, content: Message) -> "ConversationState":
        """Drop the partial answers that an answer supersedes: its own, and those of its turn."""
        role = content.message.get("role")
        own_turn = content.turn if role in ("assistant", "model", None) else ""
        remaining = {
            answer: partial
            for answer, partial in self.partials.items()
            if answer != record_id and not (own_turn and partial.turn == own_turn)
        }
        return self if len(remaining) == len(self.partials) else self._replace(partials=remaining)

    def apply_chunk(self, position: int, content: MessageChunk) -> "ConversationState":
        """Apply a piece of an answer."""
        partial = PartialAnswer(content.turn, position)
        return self._replace(partials={**self.partials, content.answer: partial})

    def with_calls(self, calls: Mapping[str, CallRow]) -> "ConversationState":
        """Apply that a failed turn is open again: these calls of its messages have no result."""
        opened = {call_id: OpenCall(*row) for call_id, row in calls.items()}
        return self._replace(calls={**self.calls, **opened}) if opened else self

    def end_turn(self, turn: str) -> "ConversationState":
        """Apply the end of a turn: its partial answers have been stored as messages."""
        partials = self.partials.items()
        remaining = {answer: partial for answer, partial in partials if partial.turn != turn}
        return self if len(remaining) == len(self.partials) else self._replace(partials=remaining)

    def apply_pin(self, _position: int, content: Pinned) -> "ConversationState":
        """Apply a pin or an unpin."""
        pins = {*self.pins, content.message} if content.on else {*self.pins} - {content.message}
        return self._replace(pins=tuple(sorted(pins)))

    def apply_summary(self, position: int, content: Summary) -> "ConversationState":
        """Apply a summary."""
        summary = SummaryRef(position, content.first, content.last, content.previous)
        earlier = tuple(ref for ref in self.summaries if ref.position <= content.previous)
        return self._replace(summaries=(*earlier, summary)[-SUMMARIES_MAX:])

    def undo_summary(self, _position: int, content: SummaryUndone) -> "ConversationState":
        """Apply the undo of a summary, which also removes summaries built on it."""
        remaining = tuple(ref for ref in self.summaries if ref.position < content.summary)
        return self._replace(summaries=remaining)

    def with_retracted(
        self, ranges: Sequence[Positions], singles: Sequence[int] = ()
    ) -> "ConversationState":
        """Return the state without the messages in some ranges, and without some single ones.

        A range names places: messages that replace others are in it if their place is. Summaries of
        a message that is gone are not used any more: windows show the remaining messages.
        """
        gone = [item for item in self.replacements if contains(ranges, item.last)]
        kept = tuple(item for item in self.replacements if item not in gone)
        own = [(position, position) for position in singles]
        ranges = exclude_ranges(ranges, [item.new for item in kept])
        hidden = merge_ranges([*self.hidden, *ranges, *own, *(item.new for item in gone)])
        places = [*ranges, *((place, place) for place in map(self.place_of, singles))]
        return self._replace(
            calls={
                id: call for id, call in self.calls.items() if not contains(hidden, call.position)
            },
            systems=tuple(at for at in self.systems if not contains(hidden, at)),
            pins=tuple(at for at in self.pins if not contains(hidden, at)),
            summaries=tuple(
                summary
                for summary in self.summaries
                if not any(
                    first <= summary.last and summary.first <= last for first, last in places
                )
            ),
            hidden=hidden,
            replacements=kept,
        )

    def with_replaced(self, replacement: Replacement) -> "ConversationState":
        """Return the state with new messages in the place of others."""
        state = self.with_retracted([(replacement.first, replacement.last)])
        return state._replace(replacements=(*state.replacements, replacement))

    def apply_retraction(self, position: int, content: MessagesRetracted) -> "ConversationState":
        """Apply a retraction. A range may end beyond it, but covers nothing that comes later."""
        ranges = clip_ranges(content.ranges, position - 1)
        return self.with_retracted(ranges, content.positions)

    def apply_replacement(self, _position: int, content: MessagesReplaced) -> "ConversationState":
        """Apply a replacement."""
        last = min(content.last, content.new_first - 1)
        replacement = Replacement(content.first, last, content.new_first, content.new_last)
        return self.with_replaced(replacement)

    def is_hidden(self, position: int) -> bool:
        """Whether a message was retracted or replaced."""
        return contains(self.hidden, position)

    def is_replacement(self, position: int) -> bool:
        """Whether a message stands in the place of others."""
        return any(item.new_first <= position <= item.new_last for item in self.replacements)

    def place_of(self, position: int) -> int:
        """Return the place of a message: its own position, or that of the last one it replaces."""
        for item in self.replacements:
            if item.new_first <= position <= item.new_last:
                return item.last
        return position

    def visible_order(self) -> MessageOrder:
        """Return what puts message entries into the order of the conversation.

        While nothing is `hidden`, that is the order of their positions.
        """
        return MessageOrder(self.hidden, self.replacements)

    def apply_tools(self, position: int, content: Tools) -> "ConversationState":
        """Apply a catalogue of tools."""
        return self._replace(tools=(content.digest, position))


def _evict_calls(
    calls: dict[str, OpenCall], newest: int, open_turns: Container[str]
) -> dict[str, OpenCall]:
    """Return calls without the oldest beyond `CALLS_MAX`, except those that are still to run.

    The calls of a message are evicted together, so that it never seems to have fewer.
    """
    counts: dict[int, int] = {}
    for call in calls.values():
        if call.position != newest and call.turn not in open_turns:
            counts[call.position] = counts.get(call.position, 0) + 1
    excess, evicted = len(calls) - CALLS_MAX, set()
    for position in sorted(counts):
        if excess <= 0:
            break
        evicted.add(position)
        excess -= counts[position]
    return {id: call for id, call in calls.items() if call.position not in evicted}


def _add_system_position(systems: tuple[int, ...], position: int) -> tuple[int, ...]:
    if len(systems) < SYSTEMS_MAX:
        return (*systems, position)
    half = SYSTEMS_MAX // 2
    return systems[:half] + systems[half + 1 :] + (position,)
