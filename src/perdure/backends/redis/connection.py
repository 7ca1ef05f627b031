"""Connections to one node, blocking or for an event loop: what differs between them.

Nothing here retries, and redis-py's own retries are off: it would send a command whose reply was
lost again, without asking whether that is safe.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

from redis import connection as blocking_driver
from redis.asyncio import connection as asyncio_driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from perdure.backends.redis.address import CONNECT_TIMEOUT, Node, RedisAddress
from perdure.backends.redis.errors import NoAnswerError

FINISH_TIMEOUT = 2.0  # seconds; a reachable server answers what it was sent within this time

Command = tuple[Any, ...]

NO_ANSWER = "the server did not answer in time"


def _options(address: RedisAddress, node: Node, deadline: float) -> dict[str, Any]:
    remaining = max(deadline - time.monotonic(), 0.1)
    options: dict[str, Any] = {
        **address.login.reveal(),
        "db": address.database,
        "protocol": 2,  # Replies have one shape, and every proxy knows it.
        "health_check_interval": 0,
        "socket_connect_timeout": min(CONNECT_TIMEOUT, remaining),
        "driver_info": None,
    }
    if node.port:
        return {**options, **(address.tls or {}), "host": node.host, "port": node.port}
    return {**options, "path": node.host}


class NodeConnection:
    """A connection that sends commands and receives as many replies, until `deadline`."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        self._address = address
        self.node = node
        self.deadline = math.inf
        self._missing = 0

    def connect(self) -> None:
        """Connect and log in."""
        kind: Any = blocking_driver.UnixDomainSocketConnection
        if self.node.port:
            tls = self._address.tls is not None
            kind = blocking_driver.SSLConnection if tls else blocking_driver.Connection
        options = _options(self._address, self.node, self.deadline)
        timeout = max(min(self._address.timeout, CONNECT_TIMEOUT), 0.1)
        self._link: Any = kind(**options, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))
        self._link.connect()

    def is_alive(self) -> bool:
        """Return whether an idle connection looks usable, without asking the server."""
        try:
            return not self._link.can_read(0)
        except (RedisError, OSError):
            return False

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands."""
        self._missing = len(commands)
        self._link.send_packed_command(self._link.pack_commands(commands), check_health=False)

    def expect(self, count: int) -> None:
        """Let `receive` wait for as many messages that no command asked for."""
        self._missing = count

    def receive(self) -> list[Any]:
        """Return the replies to all commands that were sent. An error of the server is a reply."""
        replies: list[Any] = []
        while self._missing:
            remaining = max(self.deadline - time.monotonic(), 0.001)
            try:
                timeout = None if remaining == math.inf else remaining
                reply = self._link.read_response(timeout=timeout, disconnect_on_error=False)
            except ResponseError as error:
                reply = error
            except RedisTimeoutError:
                raise NoAnswerError(NO_ANSWER) from None
            self._missing -= 1
            replies.append(reply)
        return replies

    def finish(self) -> None:
        """Wait a moment for outstanding replies, so that a later call sees what was done."""
        self.deadline = min(self.deadline, time.monotonic() + FINISH_TIMEOUT)
        with contextlib.suppress(RedisError, OSError):
            self.receive()

    def discard(self) -> None:
        """Close the connection, whatever its state."""
        with contextlib.suppress(RedisError, OSError, AttributeError):
            self._link.disconnect()


class AsyncNodeConnection:
    """As `NodeConnection`, for an event loop."""

    def __init__(self, address: RedisAddress, node: Node) -> None:
        self._address = address
        self.node = node
        self.deadline = math.inf
        self._missing = 0
        self._timed_out = False

    async def connect(self) -> None:
        """As `NodeConnection.connect`."""
        kind: Any = asyncio_driver.UnixDomainSocketConnection
        if self.node.port:
            tls = self._address.tls is not None
            kind = asyncio_driver.SSLConnection if tls else asyncio_driver.Connection
        options = _options(self._address, self.node, self.deadline)
        self._link: Any = kind(**options, socket_timeout=None, retry=AsyncRetry(NoBackoff(), 0))
        with self._deadline_timer():
            await self._link.connect()

    def is_alive(self) -> bool:
        """As `NodeConnection.is_alive`."""
        reader = self._link._reader  # noqa: SLF001 - `can_read` is a coroutine, and says the same
        return reader is not None and not reader.at_eof() and not reader._buffer  # noqa: SLF001

    async def send(self, commands: Sequence[Command]) -> None:
        """As `NodeConnection.send`."""
        self._missing = len(commands)
        with self._deadline_timer():
            packed = self._link.pack_commands(commands)
            await self._link.send_packed_command(packed, check_health=False)

    async def receive(self) -> list[Any]:
        """As `NodeConnection.receive`."""
        replies: list[Any] = []
        with self._deadline_timer():
            while self._missing:
                try:
                    reply = await self._link.read_response(disconnect_on_error=False)
                except ResponseError as error:
                    reply = error
                self._missing -= 1
                replies.append(reply)
        return replies

    async def finish(self) -> None:
        """As `NodeConnection.finish`."""
        self.deadline = min(self.deadline, time.monotonic() + FINISH_TIMEOUT)
        with contextlib.suppress(RedisError, OSError):
            await self.receive()

    def discard(self) -> None:
        """As `NodeConnection.discard`. It does not wait: a coroutine that is closed may not."""
        writer = getattr(getattr(self, "_link", None), "_writer", None)
        if writer is not None:
            with contextlib.suppress(RuntimeError, OSError):  # The loop may have ended.
                writer.transport.abort()
            self._link._reader = self._link._writer = None  # noqa: SLF001

    @contextlib.contextmanager
    def _deadline_timer(self) -> Any:
        """Close the connection at the deadline.

        `asyncio.timeout` is not used: it cancels the task, even if the task was interrupted here
        and does something else by then.
        """
        remaining = self.deadline - time.monotonic()
        timer = None
        if remaining < math.inf:
            timer = asyncio.get_running_loop().call_later(max(remaining, 0.001), self._time_out)
        try:
            yield
        except (RedisError, OSError, AttributeError):
            if self._timed_out:
                raise NoAnswerError(NO_ANSWER) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _time_out(self) -> None:
        self._timed_out = True
        self.discard()
