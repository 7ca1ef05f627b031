"""Durable turns a second: many sessions at once, and a lone append against a raw commit.

What an fsync costs differs by a factor of ten from hour to hour on the same machine, so contenders
take turns within every round and only ratios within a round are compared.
"""

import importlib.util
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import perdure
from benchmarks.contenders import (
    CONTENDERS,
    PEER,
    SESSIONS,
    TASKS,
    THREADS,
    Contender,
    Race,
    Result,
    encoded,
    raw_commit,
    raw_connection,
)
from benchmarks.counting import sync_counter
from benchmarks.report import Line, Part, Progress, table
from benchmarks.workload import SEED, triples, turns

SYNCS_MAX = 1 / 8
CPU_MAX = 400e-6
LEAST = {TASKS.label: 4.0, THREADS.label: 2.5}
LONE_SHARE = 0.3
LONE_FLOOR = 250e-6

POOL = 512  # Turns made before the clock runs; more than the processor's caches hold.


def measure(folder: Path, *, rounds: int, seconds: float, pairs: int) -> Part:
    """Run everything in rounds and return the tables, the lines and the raw figures."""
    pool = turns(POOL)
    present = [one for one in CONTENDERS if _installed(one)]
    progress = Progress("speed", rounds * (len(present) + 1) + len(present))
    results: dict[str, list[Result]] = {one.label: [] for one in present}
    syncs: list[float] = []
    ours: list[float] = []
    raw: list[float] = []
    rng = random.Random(SEED)
    race = Race(folder, pool, seconds, encoded(pool))
    for _ in range(rounds):
        for one in rng.sample(present, len(present)):
            result = _apart(race, one.run)
            results[one.label].append(result)
            progress.step(f"{one.label}: {result.turns / result.seconds:,.0f} turns/s")
        syncs += fsync_costs(folder, 40)
        mine, theirs = lone_pairs(folder, pairs // rounds)
        ours, raw = ours + mine, raw + theirs
        progress.step("a lone append and a raw commit, in pairs")
    counted = {}
    for one in present:
        counted[one.label] = _syncs_per_turn(one, race)
        progress.step(f"{one.label}: syncs counted")
    part = Part("speed")
    part.data = {
        "fsync_us": 1e6 * statistics.median(syncs),
        "rounds": {label: [[*one] for one in found] for label, found in results.items()},
        "syncs_per_turn": counted,
        "times_the_peer": {},
        "lone_us": {"perdure": [1e6 * t for t in ours], "raw": [1e6 * t for t in raw]},
    }
    _report(part, results, counted, ours, raw)
    return part


def _installed(contender: Contender) -> bool:
    return not contender.package or importlib.util.find_spec(contender.package) is not None


def _apart(race: Race, run: Callable[[Race], Result]) -> Result:
    """Run in a new folder of its own, so that nobody inherits files."""
    folder = Path(tempfile.mkdtemp(dir=race.folder))
    try:
        return run(race._replace(folder=folder))
    finally:
        shutil.rmtree(folder)


def _syncs_per_turn(one: Contender, race: Race) -> float | None:
    if not one.countable:
        return None
    with sync_counter() as counter:
        result = _apart(race._replace(counter=counter), one.run)
    return result.syncs / result.turns


def fsync_costs(folder: Path, count: int) -> list[float]:
    """Return the seconds that it takes to make 4 kB at the end of a file durable."""
    costs = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(count):
            file.write(os.urandom(4096))
            file.flush()
            start = time.perf_counter()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            costs.append(time.perf_counter() - start)
    return costs


def lone_pairs(folder: Path, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of appends by one session, and of raw commits of the same bytes.

    The two alternate, and so does which of them is first.
    """
    pool = triples(64)
    rows = encoded(pool)
    ours: list[float] = []
    raw: list[float] = []
    place = Path(tempfile.mkdtemp(dir=folder))
    db = raw_connection(place / "raw.db")
    with perdure.open(place / "perdure.db") as store:
        session = store.session("session-00000")
        session.append(*pool[0])
        raw_commit(db, rows[0])

        def append(number: int) -> None:
            session.append(*pool[number])

        def commit(number: int) -> None:
            raw_commit(db, rows[number])

        both = [(ours, append), (raw, commit)]
        for count in range(pairs):
            for times, work in both if count % 2 else both[::-1]:
                start = time.perf_counter()
                work(count % len(pool))
                times.append(time.perf_counter() - start)
    db.close()
    shutil.rmtree(place)
    return ours, raw


def _report(
    part: Part,
    results: dict[str, list[Result]],
    counted: dict[str, float | None],
    ours: list[float],
    raw: list[float],
) -> None:
    peer = [one.turns / one.seconds for one in results.get(PEER.label, [])]
    rows = []
    for contender in CONTENDERS:
        found = results.get(contender.label)
        if found is None:
            rows.append([contender.label, "not installed", "", "", ""])
            continue
        rates = [one.turns / one.seconds for one in found]
        times = [a / b for a, b in zip(rates, peer, strict=False)]
        if times:
            part.data["times_the_peer"][contender.label] = statistics.median(times)
        cpu = statistics.median(one.cpu / one.turns for one in found)
        syncs = counted[contender.label]
        rows.append(
            [
                contender.label,
                f"{statistics.median(rates):,.0f}",
                f"{statistics.median(times):.2f}×" if times else "—",
                f"{1e6 * cpu:,.0f}",
                "not counted" if syncs is None else f"{syncs:.3f}",
            ]
        )
        if contender in (TASKS, THREADS):
            part.lines += _many_lines(contender, cpu, syncs, times)
    head = [f"{SESSIONS} sessions", "turns/s", "to the peer", "CPU µs a turn", "fsyncs a turn"]
    part.tables.append(table(head, rows))
    part.tables.append(f"an fsync costs {part.data['fsync_us']:,.0f} µs here (median)")
    part.lines.append(_lone_line(ours, raw))


def _many_lines(
    contender: Contender, cpu: float, syncs: float | None, times: list[float]
) -> list[Line]:
    label, least = contender.label, LEAST[contender.label]
    ratio = statistics.median(times) if times else None
    found = "not installed" if ratio is None else f"{ratio:.2f}×"
    return [
        Line(
            f"{label}: turns a second against {PEER.label}",
            found,
            f"at least {least}×",
            None if ratio is None else ratio >= least,
        ),
        Line(f"{label}: CPU a turn", f"{1e6 * cpu:.0f} µs", "at most 400 µs", cpu <= CPU_MAX),
        Line(
            f"{label}: fsyncs a turn",
            f"{syncs or 0:.3f}",
            "at most 1/8",
            syncs is not None and syncs <= SYNCS_MAX,
        ),
    ]


def _lone_line(ours: list[float], raw: list[float]) -> Line:
    difference = statistics.median(a - b for a, b in zip(ours, raw, strict=True))
    base = statistics.median(raw)
    bound = max(LONE_SHARE * base, LONE_FLOOR)
    return Line(
        "a lone append of three messages, beyond a raw commit of the same bytes",
        f"{1e6 * difference:,.0f} µs on top of {1e6 * base:,.0f} µs",
        f"at most {1e6 * bound:,.0f} µs",
        difference <= bound,
    )
