"""Bytes on disk: what a turn costs in the file that a clean close leaves behind."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import perdure
from benchmarks.conversations import conversations, store_conversation
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import json_size, turns

FACTOR = 1.15
PER_RECORD = 400


class Stored(NamedTuple):
    """The size of a store, and of what was put into it."""

    turns: int
    records: int
    json_bytes: int
    file_bytes: int

    @property
    def bound(self) -> float:
        return FACTOR * self.json_bytes + PER_RECORD * self.records


def one_session(path: Path, count: int) -> Stored:
    """Store turns in one session, each with one append."""
    said = turns(count)
    with perdure.open(path) as store:
        session = store.session("session-00000")
        for turn in said:
            session.append(*turn)
    return _stored(path, said)


def realistic(path: Path, count: int) -> Stored:
    """Store the realistic workload in one session, through turns, with its tools as effects."""
    said = conversations(count)
    with perdure.open(path) as store:
        store_conversation(store.session("session-00000"), said)
    return _stored(path, said)


def interleaved(path: Path, count: int, sessions: int) -> Stored:
    """Store as many turns in sessions that go on at the same time."""
    said = turns(count)

    async def run() -> None:
        async with perdure.open_async(path) as store:

            async def work(number: int) -> None:
                session = await store.session(f"session-{number:05}")
                for turn in said[number::sessions]:
                    await session.append(*turn)

            await asyncio.gather(*map(work, range(sessions)))

    asyncio.run(run())
    return _stored(path, said)


def _stored(path: Path, said: list[list[dict[str, object]]]) -> Stored:
    files = [found.name for found in path.parent.iterdir() if found.name.startswith(path.name)]
    assert files == [path.name], f"a clean close leaves one file, not {files}"
    size = path.stat().st_size
    return Stored(len(said), sum(map(len, said)), sum(map(json_size, said)), size)


WAYS: dict[str, Callable[[Path, int], Stored]] = {
    "one session": one_session,
    "64 sessions, interleaved": lambda path, count: interleaved(path, count, 64),
    "realistic, through turns": realistic,
}


def measure(folder: Path, *, count: int) -> Part:
    """Measure each way of filling a store."""
    progress = Progress("storage", len(WAYS))
    part = Part("storage")
    rows = []
    for name, fill in WAYS.items():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found = fill(Path(place) / "perdure.db", count)
        progress.step(name)
        each = found.file_bytes / found.turns
        most = found.bound / found.turns
        rows.append([name, f"{found.json_bytes / found.turns:,.0f}", f"{each:,.0f}"])
        part.data[name] = {**found._asdict(), "bound": found.bound}
        part.lines.append(
            Line(
                f"bytes stored a turn, {name}",
                f"{each:,.0f} B",
                f"at most 1.15 × JSON + 400 B a message = {most:,.0f} B",
                each <= most,
            )
        )
    part.tables.append(table([f"{count:,} turns", "JSON B a turn", "stored B a turn"], rows))
    return part
