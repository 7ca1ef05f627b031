"""Streams in a PostgreSQL database, for an event loop: without a thread in between.

Everything that decides is shared with `PostgresBackend`; only the waiting differs.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from perdure.backends.append_rules import check, check_name
from perdure.backends.guarantees import Acceptance
from perdure.backends.postgres.address import parse_address, quote_identifier
from perdure.backends.postgres.errors import timeout_until
from perdure.backends.postgres.guarantees import ACCEPTABLE, store_guarantees
from perdure.backends.postgres.listing import NameListing, RecencyListing, head_steps
from perdure.backends.postgres.migrations import prepare_store
from perdure.backends.postgres.notify import REGISTRATION_TTL, NotifyListener, channel_name
from perdure.backends.postgres.operations import UNLIMITED, Operations, StreamPage
from perdure.backends.postgres.pool_async import AsyncPostgresPool
from perdure.backends.postgres.statements import build_statements
from perdure.backends.protocol import RECENT, REMOVE, WATCH, Append, Entry, Head, Outcome
from perdure.backends.watchers import WaitTimer, Watchers
from perdure.errors import DamagedError, UnavailableError


class AsyncPostgresBackend:
    """Stores streams in tables of a schema. Entries that `append` has stored survive a power loss.

    Opening blocks while it connects once, checks the server and migrates the tables: do it when the
    application starts. May be used after `os.fork` in both processes. `accept` names weaknesses
    that are not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({RECENT, REMOVE, WATCH})

    def __init__(self, address: str, *, accept: Collection[str] = ()) -> None:
        parsed = parse_address(address)
        self._address = parsed
        self.name = parsed.name
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        judge = partial(store_guarantees, acceptance=acceptance, name=self.name)
        self.guarantees = prepare_store(parsed, judge)
        self._operations = Operations(
            build_statements(quote_identifier(parsed.schema)),
            parsed.tenant,
            parsed.name,
            channel_name(parsed),
        )
        self._pool = AsyncPostgresPool(parsed)
        self.watchers = Watchers()
        self._listener = NotifyListener(parsed, self.watchers, self._operations.key)

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `PostgresBackend.append`."""
        check(appends)
        if not appends:
            return []
        stream = appends[0].stream if len(appends) == 1 else ""
        outcomes = await self._pool.run(partial(self._operations.append, appends), stream=stream)
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
        remaining = UNLIMITED if limit is None else limit
        while remaining > 0:
            page = StreamPage(self._operations, stream, after, remaining, max_body, reverse=reverse)
            error = None
            try:
                await self._pool.run(page.steps, stream=stream)
            except DamagedError as damage:
                error = damage
            for entry in page.entries:
                yield entry
            if error is not None:
                raise error
            if page.is_last:
                return
            remaining -= len(page.entries)
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
        listing = NameListing(self._operations, prefix, after, labels, without, limit)
        while not listing.is_finished:
            for head in await self._pool.run(listing.steps):
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
        listing = RecencyListing(self._operations, prefix, labels, without, limit)
        while not listing.is_finished:
            for head in await self._pool.run(listing.steps):
                yield head

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the protocol's signature
        """As `PostgresBackend.watch`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            return await self._has_entries_after(stream, after, deadline)
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # The loop may have been closed since.
                loop.call_soon_threadsafe(woken.set)

        with self.watchers.waking(stream, wake):
            timer = WaitTimer(self.watchers, stream, timeout)
            while True:
                await self._register(stream, deadline)
                if await self._has_entries_after(stream, after, deadline):
                    return True
                pause = timer.pause()
                if pause <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await woken.wait()
                woken.clear()

    async def drop(self, stream: str, *, before: int) -> None:
        """As `PostgresBackend.drop`."""
        check_name(stream)
        await self._pool.run(partial(self._operations.drop, stream, before), stream=stream)

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `PostgresBackend.remove`."""
        check_name(stream)
        return await self._pool.run(partial(self._operations.remove, stream, digest), stream=stream)

    async def close(self) -> None:
        """As `PostgresBackend.close`."""
        self._listener.close()
        await self._pool.close()
        self.watchers.ring_all()

    async def _has_entries_after(self, stream: str, after: int, deadline: float | None) -> bool:
        patience = timeout_until(deadline, self._address)
        read_head = partial(head_steps, self._operations, stream)
        head = await self._pool.run(read_head, patience, stream=stream)
        return head is not None and head.position > after

    async def _register(self, stream: str, deadline: float | None) -> None:
        """Register as a waiter, if that is due, so that writers notify."""
        if self._listener.should_register(stream):
            patience = timeout_until(deadline, self._address)
            try:
                await self._pool.run(
                    partial(self._operations.register_watch, stream, REGISTRATION_TTL), patience
                )
            except UnavailableError as error:
                self._listener.registration_failed(error)
