"""Tell who waits for a stream of a Postgres store that somebody appended to it, with LISTEN.

Writers notify only where somebody said that he waits (the table `watch`), and only after their
commit, so that nobody pays for watching who is not watched. It makes waiting quick and nothing else
rests on it: whoever waits looks at the head now and then. Where LISTEN leads nowhere, as behind a
transaction pooler, that is how it stays.

One thread of a store listens, on a connection of its own, while somebody waits.
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

from perdure.backend import Append
from perdure.backends.postgres_address import Address
from perdure.backends.postgres_links import Link, options_of
from perdure.backends.watching import Watchers
from perdure.errors import UnavailableError

PROBE = 2.0  # Seconds in which a notice to ourselves must arrive.
IDLE = 10.0  # Seconds without anybody waiting after which the connection is given up.
AGAIN = 60.0  # Seconds before LISTEN is tried again where it did not work.
LASTS = 30  # Seconds for which writers know that somebody waits.
RENEWED = 10.0  # Seconds after which they are told again.
CHECKED = 10.0  # Seconds after which the line is tried, and for which its answer is waited for.
MANY = 10_000
READS_ONLY = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
TURN = 0.5  # Seconds; so long it may take until the thread notices that the store was closed.


def channel_of(address: Address) -> str:
    """Return the name of the channel of one tenant's streams, an identifier without quotes."""
    seed = f"{address.schema}\0{address.tenant}".encode()
    return f"perdure_{hashlib.sha256(seed).hexdigest()[:32]}"


class Bell:
    """Listens for a store and rings for the streams that notices name."""

    def __init__(
        self, address: Address, watchers: Watchers, key_of: Callable[[str], bytes]
    ) -> None:
        self._address = address
        self._watchers = watchers
        self._key_of = key_of
        self._channel = channel_of(address)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed = -math.inf
        self._told: dict[str, float] = {}
        self._hears = False
        self._gave_up = False

    def wants(self, stream: str) -> bool:
        """Tell whether writers have to be told now that somebody waits for a stream."""
        if not self._listening():
            return False
        now = time.monotonic()
        if now - self._told.get(stream, -math.inf) < RENEWED:
            return False
        if len(self._told) > MANY:
            self._told = {}
        self._told[stream] = now
        return True

    def unheard(self, error: UnavailableError) -> None:
        """Take it that writers were not told: who may only read has to look, others get the error.

        It is tried again after a while, as where LISTEN does not work.
        """
        if not isinstance(error.__cause__, READS_ONLY):
            raise error
        self._gave_up, self._failed = True, time.monotonic()
        self._hears = self._watchers.told = False

    def close(self) -> None:
        """End the thread, soon."""
        self._closed = True

    def _listening(self) -> bool:
        """Return whether notices arrive, as far as is known; begin to listen if nobody does."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            runs = self._thread is not None and self._thread.is_alive()
            if not runs and not self._closed and time.monotonic() - self._failed >= AGAIN:
                name = "perdure postgres listen"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        return self._hears

    def _run(self) -> None:
        options = {**options_of(self._address), "application_name": "perdure listen"}
        try:
            with closing(Link.connect(**options)) as link:
                link.deadline = time.monotonic() + CHECKED
                link.execute(f"listen {self._channel}".encode())
                if self._probed(link):
                    self._gave_up = False
                    self._told = {}  # A server that crashed has forgotten who waits.
                    self._hears = self._watchers.told = True
                    self._watchers.ring_all()  # They look again, and say that they wait.
                    link.deadline = math.inf  # Nothing is asked; it may be silent for long.
                    self._forward(link)
                else:
                    self._failed = time.monotonic()
        except (psycopg.ProgrammingError, psycopg.NotSupportedError, *READS_ONLY):
            self._failed = time.monotonic()  # It does not know LISTEN, or is a standby.
        except (psycopg.Error, OSError):
            self._failed = time.monotonic() - AGAIN + 2 * TURN  # The server may be back soon.
        finally:
            heard, self._hears, self._watchers.told = self._hears, False, False
            if heard:
                self._watchers.ring_all()  # From now on they have to look themselves.

    def _probed(self, link: Link) -> bool:
        """Tell whether what another connection sends arrives here."""
        word = f"probe {secrets.token_hex(8)}"
        with closing(Link.connect(**options_of(self._address))) as other:
            other.deadline = time.monotonic() + CHECKED
            other.execute("select pg_notify(%s, %s)", (self._channel, word))
        deadline = time.monotonic() + PROBE
        while not self._closed and time.monotonic() < deadline:
            for notice in link.notifies(timeout=TURN, stop_after=1):
                if notice.payload == word:
                    return True
        return False

    def _forward(self, link: Link) -> None:
        needed = checked = time.monotonic()
        while not (self._closed or self._gave_up) and time.monotonic() - needed < IDLE:
            told = {notice.payload for notice in link.notifies(timeout=TURN, stop_after=1)}
            waited = self._watchers.streams()
            found = [stream for stream in waited if self._key_of(stream).hex() in told]
            self._watchers.ring(Append(stream, ()) for stream in found)
            if waited:
                needed = time.monotonic()
            if time.monotonic() - checked >= CHECKED:
                if not self._is_registered(link):
                    return
                checked = time.monotonic()

    def _is_registered(self, link: Link) -> bool:
        """Tell whether the server still knows who listens, or raise that it does not answer.

        Something in between may hold a line that leads nowhere any more.
        """
        link.deadline = time.monotonic() + CHECKED
        query = "select 1 where %s in (select pg_listening_channels())"
        found = link.execute(query, (self._channel,)).fetchall()
        link.deadline = math.inf
        return bool(found)
