"""How sessions begin, branch and end. Pure: steps over replicas that are loaded for the purpose.

A branch shares its parent's past, so the parent must stay while the branch lives. Creating one
writes a keep in the parent, then the branch's first entry, then the keep once more, as complete.
Deleting the parent looks for the branch of every keep, and writes its record right after the state
in which it found none. Both end with a write in the parent's stream, so one of them is second, sees
the other and gives way. A branch is used by nobody before it is complete: whoever opens one that is
not, completes it first.
"""

from collections.abc import Sequence

from perdure import codec, journal, reading, steps
from perdure.backend import Append, Head
from perdure.errors import ConflictError, InUseError, NotFoundError, UsageError
from perdure.fold import DELETED, Ancestor, Fold
from perdure.journal import Draft, Linked, Stream, Tip
from perdure.plans import Batch, Made, Plan, require_int, require_str
from perdure.reading import Past
from perdure.records import Branched, Deleted, Kept, Recovered, Released
from perdure.replica import Replica
from perdure.settings import Settings
from perdure.steps import Steps
from perdure.writing import require_labels, require_session_id

PAGE = 256
FIRST_PAGE = 64  # Whoever shows a page of sessions does not wait for four.

UNFINISHED = "its parent was deleted before the branch was complete"


def opened(name: object, settings: Settings, *, must_exist: bool) -> Steps[Replica]:
    """Load a session."""
    replica = Replica(require_session_id(name), settings)
    yield from _load(replica)
    if replica.fold.deleted:
        yield from _finish_dropping(replica)
    if must_exist and not replica.exists:
        hint = "it was deleted" if replica.fold.deleted else "store.session(...) would create it"
        raise NotFoundError(f"session {replica.name!r}", hint)
    return replica


def _load(replica: Replica) -> Steps[None]:
    """Load a session. A branch that was cut off while it was made is completed, or ended."""
    if not (yield from _loaded(replica)):
        yield from _retract(replica, UNFINISHED)
        yield from replica.load()


def _loaded(replica: Replica) -> Steps[bool]:
    """Load a session; False if it is a branch whose past was deleted before it was complete."""
    try:
        yield from replica.load()
        lineage = replica.fold.lineage
        if not lineage or replica.tip.position > lineage[0].at + 1:
            return True
        return (yield from _completed(replica, lineage[0]))
    except NotFoundError:  # Its past is gone, and nobody was told of it.
        return False


def _completed(child: Replica, parent: Ancestor) -> Steps[bool]:
    """Complete a branch that nobody has written to; False if its parent ended first."""
    owner = Replica(parent.name, child.settings)
    yield from owner.load()
    for keep, kept in owner.fold.keeps.items():
        if kept.stream == child.past.stream.id:
            if not kept.complete:
                try:
                    yield from _write(owner, _keep(keep, _complete(kept), parent.at))
                except ConflictError:
                    return False
            return True
    return False


def _finish_dropping(replica: Replica) -> Steps[None]:
    """Drop what a crash left between the record of a deletion and the dropping."""
    first = yield from steps.read(replica.name, after=0, limit=1)
    if first and first[0].position < replica.fold.begin:
        yield from steps.drop(replica.name, before=replica.fold.begin)


def require_choice(prefix: object, after: object, labels: Sequence[str]) -> None:
    """Raise UsageError unless sessions can be chosen by these."""
    require_labels(labels)
    for text in (prefix, after, *labels):
        require_str(text, "a prefix, id or label")


def listed(
    *, prefix: str, after: str, labels: Sequence[str], deleted: bool, limit: int = PAGE
) -> Steps[tuple[Sequence[Head], str | None]]:
    """Return a page of heads, and the name to go on after, or None at the end."""
    require_choice(prefix, after, labels)
    page = yield from steps.heads(
        prefix=prefix, after=after, labels=labels, without=left_out(deleted=deleted), limit=limit
    )
    return page, page[-1].stream if len(page) == limit else None


def left_out(*, deleted: bool) -> tuple[str, ...]:
    """Return the labels of sessions that a listing leaves out."""
    return () if deleted else (DELETED,)


def branch(source: Replica, name: object, *, at: object) -> Steps[Replica]:
    """Create a session that shares the source's past up to and with a position."""
    stream = Stream(require_session_id(name), source.settings.token(), source.settings.tenant)
    fold, past, _ = source.view
    newest = past.torn[0] - 1 if past.torn else past.tip.position
    position = newest if at is None else require_int(at, "at")
    if position == 0 and not fold.begin:  # Before a first turn there is no past to share.
        yield from _require_free(stream.session)
        return Replica(stream.session, source.settings)
    first = max(fold.begin, 1)
    if not first <= position <= newest:
        raise UsageError(
            f"a branch of {source.name!r} begins at {first} to {newest}, not {position}"
        )
    shared = yield from reading.entry_at(past, position)
    past = past.until(shared.tip)
    yield from _require_whole(past, shared)
    yield from _require_free(stream.session)
    fold = yield from source.fold_of(past)
    owner = Replica(past.segment(position).stream.session, source.settings)
    yield from owner.load()
    kept = Kept(reason=Kept.BEGINS, branch=stream.session, stream=stream.id)
    keep = source.settings.new_id()
    yield from _write(owner, _keep(keep, kept, position))
    yield from _begin(stream, fold, owner, shared.tip, keep)
    child = Replica(stream.session, source.settings)
    try:
        yield from _write(owner, _keep(keep, _complete(kept), position))
    except ConflictError:
        yield from _retract(child, UNFINISHED)
        raise
    yield from child.load()
    return child


def _require_whole(past: Past, linked: Linked) -> Steps[None]:
    """Refuse a position within a batch that a crash cut short: nothing there was ever stored."""
    left, position = linked.header.left, linked.entry.position
    if not left:
        return
    name = past.segment(position).stream.session
    rest = yield from steps.read(name, after=position, limit=left)
    headers = [journal.inspect(name, entry).header for entry in rest]
    if len(headers) < left or any(header.kind == Recovered.kind for header in headers):
        raise UsageError(f"{name!r} entry {position} was cut off by a crash: choose another")


def _require_free(name: str) -> Steps[None]:
    head = yield from steps.head(name)
    if head is not None:
        state = (
            "was deleted, and its name can not begin a branch"
            if DELETED in head.labels
            else "exists"
        )
        raise UsageError(f"session {name!r} {state}: choose another name")


def _complete(kept: Kept) -> Kept:
    return Kept(reason=Kept.STANDS, branch=kept.branch, stream=kept.stream)


def _keep(keep: str, kept: Kept, position: int) -> Plan:
    """Plan a keep for a branch; void if the position belongs to a life that has ended."""

    def make(batch: Batch) -> Made:
        yield from ()
        if batch.fold.deleted or batch.fold.begin > position:
            raise NotFoundError(f"session {batch.name!r}", "it was deleted meanwhile")
        return batch.add_content(keep, kept)

    return Plan("keep", keep, make)


def _begin(stream: Stream, fold: Fold, owner: Replica, shared: Tip, keep: str) -> Steps[None]:
    """Store the first entry of a branch, or end the keep if the name was taken meanwhile."""
    settings, parent = owner.settings, owner.past.stream
    content = Branched(parent=parent.session, stream=parent.id, at=shared.position)
    draft = Draft(settings.new_id(), content, codec.encode(content))
    time = settings.now()
    entries, tip = journal.link(stream, shared, [draft], time=time, cipher=settings.cipher)
    fold.apply(tip.position, draft.id, content, draft.payload)
    first = Append(stream.session, entries, fold.head_labels, begins=True)
    outcome = yield from steps.commit(first)
    if outcome.status != "stored":
        yield from _write(owner, _release(owner, keep))
        raise UsageError(f"session {stream.session!r} exists: choose another name")


def _release(owner: Replica, keep: str) -> Plan:
    record_id = owner.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        if keep not in batch.fold.keeps:
            return batch.position
        return batch.add_content(record_id, Released(keep=keep))

    return Plan("release", keep, make)


def delete(name: object, settings: Settings, *, reason: str) -> Steps[None]:
    """End a session and drop what was before; refuse while branches or holds need it."""
    require_str(reason, "reason")
    replica = Replica(require_session_id(name), settings)
    yield from _load(replica)
    if not replica.exists:
        if replica.fold.deleted:
            yield from _finish_dropping(replica)
        raise NotFoundError(f"session {replica.name!r}")
    yield from _end(replica, reason)


def _needed(kept: Kept) -> Steps[bool]:
    """Whether what a keep is for is there: a hold always is, a branch may never have begun."""
    if not kept.branch:
        return True
    head = yield from steps.head(kept.branch)
    if head is None or DELETED in head.labels:
        return False
    first = yield from steps.read(kept.branch, after=0, limit=1)
    header = journal.inspect(kept.branch, first[0]).header if first else None
    return header is not None and (header.kind, header.stream) == (Branched.kind, kept.stream)


def _end(replica: Replica, reason: str) -> Steps[None]:
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        if batch.fold.deleted:
            raise NotFoundError(f"session {batch.name!r}")
        by = []
        for kept in batch.fold.keeps.values():
            if (yield from _needed(kept)):
                by.append(kept.branch or kept.reason)  # noqa: PERF401 - a list can not yield
        if by:
            raise InUseError(batch.name, tuple(by))
        return batch.add_content(record_id, Deleted(reason=reason))

    lineage = replica.fold.lineage
    position = yield from _write(replica, Plan("delete", "", make))
    yield from steps.drop(replica.name, before=position)
    if lineage:
        yield from _let_go(replica, lineage[0].name)


def _retract(replica: Replica, reason: str) -> Steps[None]:
    """End a branch that nobody has written to, without reading its past, which is gone.

    If it has ended already, or somebody else ends it now, that is as good.
    """
    (last,) = yield from steps.read(replica.name, after=0, limit=1, reverse=True)
    linked = journal.inspect(replica.name, last)
    if linked.header.kind != Branched.kind:
        return
    settings, content = replica.settings, Deleted(reason=reason)
    stream = Stream(replica.name, linked.header.stream, settings.tenant)
    draft = Draft(settings.new_id(), content, codec.encode(content))
    time = settings.now()
    entries, tip = journal.link(stream, linked.tip, [draft], time=time, cipher=settings.cipher)
    outcome = yield from steps.commit(Append(replica.name, entries, frozenset({DELETED})))
    if outcome.status == "stored":
        yield from steps.drop(replica.name, before=tip.position)


def _let_go(child: Replica, parent: str) -> Steps[None]:
    """End the keep that a deleted branch had in its parent, unless the parent has ended too."""
    owner = Replica(parent, child.settings)
    try:
        yield from owner.load()
        for keep, kept in owner.fold.keeps.items():
            if kept.stream == child.past.stream.id:
                yield from _write(owner, _release(owner, keep))
    except (ConflictError, NotFoundError):
        return


def _write(replica: Replica, plan: Plan) -> Steps[int]:
    (answer,) = yield from replica.write([plan])
    if isinstance(answer, int):
        return answer
    raise answer
