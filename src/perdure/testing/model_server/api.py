"""The API of the model server: a request comes in, is checked, and a reply goes out. No sockets.

It keeps two things between requests: the position in the script, and the responses by id, for
`previous_response_id`.
"""

import base64
import hashlib
import json
import math
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from perdure.testing.model_server import anthropic, chat, prompts, responses
from perdure.testing.model_server.answers import Answer, default_answer, parse_answer, truncate
from perdure.testing.model_server.errors import (
    ApiError,
    error_for_finding,
    error_for_status,
    invalid_type,
    missing_parameter,
    not_found,
    prompt_too_long,
    unsupported_parameter,
)
from perdure.testing.model_server.prompts import Prompt
from perdure.testing.provider_rules import anthropic as anthropic_rules
from perdure.testing.provider_rules import chat as chat_rules
from perdure.testing.provider_rules import responses as responses_rules
from perdure.testing.provider_rules.shapes import Finding, is_list, objects

Body = Mapping[str, Any]

Script = Callable[[Body], Any] | Iterable[Any] | None

"""A function of the body; a text or message for all requests; or an iterable, one per request."""

MODEL_NAME = "perdure-test"

DIMENSIONS = 8  # of an embedding, unless the request says how many


class Request(NamedTuple):
    """A received request: numbered from 1, with header names in lower case."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Reply(NamedTuple):
    """The reply to a request: a JSON body, or the frames of a stream."""

    status: int
    body: Any = None
    frames: Iterable[bytes] | None = None
    headers: Mapping[str, str] = {}


def error_reply(error: ApiError) -> Reply:
    return Reply(error.status, error.body, headers=error.headers)


def end_with_error(reply: Reply, error: ApiError, after: int) -> Reply:
    """End a stream with an error after some frames; replace any other reply by the error."""
    if reply.frames is None:
        return error_reply(error)
    frames = [*reply.frames][:after]
    return reply._replace(frames=[*frames, _frame(error.body)])


class ModelApi:
    """Answers API requests. Thread-safe."""

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
        """Return the answer, or the error that the API would return."""
        try:
            key = request.headers.get("authorization", "").removeprefix("Bearer").strip()
            if not key and not request.headers.get("x-api-key"):
                raise error_for_status(401)
            return self._route(request)
        except ApiError as error:
            return error_reply(error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"A parameter of the request is malformed: {type(error).__name__}: {error}"
            return error_reply(ApiError(400, text, code="invalid_type"))

    def _route(self, request: Request) -> Reply:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["v1", "models"]:
                return Reply(200, {"object": "list", "data": [_describe_model(MODEL_NAME)]})
            case "GET", ["v1", "models", name]:
                return Reply(200, _describe_model(name))
            case "GET", ["v1", "responses", id]:
                return Reply(200, self._find(id, "response_id")[0])
            case "POST", ["v1", "chat", "completions"]:
                return self._chat(_require_object(request.body))
            case "POST", ["v1", "messages"]:
                return self._message(_require_object(request.body))
            case "POST", ["v1", "responses"]:
                return self._respond(_require_object(request.body))
            case "POST", ["v1", "responses", "input_tokens"]:
                count = self._prompt(_require_object(request.body)).tokens
                return Reply(200, {"object": "response.input_tokens", "input_tokens": count})
            case "POST", ["v1", "embeddings"]:
                body = _require_object(request.body)
                return Reply(200, _embed({**body, "model": _require_model(body)}))
        raise not_found(request.method, request.path)

    def _chat(self, body: Body) -> Reply:
        model = _require_model(body)
        _require_unset(body, "audio", "modalities")
        if "messages" not in body:
            raise missing_parameter("messages")
        if not is_list(body["messages"]):
            raise invalid_type("messages", "an array of objects")
        _raise_first(chat_rules.findings(body["messages"], strict=self._strict))
        prompt = prompts.from_chat({**body, "model": model})
        answer = self._answer_prompt(prompt)
        if not body.get("stream"):
            return Reply(200, chat.completion(prompt, answer))
        chunks = chat.chunks(prompt, answer)
        return Reply(200, frames=[*map(_frame, chunks), b"data: [DONE]\n\n"])

    def _message(self, body: Body) -> Reply:
        """Answer a request of Anthropic's API."""
        _require_model(body)
        _require_unset(body, "stream")
        for name in ("messages", "max_tokens"):
            if name not in body:
                raise missing_parameter(name)
        _raise_first(anthropic_rules.findings(body["messages"], system=body.get("system")))
        prompt = prompts.from_anthropic(body)
        return Reply(200, anthropic.message(prompt, self._answer_prompt(prompt)))

    def _respond(self, body: Body) -> Reply:
        _require_model(body)
        _require_unset(body, "conversation", "background", "prompt")
        prompt = self._prompt(body)
        answer = self._answer_prompt(prompt)
        response = responses.response(prompt, answer)
        if body.get("store", True):
            with self._lock:
                self._stored[response["id"]] = (response, [*prompt.items, *response["output"]])
        if not body.get("stream"):
            return Reply(200, response)
        events = responses.events(prompt, answer)
        return Reply(200, frames=[_frame(event, event["type"]) for event in events])

    def _prompt(self, body: Body) -> Prompt:
        """Parse and check the input of a request, including that of the previous response."""
        value = body.get("input")
        if value is None:
            raise missing_parameter("input")
        items = [{"role": "user", "content": value}] if isinstance(value, str) else value
        if not is_list(items):
            raise invalid_type("input", "a string or an array of objects")
        previous = body.get("previous_response_id")
        earlier = self._find(previous, "previous_response_id")[1] if previous else []
        items = [*earlier, *items]
        reasoning_of = responses.reasoning_ids(objects(items))
        _raise_first(responses_rules.findings(items, reasoning_of=reasoning_of))
        return prompts.from_responses(body, items)

    def _find(self, id: str, param: str) -> tuple[Body, list[Any]]:
        with self._lock:
            if id in self._stored:
                return self._stored[id]
        if param == "response_id":
            raise ApiError(404, f"Response with id '{id}' not found.")
        text = f"Previous response with id '{id}' not found."
        raise ApiError(400, text, param=param, code="previous_response_not_found")

    def _answer_prompt(self, prompt: Prompt) -> Answer:
        if self._context_limit is not None and prompt.tokens > self._context_limit:
            raise prompt_too_long(prompt.api, self._context_limit, prompt.tokens)
        try:
            answer = self._next_answer(prompt)
        except ApiError:
            raise
        except Exception as error:
            # Not a 500: the client would retry it, and hide the error in the test.
            text = f"the answer failed: {type(error).__name__}: {error}"
            raise ApiError(400, text, code="answer_failed") from error
        return truncate(answer, prompt.limit)

    def _next_answer(self, prompt: Prompt) -> Answer:
        if self._answer is not None:
            return parse_answer(self._answer(prompt.body))
        if self._scripted is None:
            return default_answer(prompt)
        with self._lock:
            for scripted in self._scripted:
                return parse_answer(scripted)
        message = "the script has no answer left"
        raise LookupError(message)


def _raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first finding as an error: the API reports one at a time."""
    for finding in findings:
        raise error_for_finding(finding)


def _require_unset(body: Body, *names: str) -> None:
    for name in names:
        if body.get(name) and body[name] != ["text"]:
            raise unsupported_parameter(name)


def _require_object(body: Any) -> Body:
    if not isinstance(body, Mapping):
        text = "We could not parse the JSON body of your request. The API expects a JSON object."
        raise ApiError(400, text)
    return body


def _require_model(body: Body) -> str:
    if not body.get("model"):
        raise ApiError(400, "you must provide a model parameter")
    return str(body["model"])


def _describe_model(name: str) -> dict[str, Any]:
    created = chat.CREATED
    return {"id": name, "object": "model", "created": created, "owned_by": "perdure"}


def _frame(event: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _embed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an answer: a vector for each text, or for each list of tokens."""
    value = body.get("input")
    if not value:
        raise missing_parameter("input")
    is_single = isinstance(value, str) or not isinstance(value[0], str | list)
    texts = [value] if is_single else [*value]
    size = int(body.get("dimensions") or DIMENSIONS)
    vectors = [_vector(prompts.canonical(text), size) for text in texts]
    as_base64 = body.get("encoding_format") == "base64"
    values = [_encode(vector) if as_base64 else vector for vector in vectors]
    data = [
        {"object": "embedding", "index": index, "embedding": value}
        for index, value in enumerate(values)
    ]
    used = sum(prompts.tokens(prompts.canonical(text)) for text in texts)
    usage = {"prompt_tokens": used, "total_tokens": used}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def _vector(text: str, size: int) -> list[float]:
    """Derive a unit vector from a text: always the same one, and its own."""
    parts = [hashlib.sha256(f"{index} {text}".encode()).digest() for index in range(size)]
    raw = [int.from_bytes(part[:4]) / 2**31 - 1 for part in parts]
    length = math.hypot(*raw) or 1.0
    return [value / length for value in raw]


def _encode(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
