"""This process's view of one session: its state, the tip of its chain, a write in doubt. Pure.

In: plans to write, and entries read from the store. Out: steps (requests for I/O), one result per
plan, a published `view`, and notices that the handle emits as events.

    plans ── batch ── link ── commit ──┬─ stored:   the draft becomes the state
                                       ├─ conflict: catch up; retry the plans that are still valid
                                       └─ error:    in doubt; resolved before the next write

A write in doubt is resolved by sending the same bytes again: the backend answers *stored* if they
are at their positions and *conflict* if other entries are, or if the store has another history.

If the store no longer has the tip, it was put back to an earlier state, and perhaps continued by
others. The replica then refuses every plan (`replaced`) until the caller accepts that history.

To edit: only one caller at a time may run `write`. Readers take `view` once and use that, because
another step may replace it. Never change a published state or view in place.
"""

from collections.abc import Sequence
from types import GeneratorType
from typing import Any, NamedTuple

from perdure.backends.protocol import UNFINISHED, Append, Entry, Outcome
from perdure.core import leases, rollback, writes
from perdure.core.bodies import BodyCache, UnreadBodies
from perdure.core.conflicts import UNREADABLE, UnseenRecords
from perdure.core.index import IndexCache
from perdure.core.leases import HeldLease
from perdure.core.plans import (
    ACCEPT_ROLLBACK,
    CATCH_UP_KINDS,
    REFRESH,
    PendingEvent,
    Plan,
    RecordBatch,
    T,
    add_snapshot,
    too_large_error,
)
from perdure.core.replay import guard
from perdure.core.replay.guard import Guard
from perdure.core.settings import Settings
from perdure.core.state.session_state import SessionState
from perdure.core.state.values import CachedValue, ValueCache
from perdure.core.state_loader import StateLoader, history_of, newest_payload
from perdure.core.writes import PendingWrite
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    FencedError,
    HistoryReplacedError,
    LeaseHeldError,
    NotFoundError,
    PerdureError,
    UnavailableError,
    UnstorableError,
    UsageError,
)
from perdure.journal import chain, key_store, reader, requests
from perdure.journal.chain import (
    EMPTY_CHAIN,
    ChainTip,
    StreamIdentity,
    VerifiedEntry,
)
from perdure.journal.erasures import NOTHING_ERASED
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.pages import read_page
from perdure.journal.reader import PAGE, History
from perdure.journal.records import (
    Content,
    Deleted,
    Erased,
)
from perdure.journal.requests import Commit, Steps


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
        # A codec of its own: the handle tells it how large bodies of this session are read.
        settings = settings.for_session()._replace(codec=settings.codec.copy())
        self.settings = settings
        stream = StreamIdentity(name, "", settings.tenant)
        self.view = StateView(SessionState(), History(stream, EMPTY_CHAIN, settings.cipher), None)
        self.doubt: PendingWrite | None = None
        self.values = ValueCache()
        self._index_cache, self.bodies = IndexCache(), BodyCache(settings.part_size)
        self.pending_events: list[PendingEvent] = []
        self.loader = StateLoader(name, settings, self.pending_events)
        self.is_replayed = False
        """Whether it follows a record during a replay, and never writes."""
        self.held_lease: HeldLease | None = None
        """The lease that this handle took last; it may have been lost or released since."""
        self.lease_seen_at: tuple[tuple[int, int], float] | None = None
        """A lease's (epoch, position of its last renewal), and the monotonic time of first sight.

        A contender counts the ttl from then: clocks of different machines are never compared.
        """
        self.unseen = UnseenRecords(name)
        """Records of others that were applied, and that no caller has been notified of."""
        self.deleted = False
        """Whether this handle has seen the session deleted, or its name reused for a branch."""
        self.replaced: HistoryReplacedError | None = None
        """Set when the store was seen without the tip, until the caller accepts its history."""
        self.rollbacks = 0
        """How often the caller accepted another history; what is computed from one is void then."""
        self.unfinished = False
        """Whether it is a copy that is not whole yet (`core.copies`), and so cannot be used."""

    def new_id(self) -> str:
        """Return a new record id, marked as generated."""
        return GENERATED_PREFIX + self.settings.tokens(1)[0]

    @property
    def exists(self) -> bool:
        """Whether the session has records since it was last deleted."""
        return self.tip.position > 0 and not self.state.deleted

    def new_batch(self) -> RecordBatch:
        """Return an empty batch after the published view."""
        view = self.view
        past, caches = view.history, (self._index_cache, self.bodies)
        return RecordBatch(self.name, view.state.draft(), past, past.tip, *caches)

    def require_present(self) -> None:
        """Raise NotFoundError if this handle has seen the session deleted or its name reused."""
        if self.deleted:
            hint = "it was deleted, or its name was reused: open it again"
            raise NotFoundError(f"session {self.name!r}", hint)

    def _has_earlier_state(self, first: VerifiedEntry) -> Steps[bool]:
        """Whether the first entry continues a state: that of a parent, or of a compacted session.

        Another process wrote it under this name since the session was opened. NotFoundError if it
        begins an unfinished copy.
        """
        head = yield from requests.head(self.name)
        self.unfinished = head is not None and head.labels >= UNFINISHED
        self.require_whole()
        return first.entry.position > 1 and first.header.kind != Deleted.kind

    def require_whole(self) -> None:
        """Raise NotFoundError if the session is a copy that is not whole yet."""
        if self.unfinished:
            hint = f"it is an unfinished copy: repeat session.copy({self.name!r}), or delete it"
            raise NotFoundError(f"session {self.name!r}", hint)

    def require_live(self, action: str) -> None:
        """Raise ReplayBlockedError if a replayed agent uses a session other than the replayed one.

        Everything that writes, reads, or prepares a later write calls this first.
        """
        if Guard.used and not self.is_replayed:
            guard.require_live(f"{action} in the live session {self.name!r}")

    def require_not_replaced(self) -> None:
        """Raise HistoryReplacedError if the caller has not accepted the store's history yet."""
        if self.replaced is not None:
            raise HistoryReplacedError(*self.replaced.args)

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
    ) -> None:
        kept = (state.lineage, state.begin, state.erasures, state.compacted, state.carried)
        past = History(stream, tip, self.settings.cipher, *kept)
        # `tuple.__new__` is faster than calling the class, and every write comes through here.
        self.view = tuple.__new__(StateView, (state, past, last))

    # Opening and catching up.

    def load(self) -> Steps[None]:
        """Read the end of the stream, back to the latest usable snapshot, and publish the state."""
        loaded = yield from self.loader.load()
        self.unfinished = loaded is not None and loaded.is_unfinished
        if loaded is not None:
            state, past, records = loaded.state, loaded.history, loaded.records
            last = yield from self.loader.last_payload(past, state.last_message, records)
            self.unseen.clear()
            self.view = StateView(state, past, last)

    def _add_notice(self, event: str, **fields: object) -> None:
        self.pending_events.append(PendingEvent(event, fields))

    def catch_up(self) -> Steps[list[Content]]:
        """Apply and return the records that others appended. On error the view is unchanged."""
        try:
            return (yield from self._catch_up())
        except DamagedError as error:
            if (yield from rollback.skip_dropped(self, Replica(self.name, self.settings))):
                return [UNREADABLE]
            yield from rollback.explain_damage(self, error)
            raise

    def refuse(self, error: HistoryReplacedError) -> None:
        """Refuse everything until the caller accepts the store's history; a lease is lost."""
        self.replaced = error
        self._add_notice("history_replaced", position=error.position, head=error.head)
        if self.held_lease is not None and self.held_lease.active:
            loss = FencedError(self.name, self.held_lease.epoch, 0, "", leases.HISTORY_REPLACED)
            self.held_lease.lose(loss)

    def adopt(self, fresh: "Replica", *, deleted: bool) -> None:
        """Continue with the history of a replica that was just loaded.

        Nothing that is known by its position may outlive the history in which it was known.
        """
        self._add_notice("rollback_accepted", position=self.tip.position, head=fresh.tip.position)
        self.pending_events += fresh.pending_events
        self.values, self._index_cache, self.lease_seen_at = ValueCache(), IndexCache(), None
        self.bodies = BodyCache(self.settings.part_size)
        self.bodies.may_be_cited = True  # Plans that were made before may be executed again.
        self.unseen.clear()
        self.view = fresh.view
        self.rollbacks += 1
        self.deleted, self.replaced = deleted, None

    def _catch_up(self) -> Steps[list[Content]]:
        state = self.state.draft()
        stream, tip, last = self.history.stream, self.tip, self.view.last_payload
        newer: list[Content] = []
        more = True
        after = max(tip.position - 1, 0)  # The tip is read again: the store may not have it now.
        while more:
            entries = yield from read_page(self.name, after=after, limit=PAGE)
            more = len(entries) == PAGE
            if after < tip.position:
                entries = self._require_tip(tip, entries)
            for entry in entries:
                linked = chain.verify_entry(self.name, entry)
                stream = reader.require_next(stream, tip, linked)
                if self.settings.cipher.is_placed:
                    yield from key_store.load_keys(self.settings.cipher, linked.header)
                # Another process created this session as a branch, or as a copy of a compacted one;
                # or records that were applied before count as never stored now.
                if (tip.position == 0 and (yield from self._has_earlier_state(linked))) or any(
                    record.kind == Erased.kind for record in linked.records
                ):
                    return (yield from self._reload())
                tip = linked.tip
                for item in linked.records:
                    record = self.loader.apply(state, item)
                    newer.append(record.content)
                    last = newest_payload(record, state, last)
            after = tip.position
        if last == b"":  # After a retraction, the newest message may be any earlier one.
            past = history_of(stream, tip, self.settings.cipher, state)
            last = yield from self.loader.last_payload(past, state.last_message)
        self._publish(state, stream, tip, last)
        self.deleted = self.deleted or any(content.kind == "deleted" for content in newer)
        return newer

    def _reload(self) -> Steps[list[Content]]:
        """Catch up by loading the session, where the state known so far cannot be continued."""
        fresh, known = Replica(self.name, self.settings), self.tip.position
        yield from fresh.load()
        past, cipher = fresh.history, self.settings.cipher
        begin = past.segments[-1].low  # A branch: what its parent has is not new.
        newer: list[Content] = [UNREADABLE] if known < begin and past.compacted else []
        forward = ForwardReader(past, after=max(known, begin))
        while (page := (yield from forward.page())) is not None:
            newer += [chain.decode_content(self.name, record, cipher) for record in page]
        is_lost = bool(fresh.state.lineage) and not known and not (yield from fresh.is_kept())
        is_deleted = any(content.kind == Deleted.kind for content in newer)
        self.view = fresh.view
        self.pending_events += fresh.pending_events
        self.deleted = self.deleted or is_lost or is_deleted
        return newer

    def _require_tip(self, tip: ChainTip, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries after the tip; raise ChainError if another one is in its place."""
        if not entries:
            raise ChainError(self.name, tip.position, "it is missing")
        if entries[0].position > tip.position:
            return entries  # A deletion dropped the tip, or it is damage: their links will tell.
        if entries[0].last != tip.position or chain.entry_digest(entries[0]) != tip.digest:
            raise ChainError(self.name, tip.position, "it is not the entry that was read before")
        return entries[1:]

    @property
    def is_new_branch(self) -> bool:
        """Whether it is a branch with only its first entry, or perhaps: so it may be incomplete."""
        state = self.state
        first = 1 + (state.erasures != NOTHING_ERASED)  # It may say what was erased of its parent.
        return bool(state.lineage) and self.tip.position <= state.lineage[0].at + first

    def is_kept(self) -> Steps[bool]:
        """Whether the parent keeps this branch. If not, `lifecycle` repairs it at the next open."""
        if not self.state.lineage:
            return False  # The branch was deleted already.
        owner = Replica(self.state.lineage[0].name, self.settings)
        yield from owner.load()
        keeps = owner.state.kept_branches.values()
        return any(kept.stream == self.history.stream.id and kept.complete for kept in keeps)

    # Writing.

    def write(self, plans: Sequence[Plan[Any]], *, conflict: bool = False) -> Steps[list[Any]]:
        """Write plans as one append; return for each its result, or its own PerdureError.

        HistoryReplacedError means that none was stored; after any other exception, the outcome is
        unknown for all of them. `conflict` says that a `PendingWrite` of them was not stored.
        """
        self.require_present()
        kinds = [plan.kind for plan in plans]
        answers: PlanAnswers = {}
        if conflict:
            yield from self._resolve_conflict(plans, answers)
        else:
            yield from self._check(plans, kinds, answers)
        stream_id = ""
        while True:
            batch = yield from self._build_batch(plans, answers)
            if batch.is_too_large:
                return (yield from self._write_parts(plans))
            if batch.pending and self.settings.cipher.is_placed:
                stream_id = yield from self._require_key()
            if not batch.pending or (yield from self._send(writes.link(self, batch, stream_id))):
                conflicts = [item for item in answers.values() if isinstance(item, ConflictError)]
                # A caller that takes a lease is expected to re-read the session, as after a
                # conflict.
                if conflicts or "lease.take" in kinds:
                    self.unseen.clear()
                return [*map(answers.__getitem__, range(len(plans)))]
            yield from self._resolve_conflict(plans, answers)

    def _check(
        self, plans: Sequence[Plan[Any]], kinds: Sequence[str], answers: PlanAnswers
    ) -> Steps[None]:
        """Resolve a doubt, catch up if a plan asks for it, and reject what must not be written."""
        if self.doubt is not None:
            yield from self._resolve_doubt(self.doubt)
        catches_up = not CATCH_UP_KINDS.isdisjoint(kinds)
        if catches_up:
            yield from self._catch_up_for(plans, answers)
        elif self.replaced is not None:
            self.require_not_replaced()
        if self.state.lease is not None or self.held_lease is not None:
            yield from self._enforce_lease(plans, answers, is_fresh=catches_up)
        if self.unseen.contents:
            yield from self._reject_unseen(plans, answers)

    def _resolve_conflict(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[None]:
        """Catch up, because another writer was faster, and reject the plans it invalidated."""
        base = self.tip.position
        newer = yield from self.catch_up()
        if self.tip.position == base:
            # Not stored, but the tip is still the last entry that can be read.
            raise ChainError(self.name, base, "the head of the stream is not its last entry")
        self._add_notice("conflict", position=base, head=self.tip.position)
        yield from self._reject_invalidated(plans, newer, base, answers)

    def _write_parts(self, plans: Sequence[Plan[Any]]) -> Steps[list[Any]]:
        """Write plans as several appends, because one entry cannot hold the records of all."""
        if len(plans) == 1:
            return [too_large_error()]
        half = len(plans) // 2
        answers = yield from self.write(plans[:half])
        try:
            return answers + (yield from self.write(plans[half:]))
        except HistoryReplacedError as error:  # Only the second half was not stored.
            return answers + [error] * (len(plans) - half)

    def _catch_up_for(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[None]:
        """Catch up because a plan asks for it: see `CATCH_UP_KINDS`."""
        kinds = {plan.kind for plan in plans}
        if ACCEPT_ROLLBACK.kind in kinds:
            replaced = yield from rollback.accept(self, Replica(self.name, self.settings))
            for number, plan in enumerate(plans):
                # The other plans were made in view of the history that is gone.
                if replaced is not None and plan.kind not in CATCH_UP_KINDS:
                    answers[number] = replaced
        else:
            self.require_not_replaced()
            base = self.tip.position
            newer = yield from self.catch_up()
            if REFRESH.kind not in kinds:
                self.unseen.add(newer, base)
                return
        self.require_present()
        self.unseen.clear()

    def _reject_invalidated(
        self, plans: Sequence[Plan[Any]], newer: Sequence[Content], after: int, answers: PlanAnswers
    ) -> Steps[None]:
        """Reject plans invalidated by newer records; discard the results of the others.

        Results of plans that were executed on the old state no longer count, but errors stay.
        """
        for number, answer in [*answers.items()]:
            if not isinstance(answer, PerdureError):
                del answers[number]
        if self.state.lease is not None or self.held_lease is not None:
            yield from self._enforce_lease(plans, answers, is_fresh=True)
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self.unseen.find_conflict(plan, newer, after, self.tip.position)
                if conflict is not None:
                    answers[number] = conflict
        self.unseen.add(newer, after)

    def _enforce_lease(
        self, plans: Sequence[Plan[Any]], answers: PlanAnswers, *, is_fresh: bool
    ) -> Steps[None]:
        """Reject plans that need the lease if this handle does not hold it."""
        error = leases.lease_refusal(self.name, self.state.lease, self.held_lease)
        if error is None:
            return
        needing = [
            number
            for number, plan in enumerate(plans)
            if number not in answers and not plan.bypasses_lease
        ]
        if needing and not is_fresh and isinstance(error, LeaseHeldError):
            # The holder may have released it since: without this read, a handle that never
            # refreshes would be refused forever.
            base = self.tip.position
            self.unseen.add((yield from self.catch_up()), base)
            error = leases.lease_refusal(self.name, self.state.lease, self.held_lease)
        if error is not None:
            for number in needing:
                answers[number] = yield from self._allow_if_stored(plans[number], error)

    def _reject_unseen(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[None]:
        """Reject plans invalidated by records that were applied without notifying the caller."""
        unseen, position = self.unseen.contents.values(), self.tip.position
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self.unseen.find_conflict(plan, unseen, position, position)
                if conflict is not None:
                    answers[number] = yield from self._allow_if_stored(plan, conflict)

    def _allow_if_stored(self, plan: Plan[Any], refusal: PerdureError) -> Steps[Any]:
        """Return a refusal, or the stored result if the plan's records are stored already.

        A caller that repeats a write with its own id gets the position of the first attempt.
        """
        trial = self.new_batch()
        try:
            answer = yield from plan.execute(trial)
        except (ConflictError, UnreadBodies):  # Bodies are looked up for records to be stored.
            return refusal
        except PerdureError as error:
            if isinstance(error, DamagedError):
                yield from rollback.explain_damage(self, error)
            answer = error
        return refusal if trial.pending else answer

    def _build_batch(self, plans: Sequence[Plan[Any]], answers: PlanAnswers) -> Steps[RecordBatch]:
        """Execute the unanswered plans on one batch; set their results as if it were stored."""
        batch, answered = self.new_batch(), {*answers}
        for number, plan in enumerate(plans):
            if number not in answers:
                try:
                    # As `plan.execute`, without a generator for plans that do not read.
                    result = plan.make(batch)
                    if type(result) is GeneratorType:
                        result = yield from result
                    answers[number] = result
                except UnreadBodies as needed:
                    yield from self.bodies.load(batch.past, needed.positions)
                    for other in answers.keys() - answered:
                        del answers[other]
                    return (yield from self._build_batch(plans, answers))
                except PerdureError as error:
                    if isinstance(error, DamagedError):
                        yield from rollback.explain_damage(self, error)
                    answers[number] = error
        batch.end_data()
        if batch.pending and batch.state.snapshot_due:
            notice = yield from add_snapshot(batch)
            if notice is not None:
                self.pending_events.append(notice)
        return batch

    def prepare(self, plan: Plan[T]) -> Steps[tuple[T, Append | None]]:
        """Return a plan's result and the append that stores it, without sending it.

        The append is None if there is nothing to store. Raise the PerdureError of the plan.
        """
        self.require_present()
        answers: PlanAnswers = {}
        if self.state.lease is not None or self.held_lease is not None:
            yield from self._enforce_lease([plan], answers, is_fresh=True)
        batch = yield from self._build_batch([plan], answers)
        if isinstance(answers[0], PerdureError):
            raise answers[0]
        if batch.is_too_large:
            raise too_large_error()
        if not batch.pending:
            return answers[0], None
        stream_id = yield from self._require_key()
        return answers[0], writes.link(self, batch, stream_id).append

    def _require_key(self) -> Steps[str]:
        """Return the id of the stream, or a new one; its key is durable, if it is sealed."""
        stream_id = self.view.history.stream.id or self.settings.token()
        yield from self.settings.require_key(stream_id)
        return stream_id

    def _resolve_doubt(self, doubt: PendingWrite) -> Steps[None]:
        """Resolve a write whose reply was lost, by sending it again."""
        first, tip = doubt.append.entries[0].position, doubt.tip
        outcome = "stored" if (yield from self._send(doubt)) else "not stored"
        self._add_notice("settled", first=first, last=tip.position, outcome=outcome)

    def _send(self, write: PendingWrite) -> Steps[bool]:
        """Send a write; return True if it was stored. If the reply is lost, it is in doubt."""
        try:
            outcome: Outcome = yield Commit(write.append)  # As `requests.commit`, without a call.
        except BaseException as error:
            failure = self.fail(write, error)
            if failure is error:
                raise
            raise failure from error
        if outcome.status != "stored":
            # A gap is refused: the store no longer has the entry before. Catching up tells why.
            self.doubt = None
            return False
        if self.settings.verify_writes:
            self.doubt = None
            try:
                yield from reader.verify_stored(write.append, self.settings.cipher)
            except DamagedError as error:
                yield from rollback.explain_damage(self, error, write.tip)
                raise
        self.accept(write)
        return True

    def fail(self, write: PendingWrite, error: BaseException) -> BaseException:
        """Take note that a write failed, and whether it is in doubt; return what to raise."""
        if isinstance(error, UnstorableError):
            self.doubt = None  # The backend refused it: nothing was stored, now or later.
        elif not isinstance(error, UsageError):  # Else the call never reached the backend.
            # Cancellation and KeyboardInterrupt too: the append may have reached the backend.
            self.doubt = write
            first, last = write.append.entries[0].position, write.tip.position
            self._add_notice("write_in_doubt", first=first, last=last)
            if isinstance(error, UnavailableError):
                check = "This write may still be stored: check with session.refresh()"
                hint = f"{error.hint}. {check}, and repeat the call only with the same id="
                return UnavailableError(error.backend, error.reason, hint)
        return error

    def accept(self, write: PendingWrite) -> None:
        """Take note that a write was stored: publish the state that it leads to."""
        batch = write.batch
        last = self.view.last_payload if batch.last_payload is None else batch.last_payload or None
        self._publish(batch.state, write.stream, write.tip, last)
        if batch.values or batch.index_pages or batch.new_bodies:
            self._fill_caches(batch)
        # Last: until then an interrupt leaves it in doubt, and it is sent and published again.
        self.doubt = None

    def _fill_caches(self, batch: RecordBatch) -> None:
        for key, data in batch.values.items():
            self.values.put(key, CachedValue(batch.state.values[key].position, data))
        for position, rows in batch.index_pages.items():
            self._index_cache.put(position, rows)
        if batch.new_bodies:
            self.bodies.put_all(batch.tip.position + 1, batch.pending)
