"""P3 and P4: a process is killed at any write-class call; its sessions open and can go on.

A child plays 20 turns and is killed before, in the middle of, or after one I/O call that changes a
file; every such call has its turn. Between those, children are killed at random moments, and in
long runs also by `strace` at a system call, which sees what SQLite does by itself (`-shm`,
directories).
"""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.sqlite import SqliteBackend
from tests.durability import places, script, straced
from tests.durability.children import End, collect, fork, ledger_of, play
from tests.durability.ledger import Ledger
from tests.durability.promise import Promise, Trial, in_time
from tests.durability.vfs import WRITES, Call, watching

TURNS = 20
LONG_RUN = 60.0  # Seconds; shorter runs are samples, for which strace is too slow.
KILLED_WITHIN = 0.4  # Seconds; about the time that a long script takes here.


class Point(NamedTuple):
    """Where to die: before, after or in the middle of the nth call that changes a file."""

    number: int
    how: str


class Killer:
    """Kills its own process at a point."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._calls = itertools.count(1)

    def __call__(self, call: Call) -> Any:
        if call.op not in WRITES or next(self._calls) != self._point.number:
            return call.do(call.data)
        if self._point.how == "half of":
            call.do(call.data[: len(call.data) // 2])
        elif self._point.how == "after":
            call.do(call.data)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def points(directory: Path) -> list[Point]:
    """Return every point of the script, counted in a run that nobody kills."""
    ops: list[str] = []

    def count(call: Call) -> Any:
        if call.op in WRITES:
            ops.append(call.op)
        return call.do(call.data)

    with watching(count) as vfs:
        path = _fresh(directory)
        script.play(lambda: perdure.open(SqliteBackend(path, vfs=vfs.name)), TURNS)
    return [
        Point(number, how)
        for number, op in enumerate(ops, 1)
        for how in ("before", "half of", "after")
        if how != "half of" or op == "write"
    ]


def killed_at(path: Path, point: Point) -> End:
    """Let a child play and die at a point; a child that never gets there ends with code 0."""
    return collect(*fork(lambda pipe: play(str(path), pipe, TURNS, Killer(point))))


def killed_within(path: Path, seconds: float) -> End:
    return collect(*fork(lambda pipe: play(str(path), pipe, 100 * TURNS)), kill_after=seconds)


def judge(path: Path, ledger: Ledger, draw: random.Random) -> str:
    """Open what a killed process left, compare it, and go on with its sessions."""
    try:
        with perdure.open(path) as store:
            return ledger.judge(store, draw) or _go_on(store, ledger, draw)
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"


def _go_on(store: perdure.Store, ledger: Ledger, draw: random.Random) -> str:
    session = store.session(ledger.recent or "main")
    before = len(session)
    added = 0
    for turn in session.interrupted:
        if draw.random() < 0.5:
            turn.abandon("its process was killed")
            continue
        with turn:
            turn.append({"role": "assistant", "content": "As I was saying."})
            added += 1
    with session.turn("And now?") as turn:
        turn.append({"role": "assistant", "content": "On with it."})
    session.verify()
    again = store.session(session.id)
    if again.interrupted or len(again) != before + added + 2:
        return f"{session.id!r}: it could not be continued: {again.interrupted}, {len(again)}"
    return ""


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        at_points, at_random = _at_points(directory, draw), _at_random(directory, draw)
        kinds = [*[at_points] * 6, at_random]
        if deadline - time.monotonic() > LONG_RUN:
            kinds = [*[at_points] * 3, *[at_random] * 2]
            if straced.WORKS:
                kinds.append(_at_system_calls(directory, draw))
        for kind in itertools.cycle(kinds):
            if not in_time(deadline):
                return
            yield next(kind)


def _at_points(directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = points(directory)
    while True:
        for point in draw.sample(every, len(every)):
            path = _fresh(directory)
            end = killed_at(path, point)
            if end.code == -signal.SIGKILL:
                what = f"killed {point.how} call {point.number}"
                yield Trial(what, judge(path, ledger_of(end.said), draw))
            elif end.code:
                yield Trial(f"call {point.number}", f"the child ended with {end.code}")


def _at_random(directory: Path, draw: random.Random) -> Iterator[Trial]:
    while True:
        path, seconds = _fresh(directory), draw.uniform(0, KILLED_WITHIN)
        end = killed_within(path, seconds)
        yield Trial(f"killed after {seconds:.3f} s", judge(path, ledger_of(end.said), draw))


def _at_system_calls(directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = [
        (name, number)
        for name, count in straced.counts(_fresh(directory), TURNS).items()
        for number in range(1, count + 1)
    ]
    while True:
        for name, number in draw.sample(every, len(every)):
            path = _fresh(directory)
            end = straced.run(path, TURNS, f"{name}:signal=KILL:when={number}")
            what = f"killed by strace at {name} {number}"
            yield Trial(what, judge(path, ledger_of(end.said), draw))


def _fresh(directory: Path) -> Path:
    """Return the path of a store that is not there."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        (directory / f"store.db{suffix}").unlink(missing_ok=True)
    return directory / "store.db"


PROMISE = Promise("P3", "kill -9 at any moment leaves sessions that go on", 5_500, trials)
