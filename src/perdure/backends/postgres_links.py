"""What the two pools share: a connection with a deadline, and a look at one that was idle."""

import asyncio
import math
import select
import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from perdure.backends.postgres_address import Address
from perdure.backends.postgres_arrays import Array, Bytes, Flags, Numbers, Texts
from perdure.backends.postgres_errors import AnswerTimeoutError
from perdure.backends.postgres_steps import Row

T = TypeVar("T")

PREPARE_AFTER = 5  # Uses of a statement; one that is seldom used is not worth it.
SERVER_PROCESS = "select pg_backend_pid()"
TAKEN_BACK = 1.0  # Seconds that a server which is there takes at most to give a statement up.


class _ArrayDumper(Dumper):
    """Tells the driver what an array of ours is; only it gives such classes to the driver."""

    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.data


for _array in (Bytes, Texts, Flags, Numbers):
    psycopg.adapters.register_dumper(
        _array, type(f"{_array.__name__}Dumper", (_ArrayDumper,), {"oid": _array.oid})
    )


class Link(psycopg.Connection[Row]):
    """A connection whose statements end at `deadline`, with an error if need be."""

    deadline = math.inf
    _pool = None  # psycopg warns of a forgotten connection, unless it belongs to a pool.

    def wait(self, gen: Generator[Any, Any, T], *rest: Any, **more: Any) -> T:
        """As that of psycopg, but not for ever."""
        return super().wait(_limited(gen, self.deadline), *rest, **more)


class AsyncLink(psycopg.AsyncConnection[Row]):
    """The same for an event loop."""

    deadline = math.inf
    _pool = None

    async def wait(self, gen: Generator[Any, Any, T], *rest: Any, **more: Any) -> T:
        """As that of psycopg, but not for ever."""
        return await super().wait(_limited(gen, self.deadline), *rest, **more)


def options_of(address: Address) -> dict[str, Any]:
    """Return how to connect: nothing that is left in a session is relied upon.

    Statements are not prepared until `let_prepare` says so.
    """
    return {**address.options, "autocommit": True, "prepare_threshold": None}


def let_prepare(link: Link | AsyncLink, server_process: object) -> None:
    """Let a connection prepare statements, if nothing stands between it and its server process.

    A pooler gives each statement to another process, where the same name may stand for another
    statement. It answers a login with a number of its own making, so that it shows.
    """
    if server_process == link.info.backend_pid:
        link.prepare_threshold = PREPARE_AFTER


def in_time(options: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Return how to connect before a deadline; the driver waits for two seconds at least."""
    left = max(deadline - time.monotonic(), 2.0)
    usual = float(options.get("connect_timeout") or 0)
    return {**options, "connect_timeout": math.ceil(min(usual, left) if usual > 0 else left)}


def _limited(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Pass everything on, but raise when the time has come: psycopg asks every now and then."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                gen.close()
                raise AnswerTimeoutError("the server did not answer in time")
            state = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def is_alive(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Tell whether an idle connection can be used, as far as is known without asking the server."""
    if connection.closed:
        return False
    try:
        while _has_input(connection.pgconn.socket):
            connection.pgconn.consume_input()  # A farewell, or something that does not matter.
    except (psycopg.Error, OSError, ValueError):
        return False
    return not connection.closed


def _has_input(descriptor: int, timeout: float = 0) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    return bool(select.select([descriptor], [], [], timeout)[0])


def take_back(link: Link) -> bool:
    """Have the server give up a statement that is waited for no longer; tell if it answers.

    Left to itself it would wait on, and keep all others from what it has locked.
    """
    if not psycopg.capabilities.has_cancel_safe():
        return False
    try:
        link.cancel_safe(timeout=TAKEN_BACK)
        return _has_input(link.pgconn.socket, TAKEN_BACK)
    except (psycopg.Error, OSError, ValueError):
        return False


async def take_back_async(link: AsyncLink) -> bool:
    """As `take_back`."""
    if not psycopg.capabilities.has_cancel_safe():
        return False
    try:
        await link.cancel_safe(timeout=TAKEN_BACK)
        for _ in range(100):
            if _has_input(link.pgconn.socket):
                return True
            await asyncio.sleep(TAKEN_BACK / 100)
    except (psycopg.Error, OSError, ValueError):
        return False
    return False
