"""Copy sessions between stores while writers keep writing: in rounds, until little is left. Pure.

A round compares all heads and copies the entries that the target lacks. The first round takes
longest; each later one copies what was written during the previous one. A final copy, run after all
writers have stopped, repeats until a round finds nothing, compares both stores in full, and counts
once more.

A session that a store does not list is not copied, without any error. So the source is asked first
to compare itself with its lists, and before a final copy is called complete, both are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.backends.protocol import Head
from perdure.errors import DamagedError, NotFoundError, PerdureError, VersionError
from perdure.journal.copying import requests
from perdure.journal.copying.pairs import Selection, StreamPair, StreamPairs
from perdure.journal.copying.plan import (
    CopyPlan,
    CopyRefused,
    Problem,
    plan_copy,
    read_one,
    to_problem,
)
from perdure.journal.copying.reader import compare_stream
from perdure.journal.copying.requests import CopyProgress, CopySteps, Phase, Side
from perdure.journal.copying.seals import require_copyable
from perdure.journal.copying.streams import StreamCopier
from perdure.journal.key_store import SEAL, is_own, keys_stream

ROUNDS_MAX = 16  # rounds; a writer as fast as the copy would otherwise keep it running forever

PROGRESS_EVERY = 64  # sessions between two progress reports; a report per session would cost time


class CopyResult(NamedTuple):
    """The result of a copy."""

    sessions: int
    """Sessions with entries copied in this run; in a dry run, those that would be copied."""
    records: int
    bytes: int
    of_sessions: int
    """Selected sessions of the source, including deleted ones."""
    rounds: int
    left: int
    """Entries that the last round still found to copy: 0 means that the target had caught up."""
    problems: tuple[Problem, ...]
    ancestors: tuple[str, ...]
    """Sessions that were not selected, but copied because selected branches need them."""
    verified: int
    """Entries that a final copy read from both stores and found equal."""

    @property
    def complete(self) -> bool:
        """Whether every selected session is in the target."""
        return not self.left and not self.problems

    def as_data(self) -> dict[str, Any]:
        """Return the result as dictionaries and lists, for JSON."""
        problems = [problem._asdict() for problem in self.problems]
        return {**self._asdict(), "problems": problems, "complete": self.complete}


class CopyRun:
    """One run of a copy. `steps` returns its result.

    `copied` is for callers that run it repeatedly: it maps each session to the digest of the last
    copied entry, so that a session deleted between runs is known to be a copy in the target.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        final: bool,
        dry_run: bool,
        copied: dict[str, str] | None = None,
    ) -> None:
        self._selection = selection
        self._final = final
        self._dry_run = dry_run
        self._copier = StreamCopier(self._progress, copied)
        self._unreadable: dict[str, Problem] = {}
        self._store_problems: list[Problem] = []
        self._phase: Phase = "counting"
        self._seen, self._total, self._expected = 0, 0, 0
        self._round = 0
        self._verified = 0
        self.same_tenant = True
        """Whether both stores have the same tenant, which encrypted sessions are bound to."""

    def steps(self) -> CopySteps[CopyResult]:
        """Copy and return the result; raise NotFoundError for ids that the source does not have."""
        mark = yield from require_copyable(self._selection, same_tenant=self.same_tenant)
        yield from self._check("source")
        if mark is not None and not self._dry_run:
            yield from self._copier.copy_named([keys_stream(mark.store), SEAL])
        pending = yield from self._survey()
        if self._dry_run:
            return self._result(left=self._expected, sessions=len(pending))
        previous = None
        while True:
            copied = yield from self._copy_round()
            shrinks = previous is None or copied < previous
            if not copied or self._round >= ROUNDS_MAX or not (shrinks or self._final):
                break
            previous = copied
        if self._final and not copied:
            yield from self._verify()
            yield from self._check("target")
            yield from self._survey()
            copied = self._expected
        return self._result(left=copied)

    def _result(self, *, left: int, sessions: int | None = None) -> CopyResult:
        tally = self._copier.tally
        problems = {**self._unreadable, **self._copier.problems, **self._copier.corrupted}
        return CopyResult(
            sessions=len(tally.sessions) if sessions is None else sessions,
            records=self._expected if sessions is not None else tally.records,
            bytes=tally.bytes,
            of_sessions=self._total,
            rounds=self._round,
            left=left,
            problems=(*self._store_problems, *(problems[name] for name in sorted(problems))),
            ancestors=tuple(sorted(self._copier.ancestors)),
            verified=self._verified,
        )

    def _check(self, side: Side) -> CopySteps[None]:
        """Record what is wrong with a store as a whole; not if only some ids are to be copied."""
        if self._selection.sessions:
            return
        for session, reason in (yield from requests.check(side, deep=self._final)):
            if session.startswith(self._selection.prefix) or not session:
                self._store_problems.append(Problem(session, "store", f"{reason} (in the {side})"))

    def _survey(self) -> CopySteps[set[str]]:
        """Count the entries to copy, without copying; return the sessions that need it."""
        self._total, self._expected = 0, 0
        needing: set[str] = set()

        def count(pair: StreamPair) -> CopySteps[None]:
            try:
                plan = yield from plan_copy(*pair, self._copier.copied.get(pair.head.stream))
                if plan is not None and pair.head.stream not in self._copier.problems:
                    self._expected += yield from self._size(pair.head, plan)
                    needing.add(pair.head.stream)
            except (CopyRefused, DamagedError, VersionError) as error:
                if not (yield from self._record_problem(pair, error)):
                    self._expected += 1

        missing = yield from self._each(count, "counting")
        if missing:
            names = ", ".join(map(repr, missing))
            raise NotFoundError(f"session {names}", "it is not in the source")
        return needing

    def _size(self, head: Head, plan: CopyPlan) -> CopySteps[int]:
        """Return the number of entries to copy: exact in a dry run, else an upper bound."""
        after = plan.after
        if self._dry_run and not after:  # The source may have dropped its first entries.
            first = yield from read_one("source", head.stream)
            after = first.position - 1
        return head.position - after

    def _record_problem(
        self, pair: StreamPair, error: CopyRefused | PerdureError
    ) -> CopySteps[bool]:
        """Record a session's problem; return False if the session has changed meanwhile.

        A later round that succeeds clears it. A session that was removed has no problem.
        """
        if (yield from self._copier.is_removed(pair.head.stream)):
            return True
        if tuple(pair) != (yield from self._copier.refresh(*pair)):
            return False
        self._copier.problems.setdefault(pair.head.stream, to_problem(pair.head.stream, error))
        return True

    def _copy_round(self) -> CopySteps[int]:
        """Copy the entries that the target lacks now; return how many were copied."""
        self._round += 1
        start = self._copier.tally.records

        def copy(pair: StreamPair) -> CopySteps[None]:
            # A branch already brought it along, but it is selected itself.
            if pair.head.stream in self._copier.ancestors:
                self._copier.ancestors.discard(pair.head.stream)
                pair = StreamPair(*(yield from self._copier.refresh(*pair)))
            yield from self._copier.copy_stream(*pair)

        self._unreadable.clear()
        yield from self._each(copy, "copying")
        yield from self._copier.flush()
        yield self._progress()
        return self._copier.tally.records - start

    def _verify(self) -> CopySteps[None]:
        """Read every session from both stores and compare."""

        def verify(pair: StreamPair) -> CopySteps[None]:
            name = pair.head.stream
            if name in self._copier.problems or pair.target is None:
                return
            for can_retry in (True, False):
                try:
                    compared = yield from compare_stream(_common_head(pair), self._progress)
                    self._verified += compared
                except (CopyRefused, DamagedError, VersionError) as error:
                    # A deletion drops entries without moving the head, so compare once more.
                    if can_retry:
                        continue
                    yield from self._record_problem(pair, error)
                return

        yield from self._each(verify, "verifying")
        yield self._progress()

    def _each(
        self, process: Callable[[StreamPair], CopySteps[None]], phase: Phase
    ) -> CopySteps[list[str]]:
        """Process every selected session; return the selected ids that do not exist."""
        pairs, self._phase, self._seen = StreamPairs(self._selection), phase, 0
        yield self._progress()  # The phase may take long even with few sessions.
        while (pair := (yield from pairs.next())) is not None:
            name = pair.stream if isinstance(pair, DamagedError) else pair.head.stream
            if not is_own(name):  # Keys are copied too, and are no sessions.
                self._seen += 1
                self._total += phase == "counting"
            if isinstance(pair, DamagedError):
                reason = pair.reason
                self._unreadable[pair.stream] = Problem(pair.stream, "damaged", reason)
                continue
            yield from process(pair)
            if self._seen % PROGRESS_EVERY == 0:
                yield self._progress()
        return pairs.missing

    def _progress(self, verified: int = 0) -> CopyProgress:
        is_verifying, is_counting = self._phase == "verifying", self._phase == "counting"
        return CopyProgress(
            phase=self._phase,
            sessions=self._seen,
            of_sessions=0 if is_counting else self._total,
            records=self._verified + verified if is_verifying else self._copier.tally.records,
            of_records=0 if is_counting else self._expected,
            bytes=self._copier.tally.bytes,
            round=self._round,
        )


def _common_head(pair: StreamPair) -> Head:
    """Return the shorter head, up to which both can be compared: a writer may have appended."""
    target = pair.target
    return target if target is not None and target.position < pair.head.position else pair.head
