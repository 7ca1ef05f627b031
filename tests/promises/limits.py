"""Disks that are really full, files that may not grow, file systems that may only be read."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import perdure
from perdure.errors import UnavailableError, UsageError
from tests.promises import places
from tests.promises.children import collect, fork, ledger_of, reporting
from tests.promises.kinds import Kind, Opener
from tests.promises.ledger import Ledger, Witness
from tests.promises.promise import Trial

LIMIT = 2**20
NOBODY = 65534
NEVER_REFUSED, NOT_READABLE, NOT_GOING_ON = 3, 4, 5


def trials(kind: Kind, directory: Path) -> Iterator[Trial]:
    """Yield the trials that this machine and user allow."""
    yield Trial("a file that may not grow", growth_limited(kind, directory))
    if places.can_mount():
        yield Trial("a full disk of 1 MB", full_disk(kind, directory))
        yield Trial("a disk that became read-only", read_only_disk(kind, directory))
    yield Trial("a directory without permission", without_permission(kind, directory))


def judge(address: str, ledger: Ledger) -> str:
    """Open a store with plain perdure and compare it with what was sent and acknowledged."""
    try:
        with perdure.open(address) as store:
            return ledger.judge(store)
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"


def _fill(open_backend: Opener, pipe: int, relieve: Callable[[], object]) -> None:
    """Append until the store refuses, then relieve it and go on with the same handle."""
    store = perdure.open(Witness(open_backend(), reporting(pipe)))
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


def _filled(
    kind: Kind, directory: Path, prepare: Callable[[], object], relieve: Callable[[], object]
) -> str:
    def work(pipe: int) -> None:
        prepare()
        _fill(kind.opener(directory), pipe, relieve)

    end = collect(*fork(work))
    failure = judge(kind.address(directory), ledger_of(end.said))
    return failure or (f"the child ended with {end.code}" if end.code else "")


def growth_limited(kind: Kind, directory: Path) -> str:
    """Let no file of a child grow beyond 1 MB, then allow it."""
    kind.clear(directory)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return _filled(
        kind,
        directory,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
    )


def full_disk(kind: Kind, directory: Path) -> str:
    """Fill a file system of 1 MB, then make room by deleting something else."""
    with places.mounted(directory / "small", "-t", "tmpfs", "-o", "size=2m", "perdure") as point:
        filler = point / "filler"
        filler.write_bytes(bytes(LIMIT))
        return _filled(kind, point, lambda: None, filler.unlink)


def read_only_disk(kind: Kind, directory: Path) -> str:
    """Remount a store's file system so that it can not be written, and back."""
    with places.mounted(directory / "small", "-t", "tmpfs", "-o", "size=4m", "perdure") as point:
        address = kind.address(point)
        _begin(address)
        places.command("mount", "-o", "remount,ro", point)
        failure = _refused(address)
        places.command("mount", "-o", "remount,rw", point)
        return failure or _goes_on(address)


def without_permission(kind: Kind, directory: Path) -> str:
    """Take the right to write to a store away, and give it back."""
    kind.clear(directory)
    address = kind.address(directory)
    _begin(address)
    modes = {one: one.stat().st_mode for one in (directory, *directory.rglob("*"))}
    for one, mode in modes.items():
        if places.is_root():
            os.chown(one, NOBODY, NOBODY)
        one.chmod(mode & ~0o222)
    try:
        end = collect(*fork(lambda pipe: os.write(pipe, _as_nobody(address).encode())))
    finally:
        for one, mode in modes.items():
            one.chmod(mode)
    failure = end.said.decode() or (f"the child ended with {end.code}" if end.code else "")
    return failure or _goes_on(address)


def _as_nobody(address: str) -> str:
    """As `_refused`, for somebody whom permissions concern."""
    if places.is_root():
        os.setuid(NOBODY)
    return _refused(address)


def _begin(address: str) -> None:
    with perdure.open(address) as store:
        store.session("main").append({"role": "user", "content": "Hello."})


def _refused(address: str) -> str:
    """What is there can be read; writing is refused, with the reason."""
    try:
        with perdure.open(address) as store:
            session = store.session("main")
            if [message["content"] for message in session.messages()] != ["Hello."]:
                return f"one reads {session.messages()}"
            try:
                session.append({"role": "user", "content": "Too late."})
            except UsageError as error:
                reasons = ("the file system is read-only", "no permission to write")
                return "" if any(one in str(error) for one in reasons) else f"why not? {error}"
            return "an append was acknowledged that can not have been written"
    except perdure.PerdureError as error:
        return f"it can not be read: {type(error).__name__}: {error}"


def _goes_on(address: str) -> str:
    with perdure.open(address) as store:
        session = store.session("main")
        session.append({"role": "user", "content": "Again."})
        session.verify()
        texts = [message["content"] for message in session.messages()]
        return "" if texts == ["Hello.", "Again."] else f"one reads {texts}"
