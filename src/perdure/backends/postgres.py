"""Streams in a PostgreSQL database, for any number of machines.

Needs psycopg (`pip install 'perdure[postgres]'`). Every call is one statement, or a few, and each
is a transaction of its own: nothing is left in a session, so a transaction pooler may stand in
between, and a statement whose answer was lost is simply sent again.
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
    """Keeps streams in tables of a schema. What `append` has stored survives the loss of power.

    Opening connects, checks the server and brings the tables up to date, unless the address says
    `migrate=no`. May be used after `os.fork` in both processes. `accept` names weaknesses
    that are not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({CLOCK, RECENT, REMOVE, WATCH})

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
        self._pool = Pool(parsed)
        self.watchers = Watchers()
        self._bell = Bell(parsed, self.watchers, self._book.key)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: one statement for all, unless some of them were not the first."""
        check(appends)
        if not appends:
            return []
        stream = appends[0].stream if len(appends) == 1 else ""
        outcomes = self._pool.run(partial(self._book.append, appends), stream=stream)
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
        """As `Backend.read`. What comes before a damaged entry is yielded before it raises."""
        check_name(stream)
        left = NO_BOUND if limit is None else limit
        while left > 0:
            page = Page(self._book, stream, after, left, max_body, reverse=reverse)
            try:
                self._pool.run(page.steps, stream=stream)
            except DamagedError:
                yield from page.entries
                raise
            yield from page.entries
            if page.is_last:
                return
            left -= len(page.entries)
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
        """As `Backend.streams`, by pages: what is written meanwhile may be listed or not."""
        walk = ByName(self._book, prefix, after, labels, without, limit)
        while not walk.ended:
            yield from self._pool.run(walk.steps)

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Recent.recent`, by pages and by the server's clock."""
        walk = ByChange(self._book, prefix, labels, without, limit)
        while not walk.ended:
            yield from self._pool.run(walk.steps)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `Watch.watch`: writers notify, where LISTEN works; elsewhere it looks now and then."""
        only_looks = timeout is not None and timeout <= 0
        look = self._head if only_looks else self._heard
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.watchers.wait(stream, after, timeout, partial(look, deadline))

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`; durable on return. The server's vacuum frees the bytes later."""
        check_name(stream)
        self._pool.run(partial(self._book.drop, stream, before), stream=stream)

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`."""
        check_name(stream)
        return self._pool.run(partial(self._book.remove, stream, digest), stream=stream)

    def server_time(self) -> float:
        """As `Timed.server_time`."""
        return self._pool.run(self._book.server_time)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        self._bell.close()
        self.watchers.ring_all()

    def _head(self, deadline: float | None, stream: str) -> Head | None:
        patience = patience_until(deadline, self._address)
        return self._pool.run(partial(head_steps, self._book, stream), patience, stream=stream)

    def _heard(self, deadline: float | None, stream: str) -> Head | None:
        """Return the head of a stream, after writers were told that somebody waits."""
        if self._bell.wants(stream):
            patience = patience_until(deadline, self._address)
            try:
                self._pool.run(partial(self._book.expect, stream, LASTS), patience)
            except UnavailableError as error:
                self._bell.unheard(error)
        return self._head(deadline, stream)
