"""Operations of a Postgres store, on a connection that the pool lends.

An operation that loses its connection restarts from its beginning on another one, so everything
here must be safe to run twice.
"""

from collections.abc import Sequence

import psycopg

from perdure.backends.append_rules import POSITION_MAX, check_name, decide
from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import AsyncConnection, discard_async
from perdure.backends.postgres.errors import log_notify_failed
from perdure.backends.postgres.queries import (
    ByteaArray,
    Query,
    Row,
    StoreQueries,
    StreamPage,
    TextArray,
    decode_head,
    split_batches,
    stored_heads,
)
from perdure.backends.postgres.statements import NOW_MICROSECONDS
from perdure.backends.protocol import STORED, Append, Head, Outcome
from perdure.errors import DamagedError, UnavailableError

PROBLEMS_MAX = 1000  # problems of one kind that a check names

ROUNDS_MAX = 100  # attempts per call; each lost one means another writer won, so more is a bug


class AsyncOperations:
    """The operations of one store."""

    def __init__(self, queries: StoreQueries, address: PostgresAddress) -> None:
        self._queries = queries
        self._address = address

    async def append(self, connection: AsyncConnection, appends: Sequence[Append]) -> list[Outcome]:
        """Store all appends in one statement per batch; inspect only those it did not store."""
        outcomes: dict[str, Outcome] = {}
        remaining = [(self._queries.key(append.stream), append) for append in appends]
        watched_keys: list[bytes] = []
        for _ in range(ROUNDS_MAX):
            missed: list[tuple[bytes, Append]] = []
            for batch in split_batches(sorted(remaining)):
                rows = await connection.fetch(self._queries.append_batch(batch))
                stored = {key: is_watched for key, _, is_watched in rows}
                watched_keys += [key for key, is_watched in stored.items() if is_watched]
                for key, append in batch:
                    if key in stored:
                        outcomes[append.stream] = STORED
                        self._queries.labels.remember(key, append)
                    else:
                        self._queries.labels.forget(key)
                        missed.append((key, append))
            remaining = await self._resolve_missed(connection, missed, outcomes) if missed else []
            if not remaining:
                if watched_keys:
                    await self._notify(connection, watched_keys)
                return [outcomes[append.stream] for append in appends]
        reason = "other writers kept winning the race for a position"
        error = UnavailableError(self._address.name, reason)
        error.single_stream = True
        raise error

    async def append_together(
        self, connection: AsyncConnection, appends: Sequence[Append]
    ) -> Outcome:
        """Store all appends in one transaction, or none."""
        outcomes: list[Outcome] = []
        async with connection.transaction():
            outcomes = await self.append(connection, appends)
            if any(outcome is not STORED for outcome in outcomes):
                for append in appends:
                    self._queries.labels.forget(self._queries.key(append.stream))
                raise psycopg.Rollback
        return next((outcome for outcome in outcomes if outcome is not STORED), STORED)

    async def _resolve_missed(
        self,
        connection: AsyncConnection,
        missed: list[tuple[bytes, Append]],
        outcomes: dict[str, Outcome],
    ) -> list[tuple[bytes, Append]]:
        """Decide about appends that were not stored as sent; return those to send again.

        An append that is stored already is reported only after its entries are durable.
        """
        rows = await connection.fetch(self._queries.inspect(missed))
        retries: list[tuple[bytes, Append]] = []
        already_stored: list[str] = []
        for (key, append), (head, entries) in zip(missed, stored_heads(rows, missed), strict=True):
            outcome, missing = decide(append, head, lambda *_, found=entries: found)
            if missing:
                previous = append.previous if head is None else head.digest
                retries.append((key, append._replace(entries=missing, previous=previous)))
                continue
            outcomes[append.stream] = outcome
            if outcome is STORED:
                already_stored.append(append.stream)
        if already_stored:  # In the order of their keys, in which every append locks heads.
            names = ByteaArray([stream.encode() for stream in already_stored])
            parameters = (names, self._queries.tenant)
            await connection.fetch(Query(self._queries.sql.confirm_durable, parameters))
        return retries

    async def _notify(self, connection: AsyncConnection, keys: Sequence[bytes]) -> None:
        """Notify watchers; a failure is only logged, because the appends are stored."""
        try:
            payloads = TextArray([key.hex().encode() for key in keys])
            parameters = (self._queries.channel, payloads)
            await connection.fetch(Query(self._queries.sql.notify, parameters))
        except (psycopg.Error, OSError) as error:
            log_notify_failed(error, self._address)
            await discard_async(connection)

    async def load_page(self, connection: AsyncConnection, page: StreamPage) -> None:
        """Load one page of a stream; on damage it has the entries before the damaged one."""
        page.load(await connection.fetch(page.query()))

    async def head(self, connection: AsyncConnection, stream: str) -> Head | None:
        """Return the head of a stream, None if it has none."""
        tenant = self._queries.tenant
        parameters = (ByteaArray([check_name(stream)]), tenant, False, tenant)
        rows = await connection.fetch(Query(self._queries.sql.named, parameters))
        return decode_head(rows[0]) if rows else None

    async def fetch(self, connection: AsyncConnection, query: Query) -> list[Row]:
        """Return the rows of a query that only reads."""
        return await connection.fetch(query)

    async def find_problems(self, connection: AsyncConnection) -> list[DamagedError]:
        """Return the streams that have entries or labels, and no head."""
        sql, tenant = self._queries.sql, self._queries.tenant
        labels = Query(sql.check_labels, (tenant, tenant, PROBLEMS_MAX))
        problems = [
            DamagedError(row[0].decode(errors="replace"), 0, "it has labels and no head")
            for row in await connection.fetch(labels)
        ]
        reason = "entries of a stream that has no head, and so is in no list"
        streams = Query(sql.check_streams, (tenant, tenant, tenant, PROBLEMS_MAX))
        return problems + [
            DamagedError(self._address.name, 0, f"{reason} (key {row[0].hex()})")
            for row in await connection.fetch(streams)
        ]

    async def drop(self, connection: AsyncConnection, stream: str, before: int) -> None:
        """Remove entries, but never the last one."""
        queries, bound = self._queries, max(min(before, POSITION_MAX), 0)
        head = (queries.tenant, check_name(stream))
        parameters = (queries.tenant, queries.key(stream), bound, *head)
        await connection.fetch(Query(queries.sql.drop, parameters))

    async def remove(self, connection: AsyncConnection, stream: str, digest: str) -> bool:
        """Remove a stream if its head has this digest; return whether it no longer exists."""
        tenant = self._queries.tenant
        head = (tenant, check_name(stream))
        parameters = (*head, digest, tenant, *head, *head)
        rows = await connection.fetch(Query(self._queries.sql.remove, parameters))
        return bool(rows[0][0])

    async def register_watch(self, connection: AsyncConnection, stream: str, seconds: int) -> None:
        """Register a waiter: writers notify appends to this stream for some seconds.

        Registrations of all tenants whose time is over are removed.
        """
        queries = self._queries
        await connection.fetch(Query(queries.sql.expire_watches, ()))
        parameters = (queries.tenant, queries.key(stream), seconds)
        await connection.fetch(Query(queries.sql.register_watch, parameters))

    async def server_time(self, connection: AsyncConnection) -> float:
        """Return the time by the server's clock, in seconds since 1970."""
        rows = await connection.fetch(Query(f"select {NOW_MICROSECONDS}", ()))
        return int(rows[0][0]) / 1e6
