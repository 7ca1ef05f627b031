"""A model client that records answers: a recorded answer is returned without calling the model.

The client takes the place of an agent's own one. Requests are identified by a digest of all
messages and options, so a changed prompt is noticed when an interrupted run is resumed. Everything
but the two calls that create an answer is passed on to the wrapped client.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from autogen_core.models import ChatCompletionClient, CreateResult
from autogen_core.tools import Tool
from pydantic import BaseModel

from perdure.adapters.agentchat.run_log import RunLog
from perdure.adapters.digests import json_digest
from perdure.formats.intake import copy_data

DIGEST_LENGTH = 32  # hexadecimal digits, stored with every answer


class DurableClient(ChatCompletionClient):  # type: ignore[misc]
    """A client that wraps another one, for one agent or manager."""

    component_type = "model"

    def __init__(self, client: Any, scope: str, run_log: RunLog) -> None:
        # Unwrap a client that an earlier `persist` left behind: calls would be recorded twice.
        self._client = client.inner if isinstance(client, DurableClient) else client
        self._scope = scope
        self._run_log = run_log

    @property
    def inner(self) -> Any:
        """The wrapped client."""
        return self._client

    async def create(self, messages: Sequence[Any], **options: Any) -> Any:
        messages, options = _copy_request(messages, options)

        async def answer() -> dict[str, Any]:
            result: dict[str, Any] = (await self._client.create(messages, **options)).model_dump(
                mode="json"
            )
            return result

        request = request_digest(messages, options)
        return _load_result(await self._run_log.ask(self._scope, request, answer))

    async def create_stream(
        self, messages: Sequence[Any], **options: Any
    ) -> AsyncGenerator[Any, None]:
        messages, options = _copy_request(messages, options)
        # A task reads the model's stream to its end and records the answer; the queue hands its
        # chunks over meanwhile. None marks the end, after a failure too.
        chunks: asyncio.Queue[str | None] = asyncio.Queue()
        streamed = False

        async def answer() -> dict[str, Any]:
            async for chunk in self._client.create_stream(messages, **options):
                if isinstance(chunk, CreateResult):
                    data: dict[str, Any] = chunk.model_dump(mode="json")
                    return data
                chunks.put_nowait(chunk)
            raise RuntimeError("the model's stream ended without a result")

        async def ask() -> dict[str, Any]:
            try:
                return await self._run_log.ask(self._scope, request, answer)
            finally:
                chunks.put_nowait(None)

        request = request_digest(messages, options)
        task = asyncio.ensure_future(ask())
        try:
            while (chunk := await chunks.get()) is not None:
                streamed = True
                yield chunk
            result = _load_result(await task)
        finally:
            # No effect on a finished task; a reader that stops early cancels the request.
            task.cancel()
        if not streamed and isinstance(result.content, str):
            yield result.content  # A recorded answer is replayed as one chunk.
        yield result

    async def close(self) -> None:
        await self._client.close()

    def actual_usage(self) -> Any:
        return self._client.actual_usage()

    def total_usage(self) -> Any:
        return self._client.total_usage()

    def count_tokens(self, messages: Sequence[Any], **options: Any) -> int:
        return int(self._client.count_tokens(messages, **options))

    def remaining_tokens(self, messages: Sequence[Any], **options: Any) -> int:
        return int(self._client.remaining_tokens(messages, **options))

    @property
    def capabilities(self) -> Any:
        return self._client.capabilities

    @property
    def model_info(self) -> Any:
        return self._client.model_info


def _copy_request(
    messages: Sequence[Any], options: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return copies of messages and options, so that what is digested is what is sent.

    Tools, output classes and the cancellation token are live objects, which are not copied.
    """
    return copy_data([*messages], objects=True), copy_data(options, objects=False)


def _load_result(recorded: Mapping[str, Any]) -> Any:
    # `RunLog.ask` stores these two beside the answer.
    fields = {name: value for name, value in recorded.items() if name not in ("by", "request")}
    return CreateResult.model_validate(fields)


def request_digest(messages: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Return a digest that identifies a model request."""
    contents = [message.model_dump(mode="json") for message in messages]
    rest = {
        name: _option_data(value) for name, value in options.items() if name != "cancellation_token"
    }
    # The text of an arbitrary option may contain its address: only its class is stable.
    return json_digest([contents, rest], length=DIGEST_LENGTH, default=_class_name)


def _class_name(value: Any) -> str:
    return type(value).__qualname__


def _option_data(value: Any) -> Any:
    """Return an option of a request as JSON data: tools and output classes by their schema."""
    if isinstance(value, Tool):
        return value.schema
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if isinstance(value, list | tuple):
        return [_option_data(item) for item in value]
    return value
