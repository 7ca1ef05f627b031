"""P11 over a long session: ids and keys are repeated, however long ago they were first used.

A session grows to 100,000 turns, each with an id, a tool that must not run twice, called once
directly and once with a key. Between them, random earlier turns and keys are repeated, by the
handle that wrote them and by new ones. At the end, the oldest are, and opening that session and
writing to it are compared with those of a short one.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator

import perdure
from tests.promises import places
from tests.promises.promise import Promise, Trial, in_time

TURNS = 100_000
BLOCK = 100  # Turns between repetitions.
REPEATED = 60  # Ids in each of them.
SHORT = 100  # Turns of a session that is compared with.
PAIRS = 300  # Of calls that are timed, one of each session.
EXTREMES = 15  # The longest and the shortest of them do not count.
SLOWER = 1.1  # Times as much CPU time as a call of the short session may take, on average.


class Agent:
    """Runs numbered turns in one session, and counts what its tool did."""

    def __init__(self, store: perdure.Store, name: str = "long") -> None:
        self.store = store
        self.session = store.session(name)
        self.turns = 0
        self.charges: Counter[str] = Counter()

    def charge(self, what: str) -> str:
        self.charges[what] += 1
        return f"charged {what}"

    def run(self, number: int) -> None:
        with self.session.turn(f"Charge {number}.", id=f"turn-{number}") as turn:
            if not turn.ended:
                self.session.tool(self.charge)(f"turn {number}")
                self.pay(number)

    def pay(self, number: int) -> object:
        return self.session.tool(self.charge).keyed(f"invoice-{number}")(f"key {number}")

    def grow(self) -> None:
        for number in range(self.turns, self.turns + BLOCK):
            self.run(number)
        self.turns += BLOCK

    def repeat(self, number: int, way: str) -> Trial:
        """Repeat a turn or a key of the past; both must be known."""
        before, runs = len(self.session), self.charges.total()
        if way == "turn":
            self.run(number)
            failure = "" if len(self.session) == before else "its input was stored again"
        else:
            with self.session.turn("Pay."):
                failure = "" if self.pay(number) == f"charged key {number}" else "another result"
        if self.charges.total() != runs:
            failure = "its tool ran again"
        return Trial(f"{way} {number} after {self.turns} turns", failure)


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    while in_time(deadline):
        with (
            places.fast_directory() as directory,
            perdure.open(f"sqlite:{directory / 'store.db'}") as store,
        ):
            yield from _life(Agent(store), draw, deadline)


def _life(agent: Agent, draw: random.Random, deadline: float) -> Iterator[Trial]:
    while agent.turns < TURNS and in_time(deadline):
        agent.grow()
        if draw.random() < 0.5:
            agent.session = agent.store.session("long")
        for _ in range(REPEATED):
            yield agent.repeat(draw.randrange(agent.turns), draw.choice(["turn", "key"]))
    for number in range(min(agent.turns, 10 * REPEATED)):
        yield agent.repeat(number, "turn")
        yield agent.repeat(number, "key")
    yield compare(agent)
    wrong = [what for what, times in agent.charges.items() if times != 1]
    yield Trial("all charges", f"{wrong[:5]} were not made once" if wrong else "")


def compare(agent: Agent) -> Trial:
    """Time opening and writing turns with ids, in this session and in a short one, in turns."""
    short = Agent(agent.store, "short")
    for _ in range(SHORT // BLOCK):
        short.grow()
    times: dict[tuple[Agent, str], list[float]] = {}
    for number in range(PAIRS):
        # Both begin with the one and with the other as often.
        for one in (agent, short) if number % 2 else (short, agent):
            for what in ("opening", "a turn"):
                times.setdefault((one, what), []).append(_time(one, what, number))
    # The mean: how long opening takes depends on how far back the newest snapshot is.
    means = {key: statistics.mean(sorted(one)[EXTREMES:-EXTREMES]) for key, one in times.items()}
    ratios = {what: means[agent, what] / means[short, what] for what in ("opening", "a turn")}
    slow = [f"{what} takes {ratio:.2f} times as long" for what, ratio in ratios.items()]
    failure = "; ".join(slow) if max(ratios.values()) > SLOWER else ""
    return Trial(f"{'; '.join(slow)} after {agent.turns} turns", failure)


def _time(agent: Agent, what: str, number: int) -> float:
    calls: dict[str, Callable[[], object]] = {
        "opening": lambda: agent.store.session(agent.session.id),
        "a turn": lambda: agent.run(agent.turns + number),
    }
    start = time.process_time()
    calls[what]()
    return time.process_time() - start


SAYS = "a repeated id or key is known for the life of a session"
PROMISE = Promise("P11", SAYS, TURNS, trials, "ids")
