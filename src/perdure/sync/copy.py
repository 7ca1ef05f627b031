# Generated from aio/copy.py by scripts/generate_sync.py: do not edit.
"""Copy sessions between two stores: validates the call, opens both, and drives the copy's steps."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from perdure.backends.addresses import (
    Address,
    open_backend,
    path_of,
    require_backend,
    without_migration,
)
from perdure.backends.guarantees import guarantees_of
from perdure.backends.protocol import Backend, Entry, require_remove, tenant_of
from perdure.core.replay import guard
from perdure.core.validation import require_labels, require_session_id, require_str
from perdure.errors import (
    DamagedError,
    NotFoundError,
    StoreMissingError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from perdure.journal.chain import BODY_MAX, is_same_tenant
from perdure.journal.copying.pairs import Selection
from perdure.journal.copying.requests import (
    CheckStore,
    CopyProgress,
    CopySteps,
    HeadPage,
    Remove,
    Send,
    StoreRequest,
)
from perdure.journal.copying.rounds import CopyResult, CopyRun
from perdure.journal.requests import Drop, Heads, Read
from perdure.sync.verify import find_problems

PAGE_BYTES = 4 * 2**20  # bytes; a page of long bodies is shortened, so that memory stays bounded


SAME_STORE = "the source and the target are the same store"


T = TypeVar("T")

OnProgress = Callable[[CopyProgress], object]


def copy(  # noqa: PLR0913 - each is a choice of its own
    source: "Address | Backend",
    target: "Address | Backend",
    *,
    prefix: str = "",
    labels: Sequence[str] = (),
    sessions: Sequence[str] = (),
    final: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyResult:
    """Copy sessions to another store, byte for byte, and return the result.

    Copies all sessions, those whose id has the prefix and that have all labels, or those with the
    given ids; and the sessions that they are branches of. Entries that the target already has are
    not copied again, so an interrupted copy resumes where it stopped. Writers may keep writing: the
    copy ends when little is left, and reports how much (`left` of the result). With `final`, for
    use after all writers have stopped, it also reads both stores in full and compares them.

    A session that cannot be copied, because it is damaged or the target has a different session of
    that name, is left unchanged and listed in `problems`. So is damage of the source itself, which
    may keep sessions out of its list; unless `sessions` are given, it is looked for first, and with
    `final` in both stores, by reading them once more. With `dry_run` nothing is written.
    """
    guard.require_live("perdure.copy")
    copying = CopyRun(parse_selection(prefix, labels, sessions), final=final, dry_run=dry_run)
    require_distinct(source, target)
    with (
        _borrow_backend(_require_existing(source)) as source_backend,
        _borrow_backend(missing_store(target) if dry_run else target) as target_backend,
    ):
        return run_copy(copying, source_backend, target_backend, on_progress)


def run_copy(
    copying: CopyRun, source: Backend, target: Backend, on_progress: OnProgress | None
) -> CopyResult:
    """Run a copy between two open stores, which stay open, and return its result."""
    _require_distinct_backends(source, target)
    _require_same_tenant(source, target)
    copying.same_tenant = tenant_of(source) == tenant_of(target)
    sides = {"source": source, "target": target}
    return _run(copying.steps(), sides, on_progress or (lambda _: None))


def parse_selection(prefix: str, labels: Sequence[str], sessions: Sequence[str]) -> Selection:
    """Validate the arguments that select sessions; raise UsageError if they are wrong."""
    require_str(prefix, "prefix")
    require_labels(labels)
    if isinstance(sessions, str):
        raise UsageError("sessions must be a list of ids, not a string")
    if sessions and (prefix or labels):
        raise UsageError("select sessions by id, or by prefix and labels, not both")
    return Selection(prefix, tuple(labels), tuple(map(require_session_id, sessions)))


def require_distinct(source: object, target: object) -> None:
    """Raise UsageError if both addresses are visibly the same store; nothing would be copied."""
    same = source is target
    if isinstance(source, str | os.PathLike) and isinstance(target, str | os.PathLike):
        source_path, target_path = path_of(source), path_of(target)
        same = str(source) == str(target)
        if source_path is not None and target_path is not None:
            both_exist = source_path.exists() and target_path.exists()
            same = same or (both_exist and source_path.samefile(target_path))
    if same:
        raise UsageError(SAME_STORE)


def _require_distinct_backends(source: Backend, target: Backend) -> None:
    """Raise UsageError if two backends are the same store under different addresses."""
    # Names identify durable stores only: all in-memory stores have the same name.
    is_durable = guarantees_of(source).survives in {"process death", "power loss"}
    if source is target or (is_durable and source.name == target.name):
        raise UsageError(SAME_STORE)


def _require_same_tenant(source: Backend, target: Backend) -> None:
    """Raise UnsupportedError if the target would refuse to open what is copied byte for byte."""
    tenants = tenant_of(source), tenant_of(target)
    if not is_same_tenant(*tenants):
        reason = f"sessions name their tenant, and {tenants[0]!r} is not {tenants[1]!r}"
        raise UnsupportedError(reason, "open both stores with the same ?tenant=")


def _require_existing(source: Any) -> Any:
    """Return the source; raise NotFoundError if opening it would create it."""
    if isinstance(source, str | os.PathLike):
        path = path_of(source)
        if path is not None and not path.exists():
            raise NotFoundError(f"the store {os.fspath(source)!r}", "it was not created")
    return without_migration(source) if isinstance(source, str) else source


def missing_store(target: Any) -> Any:
    """Return the target of a dry run: an empty store in memory if it does not exist yet."""
    if isinstance(target, str | os.PathLike):
        path = path_of(target)
        if path is not None and not path.exists():
            return "memory:"
    if not isinstance(target, str):
        return target
    target = without_migration(target)
    try:
        open_backend(target).close()
    except StoreMissingError:
        return "memory:"
    return target


@contextmanager
def _borrow_backend(store: "Address | Backend") -> Iterator[Backend]:
    """Yield a backend; close it afterwards only if it was opened here."""
    if not isinstance(store, str | os.PathLike):
        require_backend(store)
        yield store
        return
    backend = open_backend(store)
    try:
        yield backend
    finally:
        backend.close()


def _run(steps: CopySteps[T], sides: dict[str, Backend], on_progress: OnProgress) -> T:
    """Drive the steps to their result; a store's error is thrown into the requesting step."""
    try:
        request = next(steps)
        while True:
            if isinstance(request, CopyProgress):
                on_progress(request)
                request = next(steps)
                continue
            try:
                answer = _perform(sides[request.side], request)
            except BaseException as error:  # noqa: BLE001 - rethrown inside the steps, which decide
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _perform(backend: Backend, request: StoreRequest) -> Any:
    """Perform one request of the copy and return the reply.

    Unlike a session's driver: pages are short in bytes, damage is part of a reply, and an append
    is one for many streams.
    """
    match request.request:
        case Read():
            return _read_entries(backend, request.request)
        case Heads():
            return _list_heads(backend, request.request)
        case Send(appends):
            try:
                return backend.append(appends)
            except UnavailableError:  # An append is idempotent, so one retry is safe.
                return backend.append(appends)
        case Drop(stream, before):
            return backend.drop(stream, before=before)
        case Remove(stream, digest):
            return require_remove(backend).remove(stream, digest=digest)
        case CheckStore(deep):
            problems = find_problems(backend, deep=deep)
            own = backend.name
            return [("" if one.stream == own else one.stream, one.reason) for one in problems or ()]


def _read_entries(backend: Backend, request: Read) -> list[Entry]:
    entries, size = [], 0
    stream, after, limit, reverse, _ = request
    for entry in backend.read(stream, after=after, limit=limit, reverse=reverse, max_body=BODY_MAX):
        entries.append(entry)
        size += len(entry.header) + len(entry.body or b"")
        if size >= PAGE_BYTES:
            break
    return entries


def _list_heads(backend: Backend, request: Heads) -> HeadPage:
    heads = []
    prefix, after, labels, limit, *_ = request
    try:
        for head in backend.streams(prefix=prefix, after=after, labels=labels, limit=limit):
            heads.append(head)  # noqa: PERF402 - keep the heads listed before damage
    except DamagedError as error:
        return HeadPage(heads, error)
    return HeadPage(heads, None)
