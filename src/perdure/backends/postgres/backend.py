"""Streams in a PostgreSQL database, for any number of machines.

Needs psycopg (`pip install 'perdure[postgres]'`). Every call is one statement, or a few, each in a
transaction of its own. No state is left in a database session, so a transaction pooler may be in
between, and a statement whose answer was lost is sent again.
"""

import time
from collections.abc import Collection, Iterator, Sequence
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
from perdure.backends.postgres.pool import PostgresPool
from perdure.backends.postgres.statements import build_statements
from perdure.backends.protocol import CLOCK, RECENT, REMOVE, WATCH, Append, Entry, Head, Outcome
from perdure.backends.watchers import Watchers
from perdure.errors import DamagedError, UnavailableError


class PostgresBackend:
    """Stores streams in tables of a schema. Entries that `append` has stored survive a power loss.

    Opening connects, checks the server and migrates the tables, unless the address says
    `migrate=no`. May be used after `os.fork` in both processes. `accept` names weaknesses that are
    not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({CLOCK, RECENT, REMOVE, WATCH})

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
        self._pool = PostgresPool(parsed)
        self.watchers = Watchers()
        self._listener = NotifyListener(parsed, self.watchers, self._operations.key)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: one statement for all, unless another writer was faster."""
        check(appends)
        if not appends:
            return []
        stream = appends[0].stream if len(appends) == 1 else ""
        outcomes = self._pool.run(partial(self._operations.append, appends), stream=stream)
        self.watchers.ring(appends)
        return outcomes

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As `Backend.read`. Entries before a damaged one are yielded before it raises."""
        check_name(stream)
        remaining = UNLIMITED if limit is None else limit
        while remaining > 0:
            page = StreamPage(self._operations, stream, after, remaining, max_body, reverse=reverse)
            try:
                self._pool.run(page.steps, stream=stream)
            except DamagedError:
                yield from page.entries
                raise
            yield from page.entries
            if page.is_last:
                return
            remaining -= len(page.entries)
            after = page.entries[-1].position

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Backend.streams`, by pages: a stream written meanwhile may be listed or not."""
        listing = NameListing(self._operations, prefix, after, labels, without, limit)
        while not listing.is_finished:
            yield from self._pool.run(listing.steps)

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Recent.recent`, by pages and by the server's clock."""
        listing = RecencyListing(self._operations, prefix, labels, without, limit)
        while not listing.is_finished:
            yield from self._pool.run(listing.steps)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `Watch.watch`: writers notify where LISTEN works; elsewhere it polls."""
        no_wait = timeout is not None and timeout <= 0
        read_head = self._head if no_wait else self._head_and_register
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.watchers.wait(stream, after, timeout, partial(read_head, deadline))

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`; durable on return. The server's vacuum frees the bytes later."""
        check_name(stream)
        self._pool.run(partial(self._operations.drop, stream, before), stream=stream)

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`."""
        check_name(stream)
        return self._pool.run(partial(self._operations.remove, stream, digest), stream=stream)

    def server_time(self) -> float:
        """As `Timed.server_time`."""
        return self._pool.run(self._operations.server_time)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        self._listener.close()
        self.watchers.ring_all()

    def _head(self, deadline: float | None, stream: str) -> Head | None:
        patience = timeout_until(deadline, self._address)
        return self._pool.run(
            partial(head_steps, self._operations, stream), patience, stream=stream
        )

    def _head_and_register(self, deadline: float | None, stream: str) -> Head | None:
        """Register as a waiter if due, then return the head of a stream."""
        if self._listener.should_register(stream):
            patience = timeout_until(deadline, self._address)
            try:
                self._pool.run(
                    partial(self._operations.register_watch, stream, REGISTRATION_TTL), patience
                )
            except UnavailableError as error:
                self._listener.registration_failed(error)
        return self._head(deadline, stream)
