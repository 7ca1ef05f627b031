"""LISTEN/NOTIFY wake-ups for `watch`.

Writers notify only streams registered in the `watch` table, after their commit, so unwatched
streams cost nothing. Correctness does not depend on it: watchers also poll the head. Where LISTEN
does not work, as behind a transaction pooler, polling is all there is.

One thread per store listens, on a connection of its own, while a waiter exists.
"""

import hashlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing

import psycopg

from perdure.backends.interrupt_safety import start_thread
from perdure.backends.postgres.address import PostgresAddress
from perdure.backends.postgres.connection import Connection, connect_options
from perdure.backends.protocol import Append
from perdure.backends.watchers import Watchers
from perdure.errors import UnavailableError

PROBE_TIMEOUT = 2.0  # seconds; a notification to ourselves must arrive within this time

IDLE_TIMEOUT = 10.0  # seconds without a waiter after which the connection is closed

RETRY_INTERVAL = 60.0  # seconds before LISTEN is tried again after it did not work

REGISTRATION_TTL = 30  # seconds; lifetime of a registration in the table `watch`

RENEWAL_INTERVAL = 10.0  # seconds after which a registration is renewed

CHECK_INTERVAL = 10.0  # seconds between checks of the connection, and the timeout of each check

REGISTRATIONS_MAX = 10_000  # registrations remembered; beyond, all are forgotten and renewed

READ_ONLY_ERRORS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)

# seconds per poll; the thread notices within this time that the store was closed
POLL_TIMEOUT = 0.5


def channel_name(address: PostgresAddress) -> str:
    """Return the channel of one tenant's streams, an identifier that needs no quotes."""
    seed = f"{address.schema}\0{address.tenant}".encode()
    return f"perdure_{hashlib.sha256(seed).hexdigest()[:32]}"


class NotifyListener:
    """Listens for notifications of a store and wakes the waiters of the streams they name."""

    def __init__(
        self, address: PostgresAddress, watchers: Watchers, key_of: Callable[[str], bytes]
    ) -> None:
        self._address = address
        self._watchers = watchers
        self._key_of = key_of
        self._channel = channel_name(address)
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed_at = -math.inf
        self._registered_at: dict[str, float] = {}
        self._is_receiving = False
        self._is_disabled = False

    def should_register(self, stream: str) -> bool:
        """Return whether a waiter for a stream has to be registered now."""
        if not self._ensure_listening():
            return False
        now = time.monotonic()
        if now - self._registered_at.get(stream, -math.inf) < RENEWAL_INTERVAL:
            return False
        if len(self._registered_at) > REGISTRATIONS_MAX:
            self._registered_at = {}
        self._registered_at[stream] = now
        return True

    def registration_failed(self, error: UnavailableError) -> None:
        """Fall back to polling if this user may only read; raise any other error.

        Registering is tried again after a while, as where LISTEN does not work.
        """
        if not isinstance(error.__cause__, READ_ONLY_ERRORS):
            raise error
        self._is_disabled, self._failed_at = True, time.monotonic()
        self._is_receiving = self._watchers.server_notifies = False

    def close(self) -> None:
        """Stop the thread, soon."""
        self._closed = True

    def _ensure_listening(self) -> bool:
        """Start the thread unless it runs; return whether notifications arrive, as far as known."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            may_try = time.monotonic() - self._failed_at >= RETRY_INTERVAL and not self._closed
            if may_try and not is_running:
                name = "perdure postgres listen"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                start_thread(self._thread)
        return self._is_receiving

    def _run(self) -> None:
        options = {**connect_options(self._address), "application_name": "perdure listen"}
        try:
            with closing(Connection.connect(**options)) as connection:
                connection.deadline = time.monotonic() + CHECK_INTERVAL
                connection.execute(f"listen {self._channel}".encode())
                if self._probe(connection):
                    self._is_disabled = False
                    self._registered_at = {}  # A server that crashed has lost the registrations.
                    self._is_receiving = self._watchers.server_notifies = True
                    self._watchers.notify_all()  # Waiters re-read the head and register.
                    connection.deadline = math.inf  # No query is pending; silence is normal.
                    self._forward(connection)
                else:
                    self._failed_at = time.monotonic()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError, *READ_ONLY_ERRORS):
            self._failed_at = time.monotonic()  # No LISTEN here, or a standby.
        except (psycopg.Error, OSError):
            # The server may be back soon: retry early.
            self._failed_at = time.monotonic() - RETRY_INTERVAL + 2 * POLL_TIMEOUT
        finally:
            was_receiving = self._is_receiving
            self._is_receiving = self._watchers.server_notifies = False
            if was_receiving:
                self._watchers.notify_all()  # From now on waiters have to poll.

    def _probe(self, connection: Connection) -> bool:
        """Return whether a notification from another connection arrives here."""
        payload = f"probe {secrets.token_hex(8)}"
        with closing(Connection.connect(**connect_options(self._address))) as sender:
            sender.deadline = time.monotonic() + CHECK_INTERVAL
            sender.execute("select pg_notify(%s, %s)", (self._channel, payload))
        deadline = time.monotonic() + PROBE_TIMEOUT
        while not self._closed and time.monotonic() < deadline:
            for notification in connection.notifies(timeout=POLL_TIMEOUT, stop_after=1):
                if notification.payload == payload:
                    return True
        return False

    def _forward(self, connection: Connection) -> None:
        last_needed = last_checked = time.monotonic()
        while not (self._closed or self._is_disabled):
            if time.monotonic() - last_needed >= IDLE_TIMEOUT:
                return
            notifications = connection.notifies(timeout=POLL_TIMEOUT, stop_after=1)
            payloads = {notification.payload for notification in notifications}
            watched = self._watchers.streams()
            notified = [stream for stream in watched if self._key_of(stream).hex() in payloads]
            self._watchers.notify(Append(stream, ()) for stream in notified)
            if watched:
                last_needed = time.monotonic()
            if time.monotonic() - last_checked >= CHECK_INTERVAL:
                if not self._is_registered(connection):
                    return
                last_checked = time.monotonic()

    def _is_registered(self, connection: Connection) -> bool:
        """Return whether the server still has our LISTEN; raise if it does not answer.

        A proxy in between may keep a connection open whose server side is gone.
        """
        connection.deadline = time.monotonic() + CHECK_INTERVAL
        query = "select 1 where %s in (select pg_listening_channels())"
        rows = connection.execute(query, (self._channel,)).fetchall()
        connection.deadline = math.inf
        return bool(rows)
