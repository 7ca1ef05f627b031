"""Copy streams, byte for byte: verified when read, and read back after writing. Pure.

A stream that the target already has is continued from its end, if its last entry is the source's;
otherwise it is left unchanged, and a problem is reported. Entries that the source has deleted are
removed from the target if they are known to be a copy and no branch there needs them. Entries are
written whole, so an interrupted copy leaves the target in a state that the source once had. Nothing
is copied of a damaged stream: a long one is read to its end first.

A branch needs its history, which is in another stream: that one is copied first.
"""

from collections.abc import Callable, Sequence

from perdure.backends.protocol import DELETED, HALF_COPIED, Append, Head
from perdure.errors import ChainError, DamagedError, PerdureError, UnsupportedError, VersionError
from perdure.journal import chain
from perdure.journal.chain import VerifiedEntry
from perdure.journal.cipher import PLAIN, PlainCipher
from perdure.journal.copying import requests
from perdure.journal.copying.plan import (
    CopyRefused,
    Problem,
    delete_call,
    ends_deleted,
    plan_copy,
    read_one,
    to_problem,
)
from perdure.journal.copying.reader import StreamReader
from perdure.journal.copying.requests import CopyProgress, CopySteps, Side
from perdure.journal.copying.seals import find_branches
from perdure.journal.key_store import data_key_stream, is_own, keys_of
from perdure.journal.reader import parent_of
from perdure.journal.records import Branched, BranchKept, BranchReleased

BATCH_STREAMS_MAX = 256  # streams per commit; sharing commits makes many short sessions fast

BATCH_BYTES_MAX = 2**20  # bytes per commit; bounds memory

ATTEMPTS_MAX = 5  # attempts; writers and deletions may change a stream while it is being read


class CopyTally:
    """The sessions, records and bytes copied so far."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.records = 0
        self.bytes = 0


class StreamCopier:
    """Copies streams one after the other; short ones share a commit, made by `flush`."""

    def __init__(
        self, progress: Callable[[], CopyProgress], copied: dict[str, str] | None = None
    ) -> None:
        self._progress = progress
        """Builds the report that follows each commit."""
        self.tally = CopyTally()
        self.copied = {} if copied is None else copied
        """The digest of the last copied entry of each stream."""
        self.problems: dict[str, Problem] = {}
        self.corrupted: dict[str, Problem] = {}
        """Streams that the target stored wrongly: no later round can repair that."""
        self.ancestors: set[str] = set()
        """Streams copied only because branches need their history."""
        self._unresolved: dict[str, tuple[Head, Head | None]] = {}
        """Both heads at the time of a problem: while they are unchanged, it is not retried."""
        self._waiting: dict[str, Append] = {}
        self._size = 0
        self._visiting: set[str] = set()
        self._key_streams: set[str] = set()
        """The streams of keys that were copied because entries name them."""

    def copy_stream(self, head: Head, target: Head | None) -> CopySteps[None]:
        """Copy the entries of a stream that the target lacks, or record the problem."""
        name = head.stream
        if self._unresolved.get(name) == (head, target) or name in {
            *self._visiting,
            *self.corrupted,
        }:
            return
        self._visiting.add(name)
        try:
            was_unchanged = False
            for remaining in reversed(range(ATTEMPTS_MAX)):
                problem = yield from self._attempt(head, target)
                if problem is None or (yield from self.is_removed(name)):
                    self._unresolved.pop(name, None)
                    return
                previous, (head, target) = (head, target), (yield from self.refresh(head, target))
                unchanged = previous == (head, target)
                # One unchanged head proves nothing: a deletion drops entries without moving it.
                if not remaining or (was_unchanged and unchanged):
                    self.problems[name], self._unresolved[name] = problem, (head, target)
                    return
                was_unchanged = unchanged
        finally:
            self._visiting.discard(name)

    def _attempt(self, head: Head, target: Head | None) -> CopySteps[Problem | None]:
        self.problems.pop(head.stream, None)
        try:
            yield from self._move(head, target)
        except (CopyRefused, DamagedError, VersionError, UnsupportedError) as error:
            return to_problem(head.stream, error)
        return None

    def is_removed(self, name: str) -> CopySteps[bool]:
        """Whether the source no longer lists a stream, such as a trial one of `perdure doctor`."""
        try:
            return (yield from requests.head("source", name)) is None
        except PerdureError:
            return False

    def refresh(self, head: Head, target: Head | None) -> CopySteps[tuple[Head, Head | None]]:
        """Re-read both heads; return the old ones if either cannot be read."""
        yield from self.flush()
        try:
            source = yield from requests.head("source", head.stream)
            return source or head, (yield from requests.head("target", head.stream))
        except PerdureError:
            return head, target

    def _move(self, head: Head, target: Head | None) -> CopySteps[None]:
        plan = yield from plan_copy(head, target, self.copied.get(head.stream))
        if plan is None:
            return
        reader = StreamReader("source", head, after=plan.after, tip=plan.tip)
        page = yield from reader.page()
        if plan.tip is None and page[0].header.kind == Branched.kind:
            yield from self._copy_history(head.stream, page[0])
        if not reader.ended:  # A long stream is verified to its end before any of it is written.
            while not reader.ended:
                yield from reader.page()
            reader = StreamReader("source", head, after=plan.after, tip=plan.tip)
            page = yield from reader.page()
        floor = (yield from self._floor(head)) if target is not None else 0
        if target is not None and floor:
            yield from self._delete_branches(target)
        if plan.removed is not None:
            yield from self._remove(plan.removed)
        yield from self._write(head, reader, page, previous=plan.tip.digest if plan.tip else "")
        if floor:
            yield from self.flush()
            yield from requests.drop(head.stream, before=floor)

    def _write(
        self, head: Head, reader: StreamReader, page: list[VerifiedEntry], *, previous: str | None
    ) -> CopySteps[None]:
        while True:
            entries = [linked.entry for linked in page]
            # The labels at this point are unknown: a head holds only the current ones.
            labels = head.labels if reader.ended else frozenset({HALF_COPIED})
            snapshot = head.snapshot if head.snapshot <= entries[-1].last else 0
            yield from self._copy_keys(page)
            yield from self._add(Append(head.stream, entries, labels, previous or "", snapshot))
            if reader.ended:
                return
            previous = page[-1].digest
            page = yield from reader.page()

    def _copy_keys(self, page: list[VerifiedEntry]) -> CopySteps[None]:
        """Copy the keys of entries, durably, before the entries that name them."""
        names = {
            data_key_stream(linked.header.stream, key)
            for linked in page
            for key in keys_of(linked.header)
        } - self._key_streams
        if names:
            yield from self.copy_named(sorted(names))
            self._key_streams |= names

    def copy_named(self, names: Sequence[str]) -> CopySteps[None]:
        """Copy streams by their names, in this order, if the source has them."""
        for name in names:
            head = yield from requests.head("source", name)
            if head is not None:
                yield from self.copy_stream(head, (yield from requests.head("target", name)))
            yield from self.flush()

    def _add(self, append: Append) -> CopySteps[None]:
        if append.stream in self._waiting:
            yield from self.flush()
            problem = self.problems.get(append.stream) or self.corrupted.get(append.stream)
            if problem is not None:
                raise CopyRefused(problem.kind, problem.reason, problem.position)
        self._waiting[append.stream] = append
        self._size += sum(entry.size for entry in append.entries)
        if self._size >= BATCH_BYTES_MAX or len(self._waiting) >= BATCH_STREAMS_MAX:
            yield from self.flush()

    def flush(self) -> CopySteps[None]:
        """Write the waiting appends in one commit, and read them back."""
        appends, self._waiting, self._size = list(self._waiting.values()), {}, 0
        if not appends:
            return
        outcomes = yield from requests.send(appends)
        for append, outcome in zip(appends, outcomes, strict=True):
            if outcome.status == "stored":
                yield from self._read_back(append)
                continue
            reason = outcome.reason or "another process wrote to it in the target meanwhile"
            at = append.entries[0].position
            self.problems[append.stream] = Problem(append.stream, "conflict", reason, at)
        yield self._progress()

    def _read_back(self, append: Append) -> CopySteps[None]:
        name, entries = append.stream, append.entries
        at, last = entries[0].position - 1, entries[-1].last
        expected = {entry.position: entry for entry in entries}
        while at < last:
            stored = yield from requests.read("target", name, after=at, limit=last - at)
            if not stored or any(expected.get(entry.position) != entry for entry in stored):
                reason = "the entries read back from the target differ from those written"
                self.corrupted[name] = Problem(name, "damaged", reason, at + 1)
                return
            at = stored[-1].last
        self.copied[name] = chain.entry_digest(entries[-1])
        if not is_own(name):
            self.tally.sessions.add(name)
        self.tally.records += sum(entry.records for entry in entries)
        self.tally.bytes += sum(entry.size for entry in entries)

    def _remove(self, target: Head) -> CopySteps[None]:
        if not (yield from requests.remove(target.stream, digest=target.digest)):
            raise CopyRefused("conflict", "another process wrote to it in the target meanwhile")

    def _floor(self, head: Head) -> CopySteps[int]:
        """Return the position before which the source has dropped entries the target has, or 0."""
        first = yield from read_one("source", head.stream)
        floor = head.position if (yield from ends_deleted(head)) else first.position
        target_first = yield from read_one("target", head.stream)
        return floor if target_first.position < floor else 0

    def _delete_branches(self, target: Head) -> CopySteps[None]:
        """Copy the deletions of a stream's branches; refuse if one still exists in the target."""
        branches = yield from _living_branches(target)
        for branch in branches:
            head = yield from requests.head("source", branch.stream)
            if head is not None and DELETED in head.labels:
                yield from self.copy_stream(head, branch)
                yield from self.flush()
        living = (yield from _living_branches(target)) if branches else []
        if living:
            name = living[0].stream
            reason = f"the source has deleted it, but its branch {name!r} exists in the target: "
            reason += f"run {delete_call(name)} if it is not needed, then copy again"
            raise CopyRefused("conflict", reason, target.position)

    def _copy_history(self, name: str, first: VerifiedEntry) -> CopySteps[None]:
        """Copy the streams that hold a branch's history, the oldest first.

        Oldest first, because branches of branches may be hundreds deep, too many for a recursion.
        """
        missing = yield from self._missing_ancestors(name, first)
        for parent, _, _ in reversed(missing):
            head = yield from requests.head("source", parent)
            if head is not None:
                self.ancestors.add(parent)
                yield from self.copy_stream(head, (yield from requests.head("target", parent)))
                yield from self.flush()
        for parent, at, digest in missing[:1]:
            if (yield from _digest_at("target", parent, at)) != digest:
                raise CopyRefused("past", f"its history is in {parent!r}, which was not copied")

    def _missing_ancestors(
        self, name: str, first: VerifiedEntry
    ) -> CopySteps[list[tuple[str, int, str]]]:
        """Return the streams of a branch's history that the target lacks, the newest first.

        Each with the position up to which it is needed, and the digest there. Damage further up is
        left to the copy of the stream that has it.
        """
        missing: list[tuple[str, int, str]] = []
        try:
            while first.header.kind == Branched.kind:
                parent, _, at = parent_of(name, first)
                digest = first.header.previous
                if parent in self._waiting:
                    yield from self.flush()
                if (yield from _digest_at("target", parent, at)) == digest:
                    break
                source_digest = yield from _digest_at("source", parent, at)
                if source_digest is None:  # Deleted before the branch was complete.
                    break
                if source_digest != digest:
                    raise ChainError(name, first.entry.position, "it links to a different history")
                missing.append((parent, at, digest))
                # The parent has an entry at `at`, so it begins before its branch: the loop ends.
                name = parent
                first = chain.verify_entry(name, (yield from read_one("source", name)))
        except DamagedError:
            if not missing:
                raise
        return missing


def _digest_at(side: Side, name: str, position: int) -> CopySteps[str | None]:
    entries = yield from requests.read(side, name, after=position - 1, limit=1)
    return chain.entry_digest(entries[0]) if entries and entries[0].position <= position else None


def _living_branches(target: Head) -> CopySteps[list[Head]]:
    """Return the heads of the branches of a target stream that are not deleted.

    The stream itself records a keep for each of its branches. A branch that the source has deleted
    is deleted in the target too, when its stream is copied; one that exists needs its history.
    """
    living = []
    first = chain.verify_entry(target.stream, (yield from read_one("target", target.stream)))
    if first.header.suite == PLAIN:
        keeps = [*(yield from _read_keeps(target)).values()]
        branches = [(kept.branch, kept.stream) for kept in keeps]
    else:
        branches = yield from find_branches(target.stream, first.header.stream)
    for name, stream in branches:
        head = (yield from requests.head("target", name)) if name else None
        if head is None or DELETED in head.labels:
            continue
        entry = yield from read_one("target", name)
        header = chain.verify_entry(name, entry).header
        if (header.kind, header.stream) == (Branched.kind, stream):
            living.append(head)
    return living


def _read_keeps(target: Head) -> CopySteps[dict[str, BranchKept]]:
    keeps: dict[str, BranchKept] = {}
    name, reader = target.stream, StreamReader("target", target, after=0, tip=None)
    while not reader.ended:
        page = yield from reader.page()
        for linked in (record for entry in page for record in entry.records):
            if linked.kind not in {BranchKept.kind, BranchReleased.kind}:
                continue
            content = chain.decode_content(name, linked, PlainCipher())
            if isinstance(content, BranchKept):
                keeps[linked.id] = content
            elif isinstance(content, BranchReleased):
                keeps.pop(content.keep, None)
    return keeps
