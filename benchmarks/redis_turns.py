"""Turns a second in Redis: many sessions at once, and a lone append against a raw XADD.

The server is the Valkey of the tests, on this machine, with `appendfsync always`;
PERDURE_TEST_REDIS names another one. Contenders take turns within every round, and only ratios
within a round are compared.
"""

import asyncio
import importlib.util
import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redis

import perdure
from benchmarks.contenders import encoded
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import SEED, Turn, triples, turns
from tests.backends.redis.server import OTHER, Server

SESSIONS = 64
POOL = 256
LEAST_PEER = 3.0
LONE_MOST = 1.5

Work = Callable[[int, int], Any]


class Race(NamedTuple):
    """Where the server is, what to store again and again, and for how long."""

    url: str
    turns: list[Turn]
    seconds: float

    @property
    def name(self) -> str:
        """A new name for each run, so that no run finds the keys of another."""
        return f"bench_{secrets.token_hex(4)}"

    def turn(self, number: int, count: int) -> Turn:
        return self.turns[(number * 7 + count) % len(self.turns)]


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
        async with perdure.open_async(f"{race.url}?tenant={race.name}") as store:
            sessions = [await store.session(f"session-{n:05}") for n in range(SESSIONS)]
            return await _tasks(race, lambda n, count: sessions[n].append(*race.turn(n, count)))

    return asyncio.run(run())


def agents_session(race: Race) -> float:
    """The Agents SDK's RedisSession: the items of a turn in one call, sessions share a client."""

    async def run() -> float:
        from agents.extensions.memory import RedisSession
        from redis.asyncio import Redis

        client = Redis.from_url(race.url)
        prefix = race.name
        sessions = [
            RedisSession(f"session-{n:05}", redis_client=client, key_prefix=prefix)
            for n in range(SESSIONS)
        ]

        async def work(number: int, count: int) -> None:
            await sessions[number].add_items([*race.turn(number, count)])

        try:
            return await _tasks(race, work)
        finally:
            await client.aclose()

    return asyncio.run(run())


class Contender(NamedTuple):
    """`package` is what must be installed."""

    label: str
    run: Callable[[Race], float]
    package: str = ""


TASKS = Contender("perdure, asyncio tasks", perdure_tasks)
PEER = Contender("Agents SDK RedisSession.add_items", agents_session, "agents")
CONTENDERS = (TASKS, PEER)


def measure(_folder: Path, *, rounds: int, seconds: float, pairs: int) -> Part:
    """Run everything in rounds and return the tables, the lines and the raw figures."""
    present = [one for one in CONTENDERS if not one.package or _installed(one.package)]
    progress = Progress("redis", rounds * (len(present) + 1))
    found: dict[str, list[float]] = {one.label: [] for one in present}
    lone: tuple[list[float], list[float]] = ([], [])
    rng = random.Random(SEED)
    with _server(_folder) as url:
        race = Race(url, turns(POOL), seconds)
        for _ in range(rounds):
            for one in rng.sample(present, len(present)):
                found[one.label].append(one.run(race))
                progress.step(f"{one.label}: {found[one.label][-1]:,.0f} turns/s")
            for kept, more in zip(lone, lone_pairs(race, pairs // rounds), strict=True):
                kept.extend(more)
            progress.step("a lone append and a raw XADD, in pairs")
    part = Part("redis")
    part.data = {"rounds": found, "lone_us": [[1e6 * t for t in times] for times in lone]}
    rows = [[label, f"{statistics.median(rates):,.0f}"] for label, rates in found.items()]
    part.tables.append(table([f"{SESSIONS} sessions", "turns/s"], rows))
    part.lines = [_peer_line(found), _lone_line(*lone)]
    return part


def lone_pairs(race: Race, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of appends by one session, and of raw XADDs of the same bytes.

    The two alternate, and so does which of them is first.
    """
    pool = triples(64)
    rows = encoded(pool)
    ours: list[float] = []
    raw: list[float] = []
    key = race.name
    with (
        redis.Redis.from_url(race.url) as client,
        perdure.open(f"{race.url}?tenant={race.name}") as store,
    ):
        session = store.session("session-00000")
        session.append(*pool[0])

        def append(number: int) -> None:
            session.append(*pool[number])

        def add(number: int) -> None:
            headers = "".join(header for header, _ in rows[number])
            bodies = "".join(body for _, body in rows[number])
            client.xadd(key, {"h": headers, "b": bodies})

        both = [(ours, append), (raw, add)]
        for count in range(pairs):
            for times, work in both if count % 2 else both[::-1]:
                start = time.perf_counter()
                work(count % len(pool))
                times.append(time.perf_counter() - start)
    return ours, raw


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _peer_line(found: dict[str, list[float]]) -> Line:
    says = f"{SESSIONS} sessions in one process, beside {PEER.label}"
    bound = f"at least {LEAST_PEER:.0f}×"
    if PEER.label not in found:
        return Line(says, "not installed", bound, None)
    pairs = zip(found[TASKS.label], found[PEER.label], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Line(says, f"{ratio:.1f}×", bound, ratio >= LEAST_PEER)


def _lone_line(ours: list[float], raw: list[float]) -> Line:
    ours_median, base = statistics.median(ours), statistics.median(raw)
    return Line(
        "a lone append of three messages, beside a raw XADD of the same bytes",
        f"{ours_median / base:.2f}×, {1e6 * ours_median:,.0f} µs and {1e6 * base:,.0f} µs",
        f"at most {LONE_MOST}×",
        ours_median <= LONE_MOST * base,
    )


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    if OTHER in os.environ:
        yield os.environ[OTHER]
        return
    server = Server(folder / "valkey")
    try:
        yield server.url
    finally:
        server.stop()
