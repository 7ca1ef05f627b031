"""Connection pool of a store: sends calls to the nodes that have their buckets.

A connection that is lost in the middle of a call leaves it in doubt. Every call may be sent twice,
so it is, on another connection or to the replica that was promoted, until the call's timeout.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import MovedError, RedisError

from perdure.backends.connection_slots import (
    AsyncConnectionSlots,
    current_loop_async,
    sleep_async,
)
from perdure.backends.redis.address import Node, RedisAddress
from perdure.backends.redis.calls import Confirmation, ServerCalls
from perdure.backends.redis.connection import AsyncNodeConnection, Command
from perdure.backends.redis.errors import CallBudget, NoAnswerError
from perdure.backends.redis.layout import ServerCall, StoreLayout
from perdure.backends.redis.topology import Topology
from perdure.errors import UsageError

CONFIRM_INTERVAL = 2.0  # seconds; then the nodes are asked again which of them is the primary

TOPOLOGY_TIMEOUT = 2.0  # seconds for one node to name the others; then the next one is asked


class AsyncRedisPool:
    """Runs calls on connections of one store."""

    def __init__(
        self,
        address: RedisAddress,
        layout: StoreLayout,
        topology: Topology,
        confirmation: Confirmation | None,
    ) -> None:
        self._address = address
        self.layout = layout
        self._topology = topology
        self.confirmation = confirmation
        self.closed = False
        self._reset(None)

    def _reset(self, loop: object) -> None:
        self._slots: dict[Node, AsyncConnectionSlots] = {}
        self._idle: dict[Node, list[AsyncNodeConnection]] = {}
        self._pid, self._loop = os.getpid(), loop

    async def run(
        self,
        calls: Sequence[ServerCall],
        timeout: float | None = None,  # noqa: ASYNC109 - of one try, and of all retries together
        *,
        stream: str = "",
    ) -> list[Any]:
        """Return the replies to some calls, sending them again after errors worth a retry.

        `stream` is named in errors about damage, if only one stream can be affected.
        """
        loop = current_loop_async()
        if self._pid != os.getpid():
            # The connections belong to the parent: closing them here would end them there.
            self._reset(loop)
        elif self._loop is not loop:
            self._close_idle()  # They belong to a loop that has ended.
            self._reset(loop)
        budget = CallBudget(self._address, timeout, stream)
        batch = ServerCalls(self.layout, calls)
        while not batch.is_done:
            error = await self._attempt(batch, budget.deadline)
            if error is None:
                continue
            await sleep_async(budget.after(error))
            await self._refresh(budget.deadline)
            if isinstance(error, MovedError):  # After the refresh: its node may know less.
                self._topology.move(error.slot_id, Node(error.host, error.port))
        return batch.replies

    async def call(
        self,
        call: ServerCall,
        timeout: float | None = None,  # noqa: ASYNC109 - as `run`
        *,
        stream: str = "",
    ) -> Any:
        """Return the reply to one call."""
        return (await self.run([call], timeout, stream=stream))[0]

    @property
    def primaries(self) -> list[Node]:
        """The nodes that have a bucket."""
        return sorted({self._owner(bucket) for bucket in range(self.layout.buckets)})

    async def ask(self, node: Node, command: Command) -> Any:
        """Return the reply of a node to a command that names no key."""
        budget = CallBudget(self._address)
        while True:
            try:
                return await self._ask(node, command, budget.deadline)
            except (RedisError, OSError) as error:
                pause = budget.after(error)
            await sleep_async(pause)

    async def close(self) -> None:
        """Close idle connections now, and the others when they are released."""
        self.closed = True
        if self._pid == os.getpid():
            self._close_idle()

    def _owner(self, bucket: int) -> Node:
        return self._topology.owner(self.layout.slots[bucket])

    async def _attempt(self, batch: ServerCalls, deadline: float) -> Exception | None:
        """Send the open calls; return an error if not all of them were answered."""
        sent: list[tuple[AsyncNodeConnection, list[int]]] = []
        tickets: list[tuple[Node, object]] = []
        failure: Exception | None = None
        try:
            # In the order of nodes, which all callers take slots in: none waits for another's.
            for node, numbers in batch.groups(self._owner):
                commands = self._commands(batch, numbers, deadline)
                tickets.append((node, object()))
                try:
                    connection = await self._acquire(node, tickets[-1][1], deadline)
                    sent.append((connection, numbers))
                    await connection.send(commands)
                except (RedisError, OSError) as error:
                    failure = error
                    self._drop_failed(node, sent)
            for connection, numbers in [*sent]:
                try:
                    replies = await connection.receive()
                except (RedisError, OSError) as error:
                    failure = error
                    self._drop_failed(connection.node, sent)
                    continue
                failure = self._take(batch, connection.node, numbers, replies) or failure
                sent.remove((connection, numbers))
                self._release(connection)
        except BaseException as error:
            # What was sent is being done: the caller's next call must see its outcome.
            if not isinstance(error, GeneratorExit):
                for connection, _ in sent:
                    await connection.finish()
            raise
        finally:
            for connection, _ in sent:
                connection.discard()
            for node, ticket in tickets:
                self._free(node, ticket)
        return failure

    def _commands(self, batch: ServerCalls, numbers: list[int], deadline: float) -> list[Command]:
        commands = batch.commands(numbers)
        if self.confirmation is not None and batch.writes(numbers):
            # Before the deadline: otherwise the server would seem not to answer.
            seconds = min(CONFIRM_INTERVAL, 0.4 * max(deadline - time.monotonic(), 0.0))
            commands += self.confirmation.commands(seconds)
        return commands

    def _take(
        self, batch: ServerCalls, node: Node, numbers: list[int], replies: list[Any]
    ) -> Exception | None:
        if self.confirmation is not None and batch.writes(numbers):
            unconfirmed = self.confirmation.check(replies)
            if unconfirmed is not None:
                # A script that refused to run is the better reason; otherwise all are sent again.
                errors = [reply for reply in replies if isinstance(reply, RedisError)]
                return batch.take(node, numbers, replies) if errors else unconfirmed
        return batch.take(node, numbers, replies)

    def _drop_failed(self, node: Node, sent: list[tuple[AsyncNodeConnection, list[int]]]) -> None:
        """Discard a connection that failed, and the idle ones to the same node."""
        for connection, numbers in [*sent]:
            if connection.node == node:
                sent.remove((connection, numbers))
                connection.discard()
        for connection in self._idle.pop(node, ()):
            connection.discard()

    async def _acquire(self, node: Node, ticket: object, deadline: float) -> AsyncNodeConnection:
        slots = self._slots.get(node)
        if slots is None:
            slots = self._slots.setdefault(node, AsyncConnectionSlots(self._address.connections))
        if not await slots.acquire(ticket, deadline):
            raise NoAnswerError("all connections of this store were busy for too long")
        while True:
            if self.closed:
                raise UsageError(f"{self._address.name} is closed: open the store again")
            try:
                connection = self._idle.setdefault(node, []).pop()
            except IndexError:
                connection = AsyncNodeConnection(self._address, node)
                connection.deadline = deadline
                try:
                    await connection.connect()
                except BaseException:
                    connection.discard()
                    raise
                return connection
            if connection.is_alive():
                connection.deadline = deadline
                return connection
            connection.discard()

    async def _ask(self, node: Node, command: Command, deadline: float) -> Any:
        """Return the reply of a node to a command that may go to any."""
        ticket = object()
        try:
            connection = await self._acquire(node, ticket, deadline)
            try:
                await connection.send([command])
                (reply,) = await connection.receive()
            except BaseException:
                connection.discard()
                raise
            self._release(connection)
        finally:
            self._free(node, ticket)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def _free(self, node: Node, ticket: object) -> None:
        slots = self._slots.get(node)
        if slots is not None:
            slots.free(ticket)
            slots.wake_next()

    async def _refresh(self, deadline: float) -> None:
        """Ask the nodes of a cluster which of them has which slot."""
        for node in self._topology.candidates():
            until = min(deadline, time.monotonic() + TOPOLOGY_TIMEOUT)
            try:
                slots = await self._ask(node, ("CLUSTER", "SLOTS"), until)
            except (RedisError, OSError):
                continue
            self._topology.update(node, slots)
            return

    def _release(self, connection: AsyncNodeConnection) -> None:
        self._idle.setdefault(connection.node, []).append(connection)
        if self.closed:
            self._close_idle()

    def _close_idle(self) -> None:
        for connections in [*self._idle.values()]:
            while connections:
                try:
                    connection = connections.pop()
                except IndexError:  # Another thread took the last one.
                    break
                connection.discard()
