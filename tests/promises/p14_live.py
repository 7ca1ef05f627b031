"""P14: a replayed agent changes nothing in live stores, whatever public call it makes, and how.

Agents are drawn that make public calls on a live store while they are replayed: directly, in
threads, pools, tasks and contexts of their own. Meanwhile another thread or task writes to the same
store, and must not be hindered. Every replay is a trial.
"""

import _thread
import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from perdure.backends.files import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Backend
from perdure.backends.sqlite import SqliteBackend
from tests.promises.p14_agents import drive, settled
from tests.promises.p14_calls import CALLS, Attempt, Live, Way, directly, replay_with, wrong
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

REPLAYS = 40  # On one store; filling one takes as long as several replays.
CALLS_MAX = 12  # Calls of one agent.
ASYNC_EVERY = 2
PAUSE = 0.001  # Seconds between the neighbor's writes.

KINDS: dict[str, Callable[[Path], Backend]] = {
    "memory": lambda _: MemoryBackend(),
    "files": lambda folder: FilesBackend(folder / "store"),
    "sqlite": lambda folder: SqliteBackend(folder / "agents.db"),
}


async def in_thread(attempt: Attempt) -> None:
    thread = threading.Thread(target=lambda: drive(attempt()))
    thread.start()
    thread.join()


async def in_raw_thread(attempt: Attempt) -> None:
    done = threading.Event()

    def work() -> None:
        try:
            drive(attempt())
        finally:
            done.set()

    _thread.start_new_thread(work, ())
    done.wait()


async def in_context(attempt: Attempt) -> None:
    contextvars.Context().run(drive, attempt())


async def in_task(attempt: Attempt) -> None:
    await asyncio.create_task(attempt())


async def in_task_of_a_context(attempt: Attempt) -> None:
    await asyncio.get_running_loop().create_task(attempt(), context=contextvars.Context())


def ways(pool: ThreadPoolExecutor, *, is_async: bool) -> list[Way]:
    """Return the ways to make a call; `pool` was started by other code than the agent."""

    async def in_pool(attempt: Attempt) -> None:
        pool.submit(lambda: drive(attempt())).result()

    if is_async:
        return [directly, in_task, in_task_of_a_context]
    return [directly, in_thread, in_raw_thread, in_context, in_pool]


class Neighbor:
    """Writes messages to the same store from another thread or task, and counts them."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.written = 0
        self._stopped = False

    async def work(self) -> None:
        while not self._stopped:
            await settled(self._session.append({"role": "user", "content": "n"}))
            self.written += 1
            if hasattr(self._session, "__aenter__"):
                await asyncio.sleep(PAUSE)
            else:
                time.sleep(PAUSE)  # noqa: ASYNC251 - a blocking session has a thread of its own

    def stop(self) -> None:
        self._stopped = True


async def beside(live: Live, neighbor: Neighbor, work: Any) -> Any:
    """Do work while the neighbor writes."""
    if live.is_async:
        task = asyncio.create_task(neighbor.work())
        try:
            return await work
        finally:
            neighbor.stop()
            await task
    thread = threading.Thread(target=lambda: drive(neighbor.work()))
    thread.start()
    try:
        return await work
    finally:
        neighbor.stop()
        thread.join()


async def replays(live: Live, rng: random.Random, deadline: float) -> list[Trial]:
    """Replay agents on one live store."""
    trials = []
    await live.fill()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        session = await settled(live.store.session("neighbor"))
        before, total = live.contents(beside="neighbor"), 0
        for _ in range(REPLAYS):
            if not in_time(deadline):
                break
            chosen = rng.choices([*CALLS], k=rng.randint(1, CALLS_MAX))
            way = rng.choice(ways(pool, is_async=live.is_async))
            neighbor = Neighbor(session)
            replay, tried = await beside(live, neighbor, replay_with(live, chosen, way))
            failure = wrong(replay, tried)
            if live.contents(beside="neighbor") != before:
                failure = failure or "the store has changed"
            total += neighbor.written
            if len(session) != total:
                failure = failure or f"the neighbor wrote {total}, and has {len(session)}"
            trials.append(Trial(f"{way.__name__}: {', '.join(chosen)}", failure))
    with suppress(Exception):  # What was wrong is told.
        await live.close()
    return trials


def trials(kind: str, seed: int, deadline: float) -> Iterator[Trial]:
    """Fill stores, and replay agents on each."""
    rng, number = random.Random(seed), 0
    while in_time(deadline):
        with fast_directory() as folder:
            backend = KINDS[kind](folder)
            if number % ASYNC_EVERY == 0:
                live = Live(backend, address="")
                yield from drive(replays(live, rng, deadline))
            else:
                live = Live(backend, ThreadedBackend(backend), address="")
                yield from asyncio.run(replays(live, rng, deadline))
            with suppress(Exception):
                backend.close()
        number += 1


SAYS = "A replayed agent writes to no live store, and everything that was refused is told"
PROMISES = [Promise("P14", SAYS, 10_000, partial(trials, kind), kind) for kind in KINDS]
