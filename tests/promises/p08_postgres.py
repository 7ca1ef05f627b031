"""P8 and P9 on Postgres: the same histories, with a server that is killed and started again."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import cast

from tests.backends.postgres.server_keeper import Server, running
from tests.promises.kinds import Kind
from tests.promises.p08_histories import APPENDS, SAYS, History
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

MOST_KILLS = 12  # Of a history.

_numbers = itertools.count(1)


class Postgres:
    """Stores of one server, a tenant for each."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self._url = url

    def address(self, _directory: Path) -> str:
        return f"{self._url}?tenant=history{next(_numbers)}&connections=2&wait=30"


class ServerHistory(History):
    """A server takes longer than a file, and even longer while it recovers."""

    patience = 300.0


@contextmanager
def killing(
    server: Server, draw: random.Random, most: int, *, pause: float = 0.5
) -> Iterator[list[float]]:
    """Kill a server now and then, and start it again on what it left.

    Where starting it takes long, nobody would get on if that went on for ever.
    """
    ending, kills = threading.Event(), list[float]()

    def work() -> None:
        while len(kills) < most and not ending.wait(pause + draw.random() * 4 * pause):
            server.stop(SIGKILL)
            kills.append(time.monotonic())
            ending.wait(draw.random() * 0.3)
            server.start()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield kills
    finally:
        ending.set()
        thread.join()


def history(seed: int, server: Server, *, appends: int = APPENDS, kills: bool = False) -> Trial:
    """Make one history on a server and judge it."""
    kind = cast("Kind", Postgres(server.url))
    with fast_directory() as folder:
        made = ServerHistory(seed, kind, folder, appends=appends)
        if kills:
            with killing(server, random.Random(seed), MOST_KILLS) as killed:
                wrong = made.run()
            how = f"{len(killed)} kills of the server"
        else:
            wrong, how = made.run(), "no kills of the server"
    who = f"{made.writers} writers, {made.readers} readers, {appends} appends"
    return Trial(f"seed {seed}: {who}, {how}", "; ".join(wrong[:5]))


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    with running("max_connections=300") as server:
        while in_time(deadline):
            number += 1
            yield history(number, server, kills=number % 2 == 0)


PROMISE = Promise("P8", SAYS, 200, trials, "postgres")
