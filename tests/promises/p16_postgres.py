"""P16 on Postgres: sessions behave as the model there too."""

import itertools
from collections.abc import Iterator

from perdure.backends.postgres.backend import PostgresBackend
from tests.backends.postgres.server_keeper import running
from tests.promises.p16_machine import RUNS, run
from tests.promises.promise import Promise, Trial, in_time


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    with running() as server:
        for number in itertools.count(seed * 1_000_000):
            if not in_time(deadline):
                return
            address = f"{server.url}?tenant=machine{number}&connections=2"
            try:
                logs = run(lambda where=address: PostgresBackend(where), seed=number, runs=RUNS)  # type: ignore[misc]
            except AssertionError as error:
                yield Trial(f"seed {number}", f"{error}")
            else:
                yield from (Trial(f"seed {number}, run {one}") for one in range(len(logs)))


PROMISE = Promise("P16", "state behaves as the model", 10_000, trials, "postgres")
