"""A session of the Agents SDK: perdure's beside the SDK's own SQLiteSession, call by call.

Both do the same in turns, on files of the same disk, with items of 300 B. What is compared is the
processor time of the whole process, because the SDK's session works in threads.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from benchmarks.report import Line, Part, Progress, table

ITEMS = 5_000  # in the session, before what is measured
BATCH = 100
# The operation, and how often the SDK's time perdure may take.
BOUNDS = {
    "add one item": 1.2,
    "add 100 items": 1.5,
    "all of 5,100 items, warm": 0.5,
    "all of 5,100 items, cold": 3.5,
    "the newest 20": None,
    "pop": 1.5,
}


class Times(NamedTuple):
    """Processor seconds and seconds of one call."""

    cpu: float
    wall: float


def _item(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{number:06} " + "x" * 260}


class Sdk:
    """The SDK's own session."""

    name = "SQLiteSession"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sdk.db"

    async def open(self, id: str) -> Any:
        from agents import SQLiteSession

        return SQLiteSession(id, self._path)

    async def close(self, session: Any) -> None:
        session.close()


class Own:
    """perdure's session."""

    name = "PerdureSession"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "perdure.db"
        self._stores: dict[Any, Any] = {}

    async def open(self, id: str) -> Any:
        from perdure.adapters.openai_agents import PerdureSession

        store = perdure.open_async(self._path)
        session = PerdureSession(id, store)
        self._stores[session] = store
        return session

    async def close(self, session: Any) -> None:
        await self._stores.pop(session).close()


async def _timed(call: Callable[[], Awaitable[Any]]) -> tuple[Times, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    result = await call()
    return Times(time.process_time() - cpu, time.perf_counter() - wall), result


async def _measure_operations(
    sides: list[Any], repeats: int, progress: Progress
) -> dict[str, dict[str, list[Times]]]:
    times: dict[str, dict[str, list[Times]]] = {
        operation: {side.name: [] for side in sides} for operation in BOUNDS
    }

    async def each(operation: str, calls: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
        results = []
        for side, call in zip(sides, calls, strict=True):
            taken, result = await _timed(call)
            times[operation][side.name].append(taken)
            results.append(result)
        return results

    sessions = [await _filled(side, "single") for side in sides]
    for number in range(repeats * 10):
        item = _item(number)
        await each("add one item", [partial(s.add_items, [item]) for s in sessions])
        popped = await each("pop", [s.pop_item for s in sessions])
        assert popped == [item, item]
        for session in sessions:  # As a user who takes back a question, and asks another one.
            await session.add_items([_item(number), _item(number + 1)])
    await _close(sides, sessions)
    progress.step("single items")
    batch = [_item(number) for number in range(BATCH)]
    for number in range(repeats):
        sessions = [await _filled(side, f"whole-{number}") for side in sides]
        await each("add 100 items", [partial(s.add_items, batch) for s in sessions])
        whole = await each("all of 5,100 items, warm", [s.get_items for s in sessions])
        newest = await each("the newest 20", [partial(s.get_items, 20) for s in sessions])
        await _close(sides, sessions)
        reopened = [await side.open(f"whole-{number}") for side in sides]
        cold = await each("all of 5,100 items, cold", [s.get_items for s in reopened])
        assert whole[0] == whole[1] == cold[0] == cold[1]
        assert newest[0] == newest[1] == cold[0][-20:]
        assert len(cold[0]) == ITEMS + BATCH
        await _close(sides, reopened)
    progress.step("whole sessions")
    return times


async def _filled(side: Any, id: str) -> Any:
    """Return a session with items, all of which it has read."""
    session = await side.open(id)
    for first in range(0, ITEMS, 500):
        await session.add_items([_item(number) for number in range(first, first + 500)])
    await session.get_items()
    return session


async def _close(sides: list[Any], sessions: list[Any]) -> None:
    for side, session in zip(sides, sessions, strict=True):
        await side.close(session)


def measure(folder: Path, *, repeats: int) -> Part:
    """Do the same on both sessions, in turns; compare medians of processor time."""
    part = Part("agents")
    sides: list[Any] = [Sdk(folder), Own(folder)]
    times = asyncio.run(_measure_operations(sides, repeats, Progress("agents", 2)))
    rows = []
    for operation, bound in BOUNDS.items():
        pairs = [times[operation][side.name] for side in sides]
        cpu = [statistics.median(one.cpu for one in taken) for taken in pairs]
        wall = [statistics.median(one.wall for one in taken) for taken in pairs]
        ratio = cpu[1] / cpu[0]
        part.data[operation] = {"cpu_s": cpu, "wall_s": wall, "ratio": ratio}
        rows.append([operation, *(f"{1e3 * one:.2f}" for one in (*cpu, *wall)), f"{ratio:.2f}"])
        if bound is not None:
            says = f"{operation}: perdure's processor time by that of SQLiteSession"
            part.lines.append(Line(says, f"{ratio:.2f}", f"at most {bound}", ratio <= bound))
    head = ["medians, ms", "SDK, cpu", "perdure, cpu", "SDK", "perdure", "ratio of cpu"]
    part.tables.append(table(head, rows))
    return part
