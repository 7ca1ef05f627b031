"""This process's view of one session: its state, the tip of its chain, a write in doubt. Pure.

In: plans to write, and entries read from the store. Out: steps (requests for I/O), one result per
plan, a published `view`, and notices that the handle emits as events.

    plans ── batch ── link ── commit ──┬─ stored:   the draft becomes the state
                                       ├─ conflict: catch up; retry the plans that are still valid
                                       └─ error:    in doubt; resolved before the next write

A write in doubt is resolved by sending the same bytes again: the backend answers *stored* if they
are at their positions and *conflict* if other entries are.

To edit: only one caller at a time may run `write`. Readers take `view` once and use that, because
another step may replace it. Never change a published state or view in place.
"""

from collections.abc import Sequence
from types import GeneratorType
from typing import Any, NamedTuple

import msgspec

from perdure.backends.protocol import Append, Outcome
from perdure.core import index, leases
from perdure.core.conflicts import UnseenRecords
from perdure.core.index import IndexCache
from perdure.core.leases import HeldLease
from perdure.core.plans import PendingEvent, Plan, RecordBatch, T
from perdure.core.replay import guard
from perdure.core.replay.guard import Guard
from perdure.core.settings import Settings
from perdure.core.state.session_state import STATE_VERSION, SessionState
from perdure.core.state.values import CachedValue, ValueCache
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    NotFoundError,
    PayloadError,
    PerdureError,
    UnavailableError,
    UnstorableError,
    UsageError,
)
from perdure.journal import chain, codec, reader, requests
from perdure.journal.chain import (
    EMPTY_CHAIN,
    BatchAssembler,
    ChainTip,
    StreamIdentity,
    VerifiedEntry,
)
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.reader import PAGE, History
from perdure.journal.records import (
    BatchDiscarded,
    Branched,
    Content,
    IndexPage,
    Message,
    MessagesReplaced,
    MessagesRetracted,
    Snapshot,
)
from perdure.journal.requests import Commit, Steps

_RETRACTIONS = frozenset({MessagesRetracted.kind, MessagesReplaced.kind})


class InDoubtWrite(msgspec.Struct, frozen=True, gc=False):
    """A write whose outcome is unknown: the append sent, and the state if it was stored."""

    append: Append
    batch: RecordBatch
    stream: StreamIdentity
    tip: ChainTip


class StateView(NamedTuple):
    """An acknowledged state with its history. Replaced as a whole, never changed in place."""

    state: SessionState
    history: History
    last_payload: bytes | None
    """The payload of the newest message."""


PlanAnswers = dict[int, Any]
"""By the number of a plan: its result, or the PerdureError that it raised or was rejected with."""


class Replica:
    """One session as this handle last read or wrote it."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        stream = StreamIdentity(name, "", settings.tenant)
        self.view = StateView(SessionState(), History(stream, EMPTY_CHAIN, settings.cipher), None)
        self.doubt: InDoubtWrite | None = None
        self.values = ValueCache()
        self._index_cache = IndexCache()
        self.pending_events: list[PendingEvent] = []
        self.is_replayed = False
        """Whether it follows a record during a replay, and never writes."""
        self.held_lease: HeldLease | None = None
        """The lease that this handle took last; it may have been lost or released since."""
        self.lease_seen_at: tuple[tuple[int, int], float] | None = None
        """A lease's (epoch, position of its last renewal), and the monotonic time of first sight.

        A contender counts the ttl from then: clocks of different machines are never compared.
        """
        self._unseen = UnseenRecords(name)
        self.deleted = False
        """Whether this handle has seen the session deleted, or its name reused for a branch."""
        self._batches = BatchAssembler(name)

    def new_id(self) -> str:
        """Return a new record id, marked as generated."""
        return GENERATED_PREFIX + self.settings.token()

    @property
    def exists(self) -> bool:
        """Whether the session has records since it was last deleted."""
        return self.tip.position > 0 and not self.state.deleted

    def new_batch(self) -> RecordBatch:
        """Return an empty batch after the published view."""
        view = self.view
        return RecordBatch(self.name, view.state.draft(), view.history, self._index_cache)

    def require_present(self) -> None:
        """Raise NotFoundError if this handle has seen the session deleted or its name reused."""
        if self.deleted:
            hint = "it was deleted, or its name was reused: open it again"
            raise NotFoundError(f"session {self.name!r}", hint)

    def require_live(self, action: str) -> None:
        """Raise ReplayBlockedError if a replayed agent uses a session other than the replayed one.

        Everything that writes, reads, or prepares a later write calls this first.
        """
        if Guard.used and not self.is_replayed:
            guard.require_live(f"{action} in the live session {self.name!r}")

    @property
    def state(self) -> SessionState:
        """The state in the published view."""
        return self.view.state

    @property
    def history(self) -> History:
        """The history that the published view covers."""
        return self.view.history

    @property
    def tip(self) -> ChainTip:
        """The position and digest of the newest entry in the published view."""
        return self.view.history.tip

    def _publish(
        self,
        state: SessionState,
        stream: StreamIdentity,
        tip: ChainTip,
        last: bytes | None,
        batches: BatchAssembler,
        torn: tuple[int, int] | None = None,
    ) -> None:
        past = History(stream, tip, self.settings.cipher, state.lineage, state.begin, torn)
        # `tuple.__new__` is faster than calling the class, and every write comes through here.
        self.view, self._batches = tuple.__new__(StateView, (state, past, last)), batches

    # Opening and catching up.

    def load(self) -> Steps[None]:
        """Read the end of the stream, back to the latest usable snapshot, and publish the state."""
        head = yield from requests.head(self.name)
        tail, base = yield from self._read_tail(None)
        # The head must be read before the tail, or a tail cut short would go unnoticed. Here the
        # session was created between the two reads, so read both again in that order.
        if head is None and tail:
            head = yield from requests.head(self.name)
            tail, base = yield from self._read_tail(None)
        reader.require_head(self.name, head, tail)
        if tail:
            state, batches = self._rebuild(tail, base)
            stream = StreamIdentity(self.name, tail[0].header.stream, self.settings.tenant)
            self._publish(state, stream, tail[0].tip, None, batches, batches.torn)
            self._unseen.clear()
            if batches.torn is not None:
                self._add_notice("recovery", first=batches.torn[0], last=batches.torn[1])
            last = yield from self._load_last(tail)
            self.view = StateView(self.state, self.history, last)

    def state_at(self, past: History) -> Steps[SessionState]:
        """Return the state at the end of a history, which may end within a batch."""
        tail, base = yield from self._read_tail(past)
        state, batches = self._rebuild(tail, base)
        for linked in batches.flush():
            self._apply(state, linked)
        return state

    def _rebuild(
        self, tail: list[VerifiedEntry], base: SessionState | None
    ) -> tuple[SessionState, BatchAssembler]:
        """Apply a tail, given newest first, to the state of its snapshot or to an empty one."""
        state, batches = base or SessionState(), BatchAssembler(self.name)
        for linked in reversed(tail[:-1] if base else tail):
            if linked.header.kind == Branched.kind:
                # A branch may share its parent's history up to the middle of a batch.
                for item in batches.flush():
                    self._apply(state, item)
            for item in batches.add(linked):
                self._apply(state, item)
        return state, batches

    def _read_tail(
        self, past: History | None
    ) -> Steps[tuple[list[VerifiedEntry], SessionState | None]]:
        """Return the entries back to the latest usable snapshot, newest first, and its state."""
        cipher, tenant = self.settings.cipher, self.settings.tenant
        backward = reader.BackwardReader(self.name, cipher, past, tenant=tenant)
        tail: list[VerifiedEntry] = []
        while not backward.ended:
            for linked in (yield from backward.page()):
                tail.append(linked)
                if linked.header.kind == Snapshot.kind:
                    base = self._restore(linked)
                    if base is not None:
                        return tail, base
        return tail, None

    def _restore(self, linked: VerifiedEntry) -> SessionState | None:
        """Return a snapshot's state, or None if it cannot be used; reading then continues."""
        position = linked.entry.position
        payload = chain.open_body(self.name, linked, self.settings.cipher)
        try:
            content = codec.decode(Snapshot.kind, payload, stream=self.name, position=position)
            if isinstance(content, Snapshot) and content.state == STATE_VERSION:
                return SessionState.restore(content, payload, name=self.name, position=position)
            reason = "a state snapshot of another version"
        except PayloadError as error:
            reason = error.reason
        self._add_notice("snapshot_skipped", position=position, reason=reason)
        return None

    def _add_notice(self, event: str, **fields: object) -> None:
        self.pending_events.append(PendingEvent(event, fields))

    def _load_last(self, tail: Sequence[VerifiedEntry]) -> Steps[bytes | None]:
        """Return the payload of the newest message; it is often in the tail already."""
        position = self.state.last_message
        if not position:
            return None
        linked = next((item for item in tail if item.entry.position == position), None)
        if linked is None:
            linked = yield from reader.read_entry(self.history, position)
        return chain.open_body(self.name, linked, self.settings.cipher)

    def _read_message(self, past: History, position: int) -> Steps[bytes | None]:
        """Return the payload of the message at a position, None for position 0."""
        if not position:
            return None
        linked = yield from reader.read_entry(past, position)
        return chain.open_body(self.name, linked, self.settings.cipher)

    def _apply(self, state: SessionState, linked: VerifiedEntry) -> Content:
        header, position = linked.header, linked.entry.position
        payload = chain.open_body(self.name, linked, self.settings.cipher)
        content = codec.decode(header.kind, payload, stream=self.name, position=position)
        try:
            state.apply(position, header.id, content, payload)
        except LookupError as error:
            reason = "it refers to a record that does not exist"
            raise ChainError(self.name, position, reason) from error
        return content

    def catch_up(self) -> Steps[list[Content]]:
        """Apply and return the records that others appended. On error the view is unchanged."""
        state, batches = self.state.draft(), self._batches.copy()
        stream, tip, last = self.history.stream, self.tip, self.view.last_payload
        newer: list[Content] = []
        more = True
        while more:
            entries = yield from requests.read(self.name, after=tip.position, limit=PAGE)
            more = len(entries) == PAGE
            for entry in entries:
                linked = chain.verify_entry(self.name, entry)
                stream = self._require_next(stream, tip, linked)
                if tip.position == 0 and linked.header.kind == Branched.kind:
                    # Another process created this session as a branch: its state comes from the
                    # parent's history, so it cannot be caught up, only loaded.
                    yield from self.load()
                    self.deleted = not (yield from self._is_kept())
                    return [chain.decode_content(self.name, linked, self.settings.cipher)]
                tip = linked.tip
                for whole in batches.add(linked):
                    newer.append(self._apply(state, whole))
                    if whole.header.kind == Message.kind:
                        last = chain.open_body(self.name, whole, self.settings.cipher)
                    elif whole.header.kind in _RETRACTIONS:
                        last = b""
                    elif state.deleted:
                        last = None
        if last == b"":  # After a retraction, the newest message may be any earlier one.
            past = History(stream, tip, self.settings.cipher, state.lineage, state.begin)
            last = yield from self._read_message(past, state.last_message)
        self._publish(state, stream, tip, last, batches, batches.torn)
        self.deleted = self.deleted or any(content.kind == "deleted" for content in newer)
        return newer

    def _is_kept(self) -> Steps[bool]:
        """Whether the parent keeps this branch. If not, `lifecycle` repairs it at the next open."""
        if not self.state.lineage:
            return False  # The branch was deleted already.
        owner = Replica(self.state.lineage[0].name, self.settings)
        yield from owner.load()
        keeps = owner.state.kept_branches.values()
        return any(kept.stream == self.history.stream.id and kept.complete for kept in keeps)

    def _require_next(
        self, stream: StreamIdentity, tip: ChainTip, linked: VerifiedEntry
    ) -> StreamIdentity:
        """Raise unless an entry follows the tip; return the stream, with its id filled in."""
        if not stream.id:
            stream = stream._replace(id=linked.header.stream)
        chain.require_same_stream(stream, linked)
        # Two kinds of entry need not link to the known tip: the first one of a stream, and a
        # deletion, after which everything before it may have been dropped.
        begins = tip.position == 0 and linked.header.session is not None
        dropped = linked.header.kind == "deleted" and linked.entry.position > tip.position
        if not begins and not dropped:
            chain.require_follows(self.name, tip, linked)
        return stream

    # Writing.

    def write(self, plans: Sequence[Plan[Any]]) -> Steps[list[Any]]:
        """Write plans as one append; return for each its result, or its own PerdureError.

        An exception means that the outcome is unknown for all of them.
        """
        self.require_present()
        if self.doubt is not None:
            yield from self._resolve_doubt(self.doubt)
        kinds = [plan.kind for plan in plans]
        if "refresh" in kinds:
            yield from self.catch_up()
            self.require_present()
            self._unseen.clear()
        elif "catch-up" in kinds:
            base = self.tip.position
            self._unseen.add((yield from self.catch_up()), base)
        answers: PlanAnswers = {}
        if self.state.lease is not None:
            yield from self._enforce_lease(plans, answers)
        if self._unseen.contents:
            yield from self._reject_unseen(plans, answers)
        while True:
            batch = yield from self._build_batch(plans, answers)
            if not batch.pending or (yield from self._commit(batch, batch.state.head_labels)):
                conflicts = [item for item in answers.values() if isinstance(item, ConflictError)]
                # A caller that takes a lease is expected to re-read the session, as after a
                # conflict.
                if conflicts or "lease.take" in kinds:
                    self._unseen.clear()
                return [*map(answers.__getitem__, range(len(plans)))]
            base = self.tip.position
            newer = yield from self.catch_up()
            if self.tip.position == base:
                # A conflict, but nothing new to read: the stored entries were replaced.
                raise ChainError(self.name, base, "the store's history differs from the one read")
            self._add_notice("conflict", position=base, head=self.tip.position)
            yield from self._reject_invalidated(plans, newer, base, answers)

    def _reject_invalidated(
        self, plans: Sequence[Plan[Any]], newer: Sequence[Content], after: int, answers: PlanAnswers
    ) -> Steps[None]:
        """Reject plans invalidated by newer records; discard the results of the others.

        Results of plans that were executed on the old state no longer count, but errors stay.
        """
        for number, answer in [*answers.items()]:
            if not isinstance(answer, PerdureError):
                del answers[number]
        if self.state.lease is not None:
            yield from self._enforce_lease(plans, answers)
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self._unseen.find_conflict(plan, newer, after, self.tip.position)
                if conflict is not None:
                    answers[number] = conflict
        self._unseen.add(newer, after)

    def _enforce_lease(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[None]:
        """Reject plans that need the lease if this handle does not hold it."""
        error = leases.lease_refusal(self.name, self.state.lease, self.held_lease)
        if error is not None:
            for number, plan in enumerate(plans):
                if number not in answers and not plan.bypasses_lease:
                    answers[number] = yield from self._allow_if_stored(plan, error)

    def _reject_unseen(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[None]:
        """Reject plans invalidated by records that were applied without notifying the caller."""
        unseen, position = self._unseen.contents.values(), self.tip.position
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self._unseen.find_conflict(plan, unseen, position, position)
                if conflict is not None:
                    answers[number] = yield from self._allow_if_stored(plan, conflict)

    def _allow_if_stored(self, plan: Plan[Any], refusal: PerdureError) -> Steps[Any]:
        """Return a refusal, or the stored result if the plan's records are stored already.

        A caller that repeats a write with its own id gets the position of the first attempt.
        """
        trial = self.new_batch()
        try:
            answer = yield from plan.execute(trial)
        except ConflictError:
            return refusal
        except PerdureError as error:
            answer = error
        return refusal if trial.pending else answer

    def _build_batch(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[RecordBatch]:
        """Execute the unanswered plans on one batch; set their results as if it were stored."""
        batch = self.new_batch()
        torn = batch.past.torn
        if torn is not None:
            # Discards the incomplete batch that a crash left at the end of the stream.
            batch.add_content(self.new_id(), BatchDiscarded(first=torn[0], last=torn[1]))
        recovered = len(batch.pending)
        for number, plan in enumerate(plans):
            if number not in answers:
                try:
                    # As `plan.execute`, without a generator for plans that do not read.
                    result = plan.make(batch)
                    if type(result) is GeneratorType:
                        result = yield from result
                    answers[number] = result
                except PerdureError as error:
                    answers[number] = error
        if len(batch.pending) == recovered:  # No plan added a record: append nothing at all.
            batch.pending.clear()
        elif batch.state.snapshot_due:
            yield from self._add_snapshot(batch)
        return batch

    def _add_snapshot(self, batch: RecordBatch) -> Steps[None]:
        """Add a snapshot, after the pages of the index that hold the ids since the last one."""
        state, pages = batch.state, list[IndexPage]()
        if state.recent_ids:
            cache, ids = self._index_cache, state.recent_ids
            pages = yield from index.make_run(batch.past, cache, state.index, ids)
        saved = batch.savepoint()
        for page in pages:
            position = batch.add_content(self.new_id(), page)
            batch.index_pages[position] = index.decode_rows(self.name, position, page)
        facts = batch.state.facts()
        try:
            batch.add_content(self.new_id(), Snapshot(state=STATE_VERSION, facts=facts))
        except UsageError as error:  # Too large. Snapshots only save reading, so continue without.
            batch.rollback(saved)
            batch.index_pages.clear()
            self._add_notice("snapshot_skipped", position=batch.position + 1, reason=error.reason)

    def prepare(self, plan: Plan[T]) -> Steps[tuple[T, Append | None]]:
        """Return a plan's result and the append that stores it, without sending it.

        The append is None if there is nothing to store. Raise the PerdureError of the plan.
        """
        self.require_present()
        answers: PlanAnswers = {}
        if self.state.lease is not None:
            yield from self._enforce_lease([plan], answers)
        batch = yield from self._build_batch([plan], answers)
        if isinstance(answers[0], PerdureError):
            raise answers[0]
        if not batch.pending:
            return answers[0], None
        return answers[0], self._link(batch, batch.state.head_labels).append

    def _commit(self, batch: RecordBatch, labels: frozenset[str]) -> Steps[bool]:
        """Number and link a batch; return the steps that send it, True if it was stored."""
        return self._send(self._link(batch, labels))

    def _link(self, batch: RecordBatch, labels: frozenset[str]) -> InDoubtWrite:
        """Number and link a batch, ready to be sent."""
        settings, stream = self.settings, self.view.history.stream
        if not stream.id:
            stream = stream._replace(id=settings.token())
        time, cipher = chain.now(settings.clock), settings.cipher
        drafts = batch.pending
        entries, tip = chain.link_entries(stream, batch.tip, drafts, time=time, cipher=cipher)
        # Takes half the time of calling the class.
        append = tuple.__new__(Append, (self.name, entries, labels, False))
        return InDoubtWrite(append, batch, stream, tip)

    def _resolve_doubt(self, doubt: InDoubtWrite) -> Steps[None]:
        """Resolve a write whose reply was lost, by sending it again."""
        first, tip = doubt.append.entries[0].position, doubt.tip
        outcome = "stored" if (yield from self._send(doubt)) else "not stored"
        self._add_notice("settled", first=first, last=tip.position, outcome=outcome)

    def _send(self, doubt: InDoubtWrite) -> Steps[bool]:
        """Send a write; return True if it was stored. If the reply is lost, it is in doubt."""
        append, batch, stream, tip = doubt.append, doubt.batch, doubt.stream, doubt.tip
        try:
            outcome: Outcome = yield Commit(append)  # As `requests.commit`, with one call less.
        except UnstorableError:
            self.doubt = None  # The backend refused it: nothing was stored, now or later.
            raise
        except UsageError:
            raise  # The call never reached the backend, so an earlier doubt remains.
        except BaseException as error:
            # Cancellation and KeyboardInterrupt too: the append may have reached the backend.
            self.doubt = doubt
            self._add_notice("write_in_doubt", first=append.entries[0].position, last=tip.position)
            if isinstance(error, UnavailableError):
                check = "This write may still be stored: check with session.refresh()"
                hint = f"{error.hint}. {check}, and repeat the call only with the same id="
                raise UnavailableError(error.backend, error.reason, hint) from error
            raise
        self.doubt = None
        if outcome.status == "refused":
            raise DamagedError(self.name, append.entries[0].position, outcome.reason)
        if outcome.status == "conflict":
            return False
        if self.settings.verify_writes:
            yield from reader.verify_stored(append)
        # The stored batch discarded an incomplete one, so nothing is left to assemble or torn.
        batches = self._batches if self.view.history.torn is None else BatchAssembler(self.name)
        last = self.view.last_payload if batch.last_payload is None else batch.last_payload or None
        self._publish(batch.state, stream, tip, last, batches)
        for key, data in batch.values.items():
            self.values.put(key, CachedValue(batch.state.values[key].position, data))
        for position, rows in batch.index_pages.items():
            self._index_cache.put(position, rows)
        return True
