"""Streams in Redis or Valkey, on one server or in a cluster, for any number of machines.

Needs redis-py (`pip install 'perdure[redis]'`). Every call is one script on the server, or a few.
No script depends on an earlier one, and each may be sent twice, so a call whose answer was lost is
sent again, to the replica that was promoted if there was a failover.
"""

import time
from collections.abc import AsyncIterator, Collection, Sequence

from perdure.backends.append_rules import UNLIMITED, check, check_name
from perdure.backends.fields import FieldOrder
from perdure.backends.guarantees import Acceptance
from perdure.backends.interrupt_safety import AsyncWakeSignal
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
    require_atomic,
)
from perdure.backends.redis.address import parse_address
from perdure.backends.redis.check_async import find_problems_async
from perdure.backends.redis.errors import timeout_until
from perdure.backends.redis.guarantees import ACCEPTABLE, store_guarantees
from perdure.backends.redis.layout import ReadPage
from perdure.backends.redis.listing_async import AsyncListing
from perdure.backends.redis.notify import REGISTRATION_TTL, SubscriptionListener
from perdure.backends.redis.operations_async import AsyncRedisOperations
from perdure.backends.redis.pool_async import AsyncRedisPool
from perdure.backends.redis.survey import confirmation_of, open_store, require_version
from perdure.backends.watchers import WaitTimer, Watchers
from perdure.errors import DamagedError, UnavailableError

CAPABILITIES = frozenset({CHECK, CLOCK, ORDER, RECENT, REMOVE, WATCH})


class AsyncRedisBackend:
    """Stores streams in a server or a cluster.

    Opening connects and checks the settings of the servers. It blocks: do it when the application
    starts. The first write creates the store. May be used after `os.fork` in both processes.
    `accept` names weaknesses to tolerate (`perdure.backends.guarantees`).
    """

    def __init__(self, address: str, *, accept: Collection[str] = ()) -> None:
        parsed = parse_address(address)
        self._address = parsed
        self.name = parsed.name
        self.tenant = parsed.tenant
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        opened = open_store(parsed)
        for server in opened.servers:
            require_version(server, self.name)
        confirmation = confirmation_of(parsed, opened.servers)
        self.guarantees = store_guarantees(opened.servers, confirmation, acceptance, self.name)
        # In one bucket, a script can write to several streams, all or none.
        is_atomic = opened.layout.buckets == 1
        self.capabilities = CAPABILITIES | {ATOMIC} if is_atomic else CAPABILITIES
        self._pool = AsyncRedisPool(parsed, opened.layout, opened.topology, confirmation)
        self._operations = AsyncRedisOperations(self._pool, parsed)
        self.watchers = Watchers()
        self._listener = SubscriptionListener(
            parsed, opened.topology, self.watchers, opened.layout.channel
        )

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: one script for each bucket."""
        check(appends)
        if not appends:
            return []
        outcomes = await self._operations.append(appends)
        self.watchers.notify(appends)
        return outcomes

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`: one script. UnsupportedError in a cluster."""
        require_atomic(self)
        check(appends)
        outcome = await self._operations.append_together(appends)
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
        """As `Backend.read`, by pages."""
        check_name(stream)
        remaining = UNLIMITED if limit is None else limit
        page = ReadPage(stream, after, remaining, max_body, reverse=reverse)
        page.is_last = remaining <= 0
        while not page.is_last:
            await self._operations.load_page(page)
            for entry in page.entries:
                yield entry

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
        async for head in AsyncListing(self._pool, stream_filter, limit).by_name(after):
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
        """As `RecencyCapability.recent`, by pages and by the clocks of the servers.

        The appends of one bucket are in order whatever the clock does. In a cluster, streams of
        different nodes are compared by their clocks.
        """
        stream_filter = StreamFilter(prefix, labels, without, headers=headers)
        async for head in AsyncListing(self._pool, stream_filter, limit).by_time():
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
        async for head in AsyncListing(self._pool, stream_filter, limit).by_field(order):
            yield head

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - the protocol's signature
        """As `WatchCapability.watch`: writers publish the names of watched streams."""
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
        """As `CheckCapability.check`. It looks at the names of all keys of the database."""
        async for problem in find_problems_async(self._pool):
            yield problem

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`. The server's append-only file has the bytes until it is rewritten."""
        check_name(stream)
        await self._operations.drop(stream, before)

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`."""
        check_name(stream)
        return await self._operations.remove(stream, digest)

    async def server_time(self) -> float:
        """As `ClockCapability.server_time`; in a cluster, the time of the first node."""
        seconds, microseconds = await self._pool.ask(self._pool.primaries[0], ("TIME",))
        return int(seconds) + int(microseconds) / 1e6

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()
        self._listener.close()
        self.watchers.notify_all()

    async def _has_entries_after(self, stream: str, after: int, deadline: float | None) -> bool:
        head = await self._operations.head(stream, timeout_until(deadline, self._address))
        return head is not None and head.position > after

    async def _register(self, stream: str, deadline: float | None) -> None:
        """Register as a waiter, if that is due, so that writers publish."""
        if self._listener.should_register(stream):
            timeout = timeout_until(deadline, self._address)
            try:
                await self._operations.register_watch(stream, REGISTRATION_TTL, timeout)
            except UnavailableError as error:
                self._listener.registration_failed(error)
