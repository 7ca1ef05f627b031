"""Compare the heads of a stream in both stores; plan its copy, or refuse it. Pure."""

from typing import Literal, NamedTuple

from perdure.backends.protocol import DELETED, HALF_COPIED, Entry, Head
from perdure.errors import ChainError, DamagedError, PerdureError
from perdure.journal import chain
from perdure.journal.chain import ChainTip
from perdure.journal.copying import requests
from perdure.journal.copying.requests import CopySteps, Side
from perdure.journal.records import Deleted

ProblemKind = Literal["conflict", "damaged", "past", "store", "unsupported"]


UNCOMPARABLE = (
    "the source has {done} it, so the target's entries can no longer be compared: if they are not"
    " needed, run {delete}, then copy again"
)


class Problem(NamedTuple):
    """Why a session was not copied. `position` is 0 if the problem is not in one entry.

    The kind `store` is a problem of a store's lists, in which sessions may be missing. `session` is
    then the one that it concerns, or "".
    """

    session: str
    kind: ProblemKind
    reason: str
    position: int = 0


class CopyRefused(Exception):  # noqa: N818 - control flow out of nested steps, not an error
    """A stream cannot be copied in its present state."""

    def __init__(self, kind: ProblemKind, reason: str, position: int = 0) -> None:
        super().__init__(kind, reason, position)
        self.kind: ProblemKind = kind
        self.reason, self.position = reason, position


def to_problem(session: str, error: CopyRefused | PerdureError) -> Problem:
    """Convert an error to the problem reported for a session."""
    if isinstance(error, CopyRefused):
        return Problem(session, error.kind, error.reason, error.position)
    if isinstance(error, DamagedError):
        return Problem(session, "damaged", error.reason, error.position)
    return Problem(session, "unsupported", str(error))


class CopyPlan(NamedTuple):
    """The copy that a stream needs: the source's entries after a position, chained to a tip."""

    after: int
    tip: ChainTip | None
    """None if the target's stream begins with these entries."""
    removed: Head | None = None
    """The target stream to remove first, as the source no longer has the entries to continue it."""


def plan_copy(
    head: Head, target: Head | None, copied: str | None = None
) -> CopySteps[CopyPlan | None]:
    """Return the copy that a stream needs, or None; raise CopyRefused for a conflict.

    `copied` is the digest of the last entry of this stream that the same run has copied.
    """
    name, end = head.stream, head.position
    if target is None:
        # Entries that remain before a `deleted` record are about to be dropped.
        return CopyPlan(end - 1 if (yield from ends_deleted(head)) else 0, None)
    if target.position >= end:
        if (yield from _is_same(head, target)):
            return None
    else:
        tip = ChainTip(target.position, target.digest)
        first = yield from read_one("source", name, after=tip.position - 1)
        linked = chain.verify_entry(name, first)
        if tip in (linked.tip, ChainTip(first.position - 1, linked.header.previous)):
            return CopyPlan(tip.position, tip)
    return (yield from _plan_replacement(head, target, copied))


def _is_same(head: Head, target: Head) -> CopySteps[bool]:
    if target.position > head.position:
        entry = yield from read_one("target", head.stream, after=head.position - 1)
        if chain.entry_digest(entry) == head.digest:
            reason = f"the target is ahead, at {target.position}; the source is at {head.position}"
            raise CopyRefused("conflict", reason, target.position)
    if target.digest != head.digest:
        return False
    if target.labels != head.labels:
        raise CopyRefused("conflict", "its labels differ in the target", target.position)
    return True


def _plan_replacement(head: Head, target: Head, copied: str | None) -> CopySteps[CopyPlan]:
    """Plan to replace a target stream that cannot be continued, if that loses nothing.

    That is so if the source has dropped the entries that the target has, and the target has deleted
    them too, or they are known to be a copy. The half-copied label marks a copy, because a writer
    removes it. The same stream id proves nothing about the entries.
    """
    name = head.stream
    is_deleted = yield from ends_deleted(head)
    first = yield from read_one("source", name, after=head.position - 1 if is_deleted else 0)
    last = yield from read_one("target", name, reverse=True)
    source_header = chain.verify_entry(name, first).header
    target_header = chain.verify_entry(name, last).header
    was_deleted = target_header.kind == Deleted.kind
    is_older = target.position - was_deleted < first.position
    # A stream that begins with neither its first entry nor a deletion was compacted.
    is_dropped = source_header.kind == Deleted.kind or not source_header.begins_stream
    is_gone = is_deleted or (is_older and is_dropped)
    if source_header.stream != target_header.stream or not is_gone:
        at = min(head.position, target.position)
        raise CopyRefused("conflict", f"the target has another session of that name ({at})", at)
    is_copy = is_older and (HALF_COPIED in target.labels or target.digest == copied)
    if is_copy or was_deleted:
        return CopyPlan(first.position - 1, None, removed=target)
    done = "compacted" if not source_header.begins_stream else "deleted"
    reason = UNCOMPARABLE.format(done=done, delete=delete_call(name))
    raise CopyRefused("conflict", reason, target.position)


def delete_call(name: str) -> str:
    """Return the Python call that deletes a session of the target."""
    return f"perdure.open(TARGET).delete({name!r})"


def ends_deleted(head: Head) -> CopySteps[bool]:
    """Whether a source stream ends with its `deleted` record."""
    if DELETED not in head.labels:
        return False
    last = yield from read_one("source", head.stream, after=head.position - 1)
    return chain.verify_entry(head.stream, last).header.kind == Deleted.kind


def read_one(side: Side, name: str, *, after: int = 0, reverse: bool = False) -> CopySteps[Entry]:
    """Read one entry: the first after a position, or with `reverse` the last; never none."""
    entries = yield from requests.read(side, name, after=after, limit=1, reverse=reverse)
    if not entries:
        raise ChainError(name, after + 1, "it is missing")
    return entries[0]
