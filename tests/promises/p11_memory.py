"""P11 without processes: the store is in memory, and who dies does nothing any more.

A death is an exception that nobody catches, and from then on whatever the dead one tries raises it
again, in every thread. So it costs milliseconds, and every point is tried many times.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.testing import Crash
from tests.promises import errand_runs, errands, places, world
from tests.promises.calls import Call
from tests.promises.errand_judge import Judge
from tests.promises.errand_runs import SESSION, Found
from tests.promises.errands import POLICIES, Scenario
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.world import Boundary, Death, Reaper, World

AGAIN = 0.5


class Ghost(Reaper):
    """Dies by an exception, and stays dead."""

    def __init__(self, death: Death | None = None) -> None:
        super().__init__(death)
        self.dead = False

    def __call__(self, call: Call) -> object:
        if self.dead:
            raise Crash
        return super().__call__(call)

    def die(self) -> None:
        self.dead = True
        raise Crash


class Life:
    """One session in memory, and what its processes found and did."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.path = path
        self.backend = MemoryBackend()
        self.scenario = scenario
        self.found: list[Found] = []
        path.unlink(missing_ok=True)

    def run(self, death: Death | None) -> Ghost:
        """Run the errands and perhaps die; return who did."""
        ghost = Ghost(death)
        outside = World(self.path, ghost)
        session = perdure.open(Boundary(self.backend, ghost)).session(SESSION)
        before = world.read(self.path)
        self.found.append(Found(errand_runs.states(session.effects.list()), before))
        try:
            errands.run(session, outside, self.scenario)
        except Crash:
            pass
        finally:
            outside.close()
        return ghost

    def judge(self) -> str:
        session = perdure.open(self.backend).session(SESSION)
        lines = world.read(self.path)
        judge = Judge(session, self.scenario, lines, self.found)
        return judge.failure() or judge.reconcile()


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        path = directory / "world"
        scenarios = [Scenario(policy, "blocking") for policy in POLICIES]
        every = {one: Life(path, one).run(None).deaths() for one in scenarios}
        while True:
            for scenario in draw.sample(scenarios, len(scenarios)):
                if not in_time(deadline):
                    return
                yield from _trial(path, scenario, every[scenario], draw)


def _trial(
    path: Path, scenario: Scenario, every: list[Death], draw: random.Random
) -> Iterator[Trial]:
    life, died = Life(path, scenario), []
    death = draw.choice(every)
    while life.run(death).dead:
        died.append(str(death))
        again = draw.random() < AGAIN
        death = draw.choice(every)._replace(number=draw.randint(1, 12)) if again else None  # type: ignore[assignment]
    failure = life.judge()
    for _ in died[1:]:
        yield Trial(str(scenario))
    if died or failure:
        yield Trial(f"{scenario}: died {', then '.join(died)}", failure)


SAYS = "a completed tool call is never run again on resume"
PROMISE = Promise("P11", SAYS, 12_000, trials, "memory")
