"""What a promise's trials have in common, for the quick sample and for the Full command.

A module `pNN_name.py` holds the trials of one promise and a `PROMISE`. Its quick tests run a seeded
sample; `full.py` runs it until the figure of the promise is reached, over many runs if need be.
What is tried on each kind of store by itself is a promise for each: `PROMISES`.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Trial(NamedTuple):
    """One trial: what was tried, and what went wrong (nothing, if all is well)."""

    what: str
    failure: str = ""


class Promise(NamedTuple):
    """`trials(seed, deadline)` yields trials until the time (`time.monotonic`) has come.

    `store` is the kind that they are run on, "" where one trial concerns several or none.
    """

    number: str
    says: str
    target: int
    trials: Callable[[int, float], Iterator[Trial]]
    store: str = ""

    @property
    def key(self) -> str:
        """What its counts are kept under: `P1-files`."""
        return f"{self.number}-{self.store}" if self.store else self.number


def in_time(deadline: float) -> bool:
    """Whether there is time for one more trial."""
    return time.monotonic() < deadline


PATIENCE = 250.0  # Seconds: a busy machine must not make a promise look broken.
AT_ONCE = 50.0  # Seconds; to trials that are given more it is no sample.


def sample(promise: Promise, *, seed: int, seconds: float, least: int) -> int:
    """Run trials for some seconds and return how many; raise AssertionError on the first failure.

    At least `least` must have run, and get more time if need be: a sample that tried nothing
    proves nothing.
    """
    count = 0
    start = time.monotonic()
    while count < least and time.monotonic() < start + PATIENCE:
        for trial in promise.trials(seed, time.monotonic() + AT_ONCE):
            assert not trial.failure, f"{promise.key} seed {seed}: {trial.what}: {trial.failure}"
            count += 1
            if count >= least and time.monotonic() > start + seconds:
                return count
        seed += 1_000
    assert count >= least, f"{promise.key}: {count} trials, wanted {least}"
    return count
