# Generated from postgres/operations_async.py by scripts/generate_sync.py: do not edit.
"""Operations of a Postgres store, on a connection that the pool lends.

An operation that loses its connection restarts from its beginning on another one, so everything
here must be safe to run twice.
"""

from collections.abc import Sequence
from functools import partial

import psycopg

from perdure.backends.append_rules import decide
from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import Connection, discard
from perdure.backends.postgres.errors import log_notify_failed
from perdure.backends.postgres.queries import (
    StoreQueries,
    StreamPage,
    decode_head,
    split_batches,
    stored_heads,
)
from perdure.backends.protocol import STORED, Append, Head, Outcome
from perdure.errors import UnavailableError

ROUNDS_MAX = 100  # attempts per call; each lost one means another writer won, so more is a bug


class Operations:
    """The operations of one store."""

    def __init__(self, queries: StoreQueries, address: PostgresAddress) -> None:
        self._queries = queries
        self._address = address

    def append(self, connection: Connection, appends: Sequence[Append]) -> list[Outcome]:
        """Store all appends in one statement per batch; inspect only those it did not store."""
        outcomes: dict[str, Outcome] = {}
        remaining = [(self._queries.key(append.stream), append) for append in appends]
        watched_keys: list[bytes] = []
        for _ in range(ROUNDS_MAX):
            missed: list[tuple[bytes, Append]] = []
            for batch in split_batches(sorted(remaining)):
                rows = connection.fetch(self._queries.append_batch(batch))
                stored = {key: is_watched for key, _, is_watched in rows}
                watched_keys += [key for key, is_watched in stored.items() if is_watched]
                for key, append in batch:
                    if key in stored:
                        outcomes[append.stream] = STORED
                        self._queries.labels.remember(key, append)
                    else:
                        self._queries.labels.forget(key)
                        missed.append((key, append))
            remaining = self._resolve_missed(connection, missed, outcomes) if missed else []
            if not remaining:
                if watched_keys:
                    self._notify(connection, watched_keys)
                return [outcomes[append.stream] for append in appends]
        reason = "other writers kept winning the race for a position"
        error = UnavailableError(self._address.name, reason)
        error.single_stream = True
        raise error

    def _resolve_missed(
        self,
        connection: Connection,
        missed: list[tuple[bytes, Append]],
        outcomes: dict[str, Outcome],
    ) -> list[tuple[bytes, Append]]:
        """Decide about appends that were not stored as sent; return those to send again.

        An append that is stored already is reported only after its entries are durable.
        """
        rows = connection.fetch(self._queries.inspect(missed))
        retries: list[tuple[bytes, Append]] = []
        already_stored: list[str] = []
        for (key, append), (head, headers) in zip(missed, stored_heads(rows, missed), strict=True):
            outcome, missing = decide(append, head, partial(_stored_headers, headers))
            if missing:
                rest = append._replace(entries=missing)
                if head is not None:
                    rest = rest._replace(begins=False)
                retries.append((key, rest))
                continue
            outcomes[append.stream] = outcome
            if outcome is STORED:
                already_stored.append(append.stream)
        if already_stored:
            connection.fetch(self._queries.confirm_durable(already_stored))
        return retries

    def _notify(self, connection: Connection, keys: Sequence[bytes]) -> None:
        """Notify watchers; a failure is only logged, because the appends are stored."""
        try:
            connection.fetch(self._queries.notify(keys))
        except (psycopg.Error, OSError) as error:
            log_notify_failed(error, self._address)
            discard(connection)

    def load_page(self, connection: Connection, page: StreamPage) -> None:
        """Load one page of a stream; on damage it has the entries before the damaged one."""
        page.load(connection.fetch(page.query()))

    def head(self, connection: Connection, stream: str) -> Head | None:
        """Return the head of a stream, None if it has none."""
        rows = connection.fetch(self._queries.head(stream))
        return decode_head(rows[0]) if rows else None

    def drop(self, connection: Connection, stream: str, before: int) -> None:
        """Remove entries, but never the last one."""
        connection.fetch(self._queries.drop(stream, before))

    def remove(self, connection: Connection, stream: str, digest: str) -> bool:
        """Remove a stream if its head has this digest; return whether it no longer exists."""
        rows = connection.fetch(self._queries.remove(stream, digest))
        return bool(rows[0][0])

    def register_watch(self, connection: Connection, stream: str, seconds: int) -> None:
        """Register a waiter: writers notify appends to this stream for some seconds."""
        connection.fetch(self._queries.expire_watches())
        connection.fetch(self._queries.register_watch(stream, seconds))

    def server_time(self, connection: Connection) -> float:
        """Return the time by the server's clock, in seconds since 1970."""
        rows = connection.fetch(self._queries.server_time())
        return int(rows[0][0]) / 1e6


def _stored_headers(headers: list[bytes], _first: int, _last: int) -> list[bytes]:
    return headers
