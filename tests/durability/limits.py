"""Disks that are really full, files that may not grow, file systems that may only be read."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import perdure
from perdure.backends.sqlite import SqliteBackend
from perdure.errors import UnavailableError
from tests.durability import places
from tests.durability.children import collect, fork, ledger_of, reporting
from tests.durability.ledger import Ledger, Witness
from tests.durability.promise import Trial

LIMIT = 2**20
NEVER_REFUSED, NOT_READABLE, NOT_GOING_ON = 3, 4, 5


def trials(directory: Path) -> Iterator[Trial]:
    """Yield the trials that this machine and user allow."""
    yield Trial("a file that may not grow", growth_limited(directory))
    if places.can_mount():
        yield Trial("a full disk of 1 MB", full_disk(directory))
        yield Trial("a disk that became read-only", read_only_disk(directory))
    if not places.is_root():
        yield Trial("a directory without permission", without_permission(directory))


def clear(directory: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        (directory / f"store.db{suffix}").unlink(missing_ok=True)


def judge(path: Path, ledger: Ledger) -> str:
    """Open a store with plain perdure and compare it with what was sent and acknowledged."""
    try:
        with perdure.open(path) as store:
            return ledger.judge(store)
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"


def _fill(path: Path, pipe: int, relieve: Callable[[], object]) -> None:
    """Append until the store refuses, then relieve it and go on with the same handle."""
    store = perdure.open(Witness(SqliteBackend(path), reporting(pipe)))
    session = store.session("main")
    for number in range(1000):
        message = {"role": "user", "content": f"{number} " * 2000}
        try:
            session.append(message, id=f"m-{number}")
        except UnavailableError:
            break
    else:
        os._exit(NEVER_REFUSED)
    if len(session.messages()) != number:
        os._exit(NOT_READABLE)
    relieve()
    session.append(message, id=f"m-{number}")
    session.append({"role": "user", "content": "And on."})
    session.verify()
    if len(session.messages()) != number + 2:
        os._exit(NOT_GOING_ON)


def _filled(path: Path, prepare: Callable[[], object], relieve: Callable[[], object]) -> str:
    def work(pipe: int) -> None:
        prepare()
        _fill(path, pipe, relieve)

    end = collect(*fork(work))
    failure = judge(path, ledger_of(end.said))
    return failure or (f"the child ended with {end.code}" if end.code else "")


def growth_limited(directory: Path) -> str:
    """Let no file of a child grow beyond 1 MB, then allow it."""
    clear(directory)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return _filled(
        directory / "store.db",
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
    )


def full_disk(directory: Path) -> str:
    """Fill a file system of 1 MB, then make room by deleting something else."""
    with places.mounted(directory / "small", "-t", "tmpfs", "-o", "size=2m", "perdure") as point:
        filler = point / "filler"
        filler.write_bytes(bytes(LIMIT))
        return _filled(point / "store.db", lambda: None, filler.unlink)


def read_only_disk(directory: Path) -> str:
    """Remount a store's file system so that it can not be written, and back."""
    with places.mounted(directory / "small", "-t", "tmpfs", "-o", "size=4m", "perdure") as point:
        path = point / "store.db"
        with perdure.open(path) as store:
            store.session("main").append({"role": "user", "content": "Hello."})
        places.command("mount", "-o", "remount,ro", point)
        failure = _refused(path)
        places.command("mount", "-o", "remount,rw", point)
        return failure or _goes_on(path)


def without_permission(directory: Path) -> str:
    """Take the right to write to a store away, and give it back."""
    clear(directory)
    path = directory / "store.db"
    with perdure.open(path) as store:
        store.session("main").append({"role": "user", "content": "Hello."})
    path.chmod(0o400)
    directory.chmod(0o500)
    failure = _refused(path)
    directory.chmod(0o700)
    path.chmod(0o600)
    return failure or _goes_on(path)


def _refused(path: Path) -> str:
    with contextlib.suppress(UnavailableError):
        with perdure.open(path) as store:
            store.session("main").append({"role": "user", "content": "Too late."})
        return "an append was acknowledged that can not have been written"
    return ""


def _goes_on(path: Path) -> str:
    with perdure.open(path) as store:
        session = store.session("main")
        session.append({"role": "user", "content": "Again."})
        session.verify()
        texts = [message["content"] for message in session.messages()]
        return "" if texts == ["Hello.", "Again."] else f"one reads {texts}"
