"""P29: a signal handler raises anywhere inside a store, and nothing hangs, is lost or stays locked.

A program of its own (`p29_storm`) works on a store while a real timer raises in it. While it is
still alive, and has given back nothing by ending, another process must be able to write to every
session at once. What was acknowledged must be there, once.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import perdure
from perdure.errors import PerdureError
from tests.promises import p29_storm, places
from tests.promises.kinds import FILES, KINDS, SQLITE
from tests.promises.promise import Promise, Trial, in_time

ROOT = Path(__file__).parents[2]
INTERRUPTS = 500  # Of one program.
AT_ONCE = 10.0  # Seconds for all sessions; a lock that somebody holds takes 60 for each.
COLOURS = {"sync": ("sync",), "async": ("loop", "loops", "dead")}
BESIDE = "said by another process"


def program(address: str, mode: str, seed: int, interrupts: int) -> list[str]:
    """Return the words that start the program."""
    return [sys.executable, "-m", p29_storm.__name__, address, mode, str(seed), str(interrupts)]


def storm(address: str, mode: str, seed: int, interrupts: int = INTERRUPTS) -> list[str]:
    """Run a program on a store, and return what went wrong."""
    search = os.pathsep.join(map(str, (ROOT, Path(perdure.__file__).parents[1])))
    with tempfile.TemporaryFile("w+") as errors:  # A pipe would fill up.
        child = subprocess.Popen(
            program(address, mode, seed, interrupts),
            env={**os.environ, "PYTHONPATH": search},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with child:  # Its own watchdog ends it.
            assert child.stdout is not None
            is_over = child.stdout.readline().strip() == p29_storm.OVER
            wrong = written_beside(address) if is_over else []
            report, _ = child.communicate("\n")
        if child.returncode:
            errors.seek(0)
            return [*wrong, f"exit {child.returncode}: {errors.read()[-9000:]}"]
    return [*wrong, *judged(address, json.loads(report))]


def written_beside(address: str) -> list[str]:
    """Write to every session from this process; return what did not go at once."""
    if address == "memory:":
        return []
    start = time.monotonic()
    wrong = []
    with perdure.open(address) as store:
        for name in [head.id for head in store.sessions()]:
            try:
                store.session(name).note(BESIDE)
            except PerdureError as error:
                if name != p29_storm.LEASED:  # Its lease may not have expired yet.
                    wrong.append(f"{name}: {error}")
    seconds = time.monotonic() - start
    return [*wrong, f"{seconds:.1f} s to write"] if seconds > AT_ONCE else wrong


def judged(address: str, report: dict[str, Any]) -> list[str]:
    """Return what a program found wrong itself, and what it lost or repeated."""
    wrong = [*report["wrong"]]
    if not any(place.startswith("backends") for place in report["places"]):
        wrong.append(f"no interrupt came inside the store: {report['places']}")
    if report["left"]:
        wrong.append(f"descriptors left: {report['left']}")
    if address != "memory:":
        wrong += missing_or_repeated(address, report["acked"])
    return wrong


def missing_or_repeated(address: str, acked: Sequence[Sequence[str]]) -> list[str]:
    """Return which sessions lack what was acknowledged, or have it twice."""
    wanted = collections.defaultdict(set)
    for name, text in acked:
        wanted[name].add(text)
    wrong = []
    with perdure.open(address) as store:
        if unlisted := wanted.keys() - {head.id for head in store.sessions()}:
            wrong.append(f"not listed: {sorted(unlisted)[:5]}")
        for name, texts in wanted.items():
            session = store.session(name)
            session.verify()
            found = [message["content"] for message in session.messages()]
            if lost := texts - {*found}:
                wrong.append(f"{name}: lost {sorted(lost)[:5]}")
            if len(found) != len({*found}):
                wrong.append(f"{name}: repeated")
    return wrong


def counted(seed: int, wrong: Sequence[str], interrupts: int = INTERRUPTS) -> Iterator[Trial]:
    """Yield a trial for each interrupt of a program; the last one has what went wrong."""
    yield from (Trial(f"seed {seed}") for _ in range(interrupts - 1))
    yield Trial(f"seed {seed}", "; ".join(wrong))


def trials(kind: str, colour: str, seed: int, deadline: float) -> Iterator[Trial]:
    """Yield interrupts of one program after the other."""
    number = seed * 1_000_000
    addresses = {each.name: each.address for each in KINDS}
    while in_time(deadline):
        with places.fast_directory() as directory:
            address = addresses[kind](directory) if kind in addresses else "memory:"
            yield from counted(number, storm(address, mode_of(colour, number), number))
        number += 1


def mode_of(colour: str, number: int) -> str:
    """Return the mode of the program with that number."""
    return COLOURS[colour][number % len(COLOURS[colour])]


def postgres_trials(colour: str, seed: int, deadline: float) -> Iterator[Trial]:
    """As `trials`, on a server."""
    from tests.backends.postgres.server_keeper import running

    with running() as server:
        number = seed * 1_000_000
        while in_time(deadline):
            address = f"{server.url}?tenant=storm{number}&connections=4"
            yield from counted(number, storm(address, mode_of(colour, number), number))
            number += 1


SAYS = "a signal handler may raise anywhere inside a store"
PROMISES = [
    *(
        Promise("P29", SAYS, 10_000, partial(trials, kind, colour), f"{kind}-signals-{colour}")
        for kind in ("memory", FILES.name, SQLITE.name)
        for colour in COLOURS
    ),
    *(
        Promise("P29", SAYS, 10_000, partial(postgres_trials, colour), f"postgres-signals-{colour}")
        for colour in COLOURS
    ),
]
