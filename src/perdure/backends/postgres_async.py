"""Streams in a PostgreSQL database, for callers in an event loop: no thread stands in between."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from perdure.backend import RECENT, REMOVE, WATCH, Append, Entry, Head, Outcome
from perdure.backends.postgres_address import parse, quoted
from perdure.backends.postgres_bell import LASTS, Bell, channel_of
from perdure.backends.postgres_errors import patience_until
from perdure.backends.postgres_guarantees import ACCEPTABLE, promised
from perdure.backends.postgres_listing import ByChange, ByName, head_steps
from perdure.backends.postgres_pool_async import AsyncPool
from perdure.backends.postgres_schema import prepare
from perdure.backends.postgres_sql import statements
from perdure.backends.postgres_steps import NO_BOUND, Book, Page
from perdure.backends.rules import check, check_name
from perdure.backends.watching import Vigil, Watchers
from perdure.errors import DamagedError, UnavailableError
from perdure.guarantees import Acceptance


class AsyncPostgresBackend:
    """Keeps streams in tables of a schema. What `append` has stored survives the loss of power.

    Opening blocks while it connects once, checks the server and brings the tables up to date: do
    it when the application starts. May be used after `os.fork` in both processes. `accept` names
    weaknesses that are not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({RECENT, REMOVE, WATCH})

    def __init__(self, address: str, *, accept: Collection[str] = ()) -> None:
        parsed = parse(address)
        self._address = parsed
        self.name = parsed.name
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        judge = partial(promised, acceptance=acceptance, name=self.name)
        self.guarantees = prepare(parsed, judge)
        self._book = Book(
            statements(quoted(parsed.schema)), parsed.tenant, parsed.name, channel_of(parsed)
        )
        self._pool = AsyncPool(parsed)
        self.watchers = Watchers()
        self._bell = Bell(parsed, self.watchers, self._book.key)

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `PostgresBackend.append`."""
        check(appends)
        if not appends:
            return []
        stream = appends[0].stream if len(appends) == 1 else ""
        outcomes = await self._pool.run(partial(self._book.append, appends), stream=stream)
        self.watchers.ring(appends)
        return outcomes

    async def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> AsyncIterator[Entry]:
        """As `PostgresBackend.read`."""
        check_name(stream)
        left = NO_BOUND if limit is None else limit
        while left > 0:
            page = Page(self._book, stream, after, left, max_body, reverse=reverse)
            error = None
            try:
                await self._pool.run(page.steps, stream=stream)
            except DamagedError as found:
                error = found
            for entry in page.entries:
                yield entry
            if error is not None:
                raise error
            if page.is_last:
                return
            left -= len(page.entries)
            after = page.entries[-1].position

    async def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `PostgresBackend.streams`."""
        walk = ByName(self._book, prefix, after, labels, without, limit)
        while not walk.ended:
            for head in await self._pool.run(walk.steps):
                yield head

    async def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `PostgresBackend.recent`."""
        walk = ByChange(self._book, prefix, labels, without, limit)
        while not walk.ended:
            for head in await self._pool.run(walk.steps):
                yield head

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as its twin
        """As `PostgresBackend.watch`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            return await self._stands_after(stream, after, deadline)
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop may have been closed since.
                loop.call_soon_threadsafe(woken.set)

        with self.watchers.waking(stream, wake):
            vigil = Vigil(self.watchers, stream, timeout)
            while True:
                await self._tell_writers(stream, deadline)
                if await self._stands_after(stream, after, deadline):
                    return True
                left = vigil.pause()
                if left <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()
                woken.clear()

    async def drop(self, stream: str, *, before: int) -> None:
        """As `PostgresBackend.drop`."""
        check_name(stream)
        await self._pool.run(partial(self._book.drop, stream, before), stream=stream)

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `PostgresBackend.remove`."""
        check_name(stream)
        return await self._pool.run(partial(self._book.remove, stream, digest), stream=stream)

    async def close(self) -> None:
        """As `PostgresBackend.close`."""
        self._bell.close()
        await self._pool.close()
        self.watchers.ring_all()

    async def _stands_after(self, stream: str, after: int, deadline: float | None) -> bool:
        patience = patience_until(deadline, self._address)
        look = partial(head_steps, self._book, stream)
        head = await self._pool.run(look, patience, stream=stream)
        return head is not None and head.position > after

    async def _tell_writers(self, stream: str, deadline: float | None) -> None:
        """Have writers know that somebody waits, if they have to be told now."""
        if self._bell.wants(stream):
            patience = patience_until(deadline, self._address)
            try:
                await self._pool.run(partial(self._book.expect, stream, LASTS), patience)
            except UnavailableError as error:
                self._bell.unheard(error)
