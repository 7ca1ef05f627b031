"""Open, list, branch and delete sessions. Pure: steps over replicas loaded for the purpose.

A branch shares its parent's history, so the parent must exist while the branch does. Creating a
branch writes a keep in the parent, then the branch's first entry, then the keep again, marked
complete. Deleting the parent looks up the branch of every keep, and appends the deletion only to
the state in which it found none. Both end with a write to the parent's stream, so the second of the
two gets a conflict, sees the other one and fails. A branch is not usable before it is complete:
opening an incomplete one completes it first, or deletes it if its parent is deleted.

To edit: a crash may happen between any two writes, so the order above must not change.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from perdure.backends.protocol import DELETED, UNFINISHED, Append, Entry, Head
from perdure.core.plans import Plan, RecordBatch, T
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.core.state.fields import split_labels
from perdure.core.state.session_state import SessionState
from perdure.core.validation import require_int, require_labels, require_session_id, require_str
from perdure.errors import (
    CompactedError,
    ConflictError,
    DamagedError,
    InUseError,
    NotFoundError,
    PerdureError,
    UsageError,
    VersionError,
)
from perdure.journal import chain, codec, headers, reader, requests
from perdure.journal.chain import ChainTip, PendingRecord, StreamIdentity, VerifiedEntry
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.ranges import clip_ranges, exclude_ranges, merge_ranges
from perdure.journal.reader import ParentStream
from perdure.journal.records import Branched, BranchKept, BranchReleased, Content, Deleted, Erased
from perdure.journal.requests import Steps

PAGE = 256  # heads per request

FIRST_PAGE = 64  # heads; a caller that shows one screen of sessions should not wait for a full page


PARENT_DELETED = "its parent was deleted before the branch was complete"


class SessionInfo(NamedTuple):
    """A session in a listing: its id, newest position, that record's digest, labels and fields."""

    id: str
    position: int
    digest: str
    labels: frozenset[str]
    changed: datetime | None
    """The time of the newest record, by the clock of its writer; None if it cannot be read."""
    fields: dict[str, Any]
    """The values that `session.describe` gave it, by name."""


def session_info(head: Head, settings: Settings) -> SessionInfo:
    """Return the session that a head is the end of, as listings return it."""
    head = settings.reveal(head)
    labels, fields = split_labels(head.stream, head.labels)
    time = headers.time_of(head)
    return SessionInfo(head.stream, head.position, head.digest, labels, time, fields)


def open_session(name: object, settings: Settings, *, must_exist: bool) -> Steps[Replica]:
    """Load a session, and finish a deletion that a crash interrupted.

    NotFoundError if it must exist and does not.
    """
    replica = Replica(require_session_id(name), settings)
    yield from _load(replica)
    replica.require_whole()
    if replica.state.deleted:
        yield from finish_drop(replica)
    if must_exist and not replica.exists:
        hint = "it was deleted" if replica.state.deleted else "store.session(...) would create it"
        raise NotFoundError(f"session {replica.name!r}", hint)
    return replica


def _load(replica: Replica) -> Steps[None]:
    """Load a session. A branch whose creation was interrupted is completed or deleted."""
    if not (yield from _load_complete(replica)):
        yield from _delete_incomplete(replica, PARENT_DELETED)
        yield from replica.load()


def _load_complete(replica: Replica) -> Steps[bool]:
    """Load a session; False if it is an incomplete branch whose parent was deleted."""
    try:
        yield from replica.load()
        if not replica.is_new_branch:
            return True  # Written to after its first entry, so it was complete.
        return (yield from _complete_branch(replica, replica.state.lineage[0]))
    except NotFoundError:  # The shared history is deleted, so no caller ever got this branch.
        return False


def _complete_branch(child: Replica, parent: ParentStream) -> Steps[bool]:
    """Complete a branch that has only its first entry; False if its parent was deleted first."""
    owner = Replica(parent.name, child.settings)
    yield from owner.load()
    for keep, kept in _keeps_of(child, owner):
        if not kept.complete:
            try:
                yield from _write_plan(owner, _plan_keep(keep, _as_complete(kept), parent.at))
            except ConflictError:
                return False
        return True
    return False


def _keeps_of(child: Replica, parent: Replica) -> list[tuple[str, BranchKept]]:
    stream = child.history.stream.id
    keeps = parent.state.kept_branches.items()
    return [(keep, kept) for keep, kept in keeps if kept.stream == stream]


def finish_drop(replica: Replica) -> Steps[None]:
    """Drop the entries that a crash left behind between a record that allows it and the drop."""
    first = yield from requests.read(replica.name, after=0, limit=1)
    if first and first[0].position < replica.state.begin:
        yield from requests.drop(replica.name, before=replica.state.begin)


def require_filter(
    prefix: object, after: object, labels: Sequence[str], limit: object = None
) -> None:
    """Raise UsageError unless these are valid arguments for listing sessions."""
    require_labels(labels)
    if limit is not None and require_int(limit, "limit") < 0:
        raise UsageError(f"limit must be 0 or more, not {limit}")
    for text in (prefix, after, *labels):
        require_str(text, "a prefix, id or label")


def list_page(
    *, prefix: str, after: str, labels: Sequence[str], deleted: bool, limit: int = PAGE
) -> Steps[tuple[Sequence[Head], str | None]]:
    """Return a page of heads, and the `after` of the next page, or None at the end."""
    require_filter(prefix, after, labels)
    without = excluded_labels(deleted=deleted)
    page = yield from requests.heads(
        prefix=prefix, after=after, labels=labels, without=without, limit=limit, headers=True
    )
    return page, page[-1].stream if len(page) == limit else None


def excluded_labels(*, deleted: bool) -> tuple[str, ...]:
    """Return the labels of sessions that a listing excludes."""
    return () if deleted else (DELETED,)


def create_branch(source: Replica, name: object, *, at: object) -> Steps[Replica]:
    """Create a session that shares the source's history up to and including a position."""
    settings = source.settings
    stream = StreamIdentity(require_session_id(name), settings.token(), settings.tenant)
    state, past, _ = source.view
    newest = past.tip.position
    position = newest if at is None else require_int(at, "at")
    if position == 0 and not state.begin:  # No history to share: the branch is a new session.
        yield from require_free(stream.session)
        return Replica(stream.session, settings)
    # The state at an earlier position is not known any more after a compaction.
    first = max(state.begin, state.compacted, 1)
    if not first <= position <= newest:
        allowed = f"a branch of {source.name!r} must begin at {first} to {newest}"
        raise UsageError(f"{allowed}, not {position}")
    shared = yield from reader.read_record(past, position)
    past = past.until(shared.tip)
    yield from require_free(stream.session)
    state = yield from source.loader.state_at(past, past.tip)
    # The position may be in the history that the source shares itself: the stream that stores it
    # has to keep the branch.
    owner = Replica(past.segment(position).stream.session, settings)
    yield from owner.load()
    kept = BranchKept(reason=BranchKept.CREATING, branch=stream.session, stream=stream.id)
    keep = settings.new_id()
    yield from _write_plan(owner, _plan_keep(keep, kept, position))
    erased = _erased_since(state, position, past.erasures, owner.state.erasures)
    yield from _store_first_entry(stream, state, owner, shared.tip, keep, erased)
    child = Replica(stream.session, settings)
    try:
        yield from _write_plan(owner, _plan_keep(keep, _as_complete(kept), position))
    except ConflictError:
        yield from _delete_incomplete(child, PARENT_DELETED)
        raise
    yield from child.load()
    return child


def require_free(name: str, *, is_copy: bool = False) -> Steps[None]:
    """Raise UsageError if a session with this name exists or was deleted.

    An unfinished copy is free for a copy only.
    """
    head = yield from requests.head(name)
    if head is None:
        return
    is_unfinished = head.labels >= UNFINISHED
    if is_unfinished and is_copy:
        return
    reason = "exists"
    if is_unfinished:
        reason = "is an unfinished copy"
    elif DELETED in head.labels:
        reason = f"was deleted, and its name cannot be used for a {'copy' if is_copy else 'branch'}"
    raise UsageError(f"session {name!r} {reason}: choose another id")


def _as_complete(kept: BranchKept) -> BranchKept:
    return BranchKept(reason=BranchKept.EXISTS, branch=kept.branch, stream=kept.stream)


def _plan_keep(keep: str, kept: BranchKept, position: int) -> Plan[int]:
    """Plan a keep for a branch; NotFoundError if its position has been deleted since."""

    def make(batch: RecordBatch) -> int:
        if batch.state.compacted > position:
            raise CompactedError(batch.name, position, batch.state.begin)
        if batch.state.deleted or batch.state.begin > position:
            raise NotFoundError(f"session {batch.name!r}", "it was deleted in the meantime")
        return batch.add_content(keep, kept)

    return Plan("keep", keep, make)


def _erased_since(state: SessionState, at: int, *known: Erasures | None) -> list[Content]:
    """Return the record of what was erased of a history after a position: a branch needs its own.

    The one of the parent is after that position, so no reader of the branch would find it.
    """
    named = [erasures or NOTHING_ERASED for erasures in known]
    ranges = merge_ranges(item for erasures in named for item in erasures.ranges)
    missing = exclude_ranges(clip_ranges(ranges, at), state.erasures.ranges)
    keys = dict.fromkeys(key for erasures in named for key in erasures.keys)
    others = tuple(key for key in keys if key not in state.erasures.keys)
    return [Erased(ranges=tuple(missing), keys=others)] if missing or others else []


def _store_first_entry(
    stream: StreamIdentity,
    state: SessionState,
    owner: Replica,
    shared: ChainTip,
    keep: str,
    erased: Sequence[Content],
) -> Steps[None]:
    """Store the first entry of a branch; if the name was taken meanwhile, release the keep."""
    settings, parent = owner.settings, owner.history.stream
    content = Branched(parent=parent.session, stream=parent.id, at=shared.position)
    drafts, entry, _ = yield from _link(stream, shared, [content, *erased], settings)
    for position, draft in enumerate(drafts, entry.position):
        state.apply(position, draft.id, draft.content, draft.payload)
    # It links to an entry of the parent's stream, so nothing is before it in its own.
    labels = settings.head_labels(state.head_labels)
    first = Append(stream.session, [entry], labels, previous="")
    outcome = yield from requests.commit(first)
    if outcome.status != "stored":
        yield from _write_plan(owner, _plan_release(owner, keep))
        raise UsageError(f"session {stream.session!r} exists: choose another id")


def _link(
    stream: StreamIdentity, after: ChainTip, contents: Sequence[Content], settings: Settings
) -> Steps[tuple[list[PendingRecord], Entry, ChainTip]]:
    """Return records as the next entry of a stream, with the tip that it makes."""
    yield from settings.require_key(stream.id)
    drafts = [PendingRecord(settings.new_id(), item, codec.encode(item)) for item in contents]
    time, cipher = settings.now(), settings.cipher
    return drafts, *chain.link_entry(stream, after, drafts, time=time, cipher=cipher)


def _plan_release(owner: Replica, keep: str) -> Plan[int]:
    """Plan the release of a keep; adds nothing if it is released already."""
    record_id = owner.new_id()

    def make(batch: RecordBatch) -> int:
        if keep not in batch.state.kept_branches:
            return batch.position
        return batch.add_content(record_id, BranchReleased(keep=keep))

    return Plan("release", keep, make)


def delete_session(name: object, settings: Settings, *, reason: str) -> Steps[None]:
    """Delete a session and drop its entries; InUseError while branches or holds need it."""
    require_str(reason, "reason")
    replica = Replica(require_session_id(name), settings)
    try:
        yield from _load(replica)
    except (DamagedError, VersionError):
        if not (yield from _delete_unfinished(replica, reason)):
            raise
        return
    if not replica.exists:
        if replica.state.deleted:
            yield from finish_drop(replica)
        raise NotFoundError(f"session {replica.name!r}", "list them with store.sessions()")
    yield from _delete_and_drop(replica, reason)


def _is_needed(kept: BranchKept) -> Steps[bool]:
    """Whether a keep is still needed: a hold always is, a branch only if it was created."""
    if not kept.branch:
        return True
    head = yield from requests.head(kept.branch)
    if head is None or DELETED in head.labels:
        return False
    first = yield from requests.read(kept.branch, after=0, limit=1)
    header = chain.verify_entry(kept.branch, first[0]).header if first else None
    return header is not None and (header.kind, header.stream) == (Branched.kind, kept.stream)


def require_unused(batch: RecordBatch) -> Steps[None]:
    """Raise InUseError while branches or holds need the session's past."""
    users = []
    for kept in batch.state.kept_branches.values():
        if (yield from _is_needed(kept)):
            users.append(kept.branch or kept.reason)  # noqa: PERF401 - cannot yield in a list
    if users:
        raise InUseError(batch.name, tuple(users))


def _delete_and_drop(replica: Replica, reason: str) -> Steps[None]:
    """Append the deletion record, drop what is before it, and release the keep in the parent."""
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> Steps[int]:
        if batch.state.deleted:
            raise NotFoundError(f"session {batch.name!r}", "list them with store.sessions()")
        yield from require_unused(batch)
        return batch.add_content(record_id, Deleted(reason=reason))

    lineage = replica.state.lineage  # Before the write: the deletion clears it.
    deletion: Plan[int] = Plan("delete", "", make)
    position = yield from _write_plan(replica, deletion)
    yield from requests.drop(replica.name, before=position)
    if lineage:
        yield from release_in_parent(replica, lineage[0].name)


def _delete_incomplete(replica: Replica, reason: str) -> Steps[None]:
    """Delete a branch that has only its first entry, without reading its deleted history.

    It is no error if the branch is deleted already, or if another process deletes it now.
    """
    (last,) = yield from requests.read(replica.name, after=0, limit=1, reverse=True)
    linked = chain.verify_entry(replica.name, last)
    if linked.header.kind == Branched.kind:
        yield from _delete_after(replica, linked, reason)


def _delete_unfinished(replica: Replica, reason: str) -> Steps[bool]:
    """Delete an unfinished copy that cannot be loaded; False if it is none.

    Its source has every record, so nothing is lost.
    """
    head = yield from requests.head(replica.name)
    if head is None or not head.labels >= UNFINISHED:
        return False
    (last,) = yield from requests.read(replica.name, after=0, limit=1, reverse=True)
    yield from _delete_after(replica, chain.verify_entry(replica.name, last), reason)
    return True


def _delete_after(replica: Replica, linked: VerifiedEntry, reason: str) -> Steps[None]:
    """Append a deletion to a stream that ends with an entry, and drop the rest."""
    settings = replica.settings
    stream = StreamIdentity(replica.name, linked.header.stream, settings.tenant)
    _, entry, tip = yield from _link(stream, linked.tip, [Deleted(reason=reason)], settings)
    deletion = Append(replica.name, [entry], frozenset({DELETED}), linked.digest)
    outcome = yield from requests.commit(deletion)
    if outcome.status == "stored":
        yield from requests.drop(replica.name, before=tip.position)


def release_in_parent(child: Replica, parent: str) -> Steps[None]:
    """Release the keep that a deleted branch has in its parent, unless that is deleted too."""
    owner = Replica(parent, child.settings)
    try:
        yield from owner.load()
        for keep, _ in _keeps_of(child, owner):
            yield from _write_plan(owner, _plan_release(owner, keep))
    except (ConflictError, NotFoundError):
        return


def _write_plan(replica: Replica, plan: Plan[T]) -> Steps[T]:
    """Write one plan; return its result, or raise its error."""
    (answer,) = yield from replica.write([plan])
    if isinstance(answer, PerdureError):
        raise answer
    return answer  # type: ignore[no-any-return] # the answers of a batch have different types
