"""The conversation of a thread: messages of the session that its checkpoints list.

In: the list of messages of a checkpoint that is to be stored. Out: which of them are stored
already, and where, and which are new. A message that a node changed is noticed, also if it was
changed in place, and stored as a new version. Messages that the newest checkpoint no longer has are
taken back (`session.retract`), so that the session shows what the graph has.
"""

import warnings
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import perdure
from perdure.adapters.langgraph import message_table, messages
from perdure.adapters.langgraph.checkpoint_notes import CheckpointNotes, Data, Spec, trim
from perdure.adapters.langgraph.message_table import KnownMessage, MessageList, Range
from perdure.adapters.langgraph.state_codec import StateCodec
from perdure.adapters.langgraph.thread_index import CheckpointPlace, ThreadIndex
from perdure.errors import ConflictError, DamagedError, NotFoundError, UsageError

LISTS = 8  # lists of messages that a thread keeps in memory
REASON = "not in the newest checkpoint"


class ConversationPlan(NamedTuple):
    """How the conversation of a checkpoint is stored."""

    channel: str
    spec: Spec
    known: list[KnownMessage]
    """The messages, in order; those that are new have a position up to 0."""
    old: MessageList | None
    """The list that this one continues, if it does: then `known` are only the rest."""
    added: list[Data]
    removed: list[int]


class ThreadMessages:
    """The messages of one thread."""

    def __init__(self, session: perdure.Session, notes: CheckpointNotes) -> None:
        self._session = session
        self._notes = notes
        self._lists: dict[tuple[int, str], MessageList] = {}
        self._table: dict[int, KnownMessage] = {}
        self._by_id: dict[str, KnownMessage] = {}
        self._replaced: dict[int, int] = {}
        self._newest: MessageList | None = None
        self._lent: list[Any] = []
        """The messages of the newest list that were handed out, or that were stored with it."""

    # Reading

    def values(self, source: int, channel: str, spec: Spec, codec: StateCodec, newest: int) -> Any:
        """Return new messages, as a list that the caller may change."""
        listed = self.read(source, channel, spec, codec, newest)
        if self._lists.get((source, channel)) is not self._newest:
            return [known.build(codec) for known in listed.known]
        self._lent = listed.build(self._lent, codec)
        return [*self._lent]

    def read(
        self, source: int, channel: str, spec: Spec, codec: StateCodec, newest: int
    ) -> MessageList:
        """Return the messages that the note at `source` lists."""
        cached = self._lists.get((source, channel))
        if cached is not None:
            return cached
        ranges = message_table.resolve(spec[1], source)
        # Reading the whole conversation is faster than reading all records. It is the same if the
        # list was all of it, and nothing was added or taken back since.
        count = sum(each[2] for each in ranges)
        unchanged = newest == ranges[-1][1] and len(self._session) == count
        if _is_whole(spec) and unchanged and not self._table:
            known = [KnownMessage.read(0, stored, codec) for stored in self._session.messages()]
        else:
            known = [each for places in ranges for each in self._read_range(places, codec)]
        listed = self._keep(source, channel, MessageList(known, ranges, whole=_is_whole(spec)))
        if newest and newest == ranges[-1][1]:
            self._newest, self._lent = listed, []
        return listed

    def positions(self, source: int, channel: str, spec: Spec, codec: StateCodec) -> set[int]:
        """Return the positions of the messages that the note at `source` lists."""
        listed = self.read(source, channel, spec, codec, 0)
        self._locate(listed)
        return {known.position for known in listed.known}

    def _keep(self, source: int, channel: str, listed: MessageList) -> MessageList:
        trim(self._lists, LISTS)
        self._lists[source, channel] = listed
        return listed

    def _read_range(self, places: Range, codec: StateCodec) -> list[KnownMessage]:
        """Return the messages in a range."""
        first, last, count = places
        known: list[KnownMessage] = []
        for record in self._session.records(after=first - 1, kinds=("message",), limit=count):
            if record.position > last:
                break
            content: Any = record.content
            known.append(self._know(record.position, content.message, codec))
        if len(known) < count:
            missing = count - len(known)
            raise DamagedError(self._session.id, first, f"{missing} messages of it are missing")
        return known

    def _know(self, position: int, stored: Data, codec: StateCodec) -> KnownMessage:
        known = self._table.get(position)
        if known is None:
            known = self._add(KnownMessage.read(position, stored, codec))
        return known

    def learn(self, position: int, message: Any, stored: Data) -> KnownMessage:
        """Keep a message that was just stored, or read."""
        return self._add(KnownMessage.of(position, message, stored))

    def _add(self, known: KnownMessage) -> KnownMessage:
        self._table[known.position] = known
        if known.id is not None:
            self._by_id[known.id] = known
        return known

    def find(self, message: Any, index: ThreadIndex, codec: StateCodec) -> KnownMessage | None:
        """Return a message of the session that is equal to one, if it is known where it is."""
        known = self._by_id.get(message.id)
        if known is None or known.position in index.hidden or not known.equals(message, codec):
            return None
        return known

    def at(self, position: int, codec: StateCodec) -> KnownMessage:
        """Return the message at a position."""
        known = self._table.get(position)
        if known is None:
            content: Any = self._session.record(position).content
            known = self._know(position, content.message, codec)
        return known

    def _locate(self, listed: MessageList) -> None:
        """Find out the positions of messages that were read without them."""
        if not listed.known or listed.known[0].position:
            return
        at = 0
        for first, _, count in listed.ranges:
            found = self._session.records(after=first - 1, kinds=("message",), limit=count)
            for known, record in zip(listed.known[at:], found, strict=False):
                known.position = record.position
                self._table[record.position] = known
            at += count

    # Storing

    def plan(
        self,
        values: Mapping[str, Any],
        parent: CheckpointPlace | None,
        index: ThreadIndex,
        codec: StateCodec,
        *,
        untouched: bool,
    ) -> ConversationPlan | None:
        """Decide how the conversation is stored; None if the state has none.

        If `untouched`, no node ran since the thread was read: the same objects are the same.
        """
        before = self._notes.conversation(parent.position) if parent is not None else None
        channel = _channel(values, before[0] if before is not None else None)
        if channel is None:
            return None
        given = values[channel]
        if before is None or before[0] != channel or index.heads.get("") != parent:
            return self._plan_other(channel, given, before, index, codec)
        _, source, spec = before
        old = self.read(source, channel, spec, codec, index.newest_message)
        same = untouched and old is self._newest and _are_same(self._lent, given, len(old))
        if not same and not old.is_start_of(given):
            return self._plan_other(channel, given, before, index, codec)
        early = self._early(parent, index, codec)
        last = index.place(old.ranges[-1][1]) if old.ranges else 0
        rest, added = self._plan_rest(given[len(old) :], early, last, codec, channel)
        removed = [known.position for known in early.values() if known not in rest]
        if not rest:
            return ConversationPlan(channel, ["@", source], [], old, [], removed)
        ranges = message_table.make_ranges(
            old.ranges,
            [known.position for known in rest],
            index.messages,
            index.newest_message,
        )
        # The last range continues: no other message came since. And none was taken back.
        continued = len(ranges) == len(old.ranges) and not removed
        whole = old.whole and continued and len(self._session) == len(old) + len(early)
        return ConversationPlan(channel, _spec(ranges, whole=whole), rest, old, added, removed)

    def _plan_rest(
        self,
        given: Sequence[Any],
        early: Mapping[str, KnownMessage],
        last: int,
        codec: StateCodec,
        channel: str,
    ) -> tuple[list[KnownMessage], list[Data]]:
        """Return the messages at the end of a list, and those of them that are not stored yet.

        One that is stored already must come after `last`, and before all that are not.
        """
        rest: list[KnownMessage] = []
        added: list[Data] = []
        for message in given:
            known = early.get(message.id)
            in_order = known is not None and known.position > last and not added
            if known is None or not in_order or not known.equals(message, codec):
                added.append(require_stored(message, codec, channel))
                known = KnownMessage.of(0, message, added[-1])
            last = known.position or last
            rest.append(known)
        _number([known for known in rest if not known.position])
        return rest, added

    def _early(
        self, parent: CheckpointPlace | None, index: ThreadIndex, codec: StateCodec
    ) -> dict[str, KnownMessage]:
        """Return messages that tasks wrote on a checkpoint, and that are stored already."""
        positions = index.early.get(parent.key, ()) if parent is not None else ()
        known = [self.at(position, codec) for position in positions]
        return {each.id: each for each in known if each.id and each.position not in index.hidden}

    def _plan_other(
        self,
        channel: str,
        given: Sequence[Any],
        before: tuple[str, int, Spec] | None,
        index: ThreadIndex,
        codec: StateCodec,
    ) -> ConversationPlan:
        """Store a list that is not the newest one with more at its end."""
        index.require_complete()
        old: list[KnownMessage] = []
        if before is not None and before[0] == channel:
            listed = self.read(before[1], channel, before[2], codec, 0)
            self._locate(listed)
            old = listed.known
        by_id = {known.id: known for known in old if known.id is not None}
        chosen: list[KnownMessage] = []
        added: list[Data] = []
        last = 0  # The session shows messages in this order, so those that are added come last.
        for at, message in enumerate(given):
            same = old[at] if at < len(old) and old[at].equals(message, codec) else None
            other = by_id.get(message.id)
            if same is None and other is not None:
                is_equal = other.equals(message, codec)
                same = other if is_equal else self._new_version(other, message, index, codec)
            place = index.place(same.position) if same is not None else 0
            if same is None or added or place <= last or same.position in index.hidden:
                added.append(require_stored(message, codec, channel))
                same = KnownMessage.of(0, message, added[-1])
            last = max(last, place)
            chosen.append(same)
        _number([known for known in chosen if not known.position])
        positions = [known.position for known in chosen]
        ranges = message_table.make_ranges([], positions, index.messages, index.newest_message)
        removed = self._left(positions, index, codec)
        shown = {*index.messages} - index.hidden - {*removed}
        whole = shown == {position for position in positions if position > 0}
        return ConversationPlan(channel, _spec(ranges, whole=whole), chosen, None, added, removed)

    def _left(self, positions: Sequence[int], index: ThreadIndex, codec: StateCodec) -> list[int]:
        """Return the positions of messages that the newest checkpoint has and the next has not."""
        head = index.heads.get("")
        before = self._notes.conversation(head.position) if head is not None else None
        if head is None or before is None:
            return []
        shown = self.positions(before[1], before[0], before[2], codec)
        shown |= {*index.early.get(head.key, ())}
        return sorted(shown - {*positions} - index.hidden)

    def _new_version(
        self, old: KnownMessage, message: Any, index: ThreadIndex, codec: StateCodec
    ) -> KnownMessage | None:
        """Store a message in the place of an earlier version; None if that is not possible."""
        newer = self._table.get(self._replaced.get(old.position, 0))
        if newer is not None and newer.equals(message, codec):  # By an attempt that failed later.
            return newer
        if old.position in index.hidden:
            return None
        stored, place = require_stored(message, codec, "messages"), index.place(old.position)
        try:
            end = self._session.replace(place, place, stored)
        except (UsageError, NotFoundError):  # One of its calls waits, or it was taken back.
            return None
        index.read()
        self._replaced[old.position] = end - 1
        return self.learn(end - 1, message, stored)

    def stored(self, plan: ConversationPlan, position: int, given: list[Any]) -> None:
        """Keep what was stored with the checkpoint at a position."""
        if plan.spec[0] == "@":
            return
        self._lent = [*given]
        ranges = message_table.resolve(plan.spec[1], position)
        for known in plan.known:
            if known.position <= 0:
                known.position += position
                self._add(known)
        whole = _is_whole(plan.spec)
        listed = (
            MessageList(plan.known, ranges, whole=whole)
            if plan.old is None
            else plan.old.extended(plan.known, ranges, whole=whole)
        )
        self._newest = self._keep(position, plan.channel, listed)

    def retract(self, positions: Sequence[int], index: ThreadIndex) -> None:
        """Take messages back that the newest checkpoint does not have.

        The checkpoint is stored. In a session in which messages were taken back in too many places,
        these stay visible: pruning the thread cures that.
        """
        try:
            self._session.retract(*positions, reason=REASON)
        except (NotFoundError, ConflictError):  # Another writer has just taken one of them back.
            self._session.refresh()
            index.read()
            left = [position for position in positions if position not in index.hidden]
            if left:
                self._session.retract(*left, reason=REASON)
        except UsageError:
            warnings.warn(
                f"{self._session.id!r} shows messages that its newest checkpoint does not have: "
                "too many were taken back in it. Prune the thread",
                RuntimeWarning,
                stacklevel=2,
            )
        index.read()


def _are_same(lent: Sequence[Any], given: Sequence[Any], count: int) -> bool:
    """Whether a list begins with the very objects that were handed out or stored before."""
    return len(lent) == count <= len(given) and all(map(is_, lent, given))


def _spec(ranges: list[Range], *, whole: bool) -> Spec:
    return ["m", ranges, True] if whole else ["m", ranges]


def _is_whole(spec: Spec) -> bool:
    return len(spec) > 2  # noqa: PLR2004 - what it has beside its ranges


def _number(added: Sequence[KnownMessage]) -> None:
    """Give new messages the positions that they will have, counted back from their checkpoint."""
    for at, known in enumerate(added):
        known.position = at - len(added)


def require_stored(message: Any, codec: StateCodec, channel: str) -> Data:
    """Return a message as stored; its class is one of LangChain's own."""
    stored = codec.encode_message(message, channel)
    assert stored is not None  # noqa: S101 - the classes were checked before
    return stored


def _channel(values: Mapping[str, Any], before: str | None) -> str | None:
    """Return the channel that is the conversation: the one that was, `messages`, or the first."""
    for channel in (before, "messages", *values):
        value = values.get(channel) if channel is not None else None
        if type(value) is list and value and messages.are_storable(value):
            return channel
    return None
