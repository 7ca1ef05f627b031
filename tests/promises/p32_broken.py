"""P32: a store that breaks in the middle stops the agent; no tool runs without a durable intent.

A stubborn agent goes on with its errands whatever it is told, while a call to the disk fails, once
or from then on: no space, no permission to write, an I/O error, a failed sync. Or the store itself
fails, is locked by somebody else, or is gone. Each time that a tool runs, the power fails in
hindsight: what is on the disk then, with everything unsynced lost, must hold the intent.
"""

import contextlib
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import perdure
from perdure.backends.protocol import Append, Backend, Outcome
from perdure.errors import PerdureError, UnavailableError
from perdure.testing.faults import BackendWrapper
from tests.promises import errand_runs, errands, places
from tests.promises.calls import Call, Done, recording_in
from tests.promises.errand_judge import deeds
from tests.promises.errand_runs import SESSION
from tests.promises.errands import Scenario
from tests.promises.kinds import KINDS, SQLITE, Kind
from tests.promises.promise import Promise, Trial, in_time
from tests.promises.spoiler import ERRORS, Fault, Spoiler, SqliteSpoiler
from tests.promises.stubborn import Stubborn
from tests.promises.world import World

PATIENCE = 0.02  # Seconds that a store waits for a lock.
MARKS_MAX = 6  # Effects of one trial that are looked at in hindsight; each costs an opening.
READ_ONLY = "EROFS"


class Ran(NamedTuple):
    """A tool is about to take effect; it is put down among the I/O calls."""

    effect: str


Log = list[Done | Ran]


class ReadOnlySqlite(SqliteSpoiler):
    def error(self, call: Call) -> Exception:
        if self._fault.error == READ_ONLY and call.handle:
            return apsw.ReadOnlyError("made to fail")
        return super().error(call)


class Broken(BackendWrapper):
    """A backend that fails from its nth append on, before or after it has stored."""

    def __init__(self, backend: Backend, nth: int, error: BaseException, *, stores: bool) -> None:
        super().__init__(backend)
        self._numbers = itertools.count(1)
        self._nth = nth
        self._error = error
        self._stores = stores

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if next(self._numbers) < self._nth:
            return super().append(appends)
        if self._stores:
            super().append(appends)
        raise self._error


class Trouble:
    """One trial's place: the disk, what was done to it, and what happened outside."""

    def __init__(self, kind: Kind, directory: Path, scenario: Scenario) -> None:
        errand_runs.clear(kind, directory)
        self._kind = kind
        self._directory = directory
        self._scenario = scenario
        self.log: Log = []

    def _outside(self, call: Call) -> Any:
        effect = perdure.current_effect()
        # A read-only tool may run without an intent.
        if call.path == "begun" and not self._scenario.is_read_only(effect.tool):
            self.log.append(Ran(effect.id))
        return call.do(call.data)

    def stubborn(self, told: Callable[[], object]) -> Stubborn:
        world = World(errand_runs.ledger(self._directory), self._outside)
        return Stubborn(world, self._scenario, told)

    def spoil(self, fault: Fault, *, repaired_after: int) -> tuple[Spoiler, str]:
        """Let one call to the disk fail while the agent runs; return what went wrong."""
        make = ReadOnlySqlite if self._kind is SQLITE else Spoiler
        spoiler = make(fault, self.log.append)
        told = itertools.count(1)

        def repair() -> None:
            if next(told) == repaired_after:
                spoiler.relent()

        agent = self.stubborn(repair)
        with self._kind.watched(self._directory, spoiler, timeout=PATIENCE) as open_backend:
            agent.run(open_backend)
            spoiler.relent()
        strange = [error for error in agent.errors if not isinstance(error, PerdureError)]
        return spoiler, f"the agent was told {strange[0]!r}" if strange else ""

    def wrap(self, around: Callable[[Backend], Backend]) -> None:
        """Let the agent run on a store with something around it."""
        watcher = recording_in(self.log.append)
        with self._kind.watched(self._directory, watcher, timeout=PATIENCE) as open_backend:
            made = open_backend()
            self.stubborn(lambda: None).run(lambda: around(made))
            with contextlib.suppress(PerdureError):
                made.close()

    def judge(self, draw: random.Random) -> str:
        """Say which tool ran without an intent, then or now."""
        try:
            return self._judge_now() or self._hindsight(draw)
        except PerdureError as error:
            return f"{type(error).__name__}: {error}"

    def _judge_now(self) -> str:
        with perdure.open(self._kind.address(self._directory)) as store:
            session = store.session(SESSION)
            found = deeds(session)
            session.verify()
        happened = errand_runs.happened(self._directory)
        lines = Counter(line.effect for line in happened)
        intents = {id for deed in found.values() for _, id, _ in deed.attempts}
        for line in happened:
            if line.effect not in intents and not self._scenario.is_read_only(line.tool):
                return f"{line} happened without an intent"
        for deed in found.values():
            times = [lines[id] for _, id, _ in deed.attempts]
            if max(times) > 1 or (deed.policy == "unsafe" and sum(times) > 1):
                return f"{deed.errand} ({deed.policy}) happened {times} times"
        return ""

    def _hindsight(self, draw: random.Random) -> str:
        ran = [number for number, event in enumerate(self.log) if isinstance(event, Ran)]
        marks = {*draw.sample(ran, min(MARKS_MAX, len(ran)))}
        disk = self._kind.disk()
        for number, event in enumerate(self.log):
            if isinstance(event, Done):
                disk.apply(event)
            elif number in marks:
                self._kind.lay_out(self._directory, disk.drop())
                if event.effect not in self._durable():
                    return f"{event.effect} ran when its intent was not on the disk"
        return ""

    def _durable(self) -> set[str]:
        with perdure.open(self._kind.address(self._directory)) as store:
            found = deeds(store.session(SESSION))
        return {id for deed in found.values() for _, id, _ in deed.attempts}


def faults(kind: Kind, directory: Path, scenario: Scenario) -> list[Fault]:
    """Return every call to the disk of a run without faults, with every error."""
    trouble = Trouble(kind, directory, scenario)
    spoiler, failure = trouble.spoil(Fault(0, "", "EIO"), repaired_after=0)
    assert not failure, failure
    return [
        Fault(number, op, error, lasting=lasting)
        for number, op in enumerate(spoiler.seen, 1)
        for error in (*ERRORS[kind.name][op], *([READ_ONLY] if op in ("write", "open") else []))
        for lasting in ((False, True) if error != "EINTR" else (False,))
    ]


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        every = {one: faults(kind, directory, one) for one in errands.EVERY}
        while in_time(deadline):
            for scenario in draw.sample(errands.EVERY, len(errands.EVERY)):
                if not in_time(deadline):
                    return
                fault = draw.choice(every[scenario])
                yield _spoiled(kind, directory, scenario, fault, draw)
            yield _failing(kind, directory, draw.choice(errands.EVERY), draw)
            yield _gone(kind, directory, draw.choice(errands.EVERY), draw)
            if kind is SQLITE:
                yield _locked(directory, draw.choice(errands.EVERY), draw)


def _spoiled(
    kind: Kind, directory: Path, scenario: Scenario, fault: Fault, draw: random.Random
) -> Trial:
    trouble = Trouble(kind, directory, scenario)
    _, failure = trouble.spoil(fault, repaired_after=draw.choice((0, 1, 2, 5)))
    return Trial(f"{scenario}: {fault}", failure or trouble.judge(draw))


def _failing(kind: Kind, directory: Path, scenario: Scenario, draw: random.Random) -> Trial:
    """Let the store itself fail, with errors of its own or of anybody's."""
    trouble = Trouble(kind, directory, scenario)
    nth, stores = draw.randint(2, 40), draw.random() < 0.5
    error = draw.choice([UnavailableError("the store", "made to"), OSError(5, "made to")])
    trouble.wrap(lambda backend: Broken(backend, nth, error, stores=stores))
    what = f"{scenario}: {type(error).__name__} from append {nth}, stored: {stores}"
    return Trial(what, trouble.judge(draw))


def _gone(kind: Kind, directory: Path, scenario: Scenario, draw: random.Random) -> Trial:
    """Take the store away while tools run, and bring it back."""
    trouble = Trouble(kind, directory, scenario)
    place = Path(kind.address(directory).partition(":")[2])
    away, at, numbers = directory / "away", draw.randint(2, 30), itertools.count(1)
    shutil.rmtree(away, ignore_errors=True)
    away.mkdir()

    class Going(BackendWrapper):
        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            if next(numbers) == at:
                for one in directory.glob(f"{place.name}*"):
                    one.rename(away / one.name)
            return super().append(appends)

    trouble.wrap(Going)
    if any(away.iterdir()):
        kind.clear(directory)  # What somebody made in its place is not the record.
        for one in away.iterdir():
            one.rename(directory / one.name)
    with contextlib.suppress(FileNotFoundError):
        away.rmdir()
    return Trial(f"{scenario}: gone from append {at}", trouble.judge(draw))


def _locked(directory: Path, scenario: Scenario, draw: random.Random) -> Trial:
    """Let somebody else take the lock while tools run, and keep it."""
    trouble = Trouble(SQLITE, directory, scenario)
    at, numbers = draw.randint(2, 30), itertools.count(1)
    other: list[apsw.Connection] = []

    class Locking(BackendWrapper):
        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            if next(numbers) == at:
                other.append(apsw.Connection(SQLITE.address(directory).partition(":")[2]))
                other[0].execute("begin immediate")
            return super().append(appends)

    trouble.wrap(Locking)
    for connection in other:
        connection.close()
    return Trial(f"{scenario}: locked from append {at}", trouble.judge(draw))


SAYS = "a tool does not run when its intent can not be recorded"
PROMISES = [Promise("P32", SAYS, 3_000, partial(trials, kind), kind.name) for kind in KINDS]
