"""P30: what safety costs is small and known. What can be counted is counted here, without a clock.

A trial of the Full run is one round of pairs: a lone append and a raw commit of the same bytes, in
turns, on the same disk. Its median difference must stay within the bound; a machine that was busy
with something else shows in both, and a round that fails is tried once more before it counts.
"""

import asyncio
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import perdure
from benchmarks import speed
from benchmarks.counting import SyncCounter, sync_counter
from benchmarks.workload import turns
from perdure.backends.offload import ThreadedBackend
from perdure.backends.sqlite.backend import SqliteBackend
from tests.promises.promise import Promise, Trial, in_time

SESSIONS = 64
TURNS = 8  # Of each session.
SYNC_TAKES = 0.02  # Seconds: as a disk's does. One in memory takes none, and nobody waits for it.
PAIRS = 100  # Of a round; enough for a median, and a round takes about a second.


class Counted(NamedTuple):
    """Appends that were acknowledged, and the syncs that it took."""

    appends: int
    syncs: int

    @property
    def each(self) -> float:
        return self.syncs / self.appends


def lone(folder: Path, appends: int) -> list[int]:
    """Return how many syncs each of some appends took that nobody else shared."""
    said = turns(appends + 1)
    with sync_counter() as counter:
        backend = SqliteBackend(folder / "lone.db", vfs=counter.name)
        with perdure.open(backend) as store:
            session = store.session("session-00000")
            session.append(*said[0])  # The first one makes the log, and syncs its directory too.
            found = []
            for turn in said[1:]:
                before = counter.syncs
                session.append(*turn)
                found.append(counter.syncs - before)
    return found


def by_threads(folder: Path) -> Counted:
    """Let a thread for each session append its turns; count the syncs."""
    said = turns(TURNS)
    with sync_counter(SYNC_TAKES) as counter:
        backend = SqliteBackend(folder / "threads.db", vfs=counter.name)
        with perdure.open(backend) as store:
            sessions = [store.session(f"session-{number:05}") for number in range(SESSIONS)]
            ready = threading.Barrier(SESSIONS)

            def work(session: perdure.Session) -> None:
                ready.wait()
                for turn in said:
                    session.append(*turn)

            threads = [threading.Thread(target=work, args=(one,)) for one in sessions]
            before = counter.syncs
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            syncs = counter.syncs - before
            _require_all(len(session) for session in sessions)
    return Counted(SESSIONS * TURNS, syncs)


def by_tasks(folder: Path) -> Counted:
    """Let a task for each session append its turns; count the syncs."""
    with sync_counter() as counter:
        return asyncio.run(_by_tasks(folder, counter))


async def _by_tasks(folder: Path, counter: SyncCounter) -> Counted:
    said = turns(TURNS)
    backend = SqliteBackend(folder / "tasks.db", vfs=counter.name)
    async with perdure.open_async(ThreadedBackend(backend)) as store:
        sessions = [await store.session(f"session-{number:05}") for number in range(SESSIONS)]

        async def work(session: perdure.AsyncSession) -> None:
            for turn in said:
                await session.append(*turn)

        before = counter.syncs
        await asyncio.gather(*map(work, sessions))
        syncs = counter.syncs - before
        _require_all(len(session) for session in sessions)
    return Counted(SESSIONS * TURNS, syncs)


def _require_all(lengths: Iterator[int]) -> None:
    messages = sum(map(len, turns(TURNS)))
    assert all(length == messages for length in lengths), "an append is missing"


def counted_trial(what: str, count: Callable[[Path], Counted]) -> Trial:
    """Try that appends at the same time share their syncs."""
    with tempfile.TemporaryDirectory() as folder:
        found = count(Path(folder))
    if found.each <= speed.SYNCS_MAX:
        return Trial(what)
    return Trial(what, f"{found.syncs} syncs for {found.appends} appends")


def pairs_trial(what: str) -> Trial:
    """Try that a lone append costs little more than a raw commit of the same bytes."""
    failure = ""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            ours, raw = speed.lone_pairs(Path(folder), PAIRS)
        difference = statistics.median(a - b for a, b in zip(ours, raw, strict=True))
        bound = max(speed.LONE_SHARE * statistics.median(raw), speed.LONE_FLOOR)
        if difference <= bound:
            return Trial(what)
        failure = f"{1e6 * difference:.0f} µs more than a raw commit, bound {1e6 * bound:.0f} µs"
    return Trial(what, failure)


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Count the syncs of threads and of tasks, then run rounds of pairs."""
    yield counted_trial("64 threads", by_threads)
    yield counted_trial("64 tasks", by_tasks)
    number = 0
    while in_time(deadline):
        number += 1
        yield pairs_trial(f"round {number} of seed {seed}, {PAIRS} pairs")


PROMISE = Promise("P30", "The cost of safety is small and known", 200, trials)
