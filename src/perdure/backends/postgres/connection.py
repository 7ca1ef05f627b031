"""Connections with a deadline, shared by the sync and async pools and the notify listener.

Nothing here retries, and nothing relies on session state: a pooler may be in between.
"""

import asyncio
import contextlib
import math
import select
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self, TypeVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.errors import AnswerTimeoutError
from perdure.backends.postgres.queries import (
    BigintArray,
    BooleanArray,
    ByteaArray,
    PostgresArray,
    Query,
    Row,
    TextArray,
)

T = TypeVar("T")


PREPARE_AFTER = 5  # uses of a statement; preparing one that is rarely used does not pay

SERVER_PROCESS_QUERY = "select pg_backend_pid()"

CANCEL_TIMEOUT = 1.0  # seconds; a reachable server cancels a statement within this time


class _ArrayDumper(Dumper):
    """Passes our arrays to the driver in binary; only this module registers them."""

    format = Format.BINARY

    def dump(self, obj: PostgresArray) -> bytes:
        return obj.data


for _array in (ByteaArray, TextArray, BooleanArray, BigintArray):
    psycopg.adapters.register_dumper(
        _array, type(f"{_array.__name__}Dumper", (_ArrayDumper,), {"oid": _array.oid})
    )


class Connection(psycopg.Connection[Row]):
    """A connection whose statements fail with AnswerTimeoutError after `deadline`."""

    deadline = math.inf
    _pool = None  # psycopg warns about unclosed connections unless they have this attribute.

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """As in psycopg, but not beyond the deadline."""
        return super().wait(_until_deadline(gen, self.deadline), *args, **kwargs)

    def fetch(self, query: Query) -> list[Row]:
        """Run a query and return its rows."""
        prepare = None if query.often else False
        return self.execute(query.sql, query.parameters, prepare=prepare, binary=True).fetchall()


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """As `Connection`, for an event loop."""

    deadline = math.inf
    _pool = None

    @classmethod
    def _connect_gen(cls, *args: Any, **kwargs: Any) -> Generator[Any, Any, Self]:
        """As in psycopg, but with descriptors that the event loop does not know."""
        return _with_new_descriptors(super()._connect_gen(*args, **kwargs))

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """As in psycopg, but not beyond the deadline."""
        return await super().wait(_until_deadline(gen, self.deadline), *args, **kwargs)

    async def fetch(self, query: Query) -> list[Row]:
        """Run a query and return its rows."""
        prepare = None if query.often else False
        cursor = await self.execute(query.sql, query.parameters, prepare=prepare, binary=True)
        return await cursor.fetchall()


# What a pool runs on a connection, again after an error worth a retry.
Operation = Callable[[Connection], T]

AsyncOperation = Callable[[AsyncConnection], Awaitable[T]]


def connect_options(address: PostgresAddress) -> dict[str, Any]:
    """Return the connection options: no call relies on state left in a session.

    Statements are not prepared until `allow_prepare` allows it.
    """
    return {**address.options.reveal(), "autocommit": True, "prepare_threshold": None}


def allow_prepare(connection: Connection | AsyncConnection, server_process: object) -> None:
    """Allow prepared statements if the connection leads directly to its server process.

    A transaction pooler may send each statement to another process, where the same name may stand
    for another statement. It is detected by the process id, which a pooler makes up at login.
    """
    if server_process == connection.info.backend_pid:
        connection.prepare_threshold = PREPARE_AFTER


def with_deadline(options: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Return options that connect before a deadline; the driver waits at least two seconds."""
    remaining = max(deadline - time.monotonic(), 2.0)
    configured = float(options.get("connect_timeout") or 0)
    return {
        **options,
        "connect_timeout": math.ceil(min(configured, remaining) if configured > 0 else remaining),
    }


def _until_deadline(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Drive a psycopg generator, but raise after the deadline; psycopg wakes regularly."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                gen.close()
                raise AnswerTimeoutError("the server did not answer in time")
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _with_new_descriptors(gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive a generator that connects; each of its requests names the descriptor to wait for.

    A signal handler may have interrupted the driver while it waited for an earlier connection, so
    that the event loop still has a callback for its descriptor. It would take a new connection with
    the same number for that one, and never report that there is something to read.
    """
    loop = asyncio.get_running_loop()
    try:
        request = next(gen)
        while True:
            loop.remove_reader(request[0])
            loop.remove_writer(request[0])
            request = gen.send((yield request))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def is_alive(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Return whether an idle connection looks usable, without asking the server."""
    if connection.closed:
        return False
    try:
        # Input is a termination message, which closes the connection, or an irrelevant notice.
        while _has_input(connection.pgconn.socket):
            connection.pgconn.consume_input()
    except (psycopg.Error, OSError, ValueError):
        return False
    return not connection.closed


def _has_input(descriptor: int, timeout: float = 0) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    return bool(select.select([descriptor], [], [], timeout)[0])


def cancel(connection: Connection) -> bool:
    """Cancel the running statement on the server; return whether the server answered.

    Left alone, the statement would keep waiting and block other clients with its locks.
    """
    if not psycopg.capabilities.has_cancel_safe():
        return False
    try:
        connection.cancel_safe(timeout=CANCEL_TIMEOUT)
        return _has_input(connection.pgconn.socket, CANCEL_TIMEOUT)
    except (psycopg.Error, OSError, ValueError):
        return False


async def cancel_async(connection: AsyncConnection) -> bool:
    """As `cancel`."""
    if not psycopg.capabilities.has_cancel_safe():
        return False
    try:
        await connection.cancel_safe(timeout=CANCEL_TIMEOUT)
        for _ in range(100):
            if _has_input(connection.pgconn.socket):
                return True
            await asyncio.sleep(CANCEL_TIMEOUT / 100)
    except (psycopg.Error, OSError, ValueError):
        return False
    return False


def discard(connection: Connection) -> None:
    """Close a connection, whatever its state."""
    with contextlib.suppress(psycopg.Error, OSError):
        connection.close()


async def discard_async(connection: AsyncConnection) -> None:
    """As `discard`."""
    with contextlib.suppress(psycopg.Error, OSError, RuntimeError):  # The loop may have ended.
        # The driver may have been interrupted before it did this.
        loop, descriptor = asyncio.get_running_loop(), connection.pgconn.socket
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()
