"""P8 and P9 on Redis: the same histories, with a server that is killed and started again."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tests.backends.redis.server import Server
from tests.promises.kinds import Kind
from tests.promises.p08_histories import APPENDS, SAYS
from tests.promises.p08_postgres import MOST_KILLS, ServerHistory, killing
from tests.promises.places import fast_directory
from tests.promises.promise import Promise, Trial, in_time

PAUSE = 0.15  # Seconds between kills, at least: appends take less time than on Postgres.

_numbers = itertools.count(1)


class Redis:
    """Stores of one server, a tenant for each."""

    name = "redis"

    def __init__(self, url: str) -> None:
        self._url = url

    def address(self, _directory: Path) -> str:
        return f"{self._url}?tenant=history{next(_numbers)}&wait=30&timeout=60"


def history(seed: int, server: Server, *, appends: int = APPENDS, kills: bool = False) -> Trial:
    """Make one history on a server and judge it."""
    kind = cast("Kind", Redis(server.url))
    with fast_directory() as folder:
        made = ServerHistory(seed, kind, folder, appends=appends)
        killed = list[float]()
        if kills:
            ill = random.Random(seed)
            with killing(cast("Any", server), ill, MOST_KILLS, pause=PAUSE) as killed:
                wrong = made.run()
        else:
            wrong = made.run()
    who = f"{made.writers} writers, {made.readers} readers, {appends} appends"
    return Trial(f"seed {seed}: {who}, {len(killed)} kills of the server", "; ".join(wrong[:5]))


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    number = seed * 1_000_000
    with fast_directory() as directory:
        server = Server(directory)
        try:
            while in_time(deadline):
                number += 1
                yield history(number, server, kills=number % 2 == 0)
        finally:
            server.stop()


PROMISE = Promise("P8", SAYS, 200, trials, "redis")
