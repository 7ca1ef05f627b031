"""P28 with leases: they go by each worker's own monotonic clock, and by no wall clock.

Workers on machines of their own take, renew and lose leases in an order drawn from a seed. Their
monotonic clocks began at different times, and stand still while a machine sleeps; their wall clocks
are mad. What they are told must be the same as with wall clocks that are right, and no lease may be
taken over before its time has passed, be believed in by a worker that was awake after that, or be
kept from a contender that has watched it for that long.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.leases import LeaseHolder
from perdure.errors import ConflictError, FencedError, LeaseHeldError
from perdure.sync import lease as lease_module
from perdure.sync.lease import Lease
from tests.promises import places
from tests.promises.kinds import KINDS, SQLITE, Kind
from tests.promises.p08_leases import held_by_one
from tests.promises.p28_clocks import Clock, even, fresh, mad
from tests.promises.promise import Promise, Trial, in_time

TTL = 30.0
STEPS = 60
WORKERS = 3


class Machine:
    """A worker with clocks of its own, and what it believes."""

    def __init__(self, world: "World", number: int, address: Any, clock: Clock) -> None:
        self.name = f"m{number}"
        self.asleep = False
        self.dozed = False
        """Whether it slept since it sent its last renewal, and can not know what time it is."""
        self.sent = 0.0
        self.offset = world.draw.uniform(0, 1e6)
        self.session = perdure.open(address, clock=clock).session("s")
        self.lease: Lease | None = None
        self.watched: tuple[LeaseHolder, int, float] | None = None
        """The lease that it saw and could not take, at which renewal, and when it did."""


class World:
    """All of them, and the time that really passes."""

    def __init__(self, seed: int, addresses: list[Any], clocks: list[Clock]) -> None:
        self.draw = random.Random(seed)
        self.time = 0.0
        self.stored = 0.0
        """When the newest lease or renewal was stored."""
        self.log: list[object] = []
        self.faults: list[str] = []
        self.machines = [
            Machine(self, number, address, clock)
            for number, (address, clock) in enumerate(zip(addresses, clocks, strict=True))
        ]
        self.running = self.machines[0]
        self._said = 0

    def monotonic(self) -> float:
        """The clock of the machine that is running."""
        return self.time + self.running.offset

    def step(self) -> None:
        """Let time pass, and one machine that is awake do something."""
        passed = self.draw.choice((0.0, 0.1, TTL / 3, TTL / 2, TTL - 0.001, TTL))
        self.time += passed
        for machine in self.machines:
            if machine.asleep:
                machine.offset -= passed
                machine.dozed = True
            if self.draw.random() < 0.1:
                machine.asleep = not machine.asleep
        awake = [machine for machine in self.machines if not machine.asleep]
        if awake:
            self.running = self.draw.choice(awake)
            self._act(self.running)

    def _act(self, machine: Machine) -> None:
        acts: list[Callable[[Machine], object]] = [self._say]
        if machine.lease is None:
            acts += [self._take] * 3
        else:
            acts += [self._say, self._renew, self._renew, self._leave, self._ask]
        act = self.draw.choice(acts)
        try:
            told: object = act(machine)
        except (FencedError, LeaseHeldError, ConflictError) as error:
            told = type(error).__name__
        self.log.append((machine.name, act.__name__, told))

    def _take(self, machine: Machine) -> int:
        machine.session.refresh()
        before = machine.session.lease_holder
        renewed = _renewed(machine.session)
        lease = machine.session.lease(ttl=TTL, owner=machine.name)
        sent = self.time
        try:
            lease.__enter__()
        except LeaseHeldError:
            assert before is not None
            seen = machine.watched
            if seen is None or seen[:2] != (before, renewed):
                machine.watched = (before, renewed, self.monotonic())
            elif self.monotonic() >= seen[2] + TTL:
                self.faults.append(f"{machine.name} watched epoch {before.epoch} for long enough")
            raise
        machine.lease, machine.sent, machine.dozed = lease, sent, False
        if before is not None and self.time < self.stored + TTL:
            self.faults.append(f"{machine.name} took epoch {before.epoch} over too early")
        self.stored = self.time
        return lease.epoch

    def _renew(self, machine: Machine) -> float | None:
        assert machine.lease is not None
        sent, pause = self.time, machine.lease._renew()
        if pause is not None:
            machine.sent, machine.dozed, self.stored = sent, False, self.time
        return pause

    def _leave(self, machine: Machine) -> None:
        assert machine.lease is not None
        lease, machine.lease = machine.lease, None
        lease.__exit__(None, None, None)

    def _ask(self, machine: Machine) -> bool:
        assert machine.lease is not None
        held = machine.lease.held
        if held and not machine.dozed and self.time >= machine.sent + TTL:
            self.faults.append(f"{machine.name} believed in epoch {machine.lease.epoch} too long")
        return held

    def _say(self, machine: Machine) -> int:
        self._said += 1
        epoch = machine.lease.epoch if machine.lease is not None else 0
        said = {
            "role": "user",
            "content": "",
            "id": str(self._said),
            "by": machine.name,
            "epoch": epoch,
        }
        return machine.session.append(said)

    def end(self) -> list[object]:
        """Return what was told and what is stored, without what tells a time or was drawn."""
        session = self.machines[0].session
        session.refresh()
        session.verify()
        records = list(session.records())
        self.faults += held_by_one(records)
        return [*self.log, *((record.position, record.kind) for record in records)]


def _renewed(session: perdure.Session) -> int:
    tenure = session._replica.state.lease
    return tenure.renewed if tenure is not None else 0


def story(seed: int, addresses: list[Any], clocks: list[Clock]) -> tuple[list[object], list[str]]:
    """Let it all happen; return what everybody was told, and what was wrong."""
    world = World(seed, addresses, clocks)
    with (
        mock.patch.object(lease_module, "time", world),
        mock.patch.object(Lease, "_start"),  # Renewals are drawn, too.
    ):
        for _ in range(STEPS):
            world.step()
        told = world.end()
        for machine in world.machines:
            with contextlib.suppress(FencedError):
                machine.session.close()
    return told, world.faults


def lease_trial(seed: int, kind: Kind, directory: Path) -> Trial:
    """The same story with wall clocks that are right, and with mad ones."""
    draw = random.Random(seed)
    addresses: list[list[Any]] = [[MemoryBackend()] * WORKERS for _ in range(2)]
    if seed % 8 == 0 or kind is not SQLITE:
        names = ("even leases", "mad leases")
        addresses = [[fresh(kind, directory / name)] * WORKERS for name in names]
    good, faults = story(seed, addresses[0], [even() for _ in range(WORKERS)])
    found, more = story(seed, addresses[1], [mad(draw) for _ in range(WORKERS)])
    if good != found:
        differs = next(pair for pair in zip(good, found, strict=False) if pair[0] != pair[1])
        faults.append(f"mad wall clocks change {differs}")
    return Trial(f"leases {seed}", "; ".join([*faults, *more][:5]))


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    """Yield stories that differ each time."""
    with places.fast_directory() as directory:
        number = seed * 1_000_000
        while in_time(deadline):
            yield lease_trial(number, kind, directory)
            number += 1


SAYS = "leases go by monotonic clocks: no wall clock, sleep or offset makes one end too early"
PROMISES = [Promise("P28-leases", SAYS, 10_000, partial(trials, kind), kind.name) for kind in KINDS]
