"""Copy sessions from one store to another while writers go on: rounds, until little is left. Pure.

A round compares all heads and copies what the target lacks. The first one takes long, the next ones
find what was written meanwhile, and so less and less. The last word has a final copy, made when
nobody writes any more: it goes on until a round finds nothing, reads everything on both sides, and
looks once more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.backend import Head
from perdure.copying.asking import CopySteps, Phase, Progress
from perdure.copying.check import compared
from perdure.copying.pairs import Pair, Pairs, Selection
from perdure.copying.plan import Problem, Refused, Work, planned, problem_of, some
from perdure.copying.stream import Mover
from perdure.errors import DamagedError, NotFoundError, PerdureError, VersionError

ROUNDS_MAX = 16  # Who writes as fast as a copy goes would keep it going for ever.
TOLD_EVERY = 64  # Sessions between two reports of progress.


class Copied(NamedTuple):
    """What became of a copy."""

    sessions: int
    """Sessions of which something was copied in this run, or would be in a dry one."""
    entries: int
    bytes: int
    of_sessions: int
    """Sessions of the source that were meant, deleted ones as well."""
    rounds: int
    left: int
    """Entries that the last look still found to copy: 0 means that the target had caught up."""
    problems: tuple[Problem, ...]
    ancestors: tuple[str, ...]
    """Sessions that were not meant, and were copied because branches of them were."""
    verified: int
    """Entries that a final copy read on both sides and found equal."""

    @property
    def complete(self) -> bool:
        """Whether everything that was meant is in the target."""
        return not self.left and not self.problems

    def as_data(self) -> dict[str, Any]:
        """Return the same as dictionaries and lists, for JSON."""
        problems = [problem._asdict() for problem in self.problems]
        return {**self._asdict(), "problems": problems, "complete": self.complete}


class Copying:
    """One run. `steps` returns what became of it.

    `copied` is for who runs it again and again: it has the digest of what was last copied of each
    session, so that what was deleted in between is known to be a copy.
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
        self._mover = Mover(self._progress, copied)
        self._unreadable: dict[str, Problem] = {}
        self._phase: Phase = "counting"
        self._seen, self._total, self._expected = 0, 0, 0
        self._round = 0
        self._verified = 0

    def steps(self) -> CopySteps[Copied]:
        """Copy, and return what was done. NotFoundError names sessions that are not there."""
        pending = yield from self._survey()
        if self._dry_run:
            return self._result(left=self._expected, sessions=len(pending))
        before = None
        while True:
            moved = yield from self._one_round()
            shrinks = before is None or moved < before
            if not moved or self._round >= ROUNDS_MAX or not (shrinks or self._final):
                break
            before = moved
        if self._final and not moved:
            yield from self._verify()
            yield from self._survey()
            moved = self._expected
        return self._result(left=moved)

    def _result(self, *, left: int, sessions: int | None = None) -> Copied:
        tally = self._mover.tally
        problems = {**self._unreadable, **self._mover.problems, **self._mover.spoiled}
        return Copied(
            sessions=len(tally.sessions) if sessions is None else sessions,
            entries=self._expected if sessions is not None else tally.entries,
            bytes=tally.bytes,
            of_sessions=self._total,
            rounds=self._round,
            left=left,
            problems=tuple(problems[name] for name in sorted(problems)),
            ancestors=tuple(sorted(self._mover.ancestors)),
            verified=self._verified,
        )

    def _survey(self) -> CopySteps[set[str]]:
        """Count what there is to do, without doing it; return who needs something."""
        self._total, self._expected = 0, 0
        needing: set[str] = set()

        def look(pair: Pair) -> CopySteps[None]:
            try:
                work = yield from planned(*pair, self._mover.copied.get(pair.head.stream))
                if work is not None and pair.head.stream not in self._mover.problems:
                    self._expected += yield from self._size(pair.head, work)
                    needing.add(pair.head.stream)
            except (Refused, DamagedError, VersionError) as error:
                if not (yield from self._note(pair, error)):
                    self._expected += 1

        missing = yield from self._each(look, "counting")
        if missing:
            names = ", ".join(map(repr, missing))
            raise NotFoundError(f"session {names}", "it is not in the source")
        return needing

    def _size(self, head: Head, work: Work) -> CopySteps[int]:
        """Return how many entries there are to copy: exactly, where nothing else is done."""
        begins = work.after
        if self._dry_run and not begins:
            (first, *_) = yield from some("source", head.stream)
            begins = first.position - 1
        return head.position - begins

    def _note(self, pair: Pair, error: Refused | PerdureError) -> CopySteps[bool]:
        """Keep what is wrong with a session, unless it has changed while it was looked at.

        A round that succeeds forgets it. Of one that was removed meanwhile nothing is wrong.
        """
        if (yield from self._mover.is_removed(pair.head.stream)):
            return True
        if tuple(pair) != (yield from self._mover.look(*pair)):
            return False
        self._mover.problems.setdefault(pair.head.stream, problem_of(pair.head.stream, error))
        return True

    def _one_round(self) -> CopySteps[int]:
        """Copy what the target lacks now, and return how many entries that were."""
        self._round += 1
        before = self._mover.tally.entries

        def move(pair: Pair) -> CopySteps[None]:
            if pair.head.stream in self._mover.ancestors:  # It went ahead, and is meant anyway.
                self._mover.ancestors.discard(pair.head.stream)
                pair = Pair(*(yield from self._mover.look(*pair)))
            yield from self._mover.stream(*pair)

        self._unreadable.clear()
        yield from self._each(move, "copying")
        yield from self._mover.flush()
        yield self._progress()
        return self._mover.tally.entries - before

    def _verify(self) -> CopySteps[None]:
        """Read everything on both sides."""

        def verify(pair: Pair) -> CopySteps[None]:
            name = pair.head.stream
            if name in self._mover.problems or pair.there is None:
                return
            for again in (True, False):
                try:
                    equal = yield from compared(_shorter(pair), self._progress)
                    self._verified += equal.entries
                except (Refused, DamagedError, VersionError) as error:
                    if again:  # A deletion drops entries and leaves the head where it is.
                        continue
                    yield from self._note(pair, error)
                return

        yield from self._each(verify, "verifying")
        yield self._progress()

    def _each(self, work: Callable[[Pair], CopySteps[None]], phase: Phase) -> CopySteps[list[str]]:
        """Do something for every session; return the ids that were named and are not there."""
        pairs, self._phase, self._seen = Pairs(self._selection), phase, 0
        yield self._progress()  # What follows may take long, even of a few sessions.
        while (pair := (yield from pairs.next())) is not None:
            self._seen += 1
            if phase == "counting":
                self._total += 1
            if isinstance(pair, DamagedError):
                reason = pair.reason
                self._unreadable[pair.stream] = Problem(pair.stream, "damaged", reason)
                continue
            yield from work(pair)
            if self._seen % TOLD_EVERY == 0:
                yield self._progress()
        return pairs.missing

    def _progress(self, verified: int = 0) -> Progress:
        is_verifying, is_counting = self._phase == "verifying", self._phase == "counting"
        return Progress(
            phase=self._phase,
            sessions=self._seen,
            of_sessions=0 if is_counting else self._total,
            entries=self._verified + verified if is_verifying else self._mover.tally.entries,
            of_entries=0 if is_counting else self._expected,
            bytes=self._mover.tally.bytes,
            round=self._round,
        )


def _shorter(pair: Pair) -> Head:
    """Return the head up to which both sides are to be compared: a writer may have gone on."""
    there = pair.there
    return there if there is not None and there.position < pair.head.position else pair.head
