"""Wake-ups for `watch`, by publishing and subscribing.

A waiter registers its stream, and the script that appends publishes the names of registered streams
alone, so that unwatched ones cost nothing. Correctness does not depend on it: waiters also re-read
the head, and where a user may not subscribe, that is all there is.

One thread per store listens, on a connection of its own, while a waiter exists. A cluster forwards
messages to all of its nodes, so any of them will do.
"""

import math
import os
import threading
import time

from redis.exceptions import RedisError, ResponseError

from perdure.backends.interrupt_safety import start_thread
from perdure.backends.protocol import Append
from perdure.backends.redis.address import RedisAddress
from perdure.backends.redis.connection import NodeConnection
from perdure.backends.redis.errors import NoAnswerError, is_forbidden
from perdure.backends.redis.survey import connected
from perdure.backends.redis.topology import Topology
from perdure.backends.watchers import Watchers
from perdure.errors import UnavailableError

IDLE_TIMEOUT = 10.0  # seconds without a waiter after which the connection is closed

RETRY_INTERVAL = 60.0  # seconds before subscribing is tried again after it was refused

RECONNECT_INTERVAL = 1.0  # seconds before it is tried again after a lost connection

REGISTRATION_TTL = 30.0  # seconds; lifetime of a registration

RENEWAL_INTERVAL = 10.0  # seconds after which a registration is renewed

CHECK_INTERVAL = 10.0  # seconds of silence after which the connection is tested

REGISTRATIONS_MAX = 10_000  # registrations remembered; beyond, all are forgotten and renewed

POLL_TIMEOUT = 0.5  # seconds; the thread notices within this time that the store was closed


class SubscriptionListener:
    """Listens for the names of streams that were appended to, and wakes their waiters."""

    def __init__(
        self, address: RedisAddress, topology: Topology, watchers: Watchers, channel: bytes
    ) -> None:
        self._address = address
        self._topology = topology
        self._watchers = watchers
        self._channel = channel
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next_try = -math.inf
        self._registered_at: dict[str, float] = {}
        self._is_receiving = False

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
        """Fall back to polling if this user may not write; raise any other error."""
        if not is_forbidden(error.__cause__):
            raise error
        self._next_try = time.monotonic() + RETRY_INTERVAL
        self._is_receiving = self._watchers.server_notifies = False

    def close(self) -> None:
        """Stop the thread, soon."""
        self._closed = True

    def _ensure_listening(self) -> bool:
        """Start the thread unless it runs; return whether messages arrive, as far as known."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            if not is_running and not self._closed and time.monotonic() >= self._next_try:
                name = "perdure redis subscribe"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                start_thread(self._thread)
        return self._is_receiving

    def _run(self) -> None:
        try:
            with connected(self._address, self._topology.primaries[0]) as connection:
                connection.send([("SUBSCRIBE", self._channel)])
                (reply,) = connection.receive()
                if isinstance(reply, ResponseError):
                    raise reply
                self._registered_at = {}  # A server that was replaced may have lost them.
                self._is_receiving = self._watchers.server_notifies = True
                self._watchers.notify_all()  # Waiters re-read the head and register.
                self._forward(connection)
        except ResponseError:
            self._next_try = time.monotonic() + RETRY_INTERVAL  # This user may not subscribe.
        except (RedisError, OSError):
            self._next_try = time.monotonic() + RECONNECT_INTERVAL
        finally:
            was_receiving = self._is_receiving
            self._is_receiving = self._watchers.server_notifies = False
            if was_receiving:
                self._watchers.notify_all()  # From now on waiters have to poll.

    def _forward(self, connection: NodeConnection) -> None:
        last_needed = last_heard = time.monotonic()
        is_tested = False
        while not self._closed and self._is_receiving:
            connection.deadline = time.monotonic() + POLL_TIMEOUT
            connection.expect(1)
            try:
                (message,) = connection.receive()
            except NoAnswerError:
                message = None
            now = time.monotonic()
            if message is not None:
                last_heard, is_tested = now, False
                if message[0] == b"message":
                    stream = message[2].decode(errors="replace")
                    self._watchers.notify([Append(stream, ())])
            elif now - last_heard >= CHECK_INTERVAL:
                if is_tested:
                    return  # A proxy may keep a connection open whose server is gone.
                connection.send([("PING",)])
                last_heard, is_tested = now, True
            if self._watchers.waiting:
                last_needed = now
            elif now - last_needed >= IDLE_TIMEOUT:
                return
