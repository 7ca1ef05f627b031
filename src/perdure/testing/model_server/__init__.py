"""An OpenAI-compatible model server for tests, on loopback, with deterministic answers.

It costs nothing, needs no network, rejects the requests that the hosted API rejects, and fails on
request. `python -m perdure.testing.model_server` runs it as a separate process and prints its URL.
"""

import argparse
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from perdure.errors import UsageError
from perdure.testing.model_server.api import (
    ModelApi,
    Reply,
    Request,
    Script,
    end_with_error,
    error_reply,
)
from perdure.testing.model_server.errors import error_for_status
from perdure.testing.model_server.http import (
    LOOPBACK,
    FaultKind,
    FaultQueue,
    Listener,
    ServerFault,
)
from perdure.testing.model_server.prompts import digest

CONTROL = "/test/"  # paths below it control the server; they are not part of the API


class ModelServer:
    """Answers chat completions, responses and embeddings as OpenAI's API does, streamed or not.

    The answer is a function of the request body. By default it contains a digest of the whole
    prompt; marks in the user's text request other answers, see
    docs/how-to/test-your-agent-offline.md. `answer` replaces both: a function of the body, an
    iterable of answers in order, or one text or message for all requests. An answer is a text, a
    message (`content`, `tool_calls`, `refusal`, `reasoning`, `finish_reason`) or a list of calls
    (`{"name": …, "arguments": {…}}`).

    A prompt of more than `context_limit` tokens (a quarter of its characters as JSON) is rejected.
    `strict` also rejects message fields that the hosted API ignores and some gateways reject.
    """

    def __init__(
        self,
        answer: Script = None,
        *,
        port: int = 0,
        context_limit: int | None = None,
        strict: bool = False,
    ) -> None:
        self._model = ModelApi(answer, context_limit=context_limit, strict=strict)
        self._faults = FaultQueue()
        self._port = port
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._listener: Listener | None = None

    def start(self) -> Self:
        """Start listening; on return the server accepts requests."""
        if self._listener is not None:
            raise UsageError("the server was already started: create a new one")
        try:
            self._listener = Listener(self._port, self._respond)
        except OSError as error:
            reason = f"cannot listen on port {self._port}: use another port, or 0 for any free one"
            raise UsageError(reason) from error
        return self

    def close(self) -> None:
        """Close all connections; on return all threads of the server have ended. Idempotent."""
        if self._listener is not None and not self._listener.closing.is_set():
            self._listener.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The `base_url` for a client."""
        if self._listener is None:
            hint = "call start(), or use it in a `with` statement"
            raise UsageError(f"the server has no address yet: {hint}")
        return f"http://{LOOPBACK}:{self._listener.port}/v1"

    @property
    def requests(self) -> list[Request]:
        """All requests so far in order of arrival, including those with an injected fault."""
        with self._lock:
            return [*self._requests]

    def fault(
        self,
        kind: FaultKind | None = None,
        *,
        status: int | None = None,
        after_chunks: int = 0,
        seconds: float = 0.1,
        times: int = 1,
        at: int | None = None,
    ) -> None:
        """Make the next `times` requests fail, or the `times` requests from number `at` on.

        - `status=500` answers with that error, in a stream after `after_chunks` chunks.
        - `"disconnect"` closes the connection: before the first byte, or in a stream after
          `after_chunks` chunks; in an answer that is not streamed, in the middle.
        - `"hang"` stops at the same points, but keeps the connection open.
        - `"slow"` waits `seconds` before every chunk from `after_chunks` on.

        Raises UsageError if the arguments do not describe a fault.
        """
        self._faults.add(ServerFault(kind, status, after_chunks, seconds), times=times, at=at)

    def _respond(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[Reply, ServerFault | None]:
        parsed = _parse_body(body)
        if path.startswith(CONTROL):
            return self._control(method, path, parsed), None
        with self._lock:
            request = Request(len(self._requests) + 1, method, path, headers, parsed)
            self._requests.append(request)
        fault = self._faults.take(request.number)
        if fault is not None and fault.at_once:
            # The script does not advance. Without a status this reply is never sent.
            reply = error_reply(error_for_status(fault.status or 500))
        else:
            reply = self._model.reply(request)
            if fault is not None and fault.status is not None:
                reply = end_with_error(reply, error_for_status(fault.status), fault.after_chunks)
        request_id = f"req_{digest(request.number, parsed)}"
        return reply._replace(headers={**reply.headers, "x-request-id": request_id}), fault

    def _control(self, method: str, path: str, body: Any) -> Reply:
        """Serve `requests` and `fault` over HTTP, for tests in another process."""
        if (method, path) == ("GET", f"{CONTROL}requests"):
            return Reply(200, [request._asdict() for request in self.requests])
        if (method, path) == ("POST", f"{CONTROL}faults") and isinstance(body, Mapping):
            try:
                self.fault(**body)
            except (TypeError, UsageError) as error:
                return Reply(400, {"error": str(error)})
            return Reply(204)
        return Reply(404)


def _parse_body(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted, or with --until-eof until standard input is closed."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.model_server")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 for any free one")
    parser.add_argument("--context-limit", type=int, help="reject prompts with more tokens")
    for flag, help in (
        ("--strict", "reject fields that strict gateways reject"),
        ("--until-eof", "stop when standard input is closed"),
    ):
        parser.add_argument(flag, action="store_true", help=help)
    options = vars(parser.parse_args(arguments))
    until_eof = options.pop("until_eof")
    with ModelServer(**options) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        try:
            if until_eof:
                sys.stdin.read()
            else:
                threading.Event().wait()
        except KeyboardInterrupt:
            return
