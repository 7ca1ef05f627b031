"""Writes as plans over a session's state: the records to add, and the records that conflict. Pure.

In: arguments that were checked and encoded already. Out: a `Plan[T]`, whose `make` adds records to
a `RecordBatch` and returns a T. No plan does I/O itself; one that has to read yields steps.

A plan is created once and may be executed several times. When another writer was first, the session
catches up and calls `invalidated_by` for each new record; a plan that is still valid is executed
again on the newer state, with the same record ids. To edit: `make` must therefore decide from the
batch alone and must not generate ids, and a new plan kind needs a row in `CONFLICT_RULES`.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import filterfalse
from operator import attrgetter
from types import GeneratorType
from typing import Generic, NamedTuple, TypeVar

import msgspec

from perdure.core import bodies, dropped_ids, index
from perdure.core.bodies import BodyCache, NewBodies
from perdure.core.conflicts import _HISTORY_CHANGES, CONFLICT_RULES, UNREADABLE
from perdure.core.dropped_ids import DroppedRecord
from perdure.core.index import IndexCache
from perdure.core.state.session_state import (
    INPUT_SUFFIX,
    STATE_VERSION,
    OpenTurn,
    SessionState,
)
from perdure.errors import ConflictError, DivergenceError, UsageError
from perdure.formats.bodies import LEAF_MIN
from perdure.journal import chain, codec, reader
from perdure.journal.chain import BODY_EXTRA, ENTRY_MAX, RECORDS_MAX, ChainTip, PendingRecord
from perdure.journal.ids import GENERATED_PREFIX, random_text
from perdure.journal.large import TAG_BYTES, canonical_content
from perdure.journal.parts import Part
from perdure.journal.reader import ContentT, History
from perdure.journal.records import (
    Content,
    EffectOutcome,
    IndexPage,
    Message,
    MessagesReplaced,
    MessagesRetracted,
    Note,
    Snapshot,
    TurnBegun,
    TurnEnd,
)
from perdure.journal.requests import PAGE_BODY_MAX, Steps

T = TypeVar("T")

_TURN_PLANS = frozenset(
    {"answer", "message", "message.chunk", "tools", "turn.begin", "turn.continue", "turn.end"}
)


class PendingEvent(NamedTuple):
    """An event to log. The core does no I/O, so the handle emits it."""

    event: str
    fields: dict[str, object]


class FoundRecord(NamedTuple):
    """The record of a caller's id, and its position."""

    position: int
    record: PendingRecord


_payload_of = attrgetter("payload")


class RecordBatch(msgspec.Struct, eq=False):
    """The records of one append while it is being built, applied to a draft of the state.

    `state` is a draft at the end of `past`, which `tip` ends; the batch changes it. A `Struct`
    because it is created in half the time, once for each append.
    """

    name: str
    state: SessionState
    past: History
    tip: ChainTip
    index_cache: IndexCache
    bodies: BodyCache
    pending: list[PendingRecord] = msgspec.field(default_factory=list)
    data_count: int = 0
    """How many of them plans have added; pages of the index and a snapshot follow."""
    size: int = 0
    """The bytes of the payloads."""
    is_too_large: bool = False
    """Whether one entry cannot hold what plans have added."""
    values: dict[str, bytes] = msgspec.field(default_factory=dict)
    """The full values that this batch sets, by key."""
    last_payload: bytes | None = None
    """The payload of the newest message in this batch."""
    index_pages: dict[int, bytes] = msgspec.field(default_factory=dict)
    """The rows of the index pages in this batch, by position."""
    read_records: dict[int, PendingRecord] = msgspec.field(default_factory=dict)
    """The stored records that plans have read, by position."""
    new_bodies: NewBodies = msgspec.field(default_factory=dict)
    """The bodies that this batch stores, by their size and digest."""

    @property
    def position(self) -> int:
        """The position of the newest record, drafts included."""
        return self.tip.position + len(self.pending)

    def savepoint(self) -> "Savepoint":
        """Return what `rollback` needs to discard the records that are added from now on."""
        saved = Savepoint(self.state, len(self.pending), self.values, self.last_payload, self.size)
        self.state, self.values = self.state.draft(), {**self.values}
        return saved

    def rollback(self, saved: "Savepoint") -> None:
        """Discard the records that were added since a savepoint, and their effect on the state."""
        self.state, count, self.values, self.last_payload, self.size = saved
        del self.pending[count:]
        new = self.new_bodies.items()
        self.new_bodies = {key: body for key, body in new if body.parts[-1][1] <= self.position}

    def end_data(self) -> None:
        """Mark the end of what plans add."""
        self.data_count = count = len(self.pending)
        self.is_too_large = self.size + count * BODY_EXTRA > ENTRY_MAX or count > RECORDS_MAX

    def add_all(self, drafts: Sequence[PendingRecord]) -> int:
        """Add records; later plans of the batch see their effect. Return the last position."""
        cited = self.bodies.may_be_cited
        for draft in drafts:
            if len(draft.payload) >= LEAF_MIN or (cited and TAG_BYTES in draft.payload):
                drafts = self.split(drafts)
                break
        apply, position = self.state.apply, self.tip.position + len(self.pending)
        for draft in drafts:
            content, payload = draft.content, draft.payload
            position += 1
            self.pending.append(draft)
            self.size += len(payload)
            apply(position, draft.id, content, payload)
            if content.kind == "message":
                self.last_payload = payload
        return position

    def add_messages(self, drafts: Sequence[PendingRecord]) -> int:
        """As `add_all`, for messages under ids of perdure's own."""
        sizes = [*map(len, map(_payload_of, drafts))]
        if max(sizes) >= LEAF_MIN or self.bodies.may_be_cited:  # There may be large bodies.
            return self.add_all(drafts)
        size = sum(sizes)
        position = self.state.apply_messages(self.tip.position + len(self.pending), drafts, size)
        self.pending += drafts
        self.size += size
        self.last_payload = drafts[-1].payload
        return position

    def add_content(self, record_id: str, content: Content) -> int:
        """Encode a record and add it, as `add_all` does; return its position."""
        payload = codec.encode(content)
        if len(payload) >= LEAF_MIN or (self.bodies.may_be_cited and TAG_BYTES in payload):
            (draft,) = self.split([PendingRecord(record_id, content, payload)])
            content, payload = draft.content, draft.payload
        self.pending.append(PendingRecord(record_id, content, payload))
        self.size += len(payload)
        position = self.tip.position + len(self.pending)
        self.state.apply(position, record_id, content, payload)
        if content.kind == "message":
            self.last_payload = payload
        return position

    def split(self, drafts: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
        """Add the parts of large bodies in records, and return the records that cite them.

        `add_all` does so itself. A plan whose records must be side by side calls this first.
        """
        for draft in drafts:
            if len(draft.payload) >= LEAF_MIN or TAG_BYTES in draft.payload:
                return [bodies.split_record(self, draft) for draft in drafts]
        return drafts

    def add_part(self, data: bytes) -> int:
        """Add a part of a large body; return its position."""
        draft = PendingRecord(GENERATED_PREFIX + random_text(), Part(size=len(data)), data)
        self.pending.append(draft)
        self.size += len(data)
        position = self.position
        self.state.apply(position, draft.id, draft.content, data)
        return position

    def read(self, position: int, kind: type[ContentT]) -> Steps[ContentT]:
        """Return the record at a position, of this batch or stored; ChainError for another kind."""
        record = yield from self.read_record(position)
        return reader.require_kind(self.name, position, record.content, kind)

    def read_record(self, position: int) -> Steps[PendingRecord]:
        """Return the record at a position with its id, of this batch or stored; read it once."""
        if position > self.tip.position:
            return self.pending[position - self.tip.position - 1]
        record = self.read_records.get(position)
        if record is None:
            linked = yield from reader.read_record(self.past, position)
            record = chain.decode_record(self.name, linked, self.past.cipher)
            self.read_records[position] = record
        return record

    def conflict(self, reason: str) -> ConflictError:
        """Return the error for a plan that does not fit the state of this batch."""
        return ConflictError(self.name, self.position, self.position, reason)

    def may_know(self, key: str) -> bool:
        """Whether `find` may find a caller's id, or the identity of a call with a caller's key.

        It costs nothing, so that a plan with a new id needs no steps while there is no index.
        """
        state = self.state
        known = state.index or state.dropped_ids
        return key in state.recent_ids or bool(known) or key in state.turns

    def find(self, key: str) -> Steps[FoundRecord | None]:
        """Return the newest record of a caller's id or of an identity, or None.

        Reads at most a page of each index run, and the record.
        """
        recent = self.state.recent_ids.get(key)
        if key in self.state.turns:
            recent = self.state.turns[key].position
        if recent is not None:
            return FoundRecord(recent, (yield from self.read_record(recent)))
        digest, cache = int.from_bytes(index.digest_id(key)), self.index_cache
        for run in reversed(self.state.index):
            number = index.page_of(digest, run.bits)
            page = cache.get(run.first + number)
            if page is None:
                page = yield from index.read_page(self.past, cache, run, number)
            for position in filterfalse(self.past.is_dropped, page.positions(digest)):
                record = yield from self.read_record(position)
                if key in (record.id, _indexed_as(record.content)):  # Not just an equal digest.
                    return FoundRecord(position, record)
        return (yield from self._find_dropped(key))

    def _find_dropped(self, key: str) -> Steps[FoundRecord | None]:
        """Return what is known of an id whose record was compacted, or None."""
        if self.state.dropped_ids is None:
            return None
        row = yield from dropped_ids.find(self.past, self.state.dropped_ids, key)
        if row is None:
            return None
        if row.position in self.state.carried:
            return FoundRecord(row.position, (yield from self.read_record(row.position)))
        return FoundRecord(row.position, PendingRecord(key, row.content, b""))

    def find_stored(self, drafts: Sequence[PendingRecord]) -> Steps[int]:
        """Return where drafts are already stored under the caller's id, or 0 if they are not.

        The first draft has the caller's id, and a digest of all drafts if there are several. The
        same id with other content is a DivergenceError.
        """
        found = yield from self.find(drafts[0].id)
        if found is None:
            return 0
        content = found.record.content
        if isinstance(content, TurnBegun | TurnEnd) or (
            isinstance(content, DroppedRecord) and content.is_turn
        ):
            raise DivergenceError(self.name, drafts[0].id, "a turn", "a record")
        self.require_same(found.record, drafts[0])
        return found.position

    def require_same(self, stored: PendingRecord, draft: PendingRecord) -> None:
        """Raise DivergenceError unless a stored record has the content of a draft."""
        was, now = strip_derived(stored), strip_derived(draft)
        if isinstance(stored.content, DroppedRecord):
            was, now = stored.content.mark, dropped_ids.mark_of(now)
        if was != now:
            caller_id = draft.id.removesuffix(INPUT_SUFFIX)
            raise DivergenceError(self.name, caller_id, fingerprint(was), fingerprint(now))


def _indexed_as(content: Content) -> str:
    """Return the identity or the turn that the index has an outcome or an end under, or ""."""
    return content.subject if isinstance(content, EffectOutcome | TurnEnd) else ""


def strip_derived(record: PendingRecord) -> bytes:
    """Return a record's payload without what depends on the store: token counts and links."""
    content = record.content
    if len(record.payload) >= LEAF_MIN or TAG_BYTES in record.payload:
        content = canonical_content(content)
        record = PendingRecord(record.id, content, codec.encode(content))
    if isinstance(content, Note) and content.previous:
        return codec.encode(msgspec.structs.replace(content, previous=0))
    if isinstance(content, MessagesRetracted):
        return codec.encode(msgspec.structs.replace(content, count=0, last_message=0))
    if isinstance(content, MessagesReplaced):
        facts = {"new_first": 0, "new_last": 0, "count": 0, "last_message": 0}
        return codec.encode(msgspec.structs.replace(content, **facts))
    if isinstance(content, Message) and content.counter:
        return codec.encode(msgspec.structs.replace(content, tokens=0, counter=""))
    return record.payload


def fingerprint(payload: bytes) -> str:
    """Return a digest of a payload, short but long enough to distinguish contents under one id."""
    return sha256(payload).hexdigest()[:32]


def too_large_error() -> UsageError:
    """Return the error for a plan whose records one entry cannot hold."""
    limits = f"{ENTRY_MAX // 2**20} MiB or {RECORDS_MAX} records"
    hint = f"append the messages in several calls, or {codec.UPLOAD_HINT}"
    return UsageError(f"one append cannot hold more than {limits}: {hint}", "$")


def add_snapshot(batch: RecordBatch) -> Steps[PendingEvent | None]:
    """Add a snapshot, after the pages of the index that hold the ids since the last one.

    Return a notice if the state is too large for one. A snapshot only saves reading.
    """
    state, pages = batch.state, list[IndexPage]()
    if state.recent_ids:
        cache, ids = batch.index_cache, state.recent_ids
        pages = yield from index.make_run(batch.past, cache, state.index, ids)
    saved = batch.savepoint()
    for page in pages:
        position = batch.add_content(GENERATED_PREFIX + random_text(), page)
        batch.index_pages[position] = index.decode_rows(batch.name, position, page)
    snapshot = Snapshot(state_version=STATE_VERSION, facts=batch.state.facts())
    try:
        batch.add_content(GENERATED_PREFIX + random_text(), snapshot)
    except UsageError as error:
        batch.rollback(saved)
        batch.index_pages.clear()
        fields: dict[str, object] = {"position": batch.position + 1, "reason": error.reason}
        return PendingEvent("snapshot_skipped", fields)
    return None


def split_entries(batch: RecordBatch) -> list[list[PendingRecord]]:
    """Return the records of a batch entry by entry: those that plans have added are one entry.

    Pages of the index and a snapshot are entries of their own, so that reading one does not read
    the others. If a crash leaves only some of them, they do no harm: a run counts with its last
    page, and a snapshot only saves reading.
    """
    pending, count = batch.pending, batch.data_count
    data = [pending[:count]]
    if batch.new_bodies and len(pending) > 1:
        data = _split_parts(batch, pending[:count])
    elif len(pending) == count:
        return [pending]
    return [*data, *([record] for record in pending[count:])]


def _split_parts(batch: RecordBatch, drafts: Sequence[PendingRecord]) -> list[list[PendingRecord]]:
    """Return records with each long part in an entry of its own: who reads pages skips it.

    Short ones too, if all would be longer together than a part may be.
    """
    longest = min(PAGE_BODY_MAX, batch.bodies.part_size // 4)
    if batch.size + len(drafts) * BODY_EXTRA > batch.bodies.part_size:
        longest = 0
    entries: list[list[PendingRecord]] = [[]]
    for draft in drafts:
        if draft.content.kind == Part.kind and len(draft.payload) > longest:
            entries += [[draft], []]
        else:
            entries[-1].append(draft)
    return [entry for entry in entries if entry]


class Savepoint(NamedTuple):
    """A `RecordBatch` at one moment, for `RecordBatch.rollback`."""

    state: SessionState
    pending: int
    values: dict[str, bytes]
    last_payload: bytes | None
    size: int


class Plan(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A write: `make` adds its records to a batch and returns the result for the caller.

    `make` is a generator function if it has to read, and a plain function if not.
    """

    kind: str
    subject: str
    make: Callable[[RecordBatch], T | Steps[T]]

    def execute(self, batch: RecordBatch) -> Steps[T]:
        """Add the plan's records to a batch, whether `make` is a generator function or not."""
        result = self.make(batch)
        if type(result) is GeneratorType:
            result = yield from result
        return result  # type: ignore[return-value] # mypy does not narrow by `type(…) is`

    @property
    def turn(self) -> str:
        """The id of the turn that the plan writes to, or an empty string."""
        return self.subject if self.kind in _TURN_PLANS else ""

    @property
    def bypasses_lease(self) -> bool:
        """Whether the plan may be executed while another handle holds the lease."""
        return CONFLICT_RULES[self.kind].bypasses_lease

    def invalidated_by(self, content: Content) -> bool:
        """Return whether a record by another writer makes this plan invalid."""
        if content.kind in _HISTORY_CHANGES:
            return self.kind != "delete"
        rule = CONFLICT_RULES[self.kind]
        if content is UNREADABLE:
            return bool(rule.any_subject or rule.same_subject)
        if content.kind in rule.any_subject:
            return True
        return content.kind in rule.same_subject and content.subject == self.subject


def add_unless_stored(
    drafts: Sequence[PendingRecord], turn: "TurnOwnership | None", batch: RecordBatch
) -> int | Steps[int]:
    """Add records, in a turn or outside, unless they are stored under their id.

    Return the last position. As `partial(add_unless_stored, drafts, turn)` it is the `make` of a
    plan for fixed records.
    """
    if drafts[0].id[:1] != GENERATED_PREFIX and batch.may_know(drafts[0].id):
        return _find_or_add(drafts, turn, batch)
    if turn is not None:
        require_turn_owner(batch, turn)
    return batch.add_all(drafts)


def add_messages(
    drafts: Sequence[PendingRecord], turn: "TurnOwnership | None", batch: RecordBatch
) -> int:
    """Add messages under ids of perdure's own, as `add_unless_stored` does."""
    if turn is not None:
        require_turn_owner(batch, turn)
    return batch.add_messages(drafts)


def _find_or_add(
    drafts: Sequence[PendingRecord], turn: "TurnOwnership | None", batch: RecordBatch
) -> Steps[int]:
    # Records stored by an earlier attempt are no conflict, even if the turn has ended since.
    position = yield from batch.find_stored(drafts)
    if position:
        return position + len(drafts) - 1
    if turn is not None:
        require_turn_owner(batch, turn)
    return batch.add_all(drafts)


class TurnOwnership(NamedTuple):
    """A turn owned by one handle; invalid as soon as another handle takes the turn over."""

    turn: str
    owner: str


def require_open_turn(batch: RecordBatch, turn: str) -> OpenTurn:
    """Return a turn that has not ended; ConflictError if it has."""
    open_turn = batch.state.turns.get(turn)
    if open_turn is None:
        raise batch.conflict("the turn has ended")
    return open_turn


def require_turn_owner(batch: RecordBatch, turn: TurnOwnership) -> None:
    """Raise ConflictError unless the turn is open and still owned by this handle."""
    if require_open_turn(batch, turn.turn).owner != turn.owner:
        raise batch.conflict("another handle continued the turn")


def add_nothing(batch: RecordBatch) -> int:
    """Add nothing. Writing it waits for all plans queued before."""
    return batch.position


NO_OP = Plan("note", "", add_nothing)

# `Replica.write` catches up before these kinds. REFRESH also counts the new records as seen by the
# caller; after REFRESH_SILENTLY, a later plan made without knowing them is still a conflict.
# ACCEPT_ROLLBACK is a REFRESH that also continues if the store's history was replaced.
REFRESH_SILENTLY = Plan("catch-up", "", add_nothing)

REFRESH = Plan("refresh", "", add_nothing)

ACCEPT_ROLLBACK = Plan("accept-rollback", "", add_nothing)

CATCH_UP_KINDS = frozenset({REFRESH_SILENTLY.kind, REFRESH.kind, ACCEPT_ROLLBACK.kind})
