"""Calls that are sent to the nodes of a store together, and their replies. Pure.

A call concerns one bucket, so that it goes to one node. It may be sent twice: scripts answer a
resend without writing anything again.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import AskError, NoScriptError, ResponseError

from perdure.backends.redis.address import Node
from perdure.backends.redis.errors import UnconfirmedError
from perdure.backends.redis.layout import ServerCall, StoreLayout

_PENDING = object()


class Confirmation(NamedTuple):
    """How replicas confirm writes: how many of them, and whether on their disks."""

    replicas: int
    on_disk: bool

    def commands(self, seconds: float) -> list[tuple[Any, ...]]:
        """Return the commands that wait for them.

        `WAITAOF` alone takes a second: a replica that is asked at once answers before it syncs, and
        again only with its next heartbeat. Asked after it has confirmed by `WAIT`, it has synced.
        """
        milliseconds = max(int(seconds * 1000), 1)
        wait = ("WAIT", self.replicas, milliseconds)
        return [wait, ("WAITAOF", 1, self.replicas, milliseconds)] if self.on_disk else [wait]

    def check(self, replies: list[Any]) -> Exception | None:
        """Remove the replies to these commands; return an error if too few have confirmed."""
        own = [replies.pop() for _ in range(1 + self.on_disk)][::-1]
        for reply in own:
            if isinstance(reply, ResponseError):
                return reply
        confirmed = min(own[0], own[1][1]) if self.on_disk else own[0]
        if confirmed >= self.replicas and (not self.on_disk or own[1][0] >= 1):
            return None
        what = f"{confirmed} of {self.replicas} replicas confirmed a write in time"
        return UnconfirmedError(f"{what}; the primary has it")


class ServerCalls:
    """Some calls and their replies."""

    def __init__(self, layout: StoreLayout, calls: Sequence[ServerCall]) -> None:
        self._layout = layout
        self._calls = calls
        self.replies: list[Any] = [_PENDING] * len(calls)
        self._asks: dict[int, Node] = {}
        self._whole: set[int] = set()

    def groups(self, owner: Callable[[int], Node]) -> list[tuple[Node, list[int]]]:
        """Return the nodes to send the open calls to, and the numbers of the calls of each."""
        groups: dict[Node, list[int]] = {}
        for number, reply in enumerate(self.replies):
            if reply is _PENDING:
                node = self._asks.get(number) or owner(self._calls[number].bucket)
                groups.setdefault(node, []).append(number)
        return sorted(groups.items())

    def commands(self, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the commands of some calls."""
        commands: list[tuple[Any, ...]] = []
        for number in numbers:
            call = self._calls[number]
            if number in self._asks:
                commands.append(("ASKING",))
            commands.append(self._layout.command(call, whole=number in self._whole))
        return commands

    def writes(self, numbers: Sequence[int]) -> bool:
        """Return whether one of some calls writes."""
        return any(self._calls[number].writes for number in numbers)

    def take(self, node: Node, numbers: Sequence[int], replies: list[Any]) -> Exception | None:
        """Keep replies; return an error if one of the calls has to be sent again, or failed."""
        error: Exception | None = None
        remaining = iter(replies)
        for number in numbers:
            if self._asks.pop(number, None) is not None:
                next(remaining)  # To ASKING.
            reply = next(remaining)
            if isinstance(reply, ResponseError):
                error = self._redirect(node, number, reply) or error
            else:
                self.replies[number] = reply
        return error

    def _redirect(self, node: Node, number: int, error: ResponseError) -> Exception | None:
        if isinstance(error, AskError):
            self._asks[number] = Node(error.host or node.host, error.port)
        elif isinstance(error, NoScriptError) and number not in self._whole:
            self._whole.add(number)
        else:
            return error
        return None

    @property
    def is_done(self) -> bool:
        """Whether every call has its reply."""
        return _PENDING not in self.replies
