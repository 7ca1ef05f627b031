"""Connections for callers in an event loop: the same as `postgres_pool`, without threads."""

import asyncio
import contextlib
import os
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
    AsyncLink,
    in_time,
    is_alive,
    let_prepare,
    options_of,
    take_back_async,
)
from perdure.backends.postgres_steps import Steps
from perdure.errors import PerdureError, UsageError

T = TypeVar("T")


class AsyncPool:
    """Carries out steps on connections of one store."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._options = options_of(address)
        self.closed = False
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._pid = os.getpid()
        self._loop = loop
        self._idle: list[AsyncLink] = []
        self._places = asyncio.Semaphore(self._address.connections)

    async def run(
        self, begin: Callable[[], Steps[T]], patience: float | None = None, *, stream: str = ""
    ) -> T:
        """Return what the steps return. They are begun again while that makes sense.

        When cancelled, a statement under way is cancelled too and waited for, so that a later
        call sees what became of it.
        """
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            # The connections are the parent's: to close them here would end them there.
            self._begin(loop)
        elif self._loop is not loop:
            await self._forget()  # Of a loop that has ended.
            self._begin(loop)
        trial = Trial(self._address, patience, stream)
        while True:
            try:
                return await self._attempt(begin(), trial.deadline)
            except (psycopg.Error, OSError) as error:
                pause = trial.after(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self.closed = True
        if self._pid == os.getpid():
            await self._forget()

    async def _attempt(self, steps: Steps[T], deadline: float) -> T:
        await self._wait_for_place(deadline)
        try:
            link = await self._take(deadline)
            link.deadline = deadline
            try:
                result = await drive(link, steps, self._address)
            except PerdureError:
                await self._give_back(link)
                raise
            except BaseException as error:
                try:
                    blocked = isinstance(error, AnswerTimeoutError) and await take_back_async(link)
                finally:
                    await _discard(link)
                if blocked:
                    raise BlockedError(str(error)) from None
                # The others may be of the same server process that is no more; new ones are cheap.
                await self._forget()
                raise
            await self._give_back(link)
            return result
        finally:
            self._places.release()

    async def _wait_for_place(self, deadline: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            left = max(deadline - time.monotonic(), 0)
            await asyncio.wait_for(self._places.acquire(), left)
        except TimeoutError:
            reason = "all connections of this store were busy for too long"
            raise AnswerTimeoutError(reason) from None

    async def _take(self, deadline: float) -> AsyncLink:
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            link = self._idle.pop() if self._idle else None
            if link is None:
                return await self._connect(deadline)
            if is_alive(link):
                return link
            await _discard(link)

    async def _connect(self, deadline: float) -> AsyncLink:
        link = await AsyncLink.connect(**in_time(self._options, deadline))
        link.deadline = deadline
        try:
            row = await (await link.execute(SERVER_PROCESS)).fetchone()
        except BaseException:
            await _discard(link)
            raise
        let_prepare(link, row[0] if row else None)
        return link

    async def _give_back(self, link: AsyncLink) -> None:
        self._idle.append(link)
        if self.closed:
            await self._forget()

    async def _forget(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            await _discard(link)


async def drive(link: AsyncLink, steps: Steps[T], address: Address) -> T:
    """Return what the steps return, asking this connection."""
    try:
        request = next(steps)
        while True:
            try:
                prepare = None if request.often else False
                answer = await link.execute(
                    request.sql, request.parameters, prepare=prepare, binary=True
                )
                rows = await answer.fetchall()
            except (psycopg.Error, OSError) as error:
                if not request.may_fail:
                    raise
                tell_unnotified(error, address)
                await _discard(link)
                rows = []
            request = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _discard(link: AsyncLink) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        await link.close()
