# Generated from postgres/pool_async.py by scripts/generate_sync.py: do not edit.
"""Connection pool of a store: operations borrow a connection, dead ones are replaced.

A connection that is lost in the middle of a call leaves its statement in doubt. Every statement may
be sent twice, so the call continues on another connection and finds the outcome.
"""

import os
from typing import TypeVar

import psycopg

from perdure.backends.connection_slots import ConnectionSlots, current_loop, sleep
from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import (
    SERVER_PROCESS_QUERY,
    Connection,
    Operation,
    allow_prepare,
    cancel,
    connect_options,
    discard,
    is_alive,
    with_deadline,
)
from perdure.backends.postgres.errors import AnswerTimeoutError, BlockedError, RetryBudget
from perdure.errors import PerdureError, UsageError

T = TypeVar("T")


class PostgresPool:
    """Runs operations on connections of one store."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._options = connect_options(address)
        self.closed = False
        self._reset(None)

    def _reset(self, loop: object) -> None:
        slots, idle = ConnectionSlots(self._address.connections), list[Connection]()
        self._slots, self._idle = slots, idle  # Last: no connection of another loop is kept.
        self._pid, self._loop = os.getpid(), loop

    def run(self, operation: Operation[T], timeout: float | None = None, *, stream: str = "") -> T:
        """Return the result of an operation, restarting it after errors worth a retry.

        `stream` is named in errors about damage, if only one stream can be affected.

        If the caller is interrupted, a running statement is canceled and its end awaited, so that
        a later call sees its outcome.
        """
        loop = current_loop()
        if self._pid != os.getpid():
            # The connections belong to the parent: closing them here would end them there.
            self._reset(loop)
        elif self._loop is not loop:
            self._close_idle()  # They belong to a loop that has ended.
            self._reset(loop)
        budget = RetryBudget(self._address, timeout, stream)
        while True:
            try:
                return self._attempt(operation, budget.deadline)
            except (psycopg.Error, OSError) as error:
                pause = budget.after(error)
            sleep(pause)

    def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self.closed = True
        if self._pid == os.getpid():
            self._close_idle()

    def _attempt(self, operation: Operation[T], deadline: float) -> T:
        ticket = object()
        try:
            if not self._slots.acquire(ticket, deadline):
                raise AnswerTimeoutError("all connections of this store were busy for too long")
            connection = self._acquire(deadline)
            connection.deadline = deadline
            try:
                result = operation(connection)
            except PerdureError:
                self._release(connection)
                raise
            except BaseException as error:
                try:
                    is_blocked = isinstance(error, AnswerTimeoutError) and cancel(connection)
                finally:
                    discard(connection)
                if is_blocked:
                    raise BlockedError(str(error)) from None
                # Idle connections may lead to the same dead server; new ones are cheap.
                self._close_idle()
                raise
            self._release(connection)
            return result
        finally:
            self._slots.free(ticket)
            self._slots.wake_next()

    def _acquire(self, deadline: float) -> Connection:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect(deadline)
            if is_alive(connection):
                return connection
            discard(connection)

    def _connect(self, deadline: float) -> Connection:
        connection = Connection.connect(**with_deadline(self._options, deadline))
        connection.deadline = deadline
        try:
            cursor = connection.execute(SERVER_PROCESS_QUERY)
            row = cursor.fetchone()
        except BaseException:
            discard(connection)
            raise
        allow_prepare(connection, row[0] if row else None)
        return connection

    def _release(self, connection: Connection) -> None:
        self._idle.append(connection)
        if self.closed:
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # Another thread took the last one.
                return
            discard(connection)
