"""Those who store turns of many sessions at once, each run the way that its users run it.

All write to files of their own in the same folder. perdure and the raw commits are durable when a
turn is counted; `SQLiteSession` is too (its SQLite syncs each commit by default); the rewritten
JSON file is not, nor is it safe against a crash in the middle.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import perdure
from benchmarks.counting import SyncCounter
from benchmarks.workload import Turn
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Outcome
from perdure.backends.sqlite.backend import SqliteBackend

SESSIONS = 64

Rows = list[tuple[str, str]]


class Race(NamedTuple):
    """What a contender gets: a new folder, turns to store again and again, and how long."""

    folder: Path
    turns: Sequence[Turn]
    seconds: float
    rows: Sequence[Rows] = ()
    """The same turns as perdure stores them: headers and bodies, encoded and hashed."""
    counter: SyncCounter | None = None

    @property
    def vfs(self) -> str | None:
        """The name of what SQLite should write through."""
        return self.counter.name if self.counter else None


class Result(NamedTuple):
    """Turns stored, and the seconds, processor seconds and syncs (if counted) that it took."""

    turns: int
    seconds: float
    cpu: float
    syncs: int = 0


class _Watch:
    """Starts when it is made; says when the time is over, and what was achieved."""

    def __init__(self, race: Race) -> None:
        self._counter = race.counter
        self._syncs = self._counter.syncs if self._counter else 0
        self._cpu = time.process_time()
        self._start = time.perf_counter()
        self._end = self._start + race.seconds

    def runs(self) -> bool:
        return time.perf_counter() < self._end

    def result(self, turns: int) -> Result:
        seconds = time.perf_counter() - self._start
        syncs = self._counter.syncs - self._syncs if self._counter else 0
        return Result(turns, seconds, time.process_time() - self._cpu, syncs)


def encoded(turns: Sequence[Turn]) -> list[Rows]:
    """Return headers and bodies as perdure would store them, one list a turn."""
    stored: list[Rows] = []

    class Recorder(MemoryBackend):
        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            entries = appends[0].entries
            stored.append([(e.header.decode(), (e.body or b"").decode()) for e in entries])
            return super().append(appends)

    with perdure.open(Recorder()) as store:
        for number, turn in enumerate(turns):
            # A session for each, so that no turn carries a fold snapshot or a whole history.
            store.session(f"session-{number:05}").append(*turn)
    return stored


def perdure_tasks(race: Race) -> Result:
    async def run() -> Result:
        backend = SqliteBackend(race.folder / "perdure.db", vfs=race.vfs)
        async with perdure.open_async(ThreadedBackend(backend)) as store:
            sessions = [await store.session(f"session-{n:05}") for n in range(SESSIONS)]
            await asyncio.gather(*(s.append(*race.turns[0]) for s in sessions))
            watch = _Watch(race)

            async def work(number: int) -> int:
                count, session = 0, sessions[number]
                while watch.runs():
                    await session.append(*_turn(race.turns, number, count))
                    count += 1
                return count

            counts = await asyncio.gather(*map(work, range(SESSIONS)))
            return watch.result(sum(counts))

    return asyncio.run(run())


def perdure_threads(race: Race) -> Result:
    backend = SqliteBackend(race.folder / "perdure.db", vfs=race.vfs)
    with perdure.open(backend) as store:
        sessions = [store.session(f"session-{n:05}") for n in range(SESSIONS)]
        for session in sessions:
            session.append(*race.turns[0])
        counts = [0] * SESSIONS
        ready = threading.Barrier(SESSIONS + 1)
        watches: list[_Watch] = []

        def work(number: int) -> None:
            session = sessions[number]
            ready.wait()
            ready.wait()
            while watches[0].runs():
                session.append(*_turn(race.turns, number, counts[number]))
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(SESSIONS)]
        for thread in threads:
            thread.start()
        ready.wait()
        watches.append(_Watch(race))
        ready.wait()
        for thread in threads:
            thread.join()
        return watches[0].result(sum(counts))


def sqlite_session(race: Race) -> Result:
    from agents import SQLiteSession

    async def run() -> Result:
        path = race.folder / "agents.db"
        sessions = [SQLiteSession(f"session-{n:05}", path) for n in range(SESSIONS)]
        await asyncio.gather(*(s.add_items(race.turns[0]) for s in sessions))
        watch = _Watch(race)

        async def work(number: int) -> int:
            count, session = 0, sessions[number]
            while watch.runs():
                await session.add_items(_turn(race.turns, number, count))
                count += 1
            return count

        counts = await asyncio.gather(*map(work, range(SESSIONS)))
        result = watch.result(sum(counts))
        for session in sessions:
            session.close()
        return result

    return asyncio.run(run())


def commit_each(race: Race) -> Result:
    return _raw(race, group=1)


def commit_groups(race: Race) -> Result:
    return _raw(race, group=SESSIONS)


def json_rewrite(race: Race) -> Result:
    paths = [race.folder / f"session-{n:05}.json" for n in range(SESSIONS)]
    histories: list[list[Any]] = [[] for _ in paths]
    count, watch = 0, _Watch(race)
    while watch.runs():
        number = count % SESSIONS
        histories[number] += _turn(race.turns, number, count // SESSIONS)
        with paths[number].open("w") as file:
            json.dump(histories[number], file)
        count += 1
    return watch.result(count)


def raw_connection(path: Path, vfs: str | None = None) -> apsw.Connection:
    """Open a database as a careful program without perdure would: WAL and FULL, one table."""
    db = apsw.Connection(str(path), vfs=vfs)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.execute("create table entry (id integer primary key, header text, body text)")
    return db


def raw_commit(db: apsw.Connection, rows: Rows) -> None:
    db.execute("begin immediate")
    db.executemany("insert into entry (header, body) values (?, ?)", rows)
    db.execute("commit")


def _raw(race: Race, *, group: int) -> Result:
    db = raw_connection(race.folder / "raw.db", race.vfs)
    raw_commit(db, race.rows[0])
    count, watch = 0, _Watch(race)
    while watch.runs():
        batch: Rows = []
        for number in range(count, count + group):
            batch += race.rows[number % len(race.rows)]
        raw_commit(db, batch)
        count += group
    result = watch.result(count)
    db.close()
    return result


def _turn(turns: Sequence[Turn], number: int, count: int) -> Turn:
    return turns[(number * 7 + count) % len(turns)]


class Contender(NamedTuple):
    """`package` is what must be installed; `countable` says whether its syncs can be counted."""

    label: str
    run: Callable[[Race], Result]
    package: str = ""
    countable: bool = False
    note: str = ""


TASKS = Contender("perdure, asyncio tasks", perdure_tasks, countable=True)
THREADS = Contender("perdure, threads", perdure_threads, countable=True)
PEER = Contender("Agents SDK SQLiteSession", sqlite_session, package="agents")
CONTENDERS = (
    Contender(
        "bare loop, groups of 64", commit_groups, countable=True, note="encoded and hashed before"
    ),
    TASKS,
    THREADS,
    Contender("raw apsw, a commit a turn", commit_each, countable=True, note="encoded before"),
    PEER,
    Contender("JSON file rewritten", json_rewrite, note="never synced; histories still short"),
)
