"""P8 with writers that are stopped: a frozen process keeps no other process from reading.

A child process writes, and is stopped (SIGSTOP) while it does: before a call to the file system
that is counted in advance, or at a random moment after its first write. While it is stopped, with
whatever locks it holds, another process must open the store, list, read and verify everything that
was acknowledged, blocking and async. A write may be stored, or must say in time what to do. Then
the child is killed, and everything that the reader was shown must still be there.
"""

import asyncio
import itertools
import os
import random
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.files.backend import FilesBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.protocol import AsyncBackend, Backend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import PerdureError, UnavailableError
from tests.backends.postgres.server_keeper import running
from tests.promises import children
from tests.promises.calls import LOOKS, Call, Watcher, let_pass
from tests.promises.kinds import FILES, SQLITE, Kind
from tests.promises.places import fast_directory
from tests.promises.promise import PATIENCE, Promise, Trial, in_time

READING = 5.0  # Seconds that a reader waits for locks at most; it must not have to.
WRITING = 0.05  # Seconds that a writer waits for locks here.
ROUNDS = 6  # Of the child's script, if a call is counted.
CALLS = 130  # Its calls, about.
TRIALS = 20  # With one store, before it has many sessions.
LONGEST = 0.05  # Seconds until a child is stopped at a random moment.

HINTS = {"resume or end that process", "check the load and the locks of the server"}

Acknowledged = dict[str, int]


class Place(NamedTuple):
    """A store: what opens it with a timeout, and lends a child one whose calls are counted."""

    open: Callable[[float], Backend]
    open_async: Callable[[float], AsyncBackend]
    play: Callable[[Watcher, Callable[[Backend], None]], None]


def files_place(kind: Kind, directory: Path) -> Place:
    opened: Callable[..., Backend] = {"sqlite": SqliteBackend, "files": FilesBackend}[kind.name]
    path = directory / ("store.db" if kind is SQLITE else "store")

    def play(watcher: Watcher, work: Callable[[Backend], None]) -> None:
        with kind.watched(directory, watcher, checkpoint=40) as open_watched:
            work(open_watched())

    return Place(
        lambda timeout: opened(path, timeout=timeout),
        lambda timeout: ThreadedBackend(opened(path, timeout=timeout)),
        play,
    )


def postgres_place(url: str) -> Place:
    """Its calls are not counted: a child is stopped at random moments alone."""
    address = f"{url}?schema=stopped&connections=2"
    return Place(
        lambda timeout: PostgresBackend(f"{address}&timeout={max(timeout, 2.0)}"),
        lambda timeout: AsyncPostgresBackend(f"{address}&timeout={max(timeout, 2.0)}"),
        lambda _, work: work(open_backend(address)),
    )


def write(backend: Backend, pipe: int, rounds: int) -> None:
    """Write to old and new sessions, and report every position that was acknowledged."""
    store = perdure.open(backend)
    session = store.session("s")
    for number in range(rounds):
        session.append({"role": "user", "content": f"{number} " + "word " * (number % 40)})
        os.write(pipe, f"s {session.position}\n".encode())
        if number % 3 == 1:
            session.label(f"label-{number % 2}")
            other = store.session(f"new {os.getpid()} {number}".replace(" ", "-"))
            other.append({"role": "user", "content": "hello"}, {"role": "user", "content": "you"})
            os.write(pipe, f"{other.id} {other.position}\n".encode())
    # It does not close the store: what is then deleted is nothing that a reader could keep.


def stop_at(number: int) -> Watcher:
    """Return a watcher that stops its process before the call of that number."""
    count = itertools.count(1)

    def watch(call: Call) -> Any:
        if call.op not in LOOKS and next(count) == number:
            os.kill(os.getpid(), signal.SIGSTOP)
        return call.do(call.data)

    return watch


class StoppedWriter:
    """A child that was stopped in the middle of its work; `ended` if it was done before."""

    def __init__(self, place: Place, *, call: int = 0, after: float = 0.0) -> None:
        watcher = stop_at(call) if call else let_pass
        rounds = ROUNDS if call else 10**9

        def work(pipe: int) -> None:
            place.play(watcher, lambda backend: write(backend, pipe, rounds))

        self.pid, self._pipe = children.fork(work)
        if not call:
            # Not while it opens the store: it may have to recover the log that the last one left.
            select.select([self._pipe], [], [], PATIENCE)
            time.sleep(after)
            os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        self.ended = not os.WIFSTOPPED(status)
        self.code = os.waitstatus_to_exitcode(status) if self.ended else 0
        os.set_blocking(self._pipe, False)
        self.acknowledged = self._read()

    def _read(self) -> Acknowledged:
        said = b""
        try:
            while data := os.read(self._pipe, 2**16):
                said += data
        except BlockingIOError:
            pass
        lines = (line.split() for line in said.decode().splitlines(keepends=True))
        return {words[0]: int(words[1]) for words in lines if len(words) == 2}

    def kill(self) -> None:
        os.close(self._pipe)
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def read_all(backend: Backend) -> tuple[Acknowledged, bool]:
    """Return the position of every session, and whether the store verifies."""
    with perdure.open(backend) as store:
        found = {}
        for name in [info.id for info in store.sessions()]:
            session = store.resume(name)
            assert len(session.messages()) > 0
            found[name] = session.position
        return found, store.verify().ok


async def read_all_async(backend: AsyncBackend) -> tuple[Acknowledged, bool]:
    async with perdure.open_async(backend) as store:
        found = {}
        for name in [info.id async for info in store.sessions()]:
            session = await store.resume(name)
            assert len(await session.messages()) > 0
            found[name] = session.position
        return found, (await store.verify()).ok


def missing(expected: Acknowledged, found: Acknowledged) -> list[str]:
    return [name for name, position in expected.items() if found.get(name, 0) < position]


def judge(place: Place, writer: StoppedWriter, *, is_async: bool) -> tuple[str, bool]:
    """Return what is wrong while a writer is stopped and after its death; and if it held a lock."""
    try:
        if is_async:
            found, ok = asyncio.run(read_all_async(place.open_async(READING)))
        else:
            found, ok = read_all(place.open(READING))
        failure, blocked = try_write(place)
    except PerdureError as error:
        return f"{type(error).__name__} while a writer is stopped: {error}", True
    finally:
        writer.kill()
    if not ok:
        return "the store does not verify", blocked
    if lost := missing(writer.acknowledged, found):
        return f"{lost} were acknowledged, but are not shown", blocked
    later, ok = read_all(place.open(READING))
    if gone := missing(found, later):
        return f"{gone} were shown, but are gone after the writer's death", blocked
    return failure if ok else "the store does not verify after the writer's death", blocked


def try_write(place: Place) -> tuple[str, bool]:
    """Return what is wrong with a write, and whether it was kept waiting."""
    try:
        with perdure.open(place.open(WRITING)) as store:
            store.session("s").append({"role": "user", "content": "me too"})
    except UnavailableError as error:
        is_hint = HINTS & {*re.findall("|".join(HINTS), str(error))}
        return "" if is_hint else f"a blocked write does not say what to do: {error}", True
    return "", False


def prepare(place: Place) -> None:
    with perdure.open(place.open(READING)) as store:
        store.session("s").append({"role": "user", "content": "first"})


def _trials(
    place: Place, seed: int, deadline: float, *, blocked: list[bool], counted: bool = True
) -> Iterator[Trial]:
    draw = random.Random(seed)
    prepare(place)
    for number in itertools.count(1):
        if not in_time(deadline):
            return
        call = draw.randrange(1, CALLS) if counted and number % 2 == 0 else 0
        writer = StoppedWriter(place, call=call, after=draw.uniform(0.01, LONGEST))
        if writer.ended:
            writer.kill()
            if writer.code:
                yield Trial(f"{seed}/{number}", f"the child failed with {writer.code}")
            continue  # The script has no call of that number.
        failure, held = judge(place, writer, is_async=number % 4 > 1)
        blocked.append(held)
        yield Trial(f"{seed}/{number}, call {call}", failure)


def files_trials(
    kind: Kind, seed: int, deadline: float, blocked: list[bool] | None = None
) -> Iterator[Trial]:
    held = [] if blocked is None else blocked
    for number in itertools.count(seed * 1_000):
        if not in_time(deadline):
            return
        with fast_directory() as directory:  # A new one, before its sessions become many.
            trials = _trials(files_place(kind, directory), number, deadline, blocked=held)
            yield from itertools.islice(trials, TRIALS)


def postgres_trials(seed: int, deadline: float) -> Iterator[Trial]:
    with running() as server:
        place = postgres_place(server.url)
        yield from _trials(place, seed, deadline, counted=False, blocked=[])


SAYS = "A writer that is stopped keeps no other process from reading all that was acknowledged"
PROMISES = [
    Promise("P8", SAYS, 1_000, lambda *given: files_trials(SQLITE, *given), "stopped-sqlite"),
    Promise("P8", SAYS, 1_000, lambda *given: files_trials(FILES, *given), "stopped-files"),
    Promise("P8", SAYS, 1_000, postgres_trials, "stopped-postgres"),
]
