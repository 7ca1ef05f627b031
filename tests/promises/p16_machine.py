"""P16: whatever is done to sessions, they show what a model made of lists says.

Runs of one seed do the same on every store, so what they log must be the same too.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing import machine_for
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

RUNS = 20  # Of one trial, so that a store does not grow for ever.
STEPS = 50
STORES = ("memory", "sqlite", "files")

Opener = Callable[[], Backend]


class Kept(MemoryBackend):
    """A memory store that is not gone when one of those who opened it closes it."""

    def close(self) -> None:
        pass


def opener(store: str, folder: Path) -> Opener:
    """Return what opens the same store each time it is called."""
    if store == "sqlite":
        return lambda: SqliteBackend(folder / "store.db")
    if store == "files":
        return lambda: FilesBackend(folder / "state")
    kept = Kept()
    return lambda: kept


def run(open_backend: Opener, *, seed: int, runs: int, steps: int = STEPS) -> list[list[str]]:
    """Let the machine run and return what each run logged; raise on the first that fails."""
    logs: list[list[str]] = []
    machine: Any = machine_for(open_backend)

    class Logged(machine):  # type: ignore[misc]
        def teardown(self) -> None:
            super().teardown()
            logs.append(self.driver.log)

    options = settings(
        max_examples=runs,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        # A failure is shrunk by whoever looks into it: that takes minutes.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with _silence():
        run_state_machine_as_test(hypothesis.seed(seed)(Logged), settings=options)
    return logs


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The faults that the machine injects are reported by the dozen, and rightly so."""
    logger = logging.getLogger("perdure")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def compared(seed: int, *, runs: int = RUNS) -> Iterator[Trial]:
    """Run the same on all stores; a trial for each run on each of them."""
    logs: dict[str, list[list[str]]] = {}
    for store in STORES:
        with fast_directory() as folder:
            try:
                logs[store] = run(opener(store, folder), seed=seed, runs=runs)
            except Exception as error:  # noqa: BLE001 - every failure is one of the trial
                yield Trial(f"{store}, seed {seed}", f"{type(error).__name__}: {error}")
                return
        yield from (Trial(f"{store}, seed {seed}, run {n}") for n in range(len(logs[store])))
    first, *others = logs.values()
    for number, log in enumerate(first):
        for other in others:
            if number >= len(other) or other[number] != log:
                yield Trial(f"{STORES}, seed {seed}, run {number}", "the stores differ")
                return


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    while in_time(deadline):
        number += 1
        yield from compared(number)


PROMISE = Promise(
    "P16",
    f"state behaves as the model, the same on {' and '.join(STORES)}, {STEPS} steps a run",
    10_000 * len(STORES),
    trials,
)
