"""The state of a session, computed from its records in order. Pure.

In: records, one at a time (`apply`), or a snapshot (`restore`). Out: the state as attributes, the
labels of the stream's head, and the facts that a snapshot stores.

The state holds positions and small facts, never bodies, so it stays small however long the history
is. Of the ids that callers chose it holds only those since the newest run of the index, which has
all earlier ones (`core.index`). `draft()` returns a copy that shares all unchanged parts. A write
is tried on a draft, and the draft replaces the state once the write is stored. A published state is
therefore always acknowledged and never changes.

To edit: never change a container in place, as drafts share it, and raise `STATE_VERSION` whenever
the facts or their meaning change, so that old snapshots are skipped and not misread.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from perdure.backends.protocol import DELETED, HALF_COPIED
from perdure.core.state import leases
from perdure.core.state.approvals import ApprovalsState, ApprovalState
from perdure.core.state.bodies import CitedBody, with_bodies
from perdure.core.state.conversation import ConversationState
from perdure.core.state.effects import EffectsState, EffectState
from perdure.core.state.fields import encode_stored, labels_of
from perdure.core.state.leases import LeaseState
from perdure.core.state.persistent_map import PersistentMap
from perdure.core.state.values import ValueState
from perdure.errors import PayloadError
from perdure.journal.chain import PendingRecord
from perdure.journal.compaction import Compacted, DroppedIds
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.parts import Part
from perdure.journal.reader import ParentStream
from perdure.journal.records import (
    ApprovalDecided,
    ApprovalRequested,
    Branched,
    BranchKept,
    BranchReleased,
    Content,
    Deleted,
    EffectIntent,
    EffectOutcome,
    Erased,
    FieldsChanged,
    IndexPage,
    LabelsChanged,
    LeaseChange,
    LeaseTaken,
    MessagesReplaced,
    MessagesRetracted,
    Note,
    Omitted,
    Snapshot,
    TurnBegun,
    TurnContinued,
    TurnEnd,
    TurnFailed,
    Value,
    ViewStored,
)
from perdure.journal.requests import PAGE_BODY_MAX

STATE_VERSION = 17

# By version: what converts facts of that version to the next one. The facts of a compaction have no
# records behind them any more, so every version from 15 on needs an entry here.
FACTS_UPCASTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    15: lambda facts: {**facts, "bodies": []},
    16: lambda facts: facts,  # They had all fields, also those with their default.
}

# Labels of a stream's head that perdure sets itself, so that listings find these sessions.
TURN_OPEN = "turn-open"
UNKNOWN_EFFECT = "unknown-effect"
LEASED = "leased"
APPROVAL_WAITING = "approval-waiting"
RESERVED_LABELS = frozenset(
    {TURN_OPEN, DELETED, UNKNOWN_EFFECT, LEASED, APPROVAL_WAITING, HALF_COPIED}
)

SNAPSHOT_EVERY = 32  # records; opening applies at most so many, which takes 0.2 ms

OPENING_BYTES = 40_000  # bytes that opening reads: a snapshot, and the entries after it

RECORD_EXTRA = 320  # bytes; what an entry adds to the payload of one record at most, sealed or not

SNAPSHOT_SHARE = 2  # times its own size is written before the next; many keys make it long, so rare

INPUT_SUFFIX = "\tinput"  # ends the id of a turn's input; a caller's id has no tab


class OpenTurn(NamedTuple):
    """A turn that has begun and not ended. `owner` is the id of the record that last claimed it.

    `reopened` is the position of the record that opened it again after a failure, or 0. Snapshots
    store it as an array: the order of the fields is part of the format.
    """

    position: int
    correlation_id: str
    owner: str
    reopened: int = 0


class StoredView(NamedTuple):
    """The newest stored state of a caller's view: its version, and the position of its record."""

    version: int
    position: int


class IndexRun(NamedTuple):
    """A run of the index: 2**bits `index` records from position `first` on, with `size` rows.

    Snapshots store it as an array: the order of the fields is part of the format.
    """

    first: int
    bits: int
    size: int


_CONVERSATION_CHANGES: dict[str, Callable[..., ConversationState]] = {
    "message.chunk": ConversationState.apply_chunk,
    "messages.retracted": ConversationState.apply_retraction,
    "messages.replaced": ConversationState.apply_replacement,
    "pinned": ConversationState.apply_pin,
    "summary": ConversationState.apply_summary,
    "summary.undone": ConversationState.undo_summary,
    "tools": ConversationState.apply_tools,
}


_EMPTY: Any = PersistentMap()


class SessionState(msgspec.Struct, eq=False):
    """The state of a session after all records applied so far.

    A `Struct` because every write makes a copy of it, and copies itself in a tenth of the time.
    """

    messages: int = 0
    last_message: int = 0
    values: PersistentMap[ValueState] = _EMPTY
    turns: PersistentMap[OpenTurn] = _EMPTY
    topics: PersistentMap[int] = _EMPTY
    """The position of the newest note of each topic."""
    views: PersistentMap[StoredView] = _EMPTY
    index: tuple[IndexRun, ...] = ()
    """The runs of the index, oldest first."""
    recent_ids: PersistentMap[int] = _EMPTY
    """Callers' ids, and identities of calls with callers' keys, since the newest run.

    Each has the position of its newest record. A turn's input is found through its turn.
    """
    labels: frozenset[str] = frozenset()
    fields: dict[str, str] = {}
    """The fields that describe the session, as texts (`core.state.fields`)."""
    kept_branches: PersistentMap[BranchKept] = _EMPTY
    conversation: ConversationState = ConversationState()
    effects: EffectsState = EffectsState()
    lease: LeaseState | None = None
    lineage: tuple[ParentStream, ...] = ()
    created: int = 0
    """The position of the deletion after which the session was created again, or 0."""
    begin: int = 0
    """The first position that is kept: of a deletion before the session was created again, or
    of the first record that a compaction did not drop. 0 if it begins at 1."""
    compacted: int = 0
    """The position of the newest compaction, or 0."""
    carried: dict[int, int] = {}
    """By the position of a dropped record: that of the `carried` record that has it."""
    dropped_ids: IndexRun | None = None
    """The pages with the callers' ids whose records were dropped."""
    bodies: tuple[CitedBody, ...] = ()
    """Bodies that records cite, the newest last: equal ones are found by their size."""
    deleted: bool = False
    erasures: Erasures = NOTHING_ERASED
    since_snapshot: int = 0
    size_since_snapshot: int = 0
    """The bytes of the entries since then, at most."""
    snapshot: int = 0
    """The position of the newest snapshot in the session's own stream, or 0."""
    snapshot_size: int = 0

    def draft(self) -> "SessionState":
        """Return a copy that can be changed without changing this state."""
        return msgspec.structs.replace(self)

    @property
    def head_labels(self) -> frozenset[str]:
        """The labels of the stream's head in this state: the caller's own and the reserved ones."""
        if self.deleted:
            return frozenset({DELETED})
        labels = self.labels | {TURN_OPEN} if self.turns.length else self.labels
        if self.lease is not None and self.lease.owner:
            labels = labels | {LEASED}
        if self.effects.approvals.waiting:
            labels = labels | {APPROVAL_WAITING}
        if self.fields:
            labels = labels | labels_of(self.fields)
        return labels | {UNKNOWN_EFFECT} if self.effects.unknown else labels

    @property
    def snapshot_due(self) -> bool:
        """Whether opening would read too much without a new snapshot."""
        if self.compacted > self.snapshot:
            return True  # Else opening would begin with the records that the compaction carries.
        size = self.size_since_snapshot
        if self.since_snapshot < SNAPSHOT_EVERY and size + self.snapshot_size < OPENING_BYTES:
            return False
        return size >= SNAPSHOT_SHARE * self.snapshot_size

    def apply(self, position: int, record_id: str, content: Content, payload: bytes) -> None:
        """Apply the next record."""
        kind = content.kind
        self.since_snapshot += 1
        self.size_since_snapshot += RECORD_EXTRA
        if kind != Part.kind or len(payload) <= PAGE_BODY_MAX:  # Opening leaves out longer parts.
            self.size_since_snapshot += len(payload)
        self.deleted = False
        if (
            record_id[:1] != GENERATED_PREFIX
            and not record_id.endswith(INPUT_SUFFIX)
            and kind != TurnBegun.kind  # An open turn is found in `turns`, an ended one at its end.
        ):
            self.recent_ids = self.recent_ids.put(record_id, position)
        if content.parts:
            self.bodies = with_bodies(self.bodies, position, content)
        if kind == "message":  # The most frequent kind, so it skips the dispatch.
            self.messages += 1
            self.last_message = position
            self.conversation = self.conversation.apply_message(
                position,
                record_id,
                content,  # type: ignore[arg-type]
                self.turns,
            )
            return
        change = self._changes.get(kind)
        if change is not None:
            change(self, position, record_id, content)
        elif kind in _CONVERSATION_CHANGES:
            self.conversation = _CONVERSATION_CHANGES[kind](self.conversation, position, content)
            if isinstance(content, MessagesRetracted | MessagesReplaced):
                self.messages -= content.count
                self.last_message = content.last_message
        elif kind == Snapshot.kind:
            self.since_snapshot = self.size_since_snapshot = 0
            self.snapshot, self.snapshot_size = position, len(payload) + RECORD_EXTRA

    def apply_messages(self, position: int, drafts: Sequence[PendingRecord], size: int) -> int:
        """Apply messages with generated ids after a position, and return the last position.

        As `apply` for each of them; 2 of 40 µs less for an append of three. `size` is that of their
        payloads.
        """
        talk, turns = self.conversation, self.turns
        for draft in drafts:
            position += 1
            talk = talk.apply_message(position, draft.id, draft.content, turns)  # type: ignore[arg-type]
        self.conversation, self.last_message, self.deleted = talk, position, False
        self.messages += len(drafts)
        self.since_snapshot += len(drafts)
        self.size_since_snapshot += size + RECORD_EXTRA * len(drafts)
        return position

    def _effect_intent(self, position: int, record_id: str, content: EffectIntent) -> None:
        self.effects = self.effects.with_intent(position, record_id, content)

    def _effect_outcome(self, position: int, _id: str, content: EffectOutcome) -> None:
        turn_has_ended = content.turn not in self.turns
        self.effects = self.effects.with_outcome(position, content, over=turn_has_ended)
        if content.intent:  # The outcome of a call with a caller's own key.
            self.recent_ids = self.recent_ids.put(content.identity, position)

    def _approval_requested(
        self, position: int, record_id: str, content: ApprovalRequested
    ) -> None:
        self.effects = self.effects.with_request(position, record_id, content)

    def _approval_decided(self, position: int, _id: str, content: ApprovalDecided) -> None:
        self.effects = self.effects.with_decision(position, content)

    def _value(self, position: int, _id: str, content: Value) -> None:
        chain: tuple[int, ...] = (position,)
        if content.form == "delta":
            chain = (*self.values[content.key].chain, position)
        value = ValueState(content.version, chain, content.form == "deleted")
        self.values = self.values.put(content.key, value)

    def _turn_begun(self, position: int, record_id: str, content: TurnBegun) -> None:
        turn = OpenTurn(position, content.correlation_id, record_id)
        self.turns = self.turns.put(record_id, turn)

    def _turn_continued(self, position: int, record_id: str, content: TurnContinued) -> None:
        turns, turn = self.turns, content.turn
        if not content.ended:
            self.turns = turns.put(turn, turns[turn]._replace(owner=record_id))
            return
        reopened = OpenTurn(content.begun, content.correlation_id, record_id, position)
        self.turns = turns.put(turn, reopened)
        self.conversation = self.conversation.with_calls(content.calls)
        self.effects = self.effects.with_turn(content.effects, content.approvals)

    def _turn_ended(self, position: int, _id: str, content: TurnEnd) -> None:
        turn = content.turn
        self.turns = self.turns.without(turn)
        if turn[:1] != GENERATED_PREFIX:
            self.recent_ids = self.recent_ids.put(turn, position)
        if not isinstance(content, TurnFailed):
            self.conversation = self.conversation.end_turn(turn)
        self.effects = self.effects.without_turn(turn)

    def _note(self, position: int, _id: str, content: Note) -> None:
        if content.topic:
            self.topics = self.topics.put(content.topic, position)

    def _view(self, position: int, _id: str, content: ViewStored) -> None:
        self.views = self.views.put(content.name, StoredView(content.version, position))

    def _labels(self, _position: int, _id: str, content: LabelsChanged) -> None:
        self.labels = (self.labels | frozenset(content.add)) - frozenset(content.remove)

    def _fields(self, _position: int, _id: str, content: FieldsChanged) -> None:
        self.fields = fields = {**self.fields}
        for name, value in content.fields.items():
            if value is None:
                fields.pop(name, None)
            else:
                fields[name] = encode_stored(value, name)

    def _branch_kept(self, _position: int, record_id: str, content: BranchKept) -> None:
        self.kept_branches = self.kept_branches.put(record_id, content)

    def _branch_released(self, _position: int, _id: str, content: BranchReleased) -> None:
        self.kept_branches = self.kept_branches.without(content.keep)

    def _lease_taken(self, position: int, _id: str, content: LeaseTaken) -> None:
        self.lease = leases.apply_taken(position, content)

    def _lease_changed(self, position: int, _id: str, content: LeaseChange) -> None:
        self.lease = leases.apply_change(self.lease, position, content)

    def _branched(self, _position: int, _id: str, content: Branched) -> None:
        # A branch shares its parent's history, but not the parent's keeps, labels, fields, lease
        # or approvals.
        self.lineage = (ParentStream(content.parent, content.stream, content.at), *self.lineage)
        self.snapshot = 0  # The newest one is in the parent's stream.
        self._leave_parent()

    def _leave_parent(self) -> None:
        self.kept_branches, self.labels, self.lease = PersistentMap(), frozenset(), None
        self.fields = {}
        self.effects = self.effects._replace(approvals=ApprovalsState())

    def _omitted(self, _position: int, _id: str, content: Omitted) -> None:
        if content.record_kind == Branched.kind:  # The source of this copy is a branch.
            self._leave_parent()

    def _erased(self, _position: int, _id: str, content: Erased) -> None:
        self.erasures = self.erasures.add(content)
        covers, rows = self.erasures.cover, self.bodies
        self.bodies = tuple(row for row in rows if not covers(row.position, ""))

    def _index_page(self, position: int, _id: str, content: IndexPage) -> None:
        if not content.size:
            return  # Only the last page counts: a branch may begin between the pages of a run.
        if content.merged > len(self.index):
            raise LookupError(content.merged)
        kept = self.index[: len(self.index) - content.merged]
        run = IndexRun(position - content.page, content.bits, content.size)
        self.index, self.recent_ids = (*kept, run), PersistentMap()

    def _dropped_page(self, position: int, _id: str, content: DroppedIds) -> None:
        if content.size:
            self.dropped_ids = IndexRun(position - content.page, content.bits, content.size)

    def _compacted(self, position: int, _id: str, content: Compacted) -> None:
        self.begin, self.compacted, self.lineage = content.first, position, ()
        first = position - len(content.carried)
        self.carried = {dropped: first + at for at, dropped in enumerate(content.carried)}
        for before, now, count in content.moved:
            self.carried |= {before + at: now + at for at in range(count)}
        self.index = tuple(run for run in self.index if run.first >= content.first)
        recent = self.recent_ids.items()
        self.recent_ids = PersistentMap({key: at for key, at in recent if at >= content.first})
        kept = content.first, self.carried
        self.bodies = tuple(
            row for row in self.bodies if row.position >= kept[0] or row.position in kept[1]
        )
        self.messages -= content.messages
        if self.snapshot < content.first:
            self.snapshot = 0  # It may be dropped.
        if self.last_message < content.first:
            self.last_message = 0

    def _deleted(self, position: int, _id: str, _content: Deleted) -> None:
        empty = SessionState()  # A deletion clears all earlier state.
        for name in self.__struct_fields__:
            setattr(self, name, getattr(empty, name))
        self.deleted, self.begin, self.created = True, position, position

    _changes: ClassVar[dict[str, Callable[..., None]]] = {
        "effect.intent": _effect_intent,
        "effect.outcome": _effect_outcome,
        "approval.requested": _approval_requested,
        "approval.decided": _approval_decided,
        "value": _value,
        "turn.begun": _turn_begun,
        "turn.continued": _turn_continued,
        "turn.completed": _turn_ended,
        "turn.failed": _turn_ended,
        "turn.abandoned": _turn_ended,
        "labels": _labels,
        "fields": _fields,
        "note": _note,
        "view": _view,
        "branch.kept": _branch_kept,
        "branch.released": _branch_released,
        "lease.taken": _lease_taken,
        "lease.renewed": _lease_changed,
        "lease.released": _lease_changed,
        "branched": _branched,
        "omitted": _omitted,
        "erased": _erased,
        "index": _index_page,
        "ids.dropped": _dropped_page,
        "compacted": _compacted,
        "deleted": _deleted,
    }

    def cited_positions(self) -> set[int]:
        """Return the positions of the records that the state refers to, and readers may ask for."""
        talk, effects = self.conversation, self.effects
        cited = {position for value in self.values.values() for position in value.chain}
        cited |= {*self.topics.values(), *talk.systems, *talk.pins, talk.tools[1]}
        cited |= {summary.position for summary in talk.summaries}
        for group in (self.turns, self.views, talk.calls, talk.partials):
            cited |= {item.position for item in group.values()}
        for effect in effects.by_identity.values():
            cited |= {effect.intent, effect.outcome}
        for approval in effects.approvals.by_identity.values():
            cited |= {approval.request, approval.decision, approval.outcome}
        return cited - {0}

    def facts(self) -> dict[str, Any]:
        """Return the state as a snapshot stores it; `index` pages before it hold `recent_ids`."""
        facts: dict[str, Any] = {
            "messages": self.messages,
            "last_message": self.last_message,
            "values": self.values.to_dict(),
            "turns": self.turns.to_dict(),
            "topics": self.topics.to_dict(),
            "views": self.views.to_dict(),
            "index": self.index,
            "labels": sorted(self.labels),
            "fields": self.fields,
            "kept_branches": {
                keep: [kept.reason, kept.branch, kept.stream]
                for keep, kept in self.kept_branches.items()
            },
            "lease": self.lease,
            "lineage": self.lineage,
            "begin": self.begin,
            "created": self.created,
            "compacted": self.compacted,
            "carried": [*self.carried.items()],
            "dropped_ids": self.dropped_ids,
            "bodies": self.bodies,
            "erasures": self.erasures,
            "conversation": self.conversation,
            "effects": self.effects.by_identity.to_dict(),
            "approvals": self.effects.approvals.by_identity.to_dict(),
        }
        changed = {name: fact for name, fact in facts.items() if fact and fact not in _DEFAULTS}
        # With lists, as it is read, so that the two compare equal.
        return msgspec.json.decode(msgspec.json.encode(changed))  # type: ignore[no-any-return]

    @classmethod
    def restore(
        cls, snapshot: Snapshot, payload: bytes, *, name: str, position: int
    ) -> "SessionState":
        """Return the state stored in a snapshot; raise PayloadError if it cannot be read."""
        state = cls._of_facts(snapshot.state_version, snapshot.facts, name, position)
        state.snapshot, state.snapshot_size = position, len(payload) + RECORD_EXTRA
        return state

    @classmethod
    def before_compaction(cls, compacted: Compacted, *, name: str, position: int) -> "SessionState":
        """Return the state before the first record that a compaction kept."""
        state = cls._of_facts(compacted.state_version, compacted.facts, name, position)
        state.recent_ids = PersistentMap({**compacted.recent})
        return state

    @classmethod
    def _of_facts(
        cls, version: int, tree: dict[str, Any], name: str, position: int
    ) -> "SessionState":
        try:
            for number in range(version, STATE_VERSION):
                tree = FACTS_UPCASTS[number](tree)
            facts = msgspec.convert(tree, _SnapshotFacts)
        except LookupError as error:
            raise PayloadError(name, position, "a state snapshot of another version") from error
        except msgspec.ValidationError as error:
            raise PayloadError(name, position, "an unreadable state snapshot") from error
        state = cls()
        state.compacted, state.carried = facts.compacted, dict(facts.carried)
        state.dropped_ids, state.bodies = facts.dropped_ids, facts.bodies
        state.messages, state.last_message = facts.messages, facts.last_message
        state.values, state.turns = PersistentMap(facts.values), PersistentMap(facts.turns)
        state.topics, state.views = PersistentMap(facts.topics), PersistentMap(facts.views)
        state.index = facts.index
        state.labels, state.fields = frozenset(facts.labels), facts.fields
        kept = {
            keep: BranchKept(reason=reason, branch=branch, stream=stream)
            for keep, (reason, branch, stream) in facts.kept_branches.items()
        }
        state.kept_branches = PersistentMap(kept)
        state.lineage, state.begin, state.lease = facts.lineage, facts.begin, facts.lease
        state.created = facts.created
        state.conversation = facts.conversation
        state.effects = EffectsState.of(facts.effects, facts.approvals)
        state.erasures = facts.erasures
        return state


class _SnapshotFacts(msgspec.Struct, forbid_unknown_fields=True):
    messages: int = 0
    last_message: int = 0
    values: dict[str, ValueState] = {}
    turns: dict[str, OpenTurn] = {}
    topics: dict[str, int] = {}
    views: dict[str, StoredView] = {}
    index: tuple[IndexRun, ...] = ()
    labels: list[str] = []
    fields: dict[str, str] = {}
    kept_branches: dict[str, tuple[str, str, str]] = {}
    lease: LeaseState | None = None
    lineage: tuple[ParentStream, ...] = ()
    begin: int = 0
    created: int = 0
    compacted: int = 0
    carried: list[tuple[int, int]] = []
    dropped_ids: IndexRun | None = None
    bodies: tuple[CitedBody, ...] = ()
    erasures: Erasures = NOTHING_ERASED
    conversation: ConversationState = ConversationState()
    effects: dict[str, EffectState] = {}
    approvals: dict[str, ApprovalState] = {}


_DEFAULTS = (NOTHING_ERASED, ConversationState())
