"""A TCP proxy for the protocols of Postgres and Redis that cuts a connection at a chosen message.

It may call somebody when it does, who kills the client or the server, before the line ends.

Messages of both directions are counted together, over all connections, from the moment it is armed.
The chosen one is not passed on, or passed on in half, or passed on whole and the line cut right
after it; whatever came later on that line is lost. Other lines go on.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, NamedTuple

Way = Literal["before", "half", "after"]
WAYS: tuple[Way, ...] = ("before", "half", "after")


class Cut(NamedTuple):
    """At which message, counted from 1, and how."""

    number: int
    way: Way


class Proxy:
    """Listens on loopback for one server."""

    def __init__(self, port: int, protocol: Literal["postgres", "redis"] = "postgres") -> None:
        self._port = port
        self._protocol = protocol
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self._cut: Cut | None = None
        self.senders: list[str] = []
        """Who sent each message since it was armed."""
        self._call: Callable[[], object] | None = None
        self.done = ""
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, cut: Cut, call: Callable[[], object] | None = None) -> None:
        """Cut once from now on, and make a call just before the line ends."""
        with self._lock:
            self._cut, self.senders, self.done, self._call = cut, [], "", call

    def disarm(self) -> None:
        """Cut no more."""
        with self._lock:
            self._cut = None

    def close(self) -> None:
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pair in ((client, server, "client"), (server, client, "server")):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, who: str) -> None:
        with contextlib.suppress(OSError):
            for letter, message in self._messages(source, who):
                way = self._judge(who, letter)
                if way != "before":
                    target.sendall(message[: len(message) // 2] if way == "half" else message)
                if way is not None:
                    if self._call is not None:
                        self._call()
                    break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _messages(self, source: socket.socket, who: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield each message, and what to call it."""
        if self._protocol == "redis":
            with source.makefile("rb") as lines:
                while message := _value(lines):
                    yield message[:1], message
            return
        begins = who == "client"  # The first message of a client has no letter.
        while message := _message(source, begins=begins):
            yield b"startup" if begins else message[:1], message
            begins = False

    def _judge(self, who: str, letter: bytes) -> Way | None:
        with self._lock:
            if self._cut is None or self.done:
                return None
            self.senders.append(who)
            if len(self.senders) != self._cut.number:
                return None
            self.done = f"{self._cut.way} {letter.decode()} of the {who}"
            return self._cut.way


def _value(lines: BinaryIO) -> bytes:
    """Read one whole value of the protocol of Redis; nothing at the end."""
    line = lines.readline()
    if not line.endswith(b"\r\n"):
        return b""
    size = int(line[1:]) if line[:1] in b"*$" else -1
    if line[:1] == b"$" and size >= 0:
        return line + lines.read(size + 2)
    return line + b"".join(_value(lines) for _ in range(size))


def _message(source: socket.socket, *, begins: bool) -> bytes:
    """Read one whole message; nothing at the end."""
    head = _exactly(source, 4 if begins else 5)
    if not head:
        return b""
    size = int.from_bytes(head[-4:], "big")
    return head + _exactly(source, size - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            return b""
        found += more
    return found
