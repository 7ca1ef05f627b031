"""The models of `perdure chat`: an OpenAI-compatible endpoint, or a script without an LLM.

Both yield the chunks of a streamed chat completion. Every error of a client or its transport
becomes a ChatModelError whose text is one line for people, without the API key.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from perdure.cli.chat.interrupts import InterruptGuard
from perdure.cli.demo.assistant import SCRIPT
from perdure.cli.stores import InvalidCallError

DEFAULT_MODEL = "gpt-4o-mini"

PLACEHOLDER_KEY = "none"  # Local servers need no key, but the openai package requires one.

KEY_MIN = 6  # Characters; a shorter text is not a key, and could be part of any word.

SCRIPTED_NAME = "scripted"

SCRIPTED_NOTICE = "There is no OPENAI_API_KEY and no --base-url: a script answers, no LLM."

SECONDS_PER_WORD = 0.03  # Seconds per word; slow enough to stop with Ctrl-C.


Messages = list[dict[str, Any]]


class ChatModelError(Exception):
    """The model did not answer, or its answer is incomplete."""


class ChatModel(Protocol):
    """Answers a conversation."""

    name: str

    def summarizer(self) -> dict[str, Any]:
        """Return the arguments for `session.summarize` that make this model write the summary."""
        ...

    def ask(self, messages: Messages, stop: InterruptGuard) -> Iterator[Any]:
        """Yield the chunks of an answer. Raises ChatModelError, or KeyboardInterrupt on Ctrl-C."""
        ...


class ModelChoice(NamedTuple):
    """The model that answers, and a notice if it is not the requested one."""

    model: ChatModel
    notice: str


def choose_model(name: str, base_url: str | None, *, paced: bool) -> ModelChoice:
    """Return the model to use. `paced` makes the script as slow as a model."""
    if base_url and not base_url.startswith(("http://", "https://")):
        raise InvalidCallError(
            f"--base-url {base_url!r} is not a URL: it begins with http:// or https://"
        )
    key = _api_key()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidCallError(
            "OPENAI_API_KEY is not a valid key: it has a space, a line break or another invalid "
            "character. Set it again."
        )
    if not key and not base_url:
        return ModelChoice(ScriptedModel(SECONDS_PER_WORD if paced else 0), SCRIPTED_NOTICE)
    if find_spec("openai") is None:
        raise InvalidCallError("The openai package is not installed: pip install 'perdure[openai]'")
    return ModelChoice(EndpointModel(name, base_url, key), "")


def _api_key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip()


class EndpointModel:
    """A model behind an endpoint with OpenAI's chat completions API."""

    def __init__(self, name: str, base_url: str | None, key: str | None) -> None:
        self.name = name
        self._base_url = base_url or None
        self._key = key or PLACEHOLDER_KEY

    @cached_property
    def _client(self) -> Any:
        """The client, created on first use: importing the package takes a second."""
        import openai

        return openai.OpenAI(api_key=self._key, base_url=self._base_url)

    def summarizer(self) -> dict[str, Any]:
        return {"summarizer": self._client, "model": self.name}

    def ask(self, messages: Messages, stop: InterruptGuard) -> Iterator[Any]:
        response = None
        try:
            client = self._client  # Outside `interruptible`: Ctrl-C must not cut an import.
            with stop.interruptible():
                response = client.chat.completions.create(
                    model=self.name, messages=messages, stream=True
                )
            chunks = iter(response)
            while True:
                with stop.interruptible():
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                yield chunk
        except Exception as error:
            raise ChatModelError(explain_error(error)) from error
        finally:
            if response is not None:
                response.close()


def explain_error(error: Exception) -> str:
    """Return the message of an API error as one line, without the key."""
    text, key = _error_text(error), _api_key()
    return text.replace(key, "[OPENAI_API_KEY]") if len(key) >= KEY_MIN else text


def _error_text(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"The endpoint did not send JSON ({error}): check --base-url"
    status = getattr(error, "status_code", None)
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    text = str(message or getattr(error, "message", "") or error) or type(error).__name__
    if status is not None:
        text = f"{status}: {text}"
        hint = _HINTS.get(str(getattr(error, "code", None))) or _HINTS.get(str(status), "")
    else:
        cause = error.__cause__
        text = (
            f"{text.rstrip('.')} ({str(cause).rstrip('.')})"
            if cause is not None and str(cause) not in {"", text}
            else text
        )
        hint = "is the endpoint up, and is --base-url right?" if cause is not None else ""
    return f"{text.rstrip('.')}: {hint}" if hint else text


_HINTS = {
    "401": "check OPENAI_API_KEY",
    "403": "check that OPENAI_API_KEY may use --model",
    "404": "check --model and --base-url",
    "429": "wait a little, or check the limits of your plan",
    "context_length_exceeded": "give --max-tokens, or summarize with /summary",
}


class ScriptedModel:
    """A script: no LLM, no network. The same conversation always gets the same answer."""

    name = SCRIPTED_NAME

    def __init__(self, pace: float = 0) -> None:
        self._pace = pace

    def summarizer(self) -> dict[str, Any]:
        return {"summarizer": _scripted_summary}

    def ask(self, messages: Messages, stop: InterruptGuard) -> Iterator[Any]:
        for word in re.findall(r"\S+\s*", _scripted_answer(messages)):
            with stop.interruptible():
                time.sleep(self._pace)
            yield _chunk({"role": "assistant", "content": word})
        yield _chunk({}, finish_reason="stop")


def _scripted_summary(messages: Messages) -> str:
    prompts = [_message_text(message) for message in messages if message.get("role") == "user"]
    return f"[scripted] The user said: {'; '.join(prompt[:40] for prompt in prompts)}"


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "model": SCRIPTED_NAME, "choices": [choice]}


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _scripted_answer(messages: Messages) -> str:
    prompts = [_message_text(message) for message in messages if message.get("role") == "user"]
    last = prompts[-1].strip() if prompts else ""
    for scene in SCRIPT:
        if last.lower().rstrip(".") == scene.prompt.lower().rstrip("."):
            return "\n".join(("[scripted]", *scene.parts))
    which = f"your message {len(prompts)}" if len(prompts) > 1 else "your first message"
    return (
        f"[scripted] This is {which}: {last!r}. No model was asked, but everything is stored as "
        "usual: kill this process in the middle of an answer, start it again, and continue. "
        f"Say {SCRIPT[0].prompt!r} for a longer answer, or /help."
    )
