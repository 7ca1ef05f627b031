"""What a durable step costs beside DBOS: many sessions that run tools at once, on SQLite.

perdure makes an intent durable before an unsafe tool runs and its outcome after, two appends a
step; a read-only one is stored once, after it ran. DBOS looks a step up before it runs and records
its result after, and no intent. Steps do nothing, so all of their time is what is added. The clock
runs from when every session has begun until every one has made its steps. Both sync each commit
(`synchronous = FULL`); DBOS as it comes keeps a rollback journal, and is measured a second time
with its file set to WAL by hand, as perdure has it.
"""

import asyncio
import importlib.util
import random
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import apsw

import perdure
from benchmarks.effects_clock import Clock, Result, join, look_up, started
from benchmarks.effects_dbos import Dbos
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import SEED

SESSIONS = 64
LONE_STEPS = 10  # Times the steps of many: there are fewer sessions to make them.
UNSAFE_MOST, READ_ONLY_MOST = 0.5, 0.3  # of DBOS's time in WAL mode


Effect = Literal["unsafe", "read_only"]


def perdure_threads(folder: Path, sessions: int, steps: int, effect: Effect = "unsafe") -> Result:
    clock = Clock()
    ready, done = threading.Barrier(sessions, clock.start), threading.Barrier(sessions + 1)
    path = folder / "perdure.db"
    with perdure.open(path) as store:

        def work(number: int) -> None:
            session = store.session(f"session-{number:05}")
            tool = session.tool(look_up, effect=effect)
            with session.turn("Look it up."):
                ready.wait()
                for step in range(steps):
                    tool(step)
                done.wait()

        threads = started(sessions, work)
        done.wait()
        result = clock.result(sessions * steps, _settings(path))
        join(threads)
        return result


def perdure_tasks(folder: Path, sessions: int, steps: int, effect: Effect = "unsafe") -> Result:
    path = folder / "perdure.db"

    async def look_up_soon(number: int) -> dict[str, int]:
        return {"number": number}

    async def run() -> Result:
        clock = Clock()
        ready, done = asyncio.Barrier(sessions), asyncio.Barrier(sessions + 1)
        async with perdure.open_async(path) as store:

            async def work(number: int) -> None:
                session = await store.session(f"session-{number:05}")
                tool = session.tool(look_up_soon, effect=effect)
                async with session.turn("Look it up."):
                    if await ready.wait() == 0:
                        clock.start()
                    for step in range(steps):
                        await tool(step)
                    await done.wait()

            tasks = [asyncio.create_task(work(number)) for number in range(sessions)]
            await done.wait()
            result = clock.result(sessions * steps, _settings(path))
            await asyncio.gather(*tasks)
            return result

    return asyncio.run(run())


def _settings(path: Path) -> str:
    """Return how perdure's file is kept; its connections set `synchronous` themselves."""
    database = apsw.Connection(str(path))
    mode = database.pragma("journal_mode")
    database.close()
    return f"{mode}, full"


class Contender(NamedTuple):
    """Somebody who runs steps. It is compared with others of the same `kind`."""

    label: str
    kind: str
    run: Callable[[Path, int, int], Result]
    package: str = ""


OURS = (
    Contender("perdure, tasks", "tasks", perdure_tasks),
    Contender("perdure, threads", "threads", perdure_threads),
    Contender("perdure read-only, tasks", "tasks", partial(perdure_tasks, effect="read_only")),
    Contender(
        "perdure read-only, threads", "threads", partial(perdure_threads, effect="read_only")
    ),
)
THEIRS = (
    Contender("DBOS, tasks", "tasks", Dbos(wal=False).tasks, "dbos"),
    Contender("DBOS, threads", "threads", Dbos(wal=False).threads, "dbos"),
    Contender("DBOS in WAL, tasks", "tasks", Dbos(wal=True).tasks, "dbos"),
    Contender("DBOS in WAL, threads", "threads", Dbos(wal=True).threads, "dbos"),
)


def measure(folder: Path, *, rounds: int, steps: int) -> Part:
    """Run everybody in every round, in any order; compare within a round."""
    present = [
        one
        for one in (*OURS, *THEIRS)
        if not one.package or importlib.util.find_spec(one.package) is not None
    ]
    progress = Progress("effects", 2 * rounds * len(present))
    part = Part("effects")
    for sessions, each in ((SESSIONS, steps), (1, LONE_STEPS * steps)):
        results: dict[str, list[Result]] = {one.label: [] for one in present}
        rng = random.Random(SEED)
        for _ in range(rounds):
            for one in rng.sample(present, len(present)):
                place = Path(tempfile.mkdtemp(dir=folder))
                try:
                    result = one.run(place, sessions, each)
                finally:
                    shutil.rmtree(place)
                results[one.label].append(result)
                progress.step(f"{one.label}: {1e6 * result.seconds:,.0f} µs a step")
        _report(part, sessions, results)
    missing = [one for one in THEIRS if one not in present]
    limit = f"at most {UNSAFE_MOST}×"
    part.lines += [Line(one.label, "not installed", limit, None) for one in missing]
    return part


def _report(part: Part, sessions: int, results: dict[str, list[Result]]) -> None:
    rows = []
    data = part.data[str(sessions)] = {}
    for one in (*OURS, *THEIRS):
        found = results.get(one.label)
        if not found:
            rows.append([one.label, "not installed", "", "", "", ""])
            continue
        seconds = statistics.median(each.seconds for each in found)
        cpu = statistics.median(each.cpu for each in found)
        unsafe = _ratio(results[f"perdure, {one.kind}"], found)
        read_only = _ratio(results[f"perdure read-only, {one.kind}"], found)
        data[one.label] = {
            "us_a_step": 1e6 * seconds,
            "cpu_us_a_step": 1e6 * cpu,
            "settings": found[0].settings,
            "rounds": [[*each] for each in found],
        }
        times = ["", ""] if one in OURS else [f"{unsafe:.2f}×", f"{read_only:.2f}×"]
        figures = [f"{1e6 * seconds:,.0f}", f"{1e6 * cpu:,.0f}"]
        rows.append([one.label, *figures, *times, found[0].settings])
        if one in THEIRS:
            many = f"{sessions} sessions" if sessions > 1 else "one session"
            against = f"step of perdure's against one of {one.label}, {many}"
            for kind, ratio, most in (
                ("an unsafe", unsafe, UNSAFE_MOST),
                ("a read-only", read_only, READ_ONLY_MOST),
            ):
                line = Line(f"{kind} {against}", f"{ratio:.2f}×", f"at most {most}×", ratio <= most)
                part.lines.append(line)
    many = f"{sessions} sessions" if sessions > 1 else "one session"
    head = [many, "µs a step", "CPU µs a step", "perdure to it", "read-only to it", "journal, sync"]
    part.tables.append(table(head, rows))


def _ratio(ours: list[Result], theirs: list[Result]) -> float:
    return statistics.median(
        mine.seconds / other.seconds for mine, other in zip(ours, theirs, strict=True)
    )
