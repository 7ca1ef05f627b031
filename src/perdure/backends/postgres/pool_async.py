"""Connection pool of a store: operations borrow a connection, dead ones are replaced.

A connection that is lost in the middle of a call leaves its statement in doubt. Every statement may
be sent twice, so the call continues on another connection and finds the outcome.
"""

import os
from typing import TypeVar

import psycopg

from perdure.backends.connection_slots import (
    AsyncConnectionSlots,
    current_loop_async,
    sleep_async,
)
from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import (
    SERVER_PROCESS_QUERY,
    AsyncConnection,
    AsyncOperation,
    allow_prepare,
    cancel_async,
    connect_options,
    discard_async,
    is_alive,
    with_deadline,
)
from perdure.backends.postgres.errors import AnswerTimeoutError, BlockedError, RetryBudget
from perdure.errors import PerdureError, UsageError

T = TypeVar("T")


class AsyncPostgresPool:
    """Runs operations on connections of one store."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._options = connect_options(address)
        self.closed = False
        self._reset(None)

    def _reset(self, loop: object) -> None:
        slots, idle = AsyncConnectionSlots(self._address.connections), list[AsyncConnection]()
        self._slots, self._idle = slots, idle  # Last: no connection of another loop is kept.
        self._pid, self._loop = os.getpid(), loop

    async def run(
        self,
        operation: AsyncOperation[T],
        timeout: float | None = None,  # noqa: ASYNC109 - of one try, and of all retries together
        *,
        stream: str = "",
    ) -> T:
        """Return the result of an operation, restarting it after errors worth a retry.

        `stream` is named in errors about damage, if only one stream can be affected.

        If the caller is interrupted, a running statement is canceled and its end awaited, so that
        a later call sees its outcome.
        """
        loop = current_loop_async()
        if self._pid != os.getpid():
            # The connections belong to the parent: closing them here would end them there.
            self._reset(loop)
        elif self._loop is not loop:
            await self._close_idle()  # They belong to a loop that has ended.
            self._reset(loop)
        budget = RetryBudget(self._address, timeout, stream)
        while True:
            try:
                return await self._attempt(operation, budget.deadline)
            except (psycopg.Error, OSError) as error:
                pause = budget.after(error)
            await sleep_async(pause)

    async def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self.closed = True
        if self._pid == os.getpid():
            await self._close_idle()

    async def _attempt(self, operation: AsyncOperation[T], deadline: float) -> T:
        ticket = object()
        try:
            if not await self._slots.acquire(ticket, deadline):
                raise AnswerTimeoutError("all connections of this store were busy for too long")
            connection = await self._acquire(deadline)
            connection.deadline = deadline
            try:
                result = await operation(connection)
            except PerdureError:
                await self._release(connection)
                raise
            except BaseException as error:
                try:
                    is_blocked = isinstance(error, AnswerTimeoutError) and await cancel_async(
                        connection
                    )
                finally:
                    await discard_async(connection)
                if is_blocked:
                    raise BlockedError(str(error)) from None
                # Idle connections may lead to the same dead server; new ones are cheap.
                await self._close_idle()
                raise
            await self._release(connection)
            return result
        finally:
            self._slots.free(ticket)
            self._slots.wake_next()

    async def _acquire(self, deadline: float) -> AsyncConnection:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            try:
                connection = self._idle.pop()
            except IndexError:
                return await self._connect(deadline)
            if is_alive(connection):
                return connection
            await discard_async(connection)

    async def _connect(self, deadline: float) -> AsyncConnection:
        connection = await AsyncConnection.connect(**with_deadline(self._options, deadline))
        connection.deadline = deadline
        try:
            cursor = await connection.execute(SERVER_PROCESS_QUERY)
            row = await cursor.fetchone()
        except BaseException:
            await discard_async(connection)
            raise
        allow_prepare(connection, row[0] if row else None)
        return connection

    async def _release(self, connection: AsyncConnection) -> None:
        self._idle.append(connection)
        if self.closed:
            await self._close_idle()

    async def _close_idle(self) -> None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # Another thread took the last one.
                return
            await discard_async(connection)
