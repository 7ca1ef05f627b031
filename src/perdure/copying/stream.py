"""Copy streams, entry by entry as they are: checked when read, and read back when written. Pure.

A stream that is there already is continued where it stops, if its last entry is the source's; else
it is left alone, and said so. What the source has deleted goes from the target where it is known to
be a copy, and no branch there needs it. Whole batches leave together, so that wherever a copy is
cut short the target has a state that the source once had. Of a stream with damage nothing is
copied: a long one is read through first.

A branch needs its past, which lies in another stream: that one goes first.
"""

from collections.abc import Callable

from perdure import journal
from perdure.backend import Append, Head
from perdure.cipher import Plain
from perdure.copying import asking as ask
from perdure.copying.asking import CopySteps, Progress, Side
from perdure.copying.chain import Walk
from perdure.copying.needed import living_branches
from perdure.copying.plan import (
    Problem,
    Refused,
    delete_of,
    ends_deleted,
    planned,
    problem_of,
    some,
)
from perdure.errors import ChainError, DamagedError, PerdureError, UnsupportedError, VersionError
from perdure.fold import DELETED, HALF_COPIED
from perdure.journal import Linked
from perdure.records import Branched

STREAMS_AT_ONCE = 256  # One commit for many short sessions is what makes a copy fast.
BYTES_AT_ONCE = 2**20
ATTEMPTS = 5  # Writers and deletions in the source may change a stream while it is read.


class Tally:
    """What was copied so far."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.entries = 0
        self.bytes = 0


class Mover:
    """Copies streams one after the other; short ones leave together, with `flush`."""

    def __init__(self, tell: Callable[[], Progress], copied: dict[str, str] | None = None) -> None:
        self._tell = tell
        """Makes the report that follows each commit."""
        self.tally = Tally()
        self.copied = {} if copied is None else copied
        """The digest of the last entry that was copied of each stream."""
        self.problems: dict[str, Problem] = {}
        self.spoiled: dict[str, Problem] = {}
        """Streams that the target did not store as they were: nothing that comes later mends it."""
        self.ancestors: set[str] = set()
        """Streams that were copied for the sake of their branches."""
        self._stuck: dict[str, tuple[Head, Head | None]] = {}
        """What the two sides of a problem looked like: as long as they do, it stays one."""
        self._waiting: dict[str, Append] = {}
        self._size = 0
        self._visiting: set[str] = set()

    def stream(self, head: Head, there: Head | None) -> CopySteps[None]:
        """Copy what the target lacks of a stream, or note why that can not be."""
        name = head.stream
        if self._stuck.get(name) == (head, there) or name in {*self._visiting, *self.spoiled}:
            return
        self._visiting.add(name)
        try:
            same = False
            for left in reversed(range(ATTEMPTS)):
                problem = yield from self._attempt(head, there)
                if problem is None or (yield from self.is_removed(name)):
                    self._stuck.pop(name, None)
                    return
                before, (head, there) = (head, there), (yield from self.look(head, there))
                # Twice the same: a deletion drops entries and leaves the head where it is.
                if not left or (same and before == (head, there)):
                    self.problems[name], self._stuck[name] = problem, (head, there)
                    return
                same = before == (head, there)
        finally:
            self._visiting.discard(name)

    def _attempt(self, head: Head, there: Head | None) -> CopySteps[Problem | None]:
        self.problems.pop(head.stream, None)
        try:
            yield from self._move(head, there)
        except (Refused, DamagedError, VersionError, UnsupportedError) as error:
            return problem_of(head.stream, error)
        return None

    def is_removed(self, name: str) -> CopySteps[bool]:
        """Whether the source lists a stream no more, as happens to what `perdure doctor` tried."""
        try:
            return (yield from ask.head("source", name)) is None
        except PerdureError:
            return False

    def look(self, head: Head, there: Head | None) -> CopySteps[tuple[Head, Head | None]]:
        """Look at both sides again; where one can not be read, it is as it was."""
        yield from self.flush()
        try:
            found = yield from ask.head("source", head.stream)
            return found or head, (yield from ask.head("target", head.stream))
        except PerdureError:
            return head, there

    def _move(self, head: Head, there: Head | None) -> CopySteps[None]:
        work = yield from planned(head, there, self.copied.get(head.stream))
        if work is None:
            return
        walk = Walk("source", head, after=work.after, tip=work.tip)
        page = yield from walk.page()
        if work.tip is None and page[0].header.kind == Branched.kind:
            yield from self._past_first(head.stream, page[0])
        if not walk.ended:  # It is long: read through, then read again.
            while not walk.ended:
                yield from walk.page()
            walk = Walk("source", head, after=work.after, tip=work.tip)
            page = yield from walk.page()
        floor = (yield from self._floor(head)) if there is not None else 0
        if there is not None and floor:
            yield from self._branches_first(there)
        if work.removed is not None:
            yield from self._remove(work.removed)
        yield from self._pages(head, walk, page, begins=work.tip is None)
        if floor:
            yield from self.flush()
            yield from ask.drop(head.stream, before=floor)

    def _pages(
        self, head: Head, walk: Walk, page: list[Linked], *, begins: bool
    ) -> CopySteps[None]:
        open_: list[Linked] = []  # Of a batch that has not ended yet.
        while True:
            open_ += page
            # A batch that a crash cut short ends with the stream.
            whole = len(open_) if walk.ended else _whole(open_)
            if whole:
                entries = [linked.entry for linked in open_[:whole]]
                # Which labels it bore in between, only its records know.
                labels = head.labels if walk.ended else frozenset({HALF_COPIED})
                append = Append(head.stream, entries, labels, begins=begins)
                yield from self._add(append)
                begins, open_ = False, open_[whole:]
            if walk.ended:
                return
            page = yield from walk.page()

    def _add(self, append: Append) -> CopySteps[None]:
        if append.stream in self._waiting:
            yield from self.flush()
            failed = self.problems.get(append.stream) or self.spoiled.get(append.stream)
            if failed is not None:
                raise Refused(failed.kind, failed.reason, failed.position)
        self._waiting[append.stream] = append
        self._size += sum(len(entry.header) + len(entry.body or b"") for entry in append.entries)
        if self._size >= BYTES_AT_ONCE or len(self._waiting) >= STREAMS_AT_ONCE:
            yield from self.flush()

    def flush(self) -> CopySteps[None]:
        """Write what waits, and read it back."""
        appends, self._waiting, self._size = list(self._waiting.values()), {}, 0
        if not appends:
            return
        outcomes = yield from ask.send(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            if outcome.status == "stored":
                yield from self._read_back(append)
                continue
            reason = outcome.reason or "somebody else wrote to it in the target meanwhile"
            at = append.entries[0].position
            self.problems[append.stream] = Problem(append.stream, "conflict", reason, at)
        yield self._tell()

    def _read_back(self, append: Append) -> CopySteps[None]:
        name, entries = append.stream, append.entries
        at, last = entries[0].position - 1, entries[-1].position
        expected = {entry.position: entry for entry in entries}
        while at < last:
            found = yield from ask.read("target", name, after=at, limit=last - at)
            if not found or any(expected.get(entry.position) != entry for entry in found):
                reason = "what was read back from the target is not what was written"
                self.spoiled[name] = Problem(name, "damaged", reason, at + 1)
                return
            at = found[-1].position
        self.copied[name] = journal.digest(entries[-1])
        self.tally.sessions.add(name)
        self.tally.entries += len(entries)
        self.tally.bytes += sum(len(e.header) + len(e.body or b"") for e in entries)

    def _remove(self, there: Head) -> CopySteps[None]:
        if not (yield from ask.remove(there.stream, digest=there.digest)):
            raise Refused("conflict", "somebody else wrote to it in the target meanwhile")

    def _floor(self, head: Head) -> CopySteps[int]:
        """Return before which position the target has what the source has dropped, or 0."""
        (first, *_) = yield from some("source", head.stream)
        floor = head.position if (yield from ends_deleted(head)) else first.position
        (there, *_) = yield from some("target", head.stream)
        return floor if there.position < floor else 0

    def _branches_first(self, there: Head) -> CopySteps[None]:
        """Copy the deletions of a stream's branches; refuse where one lives on in the target."""
        branches = yield from living_branches(there)
        for branch in branches:
            head = yield from ask.head("source", branch.stream)
            if head is not None and DELETED in head.labels:
                yield from self.stream(head, branch)
                yield from self.flush()
        left = (yield from living_branches(there)) if branches else []
        if left:
            name = left[0].stream
            reason = f"the source has deleted it, and its branch {name!r} lives on in the target: "
            reason += f"{delete_of(name)} if it is not to be kept, then copy again"
            raise Refused("conflict", reason, there.position)

    def _past_first(self, name: str, first: Linked) -> CopySteps[None]:
        """Copy the stream that a branch's past lies in, where its name can be read."""
        try:
            content = journal.decode(name, first, Plain())
        except VersionError:  # Sealed: whoever opens it will find its past, or be told.
            return
        if not isinstance(content, Branched):
            return
        parent, at, digest = content.parent, content.at, first.header.previous
        if parent in self._waiting:
            yield from self.flush()
        if (yield from _digest("target", parent, at)) == digest:
            return
        found = yield from _digest("source", parent, at)
        if found is None:  # It was deleted before the branch was complete; opening it will tell.
            return
        if found != digest:
            raise ChainError(name, first.entry.position, "its past is not the one it links to")
        head = yield from ask.head("source", parent)
        if head is not None:
            self.ancestors.add(parent)
            yield from self.stream(head, (yield from ask.head("target", parent)))
            yield from self.flush()
        if (yield from _digest("target", parent, at)) != digest:
            raise Refused("past", f"its past lies in {parent!r}, which was not copied")


def _digest(side: Side, name: str, position: int) -> CopySteps[str | None]:
    found = yield from ask.read(side, name, after=position - 1, limit=1)
    return journal.digest(found[0]) if found and found[0].position == position else None


def _whole(open_: list[Linked]) -> int:
    """Return how many of these entries make whole batches."""
    ends = [number for number, linked in enumerate(open_, 1) if linked.header.left == 0]
    return ends[-1] if ends else 0
