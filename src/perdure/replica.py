"""This process's view of one session: its fold, the end of its chain, and what is in doubt. Pure.

    plans ── Batch ── link ── commit ──┬─ stored:   the draft becomes the fold
                                       ├─ conflict: catch up; plans that still hold go again
                                       └─ error:    in doubt; settled before anything else

A write in doubt is settled by sending the same bytes again: the backend answers *stored* if they
stand there and *conflict* if others do. Only one caller at a time may run `write`; whoever reads
takes `view` first, which never change under them.
"""

from collections.abc import Sequence

from perdure import codec, journal, reading, steps
from perdure.backend import Append, Outcome, UnstorableError
from perdure.cache import Cached, ValueCache
from perdure.content import Content
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    NotFoundError,
    PayloadError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from perdure.fold import FOLD_VERSION, Fold
from perdure.journal import EMPTY, Batches, Linked, Stream, Tip
from perdure.judging import Unseen
from perdure.leases import tenure
from perdure.leases.tenure import Holding
from perdure.plans import Batch, Plan
from perdure.reading import PAGE, Past
from perdure.records import Branched, Message, Recovered, Snapshot
from perdure.settings import Settings
from perdure.standing import Doubt, Notice, View
from perdure.steps import Commit, Steps

Answer = int | PerdureError


class Replica:
    """One session as this handle knows it."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        stream = Stream(name, "", settings.tenant)
        self.view = View(Fold(), Past(stream, EMPTY, settings.cipher), None)
        self.doubt: Doubt | None = None
        self.values = ValueCache()
        self.notices: list[Notice] = []
        self.holding: Holding | None = None
        """The lease that this handle took last, and may have lost or given back."""
        self.sighting: tuple[tuple[int, int], float] | None = None  # See `leasing.Claim`.
        self._unseen = Unseen(name)
        self.gone = False
        self._batches = Batches(name)

    @property
    def exists(self) -> bool:
        """Whether anything was said, known or done under this name since it was last deleted."""
        return self.tip.position > 0 and not self.fold.deleted

    def require_present(self) -> None:
        """Raise NotFoundError once this handle has seen that the session is not the one it was."""
        if self.gone:
            hint = "it was deleted, or another one took its name: open it anew"
            raise NotFoundError(f"session {self.name!r}", hint)

    @property
    def fold(self) -> Fold:
        return self.view.fold

    @property
    def past(self) -> Past:
        return self.view.past

    @property
    def tip(self) -> Tip:
        return self.view.past.tip

    def _show(
        self, fold: Fold, stream: Stream, tip: Tip, last: bytes | None, batches: Batches
    ) -> None:
        past = Past(stream, tip, self.settings.cipher, fold.lineage, fold.begin, batches.torn)
        self.view, self._batches = tuple.__new__(View, (fold, past, last)), batches

    # Opening and catching up.

    def load(self) -> Steps[None]:
        """Read the end of the stream, back to the latest fold snapshot that can be used."""
        head = yield from steps.head(self.name)
        tail, base = yield from self._tail(None)
        if head is None and tail:  # It began in between; only a head from before can be trusted.
            head = yield from steps.head(self.name)
            tail, base = yield from self._tail(None)
        reading.require_head(self.name, head, tail)
        if tail:
            fold, batches = self._folded(tail, base)
            stream = Stream(self.name, tail[0].header.stream, self.settings.tenant)
            self._show(fold, stream, tail[0].tip, None, batches)
            self._unseen.tell()
            if batches.torn is not None:
                self._notice("recovery", first=batches.torn[0], last=batches.torn[1])
            last = yield from self._load_last(tail)
            self.view = View(self.fold, self.past, last)

    def fold_of(self, past: Past) -> Steps[Fold]:
        """Return what the session knew at the end of a past, which may be within a batch."""
        tail, base = yield from self._tail(past)
        fold, batches = self._folded(tail, base)
        for linked in batches.flush():
            self._apply(fold, linked)
        return fold

    def _folded(self, tail: list[Linked], base: Fold | None) -> tuple[Fold, Batches]:
        fold, batches = base or Fold(), Batches(self.name)
        for linked in reversed(tail[:-1] if base else tail):
            if linked.header.kind == Branched.kind:
                for item in batches.flush():
                    self._apply(fold, item)
            for item in batches.add(linked):
                self._apply(fold, item)
        return fold, batches

    def _tail(self, past: Past | None) -> Steps[tuple[list[Linked], Fold | None]]:
        """Return the entries from the latest usable snapshot on, newest first, and its fold."""
        cipher, tenant = self.settings.cipher, self.settings.tenant
        backward = reading.Backward(self.name, cipher, past, tenant=tenant)
        tail: list[Linked] = []
        while not backward.ended:
            for linked in (yield from backward.page()):
                tail.append(linked)
                if linked.header.kind == Snapshot.kind:
                    base = self._restore(linked)
                    if base is not None:
                        return tail, base
        return tail, None

    def _restore(self, linked: Linked) -> Fold | None:
        position = linked.entry.position
        payload = journal.open_body(self.name, linked, self.settings.cipher)
        try:
            content = codec.decode(Snapshot.kind, payload, stream=self.name, position=position)
            if isinstance(content, Snapshot) and content.fold == FOLD_VERSION:
                return Fold.restore(content, payload, name=self.name, position=position)
            reason = "a fold snapshot of another version"
        except PayloadError as error:
            reason = error.reason
        self._notice("skipped", position=position, reason=reason)
        return None

    def _notice(self, event: str, **fields: object) -> None:
        self.notices.append(Notice(event, fields))

    def _load_last(self, tail: Sequence[Linked]) -> Steps[bytes | None]:
        position = self.fold.last_message
        if not position:
            return None
        linked = next((item for item in tail if item.entry.position == position), None)
        if linked is None:
            linked = yield from reading.entry_at(self.past, position)
        return journal.open_body(self.name, linked, self.settings.cipher)

    def _apply(self, fold: Fold, linked: Linked) -> Content:
        header = linked.header
        payload = journal.open_body(self.name, linked, self.settings.cipher)
        content = codec.decode(
            header.kind, payload, stream=self.name, position=linked.entry.position
        )
        try:
            fold.apply(linked.entry.position, header.id, content, payload)
        except LookupError as error:
            reason = "it refers to a record that is not there"
            raise ChainError(self.name, linked.entry.position, reason) from error
        return content

    def catch_up(self) -> Steps[list[Content]]:
        """Take in what others appended, and return it. On error the view stays as it was."""
        fold, batches = self.fold.draft(), self._batches.copy()
        stream, tip, last = self.past.stream, self.tip, self.view.last
        newer: list[Content] = []
        more = True
        while more:
            entries = yield from steps.read(self.name, after=tip.position, limit=PAGE)
            more = len(entries) == PAGE
            for entry in entries:
                linked = journal.inspect(self.name, entry)
                stream = self._next(stream, tip, linked)
                if tip.position == 0 and linked.header.kind == Branched.kind:
                    yield from self.load()
                    self.gone = not (yield from self._is_kept())
                    return [journal.decode(self.name, linked, self.settings.cipher)]
                tip = linked.tip
                for whole in batches.add(linked):
                    newer.append(self._apply(fold, whole))
                    if whole.header.kind == Message.kind:
                        last = journal.open_body(self.name, whole, self.settings.cipher)
                    elif fold.deleted:
                        last = None
        self._show(fold, stream, tip, last, batches)
        self.gone = self.gone or any(content.kind == "deleted" for content in newer)
        return newer

    def _is_kept(self) -> Steps[bool]:
        """Whether the parent keeps this branch; whoever opens one that it does not, sees to it."""
        if not self.fold.lineage:
            return False  # It has ended already.
        owner = Replica(self.fold.lineage[0].name, self.settings)
        yield from owner.load()
        keeps = owner.fold.keeps.values()
        return any(kept.stream == self.past.stream.id and kept.complete for kept in keeps)

    def _next(self, stream: Stream, tip: Tip, linked: Linked) -> Stream:
        """Check that an entry comes next, and return the stream with the id that it has."""
        if not stream.id:
            stream = stream._replace(id=linked.header.stream)
        journal.belongs(stream, linked)
        begins = tip.position == 0 and linked.header.session is not None
        dropped = linked.header.kind == "deleted" and linked.entry.position > tip.position
        if not begins and not dropped:
            journal.follows(self.name, tip, linked)
        return stream

    # Writing.

    def write(self, plans: Sequence[Plan]) -> Steps[list[Answer]]:
        """Carry out plans as one append; answer each with a position or with its own error.

        Any other exception means that the outcome is unknown for all of them.
        """
        self.require_present()
        if self.doubt is not None:
            yield from self._settle_doubt()
        kinds = [plan.kind for plan in plans]
        if "refresh" in kinds:
            yield from self.catch_up()
            self.require_present()
            self._unseen.tell()
        elif "catch-up" in kinds:
            base = self.tip.position
            self._unseen.overlook((yield from self.catch_up()), base)
        answers: dict[int, Answer] = {}
        if self.fold.lease is not None:
            yield from self._bar(plans, answers)
        if self._unseen.contents:
            yield from self._judge_unseen(plans, answers)
        while True:
            batch = yield from self._batch(plans, answers)
            if not batch.drafts or (yield from self._commit(batch)):
                told = [one for one in answers.values() if isinstance(one, ConflictError)]
                if told or "lease.take" in kinds:  # Whoever takes a lease looks at what is there.
                    self._unseen.tell()
                return [*map(answers.__getitem__, range(len(plans)))]
            base = self.tip.position
            newer = yield from self.catch_up()
            if self.tip.position == base:
                raise ChainError(self.name, base, "the store's past is not the one read before")
            self._notice("conflict", position=base, head=self.tip.position)
            yield from self._judge_newer(plans, newer, base, answers)

    def _judge_newer(
        self,
        plans: Sequence[Plan],
        newer: Sequence[Content],
        after: int,
        answers: dict[int, Answer],
    ) -> Steps[None]:
        """Answer the plans that are void; take the answers of the others back."""
        for number in [number for number, answer in answers.items() if isinstance(answer, int)]:
            del answers[number]
        if self.fold.lease is not None:
            yield from self._bar(plans, answers)
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self._unseen.judge(plan, newer, after, self.tip.position)
                if conflict is not None:
                    answers[number] = conflict
        self._unseen.overlook(newer, after)

    def _bar(self, plans: Sequence[Plan], answers: dict[int, Answer]) -> Steps[None]:
        """Answer plans that only whoever holds the lease may carry out."""
        error = tenure.barred(self.name, self.fold.lease, self.holding)
        if error is not None:
            for number, plan in enumerate(plans):
                if number not in answers and not plan.open:
                    answers[number] = yield from self._unless_known(plan, error)

    def _judge_unseen(self, plans: Sequence[Plan], answers: dict[int, Answer]) -> Steps[None]:
        """Answer plans that were decided without knowing what a write took in on its way."""
        unseen, position = self._unseen.contents.values(), self.tip.position
        for number, plan in enumerate(plans):
            if number not in answers:
                conflict = self._unseen.judge(plan, unseen, position, position)
                if conflict is not None:
                    answers[number] = yield from self._unless_known(plan, conflict)

    def _unless_known(self, plan: Plan, refusal: PerdureError) -> Steps[Answer]:
        """Return a refusal. What stands already under the caller's own id is no news to anybody."""
        trial = Batch(self.name, self.fold, self.tip)
        try:
            answer: Answer = yield from plan.made(trial)
        except ConflictError:
            return refusal
        except PerdureError as error:
            answer = error
        return refusal if trial.drafts else answer

    def _batch(self, plans: Sequence[Plan], answers: dict[int, Answer]) -> Steps[Batch]:
        """Make what is unanswered into one batch, answering it as if it were stored already."""
        view = self.view
        batch = Batch(self.name, view.fold, view.past.tip)
        torn = view.past.torn
        if torn is not None:
            batch.add_content(self.settings.new_id(), Recovered(first=torn[0], last=torn[1]))
        recovered = len(batch.drafts)
        for number, plan in enumerate(plans):
            if number not in answers:
                try:
                    made = plan.make(batch)
                    answers[number] = made if isinstance(made, int) else (yield from made)
                except PerdureError as error:
                    answers[number] = error
        if len(batch.drafts) == recovered:
            batch.drafts.clear()
        elif batch.fold.snapshot_due:
            self._add_snapshot(batch)
        return batch

    def _add_snapshot(self, batch: Batch) -> None:
        facts = batch.fold.facts()
        try:
            batch.add_content(self.settings.new_id(), Snapshot(fold=FOLD_VERSION, facts=facts))
        except UsageError as error:  # It saves reading; nothing depends on it.
            self._notice("skipped", position=batch.position + 1, reason=error.reason)

    def _commit(self, batch: Batch) -> Steps[bool]:
        """Link a batch, and return the steps that send it; True if it was stored."""
        settings, stream = self.settings, self.view.past.stream
        if not stream.id:
            stream = stream._replace(id=settings.token())
        time, cipher = settings.now(), settings.cipher
        entries, tip = journal.link(stream, batch.tip, batch.drafts, time=time, cipher=cipher)
        # As calling the class does, in half the time.
        append = tuple.__new__(Append, (self.name, entries, batch.fold.head_labels, False))
        return self._settle(Doubt(append, batch, stream, tip))

    def _settle_doubt(self) -> Steps[None]:
        """Find out what became of a write whose answer never came, before anything else."""
        if self.doubt is not None:
            first, tip = self.doubt.append.entries[0].position, self.doubt.tip
            stored = yield from self._settle(self.doubt)
            outcome = "stored" if stored else "not stored"
            self._notice("settled", first=first, last=tip.position, outcome=outcome)

    def _settle(self, doubt: Doubt) -> Steps[bool]:
        """Send a write; True if it was stored. Without an answer it is in doubt."""
        append, batch, stream, tip = doubt.append, doubt.batch, doubt.stream, doubt.tip
        try:
            outcome: Outcome = yield Commit(append)  # As `steps.commit`, which is one call more.
        except UnstorableError:
            self.doubt = None  # Nothing of it was stored, and nothing ever will be.
            raise
        except UsageError:
            raise  # The store did not take the call: what was in doubt before it still is.
        except BaseException as error:
            self.doubt = doubt
            self._notice("doubt", first=append.entries[0].position, last=tip.position)
            if isinstance(error, UnavailableError):
                hint = f"{error.hint}. This write may still be stored: session.refresh() finds out,"
                hint += " and calling again is safe only with the same id="
                raise UnavailableError(error.backend, error.reason, hint) from error
            raise
        self.doubt = None
        if outcome.status == "refused":
            raise DamagedError(self.name, append.entries[0].position, outcome.reason)
        if outcome.status == "conflict":
            return False
        if self.settings.verify_writes:
            yield from reading.read_back(append)
        batches = self._batches if self.view.past.torn is None else Batches(self.name)
        self._show(batch.fold, stream, tip, batch.last or self.view.last, batches)
        for key, data in batch.values.items():
            self.values.put(key, Cached(batch.fold.values[key].position, data))
        return True
