"""Compare the two ends of a stream, and say what a copy has to do, or why it can not. Pure."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from perdure import journal
from perdure.backend import Entry, Head
from perdure.copying import asking as ask
from perdure.copying.asking import CopySteps, Side
from perdure.errors import ChainError, DamagedError, PerdureError
from perdure.fold import DELETED, HALF_COPIED
from perdure.journal import Tip
from perdure.records import Deleted

Kind = Literal["conflict", "damaged", "past", "unsupported"]

UNKNOWN_REST = (
    "the source has deleted it, and what the target holds can not be compared any more: if nothing"
    " of it is to be kept, {delete}, then copy again"
)


class Problem(NamedTuple):
    """Why a session was not copied. `position` is 0 where it is not about one entry."""

    session: str
    kind: Kind
    reason: str
    position: int = 0


class Refused(Exception):  # noqa: N818 - not an error: a way out of nested steps
    """A stream can not be copied as things are."""

    def __init__(self, kind: Kind, reason: str, position: int = 0) -> None:
        super().__init__(kind, reason, position)
        self.kind: Kind = kind
        self.reason = reason
        self.position = position


def problem_of(session: str, error: Refused | PerdureError) -> Problem:
    """Return what to say of a session that could not be copied."""
    if isinstance(error, Refused):
        return Problem(session, error.kind, error.reason, error.position)
    if isinstance(error, DamagedError):
        return Problem(session, "damaged", error.reason, error.position)
    return Problem(session, "unsupported", str(error))


class Work(NamedTuple):
    """What a stream needs: the source's entries after a position, linked to a tip."""

    after: int
    tip: Tip | None
    """None where the target's stream begins with them."""
    removed: Head | None = None
    """What the target has to forget first: the source no longer has what would follow it."""


def planned(head: Head, there: Head | None, copied: str | None = None) -> CopySteps[Work | None]:
    """Return what is to be done for a stream, None if nothing; raise Refused for a conflict.

    `copied` is the digest of the last entry of this stream that the same run has copied.
    """
    name, end = head.stream, head.position
    if there is None:
        # What is left before the record of a deletion is about to be dropped.
        return Work(end - 1 if (yield from ends_deleted(head)) else 0, None)
    if there.position >= end:
        if (yield from _is_same(head, there)):
            return None
        return (yield from _instead(head, there, copied))
    (first, *_) = yield from some("source", name, after=there.position - 1)
    linked = journal.inspect(name, first)
    if linked.tip == Tip(there.position, there.digest) or (
        first.position == there.position + 1 and linked.header.previous == there.digest
    ):
        return Work(there.position, Tip(there.position, there.digest))
    return (yield from _instead(head, there, copied))


def _is_same(head: Head, there: Head) -> CopySteps[bool]:
    if there.position > head.position:
        (entry, *_) = yield from some("target", head.stream, after=head.position - 1)
        if journal.digest(entry) == head.digest:
            reason = f"the target has gone on to {there.position}, and the source is at"
            raise Refused("conflict", f"{reason} {head.position}", there.position)
    if there.digest != head.digest:
        return False
    if there.labels != head.labels:
        raise Refused("conflict", "it bears other labels in the target", there.position)
    return True


def _instead(head: Head, there: Head, copied: str | None) -> CopySteps[Work]:
    """Put what the source has in the place of a stream that can not be continued, if that may be.

    It may if the source has deleted what the target has of it, and nothing is lost with that: it
    was deleted there as well, or is known to be a copy. The label of half a copy says so, because
    whoever writes to one takes it off. A stream's id says nothing of its entries.
    """
    name = head.stream
    ends = yield from ends_deleted(head)
    (first, *_) = yield from some("source", name, after=head.position - 1 if ends else 0)
    (last, *_) = yield from some("target", name, reverse=True)
    mine, theirs = journal.inspect(name, first).header, journal.inspect(name, last).header
    was_deleted = theirs.kind == Deleted.kind
    is_older = there.position - was_deleted < first.position
    is_gone = ends or (is_older and mine.kind == Deleted.kind)
    if mine.stream != theirs.stream or not is_gone:
        at = min(head.position, there.position)
        raise Refused("conflict", f"the target has another session of that name ({at})", at)
    is_copy = is_older and (HALF_COPIED in there.labels or there.digest == copied)
    if is_copy or was_deleted:
        return Work(first.position - 1, None, removed=there)
    raise Refused("conflict", UNKNOWN_REST.format(delete=delete_of(name)), there.position)


def delete_of(name: str) -> str:
    """Return the call that deletes a session of the target."""
    return f"perdure.open(TARGET).delete({name!r})"


def ends_deleted(head: Head) -> CopySteps[bool]:
    """Say whether a stream of the source ends with the record of its deletion."""
    if DELETED not in head.labels:
        return False
    (last, *_) = yield from some("source", head.stream, after=head.position - 1)
    return journal.inspect(head.stream, last).header.kind == Deleted.kind


def some(
    side: Side, name: str, *, after: int = 0, reverse: bool = False
) -> CopySteps[Sequence[Entry]]:
    """Return the entry after a position, at either end of a stream, or what comes next to it."""
    found = yield from ask.read(side, name, after=after, limit=1, reverse=reverse)
    if not found:
        raise ChainError(name, after + 1, "it is missing")
    return found
