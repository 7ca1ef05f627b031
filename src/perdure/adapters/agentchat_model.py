"""A model client whose answers are recorded: what was answered before is not asked again."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from autogen_core.models import ChatCompletionClient, CreateResult
from autogen_core.tools import Tool
from pydantic import BaseModel

from perdure.adapters.agentchat_journal import Journal


class DurableClient(ChatCompletionClient):  # type: ignore[misc]
    """A client in the place of another, for one agent or manager."""

    component_type = "model"

    def __init__(self, client: Any, scope: str, journal: Journal) -> None:
        # One that an earlier journal left behind only hands on.
        self._client = client.inner if isinstance(client, DurableClient) else client
        self._scope = scope
        self._journal = journal

    @property
    def inner(self) -> Any:
        """The client in whose place this one stands."""
        return self._client

    async def create(self, messages: Sequence[Any], **options: Any) -> Any:
        async def answer() -> dict[str, Any]:
            found: dict[str, Any] = (await self._client.create(messages, **options)).model_dump(
                mode="json"
            )
            return found

        request = digest(messages, options)
        return _result(await self._journal.ask(self._scope, request, answer))

    async def create_stream(
        self, messages: Sequence[Any], **options: Any
    ) -> AsyncGenerator[Any, None]:
        chunks: asyncio.Queue[str | None] = asyncio.Queue()
        streamed = False

        async def answer() -> dict[str, Any]:
            async for chunk in self._client.create_stream(messages, **options):
                if isinstance(chunk, CreateResult):
                    found: dict[str, Any] = chunk.model_dump(mode="json")
                    return found
                chunks.put_nowait(chunk)
            raise RuntimeError("the model's stream ended without a result")

        async def ask() -> dict[str, Any]:
            try:
                return await self._journal.ask(self._scope, request, answer)
            finally:
                chunks.put_nowait(None)

        request = digest(messages, options)
        asking = asyncio.ensure_future(ask())
        try:
            while (chunk := await chunks.get()) is not None:
                streamed = True
                yield chunk
            result = _result(await asking)
        finally:
            asking.cancel()
        if not streamed and isinstance(result.content, str):
            yield result.content  # A recorded answer comes in one piece.
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


def _result(found: Mapping[str, Any]) -> Any:
    told = {name: value for name, value in found.items() if name not in ("by", "request")}
    return CreateResult.model_validate(told)


def digest(messages: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Tell what a model is asked from everything else that it could be asked."""
    said = [one.model_dump(mode="json") for one in messages]
    rest = {name: _told(value) for name, value in options.items() if name != "cancellation_token"}
    text = json.dumps([said, rest], sort_keys=True, default=lambda one: type(one).__qualname__)
    return sha256(text.encode()).hexdigest()[:32]


def _told(value: Any) -> Any:
    if isinstance(value, Tool):
        return value.schema
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return value
