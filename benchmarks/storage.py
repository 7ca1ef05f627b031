"""Bytes on disk: what a turn costs in the file that a clean close leaves behind."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import perdure
from benchmarks.conversations import conversations, store_conversation
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import json_size, turns
from perdure.backends import compression
from perdure.backends.sqlite import SqliteBackend

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


COMPRESS = "?compress=zstd"


def one_session(path: Path, count: int, options: str = "") -> Stored:
    """Store turns in one session, each with one append."""
    said = turns(count)
    with perdure.open(f"sqlite:{path}{options}") as store:
        session = store.session("session-00000")
        for turn in said:
            session.append(*turn)
    return _stored(path, said)


def realistic(path: Path, count: int, options: str = "") -> Stored:
    """Store the realistic workload in one session, through turns, with its tools as effects."""
    said = conversations(count)
    with perdure.open(f"sqlite:{path}{options}") as store:
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


class Way(NamedTuple):
    """A way of filling a store, and the bytes a turn that it may take at most."""

    fill: Callable[[Path, int], Stored]
    most: int | None = 0
    """0: as `Stored.bound` says. None: there is no bound."""


WAYS = {
    "one session": Way(one_session),
    "64 sessions, interleaved": Way(lambda path, count: interleaved(path, count, 64)),
    "one session, compressed": Way(lambda path, count: one_session(path, count, COMPRESS), 1_300),
    "realistic, through turns": Way(realistic, None),
    "realistic, compressed": Way(lambda path, count: realistic(path, count, COMPRESS), 1_900),
}


def compression_cpu(path: Path, *, runs: int = 7) -> float:
    """Return the CPU time of compressing the bodies of a store, in seconds a turn: the median."""
    with closing(SqliteBackend(path)) as backend:
        bodies = [entry.body or b"" for entry in backend.read("session-00000")]
    times = []
    for _ in range(runs):
        start = time.process_time()
        for body in bodies:
            if len(body) >= compression.COMPRESS_MIN:
                compression.compress(body)
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(folder: Path, *, count: int) -> Part:
    """Measure each way of filling a store."""
    progress = Progress("storage", len(WAYS))
    part = Part("storage")
    rows = []
    for name, (fill, fixed) in WAYS.items():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "perdure.db"
            found = fill(path, count)
            cpu = 1e6 * compression_cpu(path) / count if "compressed" in name else 0.0
        progress.step(name)
        each = found.file_bytes / found.turns
        most = fixed or found.bound / found.turns
        bound = "" if fixed else "1.15 × JSON + 400 B a message = "
        cells = [f"{found.json_bytes / found.turns:,.0f}", f"{each:,.0f}"]
        rows.append([name, *cells, f"{cpu:.1f}" if cpu else "—"])
        part.data[name] = {**found._asdict(), "bound": most * found.turns, "cpu_us": cpu}
        if fixed is not None:
            says = (f"bytes stored a turn, {name}", f"{each:,.0f} B")
            part.lines.append(Line(*says, f"at most {bound}{most:,.0f} B", each <= most))
        if cpu:
            limit = 25 if "realistic" in name else 15
            line = (f"CPU of compression a turn, {name}", f"{cpu:.1f} µs", f"at most {limit} µs")
            part.lines.append(Line(*line, cpu <= limit))
    head = [f"{count:,} turns", "JSON B a turn", "stored B a turn", "compression µs a turn"]
    part.tables.append(table(head, rows))
    return part
