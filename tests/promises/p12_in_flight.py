"""P12: a call that is under way is never silently run again, nor forgotten, nor judged by others.

Processes are killed at random moments, and by `strace` at system calls, as for P11. Others are only
stopped, so that they look dead and are not: while one sleeps, a second takes its turn over and ends
it, or only looks; then the first wakes up and goes on where it was.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import perdure
from perdure.core.state.effects import key_of
from perdure.errors import InFlightError
from tests.promises import children, errand_runs, errands, places, straced
from tests.promises.calls import Call
from tests.promises.errand_judge import OPEN, Deed, deeds
from tests.promises.errand_runs import SESSION
from tests.promises.errands import Errands, Scenario
from tests.promises.kinds import KINDS, Kind
from tests.promises.p11_deaths import LONG_RUN, Deaths, chain
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.world import Death, Reaper, World

KEYED = "key:"
LOOKED_AT = 0.2
IN_THE_KEYED_CALL = range(31, 37)  # Where the agents have it under way, most often.


class Sleeper(Reaper):
    """Stops its own process at a point, while it writes nothing: nobody waits for its locks."""

    def __init__(self, death: Death | None = None) -> None:
        super().__init__(death)
        self._writing = threading.RLock()

    def __call__(self, call: Call) -> Any:
        with self._writing:
            return super().__call__(call)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.05)  # Another thread may take the signal; this one goes on until it did.


def asleep(kind: Kind, directory: Path, scenario: Scenario, point: Death) -> tuple[int, int, bool]:
    """Start errands in a child that stops at a point; return it, its pipe, whether it sleeps."""
    errand_runs.clear(kind, directory)
    sleeper = Sleeper(point._replace(how="after" if point.of == "record" else "before"))

    def work(pipe: int) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # What it is told on waking is an error.
        errand_runs.play(
            kind.opener(directory), directory, scenario, errand_runs.reporting(pipe), sleeper
        )

    child, pipe = children.fork(work)
    _, status = os.waitpid(child, os.WUNTRACED)
    return child, pipe, os.WIFSTOPPED(status)


def wake(child: int, pipe: int) -> int:
    """Let a child go on to its end; return how it ended."""
    os.kill(child, signal.SIGCONT)
    return children.collect(child, pipe, kill_after=30.0).code


def taken_over(kind: Kind, directory: Path, scenario: Scenario, point: Death) -> str | None:
    """Take the turn of a process over that only sleeps; None if it did not get to the point."""
    child, pipe, sleeps = asleep(kind, directory, scenario, point)
    if not sleeps:
        os.close(pipe)
        return None
    other = errand_runs.forked(kind, directory, scenario)
    between = errand_runs.happened(directory)
    code = wake(child, pipe)
    if other.code:
        return f"who took the turn over ended with {other.code}"
    if code < 0:
        return f"who had lost the turn ended with {code}"
    with perdure.open(kind.address(directory)) as store:
        session = store.session(SESSION)
        found = deeds(session)
        session.verify()
        return _both(found, Counter(line.effect for line in errand_runs.happened(directory))) or (
            _late(found, {line.effect for line in between}, directory, scenario)
        )


def _both(found: dict[str, Deed], happened: Counter[str]) -> str:
    """Say what is wrong with calls of which two processes knew."""
    for deed in found.values():
        times = sum(happened[id] for _, id, _ in deed.attempts)
        states = [outcome.state for _, outcome in deed.outcomes]
        what = f"{deed.errand} ({deed.policy}): {states}, happened {times} times"
        if deed.policy == "unsafe" and (times > 1 or len(deed.attempts) > 1):
            return f"repeated: {what}"
        if len({key_of(id, intent) for _, id, intent in deed.attempts}) > 1:
            return f"other keys: {what}"
        if len(states) != 1 and states != ["unknown", "reconciled"]:
            return f"not one outcome: {what}"
        if any(happened[id] > 1 for _, id, _ in deed.attempts):
            return f"more than once for one intent: {what}"
    return ""


def _late(found: dict[str, Deed], before: set[str], directory: Path, scenario: Scenario) -> str:
    """Who woke up may end the calls that it had begun, and begin no other; none is forgotten."""
    missing = {*errands.ERRANDS} - {deed.errand for deed in found.values()}
    if missing:
        return f"forgotten: {missing}"
    late = [line for line in errand_runs.happened(directory) if line.effect not in before]
    intents = {id: intent for deed in found.values() for _, id, intent in deed.attempts}
    for line in late:
        intent = intents.get(line.effect)
        if intent is None and scenario.is_read_only(line.tool):
            continue
        if intent is None:
            return f"{line} happened without an intent"
        if (intent.owner or intent.turn) not in ("turn-1", "turn-2"):
            return f"{line} was begun by somebody else"
    return ""


def looked_at(kind: Kind, directory: Path, scenario: Scenario, point: Death) -> str | None:
    """Look at the errands of a process that sleeps, and try its call under the same key."""
    child, pipe, sleeps = asleep(kind, directory, scenario, point)
    if not sleeps:
        os.close(pipe)
        return None
    try:
        failure = _look(kind, directory, scenario)
    finally:
        code = wake(child, pipe)
    if code < 0:  # That somebody else has spoken may be a conflict, and end it with an error.
        failure = failure or f"who was looked at ended with {code}"
    with perdure.open(kind.address(directory)) as store:
        session = store.session(SESSION)
        happened = Counter(line.effect for line in errand_runs.happened(directory))
        states = {deed.state for deed in deeds(session).values()}
        if states != {"succeeded"}:
            failure = failure or f"somebody judged what was under way: {states}"
        return failure or _both(deeds(session), happened)


def _look(kind: Kind, directory: Path, scenario: Scenario) -> str:
    blocking = scenario._replace(colour="blocking")
    outside = World(errand_runs.ledger(directory))
    with perdure.open(kind.address(directory)) as store:
        session = store.session(SESSION)
        tool = Errands(session, outside, blocking).tools[scenario.name(1)].keyed("once")
        under_way = any(
            deed.identity.startswith(KEYED) and deed.state == OPEN
            for deed in deeds(session).values()
        )
        if not under_way or session.effects.unknown():
            return f"under way: {under_way}, unknown: {session.effects.unknown()}"
        try:
            with session.turn("Somebody else asks."):
                tool("keyed")
        except InFlightError:
            return ""
        finally:
            outside.close()
        return "a call that is under way was made by somebody else"


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        deaths = Deaths(kind, directory, draw)
        firsts: list[Any] = [deaths.at_random(), deaths.everywhere()]
        if deadline - time.monotonic() > LONG_RUN and straced.WORKS:
            firsts = [*firsts * 10, deaths.at_system_calls()]
        for first in itertools.cycle(firsts):
            if not in_time(deadline):
                return
            scenario, how = next(first)
            yield from chain(kind, directory, scenario, how, deaths, draw)
            yield from _sleepers(kind, directory, deaths, draw)


def _sleepers(kind: Kind, directory: Path, deaths: Deaths, draw: random.Random) -> Iterator[Trial]:
    scenario = draw.choice(errands.EVERY)
    of = draw.choice(("record", "effect"))
    point = draw.choice([one for one in deaths.points[scenario] if one.of == of])
    found = taken_over(kind, directory, scenario, point)
    if found is not None:
        yield Trial(f"{scenario}: taken over while it slept at {point}", found)
    if draw.random() < LOOKED_AT:
        point = Death("effect", draw.choice(IN_THE_KEYED_CALL))
        found = looked_at(kind, directory, scenario, point)
        if found is not None and not found.startswith("under way: False"):
            yield Trial(f"{scenario}: looked at while it slept at {point}", found)


SAYS = "an in-flight tool call is never silently run again nor forgotten"
PROMISES = [Promise("P12", SAYS, 6_000, partial(trials, kind), kind.name) for kind in KINDS]
