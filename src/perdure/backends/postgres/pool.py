"""Connection pool for threads: any thread borrows a connection, dead ones are replaced.

A connection that is lost in the middle of a call leaves its statement in doubt. Every statement may
be sent twice, so the call continues on another connection and finds the outcome.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import (
    SERVER_PROCESS_QUERY,
    Connection,
    allow_prepare,
    cancel,
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


class PostgresPool:
    """Drives steps on connections of one store."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._options = connect_options(address)
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._slots = threading.Semaphore(self._address.connections)

    def run(
        self, begin: Callable[[], Steps[T]], patience: float | None = None, *, stream: str = ""
    ) -> T:
        """Drive steps to their result, restarting them after errors worth a retry.

        `stream` is named in errors about damage, if only one stream can be affected.
        """
        if self._pid != os.getpid():
            # The connections belong to the parent: closing them here would end them there.
            self._reset()
        budget = RetryBudget(self._address, patience, stream)
        while True:
            try:
                return self._attempt(begin(), budget.deadline)
            except (psycopg.Error, OSError) as error:
                pause = budget.after(error)
            time.sleep(pause)

    def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self.closed = True
        if self._pid == os.getpid():
            self._close_idle()

    def _attempt(self, steps: Steps[T], deadline: float) -> T:
        if not self._slots.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise AnswerTimeoutError("all connections of this store were busy for too long")
        try:
            connection = self._acquire(deadline)
            connection.deadline = deadline
            try:
                result = run_steps(connection, steps, self._address)
            except PerdureError:
                self._release(connection)
                raise
            except BaseException as error:
                try:
                    is_blocked = isinstance(error, AnswerTimeoutError) and cancel(connection)
                finally:
                    _discard(connection)
                if is_blocked:
                    raise BlockedError(str(error)) from None
                # Idle connections may lead to the same dead server; new ones are cheap.
                self._close_idle()
                raise
            self._release(connection)
            return result
        finally:
            self._slots.release()

    def _acquire(self, deadline: float) -> Connection:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(deadline)
            if is_alive(connection):
                return connection
            _discard(connection)

    def _connect(self, deadline: float) -> Connection:
        connection = Connection.connect(**with_deadline(self._options, deadline))
        connection.deadline = deadline
        try:
            row = connection.execute(SERVER_PROCESS_QUERY).fetchone()
        except BaseException:
            _discard(connection)
            raise
        allow_prepare(connection, row[0] if row else None)
        return connection

    def _release(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)
        if self.closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _discard(connection)


def run_steps(connection: Connection, steps: Steps[T], address: PostgresAddress) -> T:
    """Run the steps on this connection and return their result."""
    try:
        request = next(steps)
        while True:
            try:
                prepare = None if request.often else False
                cursor = connection.execute(
                    request.sql, request.parameters, prepare=prepare, binary=True
                )
                rows = cursor.fetchall()
            except (psycopg.Error, OSError) as error:
                if not request.may_fail:
                    raise
                log_notify_failed(error, address)
                _discard(connection)
                rows = []
            request = steps.send(rows)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _discard(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        connection.close()
