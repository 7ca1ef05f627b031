"""Connection pool for an event loop: dead connections are replaced, no threads.

A connection that is lost in the middle of a call leaves its statement in doubt. Every statement may
be sent twice, so the call continues on another connection and finds the outcome.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import (
    SERVER_PROCESS_QUERY,
    AsyncConnection,
    allow_prepare,
    cancel_async,
    connect_options,
    is_alive,
    with_deadline,
)
from perdure.backends.postgres.errors import (
    AnswerTimeoutError,
    BlockedError,
    RetryBudget,
    log_notify_failed,
)
from perdure.backends.postgres.operations import Steps
from perdure.errors import PerdureError, UsageError

T = TypeVar("T")


class AsyncPostgresPool:
    """Drives steps on connections of one store."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._options = connect_options(address)
        self.closed = False
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._pid = os.getpid()
        self._loop = loop
        self._idle: list[AsyncConnection] = []
        self._slots = asyncio.Semaphore(self._address.connections)

    async def run(
        self, begin: Callable[[], Steps[T]], patience: float | None = None, *, stream: str = ""
    ) -> T:
        """Drive steps to their result, restarting them after errors worth a retry.

        `stream` is named in errors about damage, if only one stream can be affected.

        On cancellation, a running statement is canceled too and awaited, so that a later call sees
        its outcome.
        """
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            # The connections belong to the parent: closing them here would end them there.
            self._reset(loop)
        elif self._loop is not loop:
            await self._close_idle()  # They belong to a loop that has ended.
            self._reset(loop)
        budget = RetryBudget(self._address, patience, stream)
        while True:
            try:
                return await self._attempt(begin(), budget.deadline)
            except (psycopg.Error, OSError) as error:
                pause = budget.after(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self.closed = True
        if self._pid == os.getpid():
            await self._close_idle()

    async def _attempt(self, steps: Steps[T], deadline: float) -> T:
        await self._wait_for_slot(deadline)
        try:
            connection = await self._acquire(deadline)
            connection.deadline = deadline
            try:
                result = await run_steps(connection, steps, self._address)
            except PerdureError:
                await self._release(connection)
                raise
            except BaseException as error:
                try:
                    is_blocked = isinstance(error, AnswerTimeoutError) and await cancel_async(
                        connection
                    )
                finally:
                    await _discard(connection)
                if is_blocked:
                    raise BlockedError(str(error)) from None
                # Idle connections may lead to the same dead server; new ones are cheap.
                await self._close_idle()
                raise
            await self._release(connection)
            return result
        finally:
            self._slots.release()

    async def _wait_for_slot(self, deadline: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            remaining = max(deadline - time.monotonic(), 0)
            await asyncio.wait_for(self._slots.acquire(), remaining)
        except TimeoutError:
            reason = "all connections of this store were busy for too long"
            raise AnswerTimeoutError(reason) from None

    async def _acquire(self, deadline: float) -> AsyncConnection:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            connection = self._idle.pop() if self._idle else None
            if connection is None:
                return await self._connect(deadline)
            if is_alive(connection):
                return connection
            await _discard(connection)

    async def _connect(self, deadline: float) -> AsyncConnection:
        connection = await AsyncConnection.connect(**with_deadline(self._options, deadline))
        connection.deadline = deadline
        try:
            row = await (await connection.execute(SERVER_PROCESS_QUERY)).fetchone()
        except BaseException:
            await _discard(connection)
            raise
        allow_prepare(connection, row[0] if row else None)
        return connection

    async def _release(self, connection: AsyncConnection) -> None:
        self._idle.append(connection)
        if self.closed:
            await self._close_idle()

    async def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await _discard(connection)


async def run_steps(connection: AsyncConnection, steps: Steps[T], address: PostgresAddress) -> T:
    """Run the steps on this connection and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                prepare = None if request.often else False
                cursor = await connection.execute(
                    request.sql, request.parameters, prepare=prepare, binary=True
                )
                rows = await cursor.fetchall()
            except (psycopg.Error, OSError) as error:
                if not request.may_fail:
                    raise
                log_notify_failed(error, address)
                await _discard(connection)
                rows = []
            request = steps.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _discard(connection: AsyncConnection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()
