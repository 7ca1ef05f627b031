"""Connections for blocking callers: any thread borrows one, dead ones are replaced.

A connection that was lost in the middle of a call leaves its statement in doubt. Every statement
of ours may be sent twice, so the call goes on with another connection and finds out.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.backends.postgres_address import Address
from perdure.backends.postgres_errors import (
    AnswerTimeoutError,
    BlockedError,
    Trial,
    tell_unnotified,
)
from perdure.backends.postgres_links import (
    SERVER_PROCESS,
    Link,
    in_time,
    is_alive,
    let_prepare,
    options_of,
    take_back,
)
from perdure.backends.postgres_steps import Steps
from perdure.errors import PerdureError, UsageError

T = TypeVar("T")


class Pool:
    """Carries out steps on connections of one store."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._options = options_of(address)
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._places = threading.Semaphore(self._address.connections)

    def run(
        self, begin: Callable[[], Steps[T]], patience: float | None = None, *, stream: str = ""
    ) -> T:
        """Return what the steps return. They are begun again while that makes sense.

        `stream` is what damage is in, where no more than one can be meant.
        """
        if self._pid != os.getpid():
            # The connections are the parent's: to close them here would end them there.
            self._begin()
        trial = Trial(self._address, patience, stream)
        while True:
            try:
                return self._attempt(begin(), trial.deadline)
            except (psycopg.Error, OSError) as error:
                pause = trial.after(error)
            time.sleep(pause)

    def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self.closed = True
        if self._pid == os.getpid():
            self._forget()

    def _attempt(self, steps: Steps[T], deadline: float) -> T:
        if not self._places.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise AnswerTimeoutError("all connections of this store were busy for too long")
        try:
            link = self._take(deadline)
            link.deadline = deadline
            try:
                result = drive(link, steps, self._address)
            except PerdureError:
                self._give_back(link)
                raise
            except BaseException as error:
                try:
                    blocked = isinstance(error, AnswerTimeoutError) and take_back(link)
                finally:
                    _discard(link)
                if blocked:
                    raise BlockedError(str(error)) from None
                # The others may be of the same server process that is no more; new ones are cheap.
                self._forget()
                raise
            self._give_back(link)
            return result
        finally:
            self._places.release()

    def _take(self, deadline: float) -> Link:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._connect(deadline)
            if is_alive(link):
                return link
            _discard(link)

    def _connect(self, deadline: float) -> Link:
        link = Link.connect(**in_time(self._options, deadline))
        link.deadline = deadline
        try:
            row = link.execute(SERVER_PROCESS).fetchone()
        except BaseException:
            _discard(link)
            raise
        let_prepare(link, row[0] if row else None)
        return link

    def _give_back(self, link: Link) -> None:
        with self._lock:
            self._idle.append(link)
        if self.closed:
            self._forget()

    def _forget(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            _discard(link)


def drive(link: Link, steps: Steps[T], address: Address) -> T:
    """Return what the steps return, asking this connection."""
    try:
        request = next(steps)
        while True:
            try:
                prepare = None if request.often else False
                answer = link.execute(request.sql, request.parameters, prepare=prepare, binary=True)
                rows = answer.fetchall()
            except (psycopg.Error, OSError) as error:
                if not request.may_fail:
                    raise
                tell_unnotified(error, address)
                _discard(link)
                rows = []
            request = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _discard(link: Link) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        link.close()
