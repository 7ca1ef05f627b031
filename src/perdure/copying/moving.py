"""Copy sessions between two stores: the steps of `copying`, carried out in either colour."""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from perdure.backend import AsyncBackend, Backend, Entry, UnmadeError, able_to_remove
from perdure.copying.asking import Ask, CopySteps, Listed, Progress, Remove, Send
from perdure.copying.pairs import Selection
from perdure.copying.rounds import Copied, Copying
from perdure.errors import DamagedError, NotFoundError, UnavailableError, UsageError
from perdure.guarantees import guarantees_of
from perdure.opening import (
    Address,
    async_backend_of,
    backend_of,
    not_making,
    path_of,
    require_backend,
)
from perdure.plans import require_str
from perdure.steps import Drop, Heads, Read
from perdure.writing import require_labels, require_session_id

PAGE_BYTES = 4 * 2**20  # A page of long bodies is cut short, so that memory stays bounded.

SAME = "the source and the target are the same store"

T = TypeVar("T")
OnProgress = Callable[[Progress], object]


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
) -> Copied:
    """Copy sessions to another store, entry by entry as they are, and return what was done.

    All of them, those whose id has the prefix and that bear all labels, or those of the given ids;
    and the sessions that they are branches of. What is there already is not copied again, so a copy
    that was cut short goes on where it stopped. Writers may go on meanwhile: it ends when little
    is left, and says how much (`Copied.left`). With `final`, to be made when nobody writes any
    more, it also reads everything on both sides and compares.

    What can not be copied, because it is damaged or the target has something else under that name,
    is left alone and listed in `Copied.problems`. With `dry_run` nothing is written.
    """
    copying = Copying(selection_of(prefix, labels, sessions), final=final, dry_run=dry_run)
    require_two(source, target)
    with (
        _opened(_existing(source)) as one,
        _opened(unmade(target) if dry_run else target) as two,
    ):
        return carried_out(copying, one, two, on_progress)


async def copy_async(  # noqa: PLR0913 - as its twin
    source: "Address | AsyncBackend",
    target: "Address | AsyncBackend",
    *,
    prefix: str = "",
    labels: Sequence[str] = (),
    sessions: Sequence[str] = (),
    final: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Copied:
    """As `copy`, for code in an event loop."""
    copying = Copying(selection_of(prefix, labels, sessions), final=final, dry_run=dry_run)
    require_two(source, target)
    async with (
        _opened_async(_existing(source)) as one,
        _opened_async(unmade(target) if dry_run else target) as two,
    ):
        _require_two_opened(one, two)
        sides = {"source": one, "target": two}
        return await _run_async(copying.steps(), sides, on_progress or _ignore)


def carried_out(
    copying: Copying, source: Backend, target: Backend, on_progress: OnProgress | None
) -> Copied:
    """Return what became of a copy between two stores that are open."""
    _require_two_opened(source, target)
    sides = {"source": source, "target": target}
    return _run(copying.steps(), sides, on_progress or _ignore)


def _ignore(progress: Progress) -> None:
    del progress


def selection_of(prefix: str, labels: Sequence[str], sessions: Sequence[str]) -> Selection:
    """Return which sessions are meant, or raise UsageError."""
    require_str(prefix, "prefix")
    require_labels(labels)
    if isinstance(sessions, str):
        raise UsageError("sessions must be a list of ids, not one text")
    if sessions and (prefix or labels):
        raise UsageError("name sessions, or choose them by prefix and labels, not both")
    return Selection(prefix, tuple(labels), tuple(map(require_session_id, sessions)))


def require_two(source: object, target: object) -> None:
    """Refuse a store as its own target, as far as that can be seen; it would copy nothing."""
    same = source is target
    if isinstance(source, str | os.PathLike) and isinstance(target, str | os.PathLike):
        one, two = path_of(source), path_of(target)
        same = str(source) == str(target)
        if one is not None and two is not None and one.exists() and two.exists():
            same = same or one.samefile(two)
    if same:
        raise UsageError(SAME)


def _require_two_opened(source: Backend | AsyncBackend, target: Backend | AsyncBackend) -> None:
    """The same for stores whose addresses differ, by their names. Others share theirs in memory."""
    lasts = guarantees_of(source).survives in {"process death", "power loss"}
    if source is target or (lasts and source.name == target.name):
        raise UsageError(SAME)


def _existing(source: Any) -> Any:
    """Refuse a source that opening would make."""
    if isinstance(source, str | os.PathLike):
        path = path_of(source)
        if path is not None and not path.exists():
            raise NotFoundError(f"the store {os.fspath(source)!r}", "nothing was made")
    return not_making(source) if isinstance(source, str) else source


def unmade(target: Any) -> Any:
    """Return an empty store in the place of one that a dry run must not make."""
    if isinstance(target, str | os.PathLike):
        path = path_of(target)
        if path is not None and not path.exists():
            return "memory:"
    if not isinstance(target, str):
        return target
    target = not_making(target)
    try:
        backend_of(target).close()
    except UnmadeError:
        return "memory:"
    return target


@contextmanager
def _opened(store: "Address | Backend") -> Iterator[Backend]:
    """Lend a backend; one that was opened here is closed here."""
    if not isinstance(store, str | os.PathLike):
        require_backend(store)
        yield store
        return
    backend = backend_of(store)
    try:
        yield backend
    finally:
        backend.close()


@asynccontextmanager
async def _opened_async(store: "Address | AsyncBackend") -> AsyncIterator[AsyncBackend]:
    if not isinstance(store, str | os.PathLike):
        require_backend(store)
        yield store
        return
    backend = async_backend_of(store)
    try:
        yield backend
    finally:
        await backend.close()


def _run(steps: CopySteps[T], sides: dict[str, Backend], on_progress: OnProgress) -> T:
    """Return what the steps return; errors of a store reach the step that asked."""
    try:
        asked = next(steps)
        while True:
            if isinstance(asked, Progress):
                on_progress(asked)
                asked = next(steps)
                continue
            try:
                answer = _answer(sides[asked.side], asked)
            except BaseException as error:  # noqa: BLE001 - the steps decide, and raise it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _answer(backend: Backend, asked: Ask) -> Any:
    match asked.request:
        case Read(stream, after, limit, reverse):
            found = backend.read(stream, after=after, limit=limit, reverse=reverse)
            return list(_bounded(found))
        case Heads():
            return _listed(backend, asked.request)
        case Send(appends):
            try:
                return backend.append(appends)
            except UnavailableError:  # Appends are idempotent, so once more can do no harm.
                return backend.append(appends)
        case Drop(stream, before):
            return backend.drop(stream, before=before)
        case Remove(stream, digest):
            return able_to_remove(backend).remove(stream, digest=digest)


def _listed(backend: Backend, asked: Heads) -> Listed:
    found = []
    prefix, after, labels, limit, _ = asked
    try:
        for head in backend.streams(prefix=prefix, after=after, labels=labels, limit=limit):
            found.append(head)  # noqa: PERF402 - what came before damage is kept
    except DamagedError as error:
        return Listed(found, error)
    return Listed(found, None)


def _bounded(entries: Iterator[Entry]) -> Iterator[Entry]:
    size = 0
    for entry in entries:
        yield entry
        size += len(entry.header) + len(entry.body or b"")
        if size >= PAGE_BYTES:
            return


async def _run_async(
    steps: CopySteps[T], sides: dict[str, AsyncBackend], on_progress: OnProgress
) -> T:
    """As `_run`."""
    try:
        asked = next(steps)
        while True:
            if isinstance(asked, Progress):
                on_progress(asked)
                asked = next(steps)
                continue
            try:
                answer = await _answer_async(sides[asked.side], asked)
            except BaseException as error:  # noqa: BLE001 - the steps decide, and raise it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _answer_async(backend: AsyncBackend, asked: Ask) -> Any:
    match asked.request:
        case Read():
            return await _entries(backend, asked.request)
        case Heads():
            return await _heads(backend, asked.request)
        case Send(appends):
            try:
                return await backend.append(appends)
            except UnavailableError:  # Appends are idempotent, so once more can do no harm.
                return await backend.append(appends)
        case Drop(stream, before):
            return await backend.drop(stream, before=before)
        case Remove(stream, digest):
            return await able_to_remove(backend).remove(stream, digest=digest)


async def _entries(backend: AsyncBackend, asked: Read) -> list[Entry]:
    found, size = [], 0
    stream, after, limit, reverse = asked
    async for entry in backend.read(stream, after=after, limit=limit, reverse=reverse):
        found.append(entry)
        size += len(entry.header) + len(entry.body or b"")
        if size >= PAGE_BYTES:
            break
    return found


async def _heads(backend: AsyncBackend, asked: Heads) -> Listed:
    found = []
    prefix, after, labels, limit, _ = asked
    try:
        async for head in backend.streams(prefix=prefix, after=after, labels=labels, limit=limit):
            found.append(head)  # noqa: PERF401 - what came before damage is kept
    except DamagedError as error:
        return Listed(found, error)
    return Listed(found, None)
