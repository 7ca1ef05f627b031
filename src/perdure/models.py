"""Clients of model providers as functions of messages and tools, for `perdure.Agent`.

Each returns a function for one model. The client is the provider's own, or one like it: blocking
for an Agent, async for an AsyncAgent. No SDK is imported here. `options` are sent with every
request.
"""

from collections.abc import Callable
from typing import Any

from perdure.formats.parts import ANTHROPIC, CHAT, RESPONSES
from perdure.formats.transcript import Transcript

__all__ = ["ClientModel", "anthropic_messages", "openai_chat", "openai_responses"]


class ClientModel:
    """A model of a client: call it with a transcript in its `format`, and the tools."""

    def __init__(
        self,
        name: str,
        format: str,
        create: Callable[..., Any],
        options: dict[str, Any],
        messages_field: str = "messages",
    ) -> None:
        self.name = name
        self.format = format
        self._create = create
        self._options = options
        self._messages_field = messages_field

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.format}>"

    def __call__(self, messages: Transcript, tools: list[dict[str, Any]]) -> Any:
        """Send the request, and return the client's reply, or its coroutine."""
        request = {**self._options, "model": self.name, self._messages_field: [*messages]}
        if tools:
            request["tools"] = tools
        if messages.system is not None:
            request["system"] = messages.system
        return self._create(**request)


def openai_chat(client: Any, model: str, **options: Any) -> ClientModel:
    """Return a model of OpenAI's chat completions: `openai.OpenAI()`, or one compatible with it."""
    return ClientModel(model, CHAT, client.chat.completions.create, options)


def openai_responses(client: Any, model: str, **options: Any) -> ClientModel:
    """Return a model of OpenAI's Responses API. Nothing is stored at the provider by default."""
    options = {"store": False, **options}
    return ClientModel(model, RESPONSES, client.responses.create, options, "input")


def anthropic_messages(
    client: Any, model: str, *, max_tokens: int = 4096, **options: Any
) -> ClientModel:
    """Return a model of Anthropic's messages. `max_tokens` limits each reply."""
    options = {"max_tokens": max_tokens, **options}
    return ClientModel(model, ANTHROPIC, client.messages.create, options)
