"""Work whose process is killed on the way, on every kind of store: a compaction, batches.

Each `Work` prepares a store, does something to it, and judges what a kill left: the judge looks at
the store, and then lets the work be done again, to its end. A process on files is killed at every
I/O call that changes one, or at every such system call by `strace`. On Postgres the client is
killed at every message of the protocol, or the server is, and the client goes on by itself.
"""

import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import perdure
from perdure.errors import UnavailableError
from tests.backends.postgres.server import new_schema
from tests.backends.postgres.server_keeper import running
from tests.promises import places, straced
from tests.promises.calls import LOOKS, Call
from tests.promises.children import collect, fork
from tests.promises.kinds import MODES, Kind
from tests.promises.p03_kills import LONG_RUN, Killer, Point
from tests.promises.promise import Trial, in_time
from tests.promises.proxy import WAYS, Cut, Proxy

SERVER_SHARE = 20  # One trial in so many kills the server: it takes a second to start again.


class Work(NamedTuple):
    """Something that is done to a store in one go."""

    name: str
    prepare: Callable[[perdure.Store], object]
    act: Callable[[perdure.Store], object]
    judge: Callable[[perdure.Store], str]
    """Says what is wrong with a store on which the work was cut off, and does it to the end."""


def judge(work: Work, address: str) -> str:
    """Open what a killed process left, and judge it."""
    try:
        with perdure.open(address) as store:
            return work.judge(store) or ("" if store.verify().ok else "the store is damaged")
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"


# On files.


class Place:
    """A store in a directory, which is prepared once and put back before every trial."""

    def __init__(self, work: Work, kind: Kind, folder: Path) -> None:
        self.work, self.kind = work, kind
        self._prepared, self.directory = folder / "prepared", folder / "store"
        for each in (self._prepared, self.directory):
            each.mkdir()
        with perdure.open(kind.address(self._prepared)) as store:
            work.prepare(store)

    def restore(self) -> None:
        self.kind.clear(self.directory)
        shutil.copytree(self._prepared, self.directory, dirs_exist_ok=True)

    def act(self, watcher: Callable[[Call], Any]) -> None:
        with self.kind.watched(self.directory, watcher) as open_backend:
            self.work.act(perdure.open(open_backend()))

    def points(self) -> list[Point]:
        """Return every point of the work, counted in a run that nobody kills."""
        ops: list[str] = []

        def count(call: Call) -> Any:
            if call.op not in LOOKS:
                ops.append(call.op)
            return call.do(call.data)

        self.restore()
        self.act(count)
        return [
            Point(number, how)
            for number, op in enumerate(ops, 1)
            for how in ("before", "half of", "after")
            if how != "half of" or op == "write"
        ]

    def system_calls(self) -> list[tuple[str, int]]:
        """Return every system call of the work that changes a file, by name and number."""
        self.restore()
        log = self.directory / "calls.strace"
        straced.trace(self.kind, self._program(), log=log)
        found = straced.counted(self.kind, log)
        return [(name, number) for name in found for number in range(1, found[name] + 1)]

    def killed_at(self, point: Point) -> Trial | None:
        """Kill a child at a point, and judge; None if it never got there."""
        self.restore()
        end = collect(*fork(lambda _: self.act(Killer(point))))
        return self._judged(f"killed {point.how} call {point.number}", end.code)

    def killed_by_strace(self, name: str, number: int) -> Trial | None:
        self.restore()
        end = straced.trace(self.kind, self._program(), f"{name}:signal=KILL:when={number}")
        return self._judged(f"killed by strace at {name} {number}", end.code)

    def _program(self) -> list[str]:
        module = "tests.promises.works"
        return ["-m", module, self.work.name, self.kind.name, str(self.directory)]

    def _judged(self, what: str, code: int) -> Trial | None:
        what = f"{self.work.name}, {what}"
        if code == -signal.SIGKILL:
            return Trial(what, judge(self.work, self.kind.address(self.directory)))
        return Trial(what, f"the child ended with {code}") if code else None


def file_trials(work: Work, kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    """Kill at every point, in random order; in long runs also at every system call."""
    draw, is_long = random.Random(seed), deadline - time.monotonic() > LONG_RUN
    with places.fast_directory() as folder:
        place = Place(work, kind, folder)
        kills = [partial(place.killed_at, point) for point in place.points()]
        if is_long and straced.WORKS:
            kills += [partial(place.killed_by_strace, *call) for call in place.system_calls()]
        while True:
            for kill in draw.sample(kills, len(kills)):
                if not in_time(deadline):
                    return
                if (trial := kill()) is not None:
                    yield trial


# On Postgres.

OPTIONS = "schema=perdure_work&sslmode=disable&gssencmode=disable&timeout=30&connections=2"
PATIENCE = 30.0  # Seconds that a client waits for a server that was killed.


class Line:
    """A server, and a proxy that kills a client, or the server, at a message of the protocol."""

    def __init__(self, url: str, crash: Callable[[], object] | None = None) -> None:
        self._url, self._crash = url, crash
        self._port = urlsplit(url).port or 0
        self._proxy = Proxy(self._port)

    def close(self) -> None:
        self._proxy.close()

    def cuts(self, work: Work) -> list[Cut]:
        """Return every message of a work, counted in a run that nobody kills.

        What the server sent to a client that is dead by then is lost in every way alike.
        """
        trial = self.killed_at(work, Cut(sys.maxsize, "before"))
        assert trial is None, trial
        return [
            Cut(number, way)
            for number, sender in enumerate(self._proxy.senders, 1)
            for way in (WAYS if sender == "client" else WAYS[:1])
        ]

    def killed_at(self, work: Work, cut: Cut, *, server: bool = False) -> Trial | None:
        """Kill the client or the server at a message, and judge; None if there was no such."""
        address = f"{self._url}?tenant={new_schema()}&{OPTIONS}"
        with perdure.open(address) as store:
            work.prepare(store)
        client: Future[int] = Future()
        kill = self._crash if server else lambda: os.kill(client.result(), signal.SIGKILL)
        self._proxy.arm(cut, kill)
        through = address.replace(f":{self._port}/", f":{self._proxy.port}/")
        child, reader = fork(lambda _: _act(work, through))
        client.set_result(child)
        end = collect(child, reader)
        self._proxy.disarm()
        if not self._proxy.done:
            return Trial(work.name, f"the child ended with {end.code}") if end.code else None
        what = f"{work.name}, {'server' if server else 'client'} killed {self._proxy.done}"
        what += f" (message {cut.number})"
        if end.code != (0 if server else -signal.SIGKILL):
            return Trial(what, f"the child ended with {end.code}")
        return Trial(what, judge(work, address))


def _act(work: Work, address: str) -> object:
    """Do the work; opening does not wait for a server that was killed, so it is tried again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            store = perdure.open(address)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return work.act(store)


def postgres_trials(work: Work, seed: int, deadline: float) -> Iterator[Trial]:
    """Kill the client at every message, in each way, and the server at some."""
    draw, counts = random.Random(seed), itertools.count(1)
    with running() as server:

        def crash() -> None:
            server.stop(signal.SIGKILL)
            server.start()

        line = Line(server.url, crash)
        try:
            every = line.cuts(work)
            while True:
                for cut in draw.sample(every, len(every)):
                    if not in_time(deadline):
                        return
                    is_server = next(counts) % SERVER_SHARE == 0
                    if (trial := line.killed_at(work, cut, server=is_server)) is not None:
                        yield trial
        finally:
            line.close()


def main(name: str, kind: str, directory: str) -> None:
    """Do one work, as a program that `strace` watches."""
    from tests.promises import p03_batches, p03_bodies, p03_compactions

    every = (p03_batches.WORK, p03_bodies.WORK, p03_compactions.WORK)
    work = {work.name: work for work in every}[name]
    with perdure.open(MODES[kind].opener(Path(directory))()) as store:
        work.act(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
