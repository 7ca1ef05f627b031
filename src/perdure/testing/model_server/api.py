"""A request becomes a reply: checked as the API checks it, then answered. No sockets.

Only two things are remembered between requests: which scripted answer is next, and what was
answered under which id, for `previous_response_id`.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from perdure.testing.model_server import chat, prompts, responses
from perdure.testing.model_server.answers import Answer, by_itself, cut, made_of
from perdure.testing.model_server.embeddings import embeddings
from perdure.testing.model_server.errors import (
    ApiError,
    invalid_type,
    missing,
    not_found,
    of_finding,
    of_status,
    too_long,
    unsupported,
)
from perdure.testing.model_server.prompts import Prompt
from perdure.testing.provider_rules import chat as chat_rules
from perdure.testing.provider_rules import responses as responses_rules
from perdure.testing.provider_rules.shapes import Finding, is_list, objects

Body = Mapping[str, Any]

Script = Callable[[Body], Any] | Iterable[Any] | None

"""A function of the body; or one answer for all requests, if a text or message; or one for each."""

MODEL = "perdure-test"


class Request(NamedTuple):
    """A request as it came: numbered from 1, its headers by names in lower case."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Reply(NamedTuple):
    """What is sent back: one JSON body, or the frames of a stream."""

    status: int
    body: Any = None
    frames: Iterable[bytes] | None = None
    headers: Mapping[str, str] = {}


def refusal(error: ApiError) -> Reply:
    return Reply(error.status, error.body, headers=error.headers)


def broken_off(reply: Reply, error: ApiError, after: int) -> Reply:
    """Let a stream end with an error after so many frames; what is no stream is the error."""
    if reply.frames is None:
        return refusal(error)
    said = [*reply.frames][:after]
    return reply._replace(frames=[*said, _frame(error.body)])


class Model:
    """Answers requests of the API, in any thread."""

    def __init__(self, script: Script, *, context_limit: int | None, strict: bool) -> None:
        self._answer: Callable[[Body], Any] | None = None
        self._scripted: Iterator[Any] | None = None
        if callable(script):
            self._answer = script
        elif isinstance(script, str | Mapping):
            self._answer = lambda _: script
        elif script is not None:
            self._scripted = iter(script)
        self._context_limit = context_limit
        self._strict = strict
        self._lock = threading.Lock()
        self._stored: dict[str, tuple[Body, list[Any]]] = {}

    def reply(self, request: Request) -> Reply:
        """Answer, or say with the API's own error why not."""
        try:
            if not request.headers.get("authorization", "").removeprefix("Bearer").strip():
                raise of_status(401)
            return self._route(request)
        except ApiError as error:
            return refusal(error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"A parameter of the request is malformed: {type(error).__name__}: {error}"
            return refusal(ApiError(400, text, code="invalid_type"))

    def _route(self, request: Request) -> Reply:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["v1", "models"]:
                return Reply(200, {"object": "list", "data": [_model(MODEL)]})
            case "GET", ["v1", "models", name]:
                return Reply(200, _model(name))
            case "GET", ["v1", "responses", id]:
                return Reply(200, self._find(id, "response_id")[0])
            case "POST", ["v1", "chat", "completions"]:
                return self._chat(_object(request.body))
            case "POST", ["v1", "responses"]:
                return self._respond(_object(request.body))
            case "POST", ["v1", "responses", "input_tokens"]:
                counted = self._prompt(_object(request.body)).tokens
                return Reply(200, {"object": "response.input_tokens", "input_tokens": counted})
            case "POST", ["v1", "embeddings"]:
                body = _object(request.body)
                return Reply(200, embeddings({**body, "model": _model_of(body)}))
        raise not_found(request.method, request.path)

    def _chat(self, body: Body) -> Reply:
        model = _model_of(body)
        _refuse_unserved(body, "audio", "modalities")
        if "messages" not in body:
            raise missing("messages")
        if not is_list(body["messages"]):
            raise invalid_type("messages", "an array of objects")
        _refuse(chat_rules.findings(body["messages"], strict=self._strict))
        prompt = prompts.of_chat({**body, "model": model})
        answer = self._said(prompt)
        if not body.get("stream"):
            return Reply(200, chat.completion(prompt, answer))
        chunks = chat.chunks(prompt, answer)
        return Reply(200, frames=[*map(_frame, chunks), b"data: [DONE]\n\n"])

    def _respond(self, body: Body) -> Reply:
        _model_of(body)
        _refuse_unserved(body, "conversation", "background", "prompt")
        prompt = self._prompt(body)
        answer = self._said(prompt)
        response = responses.response(prompt, answer)
        if body.get("store", True):
            with self._lock:
                self._stored[response["id"]] = (response, [*prompt.items, *response["output"]])
        if not body.get("stream"):
            return Reply(200, response)
        events = responses.events(prompt, answer)
        return Reply(200, frames=[_frame(event, event["type"]) for event in events])

    def _prompt(self, body: Body) -> Prompt:
        """Read and check the input of a request, with what was said before it."""
        given = body.get("input")
        if given is None:
            raise missing("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not is_list(items):
            raise invalid_type("input", "a string or an array of objects")
        previous = body.get("previous_response_id")
        before = self._find(previous, "previous_response_id")[1] if previous else []
        items = [*before, *items]
        known = responses.reasoning_of(objects(items))
        _refuse(responses_rules.findings(items, reasoning_of=known))
        return prompts.of_responses(body, items)

    def _find(self, id: str, param: str) -> tuple[Body, list[Any]]:
        with self._lock:
            if id in self._stored:
                return self._stored[id]
        if param == "response_id":
            raise ApiError(404, f"Response with id '{id}' not found.")
        text = f"Previous response with id '{id}' not found."
        raise ApiError(400, text, param=param, code="previous_response_not_found")

    def _said(self, prompt: Prompt) -> Answer:
        if self._context_limit is not None and prompt.tokens > self._context_limit:
            raise too_long(prompt.api, self._context_limit, prompt.tokens)
        try:
            answer = self._next(prompt)
        except ApiError:
            raise
        except Exception as error:
            # Not a 500: the client would try that again, and hide what is wrong with the test.
            text = f"no answer could be made: {type(error).__name__}: {error}"
            raise ApiError(400, text, code="answer_failed") from error
        return cut(answer, prompt.limit)

    def _next(self, prompt: Prompt) -> Answer:
        if self._answer is not None:
            return made_of(self._answer(prompt.body))
        if self._scripted is None:
            return by_itself(prompt)
        with self._lock:
            for given in self._scripted:
                return made_of(given)
        message = "the script has no answer left"
        raise LookupError(message)


def _refuse(findings: Iterable[Finding]) -> None:
    """Raise the first finding: the API tells of one at a time."""
    for finding in findings:
        raise of_finding(finding)


def _refuse_unserved(body: Body, *names: str) -> None:
    for name in names:
        if body.get(name) and body[name] != ["text"]:
            raise unsupported(name)


def _object(body: Any) -> Body:
    if not isinstance(body, Mapping):
        text = "We could not parse the JSON body of your request. The API expects a JSON object."
        raise ApiError(400, text)
    return body


def _model_of(body: Body) -> str:
    if not body.get("model"):
        raise ApiError(400, "you must provide a model parameter")
    return str(body["model"])


def _model(name: str) -> dict[str, Any]:
    created = chat.CREATED
    return {"id": name, "object": "model", "created": created, "owned_by": "perdure"}


def _frame(event: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
