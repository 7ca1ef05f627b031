"""Streams in a PostgreSQL database, for any number of machines.

Needs psycopg (`pip install 'perdure[postgres]'`). Every call is one statement, or a few, each in a
transaction of its own. No state is left in a database session, so a transaction pooler may be in
between, and a statement whose answer was lost is sent again.
"""

import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial

from perdure.backends.append_rules import UNLIMITED, check, check_name
from perdure.backends.fields import FieldOrder
from perdure.backends.guarantees import Acceptance
from perdure.backends.interrupt_safety import AsyncWakeSignal
from perdure.backends.postgres.address import parse_address, quote_identifier
from perdure.backends.postgres.errors import timeout_until
from perdure.backends.postgres.guarantees import ACCEPTABLE, store_guarantees
from perdure.backends.postgres.listing_async import (
    AsyncNameListing,
    AsyncOrderedListing,
    AsyncRecencyListing,
)
from perdure.backends.postgres.migrations import prepare_store
from perdure.backends.postgres.notify import REGISTRATION_TTL, NotifyListener, channel_name
from perdure.backends.postgres.operations_async import AsyncOperations
from perdure.backends.postgres.pool_async import AsyncPostgresPool
from perdure.backends.postgres.queries import PAGE_ROWS, Query, StoreQueries, StreamPage
from perdure.backends.postgres.statements import build_statements
from perdure.backends.protocol import (
    ATOMIC,
    CHECK,
    CLOCK,
    ORDER,
    RECENT,
    REMOVE,
    STORED,
    WATCH,
    Append,
    Entry,
    Head,
    Outcome,
    StreamFilter,
)
from perdure.backends.watchers import WaitTimer, Watchers
from perdure.errors import DamagedError, UnavailableError

CHECK_TIMEOUT = 3600.0  # seconds; a check looks up every stream, some µs each, in one statement


class AsyncPostgresBackend:
    """Stores streams in tables of a schema. Entries that `append` has stored survive a power loss.

    Opening connects, checks the server and migrates the tables, unless the address says
    `migrate=no`. It blocks: do it when the application starts. May be used after `os.fork` in both
    processes. `accept` names weaknesses to tolerate (`perdure.backends.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({ATOMIC, CHECK, CLOCK, ORDER, RECENT, REMOVE, WATCH})

    def __init__(self, address: str, *, accept: Collection[str] = ()) -> None:
        parsed = parse_address(address)
        self._address = parsed
        self.name = parsed.name
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        judge = partial(store_guarantees, acceptance=acceptance, name=self.name)
        self.guarantees = prepare_store(parsed, judge)
        statements = build_statements(quote_identifier(parsed.schema))
        self.tenant = parsed.tenant
        self._queries = StoreQueries(statements, parsed.tenant, channel_name(parsed))
        self._operations = AsyncOperations(self._queries, parsed)
        self._pool = AsyncPostgresPool(parsed)
        self.watchers = Watchers()
        self._listener = NotifyListener(parsed, self.watchers, self._queries.key)

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: one statement for all, unless another writer was faster."""
        check(appends)
        if not appends:
            return []
        stream = appends[0].stream if len(appends) == 1 else ""
        outcomes = await self._pool.run(
            partial(self._operations.append, appends=appends), stream=stream
        )
        self.watchers.notify(appends)
        return outcomes

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`: one transaction."""
        check(appends)
        append = partial(self._operations.append_together, appends=appends)
        outcome = await self._pool.run(append)
        if outcome is STORED:
            self.watchers.notify(appends)
        return outcome

    async def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> AsyncIterator[Entry]:
        """As `Backend.read`. Entries before a damaged one are yielded before it raises."""
        check_name(stream)
        remaining = UNLIMITED if limit is None else limit
        while remaining > 0:
            page = StreamPage(self._queries, stream, after, remaining, max_body, reverse=reverse)
            error = None
            try:
                await self._pool.run(partial(self._operations.load_page, page=page), stream=stream)
            except DamagedError as damage:
                error = damage
            for entry in page.entries:
                yield entry
            if error is not None:
                raise error
            if page.is_last:
                return
            remaining -= len(page.entries)
            last = page.entries[-1]
            after = last.position if reverse else last.last

    async def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `Backend.streams`, by pages: a stream written meanwhile may be listed or not."""
        stream_filter = StreamFilter(prefix, labels, without, headers=headers)
        listing = AsyncNameListing(self._queries, stream_filter, after, limit)
        while not listing.is_finished:
            for head in await self._pool.run(listing.next_page):
                yield head

    async def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `RecencyCapability.recent`, by pages and by the server's clock."""
        stream_filter = StreamFilter(prefix, labels, without, headers=headers)
        listing = AsyncRecencyListing(self._queries, stream_filter, limit)
        while not listing.is_finished:
            for head in await self._pool.run(listing.next_page):
                yield head

    async def ordered(
        self,
        order: FieldOrder,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `OrderCapability.ordered`, by pages."""
        stream_filter = StreamFilter(prefix, labels, without, headers=headers)
        listing = AsyncOrderedListing(self._queries, stream_filter, order, limit)
        while not listing.is_finished:
            for head in await self._pool.run(listing.next_page):
                yield head

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the protocol's signature
        """As `WatchCapability.watch`: writers notify where LISTEN works; elsewhere it polls."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            return await self._has_entries_after(stream, after, deadline)
        signal = AsyncWakeSignal()
        # Register before the first read of the head: an append in between must wake this waiter.
        with self.watchers.registered(stream, signal):
            timer = WaitTimer(self.watchers, stream, timeout)
            while True:
                await self._register(stream, deadline)
                if await self._has_entries_after(stream, after, deadline):
                    return True
                pause = timer.next_sleep()
                if pause <= 0:
                    return False
                await signal.sleep(pause)

    async def check(self, *, deep: bool = False) -> AsyncIterator[DamagedError]:  # noqa: ARG002
        """As `CheckCapability.check`. The server checks its own pages, if it has checksums."""
        after, sql, tenant = b"", self._queries.sql, self._queries.tenant
        while True:
            query = Query(sql.check_heads, (tenant, tenant, after, PAGE_ROWS))
            rows = await self._pool.run(partial(self._operations.fetch, query=query))
            for problem in self._queries.head_problems(rows):
                yield problem
            if len(rows) < PAGE_ROWS:
                break
            after = rows[-1][0]
        for problem in await self._pool.run(self._operations.find_problems, CHECK_TIMEOUT):
            yield problem

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`; durable on return. The server's vacuum frees the bytes later."""
        check_name(stream)
        await self._pool.run(
            partial(self._operations.drop, stream=stream, before=before), stream=stream
        )

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`."""
        check_name(stream)
        remove = partial(self._operations.remove, stream=stream, digest=digest)
        return await self._pool.run(remove, stream=stream)

    async def server_time(self) -> float:
        """As `ClockCapability.server_time`."""
        return await self._pool.run(self._operations.server_time)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()
        self._listener.close()
        self.watchers.notify_all()

    async def _has_entries_after(self, stream: str, after: int, deadline: float | None) -> bool:
        timeout = timeout_until(deadline, self._address)
        read_head = partial(self._operations.head, stream=stream)
        head = await self._pool.run(read_head, timeout, stream=stream)
        return head is not None and head.position > after

    async def _register(self, stream: str, deadline: float | None) -> None:
        """Register as a waiter, if that is due, so that writers notify."""
        if self._listener.should_register(stream):
            timeout = timeout_until(deadline, self._address)
            register = partial(
                self._operations.register_watch, stream=stream, seconds=REGISTRATION_TTL
            )
            try:
                await self._pool.run(register, timeout)
            except UnavailableError as error:
                self._listener.registration_failed(error)
