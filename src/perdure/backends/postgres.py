"""Streams in a PostgreSQL database, for any number of machines.

Needs psycopg (`pip install 'perdure[postgres]'`). Every call is one statement, or a few, each in a
transaction of its own. No state is left in a database session, so a transaction pooler may be in
between, and a statement whose answer was lost is sent again.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from perdure.backend import CLOCK, RECENT, REMOVE, WATCH, Append, Entry, Head, Outcome
from perdure.backends.postgres_address import parse, quoted
from perdure.backends.postgres_bell import LASTS, Bell, channel_of
from perdure.backends.postgres_errors import patience_until
from perdure.backends.postgres_guarantees import ACCEPTABLE, promised
from perdure.backends.postgres_listing import ByChange, ByName, head_steps
from perdure.backends.postgres_pool import Pool
from perdure.backends.postgres_schema import prepare
from perdure.backends.postgres_sql import statements
from perdure.backends.postgres_steps import NO_BOUND, Book, Page
from perdure.backends.rules import check, check_name
from perdure.backends.watching import Watchers
from perdure.errors import DamagedError, UnavailableError
from perdure.guarantees import Acceptance


class PostgresBackend:
    """Stores streams in tables of a schema. Entries that `append` has stored survive a power loss.

    Opening connects, checks the server and migrates the tables, unless the address says
    `migrate=no`. May be used after `os.fork` in both processes. `accept` names weaknesses that are
    not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({CLOCK, RECENT, REMOVE, WATCH})

    def __init__(self, address: str, *, accept: Collection[str] = ()) -> None:
        parsed = parse(address)
        self._address = parsed
        self.name = parsed.name
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        judge = partial(promised, acceptance=acceptance, name=self.name)
        self.guarantees = prepare(parsed, judge)
        self._operations = Book(
            statements(quoted(parsed.schema)), parsed.tenant, parsed.name, channel_of(parsed)
        )
        self._pool = Pool(parsed)
        self.watchers = Watchers()
        self._listener = Bell(parsed, self.watchers, self._operations.key)

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
        remaining = NO_BOUND if limit is None else limit
        while remaining > 0:
            page = Page(self._operations, stream, after, remaining, max_body, reverse=reverse)
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
        listing = ByName(self._operations, prefix, after, labels, without, limit)
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
        listing = ByChange(self._operations, prefix, labels, without, limit)
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
        patience = patience_until(deadline, self._address)
        return self._pool.run(
            partial(head_steps, self._operations, stream), patience, stream=stream
        )

    def _head_and_register(self, deadline: float | None, stream: str) -> Head | None:
        """Register as a waiter if due, then return the head of a stream."""
        if self._listener.should_register(stream):
            patience = patience_until(deadline, self._address)
            try:
                self._pool.run(partial(self._operations.register_watch, stream, LASTS), patience)
            except UnavailableError as error:
                self._listener.registration_failed(error)
        return self._head(deadline, stream)
