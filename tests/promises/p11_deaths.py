"""P11: a turn of eight tools is killed at any point, again and again; nothing runs twice.

A child runs errands and is killed: before or after an append, before, in the middle of or after any
I/O call that changes the store, at every step of what its tools do outside, at random moments, or
by `strace` at a system call. Another one takes the turn over, and may be killed as well, until one
lives to the end; or the turn is given up. Every death is counted as a trial.
"""

import itertools
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import perdure
from tests.promises import errand_runs, errands, places, straced
from tests.promises.children import End
from tests.promises.errand_judge import Judge
from tests.promises.errand_runs import SESSION, Agent, Found
from tests.promises.errands import Scenario
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.world import Death

LONG_RUN = 60.0  # Seconds; shorter runs are samples, for which strace is too slow.
KILLED_WITHIN = 0.08  # Seconds; a little more than a run takes here.
DEATHS_MAX = 6  # Of one chain of processes.
AGAIN = 0.6  # How often the next process is killed too.
GIVEN_UP = 0.08  # How often the turn is abandoned and not taken over.


class Chain:
    """One session from its first process to its last, in a directory of its own."""

    def __init__(
        self, kind: Kind, directory: Path, scenario: Scenario, *, agent: Agent | None = None
    ) -> None:
        self._kind = kind
        self._directory = directory
        self._scenario = scenario
        self._agent = agent
        self._found: list[Found] = []
        self.deaths: list[str] = []
        errand_runs.clear(kind, directory)

    def run(self, how: "Death | float | System | None") -> bool:
        """Let a process run errands and die somehow; say whether it lived to the end."""
        before = errand_runs.happened(self._directory)
        end = self._end(how)
        told = errand_runs.told(end.said)
        if told.found is not None:
            self._found.append(Found(told.found, before))
        if end.code == -signal.SIGKILL:
            self.deaths.append(str(how))
            return False
        if end.code:
            raise RuntimeError(f"{self._scenario}: a child ended with {end.code} {end.last_words}")
        return True

    def _end(self, how: "Death | float | System | None") -> End:
        place = (self._kind, self._directory, self._scenario)
        if isinstance(how, System):
            return errand_runs.straced(*place, how.call, how.number)
        if isinstance(how, float):
            return errand_runs.forked(*place, kill_after=how, agent=self._agent)
        return errand_runs.forked(*place, how, agent=self._agent)

    def judge(self, *, give_up: bool = False) -> str:
        """Read what is there, as somebody else; give up first what was left, if so wanted."""
        lines = errand_runs.happened(self._directory)
        try:
            with perdure.open(self._kind.address(self._directory)) as store:
                session = store.session(SESSION)
                if give_up:
                    self._found.append(Found(errand_runs.states(session.effects.list()), lines))
                    for turn in session.interrupted:
                        turn.abandon("given up")
                    session.turn("Never mind.", id="turn-3").__enter__().complete()
                judge = Judge(session, self._scenario, lines, self._found, whole=not give_up)
                return judge.failure() or judge.reconcile()
        except perdure.PerdureError as error:
            return f"{type(error).__name__}: {error}"


class System(NamedTuple):
    """Death at the nth system call of a name, in one of the threads."""

    call: str
    number: int

    def __str__(self) -> str:
        return f"strace at {self.call} {self.number}"


def points(kind: Kind, directory: Path, scenario: Scenario) -> list[Death]:
    """Return every point of a run that nobody kills."""
    errand_runs.clear(kind, directory)
    end = errand_runs.forked(kind, directory, scenario, counting=True)
    assert not end.code, f"{scenario}: a child ended with {end.code}"
    return errand_runs.told(end.said).deaths


class Deaths:
    """Draws where to die, so that every point of every scenario has its turn."""

    def __init__(self, kind: Kind, directory: Path, draw: random.Random) -> None:
        self._draw = draw
        self.points = {one: points(kind, directory, one) for one in errands.EVERY}
        self._calls = [*kind.changes, *errand_runs.SYSTEM_CALLS]

    def __len__(self) -> int:
        return sum(map(len, self.points.values()))

    def everywhere(self) -> Iterator[tuple[Scenario, Death]]:
        """Yield each point of each scenario once, in any order; then all again."""
        every = [(scenario, death) for scenario, found in self.points.items() for death in found]
        while True:
            yield from self._draw.sample(every, len(every))

    def at_random(self) -> Iterator[tuple[Scenario, float]]:
        while True:
            yield self._draw.choice(errands.EVERY), self._draw.uniform(0.0, KILLED_WITHIN)

    def at_system_calls(self) -> Iterator[tuple[Scenario, System]]:
        while True:
            call = System(self._draw.choice(self._calls), self._draw.randint(1, 60))
            yield self._draw.choice(errands.EVERY), call

    def another(self, scenario: Scenario) -> Death | float:
        """Return a death for a process that goes on, which has less to do than the first."""
        if self._draw.random() < 0.2:
            return self._draw.uniform(0.0, KILLED_WITHIN)
        of = self._draw.choice(("record", "effect", "io"))
        found = [death for death in self.points[scenario] if death.of == of]
        death = self._draw.choice(found)
        return death._replace(number=1 + death.number * self._draw.randrange(100) // 100)


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        deaths = Deaths(kind, directory, draw)
        everywhere, at_random = deaths.everywhere(), deaths.at_random()
        ways: list[Iterator[tuple[Scenario, Death | float | System]]] = [everywhere] * 5
        ways.append(at_random)
        if deadline - time.monotonic() > LONG_RUN and straced.WORKS:
            ways = [*ways * 8, deaths.at_system_calls()]
        for way in itertools.cycle(ways):
            if not in_time(deadline):
                return
            scenario, first = next(way)
            yield from chain(kind, directory, scenario, first, deaths, draw)


def chain(
    kind: Kind,
    directory: Path,
    scenario: Scenario,
    first: "Death | float | System",
    deaths: Deaths,
    draw: random.Random,
) -> Iterator[Trial]:
    """Kill process after process; yield a trial for each death, the last one with the verdict."""
    one = Chain(kind, directory, scenario)
    lived = one.run(first)
    while not lived and len(one.deaths) < DEATHS_MAX and draw.random() < AGAIN:
        lived = one.run(deaths.another(scenario))
    give_up = not lived and draw.random() < GIVEN_UP
    if not lived and not give_up and not one.run(None):
        raise RuntimeError("a child was killed that nobody killed")
    failure = one.judge(give_up=give_up)
    what = f"{scenario}: killed {', then '.join(one.deaths) or 'never'}"
    if give_up:
        what += ", then given up"
    for _ in one.deaths[1:]:
        yield Trial(what)
    if one.deaths or failure:
        yield Trial(what, failure)


SAYS = "a completed tool call is never run again on resume"
PROMISES = [Promise("P11", SAYS, 6_000, partial(trials, kind), kind.name) for kind in KINDS]
