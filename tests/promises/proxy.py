"""A TCP proxy for the protocol of Postgres that cuts a connection at a chosen message.

It may call somebody when it does, who kills the client or the server, before the line ends.

Messages of both directions are counted together, over all connections, from the moment it is armed.
The chosen one is not passed on, or passed on in half, or passed on whole and the line cut right
after it; whatever came later on that line is lost. Other lines go on.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

Way = Literal["before", "half", "after"]
WAYS: tuple[Way, ...] = ("before", "half", "after")


class Cut(NamedTuple):
    """At which message, counted from 1, and how."""

    number: int
    way: Way


class Proxy:
    """Listens on loopback for one server."""

    def __init__(self, port: int) -> None:
        self._port = port
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
        begins = who == "client"  # The first message of a client has no letter.
        with contextlib.suppress(OSError):
            while message := _message(source, begins=begins):
                way = self._judge(who, message[:1] if not begins else b"startup")
                begins = False
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

    def _judge(self, who: str, letter: bytes) -> Way | None:
        with self._lock:
            if self._cut is None or self.done:
                return None
            self.senders.append(who)
            if len(self.senders) != self._cut.number:
                return None
            self.done = f"{self._cut.way} {letter.decode()} of the {who}"
            return self._cut.way


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
