"""Turns a second in PostgreSQL: many sessions at once, and a lone append against a raw INSERT.

The server is that of the tests, on this machine, with `fsync = on`; PERDURE_TEST_POSTGRES names
another one. Contenders take turns within every round, and only ratios within a round are compared.
"""

import asyncio
import importlib.util
import os
import random
import secrets
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

import perdure
from benchmarks.contenders import Rows, encoded
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import SEED, Turn, triples, turns
from tests.backends.postgres.server import OTHER
from tests.backends.postgres.server_keeper import running

SESSIONS = 64
CONNECTIONS = 8
POOL = 256
LEAST_EACH, LEAST_PEER = 3.0, 10.0
LONE_SHARE, LONE_FLOOR = 0.5, 500e-6

CREATE = sql.SQL(
    "create table if not exists {} (id bigserial primary key, header bytea, body bytea)"
)
INSERT = "insert into {} (header, body) select * from unnest(%b::bytea[], %b::bytea[])"


class Race(NamedTuple):
    """Where the server is, what to store again and again, and for how long."""

    url: str
    turns: Sequence[Turn]
    rows: Sequence[Rows]
    seconds: float

    @property
    def schema(self) -> str:
        """A new name for each run, so that nobody inherits tables."""
        return f"bench_{secrets.token_hex(4)}"


Work = Callable[[int, int], Any]


async def _tasks(race: Race, work: Work) -> float:
    """Return the turns a second of tasks that each store one after the other."""
    await asyncio.gather(*(work(number, 0) for number in range(SESSIONS)))
    start = time.perf_counter()

    async def one(number: int) -> int:
        count = 0
        while time.perf_counter() - start < race.seconds:
            count += 1
            await work(number, count)
        return count

    counts = await asyncio.gather(*map(one, range(SESSIONS)))
    return sum(counts) / (time.perf_counter() - start)


def perdure_tasks(race: Race) -> float:
    async def run() -> float:
        async with perdure.open_async(f"{race.url}?schema={race.schema}") as store:
            sessions = [await store.session(f"session-{n:05}") for n in range(SESSIONS)]
            return await _tasks(race, lambda n, count: sessions[n].append(*_turn(race, n, count)))

    return asyncio.run(run())


def perdure_threads(race: Race) -> float:
    with perdure.open(f"{race.url}?schema={race.schema}") as store:
        sessions = [store.session(f"session-{n:05}") for n in range(SESSIONS)]
        for number, session in enumerate(sessions):
            session.append(*_turn(race, number, 0))
        counts = [0] * SESSIONS
        start = time.perf_counter()

        def work(number: int) -> None:
            while time.perf_counter() - start < race.seconds:
                counts[number] += 1
                sessions[number].append(*_turn(race, number, counts[number]))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(SESSIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - start)


def commit_each(race: Race, connections: int = 1) -> float:
    """One INSERT and commit for a turn."""

    async def run() -> float:
        name = race.schema
        async with _connections(race.url, connections) as free:
            async with await psycopg.AsyncConnection.connect(race.url, autocommit=True) as setup:
                await setup.execute(CREATE.format(sql.Identifier(name)))
            statement = INSERT.format(name).encode()

            async def work(number: int, count: int) -> None:
                rows = race.rows[(number * 7 + count) % len(race.rows)]
                connection = await free.get()
                try:
                    await connection.execute(statement, _columns(rows))
                finally:
                    free.put_nowait(connection)

            return await _tasks(race, work)

    return asyncio.run(run())


def langgraph_saver(race: Race) -> float:
    """The turn alone as a checkpoint; a real graph would store the whole conversation."""

    async def run() -> float:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(
            race.url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options, open=False
        ) as pool:
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            before: dict[int, str] = {}

            async def work(number: int, count: int) -> None:
                checkpoint = empty_checkpoint()
                checkpoint["channel_values"] = {"messages": _turn(race, number, count)}
                checkpoint["channel_versions"] = {"messages": count + 1}
                place = {"thread_id": f"{race_id}-{number}", "checkpoint_ns": ""}
                if number in before:
                    place["checkpoint_id"] = before[number]
                metadata: Any = {"source": "loop", "step": count, "parents": {}}
                versions: Any = {"messages": count + 1}
                await saver.aput({"configurable": place}, checkpoint, metadata, versions)
                before[number] = checkpoint["id"]

            race_id = race.schema
            return await _tasks(race, work)

    return asyncio.run(run())


class Contender(NamedTuple):
    """`package` is what must be installed."""

    label: str
    run: Callable[[Race], float]
    package: str = ""


TASKS = Contender("perdure, asyncio tasks", perdure_tasks)
THREADS = Contender("perdure, threads", perdure_threads)
EACH = Contender("psycopg, a commit a turn", commit_each)
MANY = Contender(
    f"psycopg, a commit a turn, {CONNECTIONS} connections",
    partial(commit_each, connections=CONNECTIONS),
)
PEER = Contender("LangGraph AsyncPostgresSaver.aput", langgraph_saver, "langgraph")
CONTENDERS = (TASKS, THREADS, EACH, MANY, PEER)


def measure(_folder: Path, *, rounds: int, seconds: float, pairs: int) -> Part:
    """Run everything in rounds and return the tables, the lines and the raw figures."""
    pool = turns(POOL)
    present = [one for one in CONTENDERS if _installed(one)]
    progress = Progress("postgres", rounds * (len(present) + 1))
    found: dict[str, list[float]] = {one.label: [] for one in present}
    lone: tuple[list[float], list[float]] = ([], [])
    rng = random.Random(SEED)
    with _server() as url:
        race = Race(url, pool, encoded(pool), seconds)
        for _ in range(rounds):
            for one in rng.sample(present, len(present)):
                found[one.label].append(one.run(race))
                progress.step(f"{one.label}: {found[one.label][-1]:,.0f} turns/s")
            for kept, more in zip(lone, lone_pairs(race, pairs // rounds), strict=True):
                kept.extend(more)
            progress.step("a lone append and a raw INSERT, in pairs")
    part = Part("postgres")
    part.data = {"rounds": found, "lone_us": [[1e6 * t for t in times] for times in lone]}
    rows = [[label, f"{statistics.median(rates):,.0f}"] for label, rates in found.items()]
    part.tables.append(table(["64 sessions", "turns/s"], rows))
    part.lines = [
        _ratio_line(found, EACH.label, LEAST_EACH),
        _ratio_line(found, MANY.label, None),
        _ratio_line(found, PEER.label, LEAST_PEER),
        _lone_line(*lone),
    ]
    return part


def lone_pairs(race: Race, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of appends by one session, and of raw INSERTs of the same bytes.

    The two alternate, and so does which of them is first.
    """
    pool = triples(64)
    rows = encoded(pool)
    ours: list[float] = []
    raw: list[float] = []
    name = race.schema
    statement = INSERT.format(name).encode()
    with (
        psycopg.connect(race.url, autocommit=True) as connection,
        perdure.open(f"{race.url}?schema={race.schema}") as store,
    ):
        connection.execute(CREATE.format(sql.Identifier(name)))
        session = store.session("session-00000")
        session.append(*pool[0])

        def append(number: int) -> None:
            session.append(*pool[number])

        def insert(number: int) -> None:
            connection.execute(statement, _columns(rows[number]))

        both = [(ours, append), (raw, insert)]
        for count in range(pairs):
            for times, work in both if count % 2 else both[::-1]:
                start = time.perf_counter()
                work(count % len(pool))
                times.append(time.perf_counter() - start)
    return ours, raw


def _columns(rows: Rows) -> tuple[list[bytes], list[bytes]]:
    return [header.encode() for header, _ in rows], [body.encode() for _, body in rows]


def _turn(race: Race, number: int, count: int) -> Turn:
    return race.turns[(number * 7 + count) % len(race.turns)]


def _installed(one: Contender) -> bool:
    return not one.package or importlib.util.find_spec(one.package) is not None


def _ratio_line(found: dict[str, list[float]], label: str, least: float | None) -> Line:
    says = f"64 sessions in one process, beside {label}"
    bound = "no bound" if least is None else f"at least {least:.0f}×"
    if label not in found:
        return Line(says, "not installed", bound, None)
    pairs = zip(found[TASKS.label], found[label], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Line(says, f"{ratio:.1f}×", bound, None if least is None else ratio >= least)


def _lone_line(ours: list[float], raw: list[float]) -> Line:
    difference = statistics.median(a - b for a, b in zip(ours, raw, strict=True))
    base = statistics.median(raw)
    bound = max(LONE_SHARE * base, LONE_FLOOR)
    return Line(
        "a lone append of three messages, beyond a raw INSERT of the same bytes",
        f"{1e6 * difference:,.0f} µs on top of {1e6 * base:,.0f} µs",
        f"at most {1e6 * bound:,.0f} µs",
        difference <= bound,
    )


@contextmanager
def _server() -> Iterator[str]:
    if OTHER in os.environ:
        yield os.environ[OTHER]
        return
    with running("shared_buffers=128MB") as server:
        yield server.url


@asynccontextmanager
async def _connections(
    url: str, count: int
) -> AsyncIterator["asyncio.Queue[psycopg.AsyncConnection[Any]]"]:
    free: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
    opened = []
    for _ in range(count):
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        opened.append(connection)
        free.put_nowait(connection)
    try:
        yield free
    finally:
        for connection in opened:
            await connection.close()
