"""P3 and P4: a process is killed at any write-class call; its sessions open and can go on.

A child plays 20 turns and is killed before, in the middle of, or after one I/O call that changes a
file; every such call has its turn. Between those, children are killed at random moments, and in
long runs also by `strace` at a system call, which sees what SQLite does by itself (`-shm`,
directories) and what else of the system's is between a store of files and the disk.
"""

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from tests.promises import places, script, straced
from tests.promises.calls import LOOKS, Call
from tests.promises.children import End, collect, fork, ledger_of, play
from tests.promises.kinds import KINDS, Kind
from tests.promises.ledger import Ledger, Witness
from tests.promises.promise import Promise, Trial, in_time
from tests.support import forgotten

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
        if call.op in LOOKS or next(self._calls) != self._point.number:
            return call.do(call.data)
        if self._point.how == "half of":
            call.do(call.data[: len(call.data) // 2])
        elif self._point.how == "after":
            call.do(call.data)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def points(kind: Kind, directory: Path) -> list[Point]:
    """Return every point of the script, counted in a run that nobody kills."""
    ops: list[str] = []

    def count(call: Call) -> Any:
        if call.op not in LOOKS:
            ops.append(call.op)
        return call.do(call.data)

    kind.clear(directory)
    with kind.watched(directory, count) as open_backend:
        script.play(lambda: perdure.open(open_backend()), TURNS)
    return [
        Point(number, how)
        for number, op in enumerate(ops, 1)
        for how in ("before", "half of", "after")
        if how != "half of" or op == "write"
    ]


def killed_at(kind: Kind, directory: Path, point: Point, witness: type[Witness] = Witness) -> End:
    """Let a child play and die at a point; a child that never gets there ends with code 0."""
    kind.clear(directory)
    killer = Killer(point)
    return collect(*fork(lambda pipe: play(kind, directory, pipe, TURNS, killer, witness)))


def killed_within(kind: Kind, directory: Path, seconds: float) -> End:
    kind.clear(directory)
    return collect(*fork(lambda pipe: play(kind, directory, pipe, 100 * TURNS)), kill_after=seconds)


def judge(kind: Kind, directory: Path, ledger: Ledger, draw: random.Random) -> str:
    """Open what a killed process left, compare it, and go on with its sessions."""
    try:
        with perdure.open(kind.address(directory)) as store:
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
    if lost := forgotten(session):
        return f"{session.id!r}: ids {lost} are stored, and not known"
    again = store.session(session.id)
    if again.interrupted or len(again) != before + added + 2:
        return f"{session.id!r}: it could not be continued: {again.interrupted}, {len(again)}"
    return ""


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        at_points, at_random = _at_points(kind, directory, draw), _at_random(kind, directory, draw)
        ways = [*[at_points] * 6, at_random]
        if deadline - time.monotonic() > LONG_RUN:
            ways = [*[at_points] * 3, *[at_random] * 2]
            if straced.WORKS:
                ways.append(_at_system_calls(kind, directory, draw))
        for way in itertools.cycle(ways):
            if not in_time(deadline):
                return
            yield next(way)


def _at_points(kind: Kind, directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = points(kind, directory)
    while True:
        for point in draw.sample(every, len(every)):
            end = killed_at(kind, directory, point)
            if end.code == -signal.SIGKILL:
                what = f"killed {point.how} call {point.number}"
                yield Trial(what, judge(kind, directory, ledger_of(end.said), draw))
            elif end.code:
                yield Trial(f"call {point.number}", f"the child ended with {end.code}")


def _at_random(kind: Kind, directory: Path, draw: random.Random) -> Iterator[Trial]:
    while True:
        seconds = draw.uniform(0, KILLED_WITHIN)
        end = killed_within(kind, directory, seconds)
        found = judge(kind, directory, ledger_of(end.said), draw)
        yield Trial(f"killed after {seconds:.3f} s", found)


def _at_system_calls(kind: Kind, directory: Path, draw: random.Random) -> Iterator[Trial]:
    every = [
        (name, number)
        for name, count in straced.counts(kind, directory, TURNS).items()
        for number in range(1, count + 1)
    ]
    while True:
        for name, number in draw.sample(every, len(every)):
            kind.clear(directory)
            end = straced.run(kind, directory, TURNS, f"{name}:signal=KILL:when={number}")
            if end.code != -signal.SIGKILL:
                continue  # It counts the calls of each thread by itself.
            what = f"killed by strace at {name} {number}"
            yield Trial(what, judge(kind, directory, ledger_of(end.said), draw))


SAYS = "kill -9 at any moment leaves sessions that go on"
PROMISES = [Promise("P3", SAYS, 5_500, partial(trials, kind), kind.name) for kind in KINDS]
