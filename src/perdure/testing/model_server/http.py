"""The sockets of the model server: read requests, send replies, and inject faults.

Every connection has its own thread, which ends with the connection or with the server. Closing the
server shuts down all sockets, so that no thread waits for a silent client.
"""

import contextlib
import json
import select
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from perdure.errors import UsageError
from perdure.testing.model_server.api import Reply

LOOPBACK = "127.0.0.1"

POLL = 0.02  # seconds until a closing server or a disconnected client is noticed

JSON_HEADERS = {"content-type": "application/json"}

STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


FaultKind = Literal["disconnect", "hang", "slow"]


class ServerFault(NamedTuple):
    """How one request fails: with a status, or as its kind says."""

    kind: FaultKind | None
    status: int | None = None
    after_chunks: int = 0
    seconds: float = 0.0

    @property
    def at_once(self) -> bool:
        """Whether no part of the answer is sent."""
        return self.kind != "slow" and not self.after_chunks


class FaultQueue:
    """Pending faults, for the next requests in order or for requests by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: list[ServerFault] = []
        self._at: dict[int, ServerFault] = {}

    def add(self, fault: ServerFault, *, times: int, at: int | None) -> None:
        kinds = ", ".join(get_args(FaultKind))
        if (fault.kind is None) == (fault.status is None):
            raise UsageError(f"a fault needs either a status or one of {kinds}")
        if fault.kind is not None and fault.kind not in get_args(FaultKind):
            raise UsageError(f"{fault.kind!r} is not one of {kinds}")
        if fault.after_chunks < 0 or fault.seconds < 0 or times < 1 or (at is not None and at < 1):
            raise UsageError("after_chunks and seconds must be at least 0, times and at at least 1")
        with self._lock:
            if at is None:
                self._next.extend([fault] * times)
            else:
                self._at.update(dict.fromkeys(range(at, at + times), fault))

    def take(self, number: int) -> ServerFault | None:
        """Remove and return the fault of a request, None if it has none."""
        with self._lock:
            fault = self._at.pop(number, None)
            return fault or (self._next.pop(0) if self._next else None)


Respond = Callable[[str, str, Mapping[str, str], bytes], tuple[Reply, ServerFault | None]]


class Listener(socketserver.TCPServer):
    """Accepts connections, on loopback only."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, respond: Respond) -> None:
        self.respond = respond
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        super().__init__((LOOPBACK, port), RequestHandler)  # closes the socket if bind fails
        self._accepting = threading.Thread(
            target=self.serve_forever, args=(POLL,), name="perdure-model-server", daemon=True
        )
        self._accepting.start()

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._converse, args=(request, client_address))
        thread.name, thread.daemon = "perdure-model-connection", True
        with self._lock:
            self._open[request] = thread
        thread.start()

    def _converse(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 - reported by handle_error
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the client has disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Close every connection and join every thread."""
        self.closing.set()
        self.shutdown()
        self._accepting.join()
        with self._lock:
            connections = [*self._open.items()]
        for connection, _ in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for _, thread in connections:
            thread.join()
        self.server_close()


class RequestHandler(BaseHTTPRequestHandler):
    """Serves the requests of one connection, one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, *_: Any) -> None:
        """Log nothing: `ModelServer.requests` has them."""

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = urlsplit(self.path).path
        reply, fault = self.server.respond(self.command, path, headers, body)
        if fault is not None and fault.at_once and fault.kind is not None:
            self._fail(fault)
        elif reply.frames is None:
            self._send_whole(reply, fault)
        else:
            self._send_stream(reply, fault)

    def _send_whole(self, reply: Reply, fault: ServerFault | None) -> None:
        data = b"" if reply.body is None else json.dumps(reply.body).encode()
        self._head(reply, {**JSON_HEADERS, "content-length": str(len(data))})
        if fault is not None and fault.kind == "slow":
            if not self._wait(fault):
                return
        elif fault is not None and fault.kind is not None:
            self.wfile.write(data[: len(data) // 2])
            self._fail(fault)
            return
        self.wfile.write(data)

    def _send_stream(self, reply: Reply, fault: ServerFault | None) -> None:
        self._head(reply, {**STREAM_HEADERS, "transfer-encoding": "chunked"})
        frames = [*(reply.frames or ())]
        cut = fault is not None and fault.kind in ("disconnect", "hang")
        for number, frame in enumerate(frames[: fault.after_chunks] if fault and cut else frames):
            slow = fault is not None and fault.kind == "slow" and number >= fault.after_chunks
            if fault is not None and slow and not self._wait(fault):
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        if fault is not None and cut:
            self._fail(fault)
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, reply: Reply, headers: Mapping[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in {**headers, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _wait(self, fault: ServerFault) -> bool:
        """Wait; return False if the server is closing, and nothing more may be sent."""
        closing = self.server.closing.wait(fault.seconds)
        self.close_connection |= closing
        return not closing

    def _fail(self, fault: ServerFault) -> None:
        """Close the connection; a hang first waits until the client or the server closes."""
        if fault.kind == "hang":
            while not self.server.closing.wait(POLL) and not self._has_disconnected():
                pass
        self.close_connection = True

    def _has_disconnected(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
