"""An OpenAI-compatible server on loopback that answers the same to the same, for tests.

It costs no money, needs no network, refuses what the hosted API refuses, and fails on request.
As a process of its own: `python -m perdure.testing.model_server`, which prints its URL.
"""

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from perdure.errors import UsageError
from perdure.testing.model_server.api import Model, Reply, Request, Script, broken_off, refusal
from perdure.testing.model_server.errors import of_status
from perdure.testing.model_server.faults import Fault, Faults, Kind
from perdure.testing.model_server.http import LOOPBACK, Listener
from perdure.testing.model_server.prompts import digest

CONTROL = "/test/"


class ModelServer:
    """Answers chat completions, responses and embeddings as OpenAI's API does, streamed or not.

    The answer is a function of the request's body. By itself it names a digest of the whole
    prompt; marks in the user's text ask for more: see docs/how-to/test-your-agent-offline.md.
    `answer` takes their place: a function of the body, a list of the answers in order, or one text
    or message for all. An answer is a text, a message (`content`, `tool_calls`, `refusal`,
    `reasoning`, `finish_reason`) or a list of calls (`{"name": …, "arguments": {…}}`).

    A prompt of more than `context_limit` tokens (a quarter of its characters as JSON) is refused.
    `strict` refuses fields of messages that the hosted API overlooks and some gateways do not.
    """

    def __init__(
        self,
        answer: Script = None,
        *,
        port: int = 0,
        context_limit: int | None = None,
        strict: bool = False,
    ) -> None:
        self._model = Model(answer, context_limit=context_limit, strict=strict)
        self._faults = Faults()
        self._port = port
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._listener: Listener | None = None

    def start(self) -> Self:
        """Begin to listen; on return the server can be called."""
        if self._listener is not None:
            raise UsageError("the server was started before: make a new one")
        try:
            self._listener = Listener(self._port, self._respond)
        except OSError as error:
            reason = f"port {self._port} can not be had: take another, or 0 for any that is free"
            raise UsageError(reason) from error
        return self

    def close(self) -> None:
        """End all connections; on return no thread of the server is left. May be called again."""
        if self._listener is not None and not self._listener.closing.is_set():
            self._listener.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What a client takes as its `base_url`."""
        if self._listener is None:
            raise UsageError("the server has no address yet: start it, or enter it with `with`")
        return f"http://{LOOPBACK}:{self._listener.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival, those that failed on request too."""
        with self._lock:
            return [*self._requests]

    def fault(
        self,
        kind: Kind | None = None,
        *,
        status: int | None = None,
        after_chunks: int = 0,
        seconds: float = 0.1,
        times: int = 1,
        at: int | None = None,
    ) -> None:
        """Let the next requests fail, `times` of them, or those from number `at` on.

        - `status=500` answers with that error instead, or says it in a stream after so many chunks.
        - `"disconnect"` cuts the line: before the first byte, or after so many chunks of a stream;
          of an answer that is not streamed, in the middle.
        - `"hang"` stops there as well, but keeps the line.
        - `"slow"` waits `seconds` before every chunk from there on.

        Raises UsageError if that is no fault.
        """
        fault = Fault(kind, status, after_chunks, seconds)
        self._faults.add(fault, times=times, at=at)

    def _respond(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[Reply, Fault | None]:
        parsed = _parsed(body)
        if path.startswith(CONTROL):
            return self._control(method, path, parsed), None
        with self._lock:
            request = Request(len(self._requests) + 1, method, path, headers, parsed)
            self._requests.append(request)
        fault = self._faults.take(request.number)
        if fault is not None and fault.at_once:
            # Nothing is taken from the script; without a status, nothing is sent either.
            reply = refusal(of_status(fault.status or 500))
        else:
            reply = self._model.reply(request)
            if fault is not None and fault.status is not None:
                reply = broken_off(reply, of_status(fault.status), fault.after_chunks)
        id = f"req_{digest(request.number, parsed)}"
        return reply._replace(headers={**reply.headers, "x-request-id": id}), fault

    def _control(self, method: str, path: str, body: Any) -> Reply:
        """Tell and take over HTTP what a test in the same process asks and says directly."""
        if (method, path) == ("GET", f"{CONTROL}requests"):
            return Reply(200, [request._asdict() for request in self.requests])
        if (method, path) == ("POST", f"{CONTROL}faults") and isinstance(body, Mapping):
            try:
                self.fault(**body)
            except (TypeError, UsageError) as error:
                return Reply(400, {"error": str(error)})
            return Reply(204)
        return Reply(404)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted, or until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model_server")
    parser.add_argument("--port", type=int, default=0, help="0 takes any that is free")
    parser.add_argument("--context-limit", type=int, help="refuse prompts of more tokens")
    parser.add_argument("--strict", action="store_true", help="refuse what gateways refuse")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    given = parser.parse_args(arguments)
    server = ModelServer(port=given.port, context_limit=given.context_limit, strict=given.strict)
    with server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        try:
            if given.until_eof:
                sys.stdin.read()
            else:
                threading.Event().wait()
        except KeyboardInterrupt:
            return
