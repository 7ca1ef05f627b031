"""Count the tokens of messages of any provider: the texts a model is shown, plus allowances.

A message comes in, a number goes out. Pure; a subclass decides how a text is counted. Known shapes
are OpenAI's chat messages and Responses items, Anthropic's blocks and Gemini's parts. Every field
of an item or part of another type is counted. Ids, usage and other data that no model is shown are
not.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.conversations.intake import ROLES
from perdure.errors import UsageError

MESSAGE_TOKENS = (
    3  # tokens; OpenAI: "every message follows <|start|>{role}<|message|>{content}<|end|>".
)
NAME_TOKENS = 1  # tokens; OpenAI, for a message with a name
REPLY_TOKENS = 3  # tokens; OpenAI: the start of the reply, once per prompt

# Tokens. OpenAI publishes no figure for calls and results. These are the overhead of its published
# format for open-weight models, around a name and arguments, and around a result and a name of six
# tokens.
CALL_TOKENS = 13
RESULT_TOKENS = 12

# Tokens. The cost of an image depends on its size and on the model. At default detail, most models
# take up to 1,900; some small models take more (gpt-4.1-nano 3,779, gpt-4o-mini 48,169).
IMAGE_TOKENS = 2_000
AUDIO_LETTERS = 100  # base64 characters per token; speech at 16 kbit/s and 25 tokens a second.
FILE_LETTERS = 5  # base64 characters per token; pages are sent as text and as images
SEALED_LETTERS = 4  # base64 characters per token; encrypted reasoning

_SAID = ("content", "parts", "refusal", "reasoning", "reasoning_content", "audio")
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_use", "server_tool_use", "mcp_call"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_result"})
_IMAGES = frozenset(
    {"image", "image_url", "input_image", "computer_screenshot", "image_generation_call"}
)
_TEXTS = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "thinking"}
    | {"message", "reasoning", "document", "file", "input_file", "input_audio", "base64", "url"}
)
_NOT_SHOWN = frozenset(
    {"id", "type", "status", "call_id", "tool_use_id", "tool_call_id", "signature", "cache_control"}
    | {"detail", "annotations", "logprobs", "expires_at"}
)
_DATA = ("data", "file_data")
_MEDIA = ("media_type", "mime_type", "mimeType", "format")
_REFERENCES = frozenset({"file_id", "file_url", "fileUri"})
_SOUNDS = frozenset({"wav", "mp3", "flac", "opus", "pcm16"})
# A dict with one of these fields is a part; any other is the caller's data, sent as JSON.
_MARKS = frozenset(
    {"type", "text", "functionCall", "functionResponse", "inlineData", "fileData", *_DATA}
    | _REFERENCES
)

_to_json = msgspec.json.Encoder(enc_hook=str).encode


class TextCounter:
    """Counts messages of any known shape by their texts; a subclass defines `name` and `text`.

    `name` is stored with the counts, so a different way of counting needs a different name.
    """

    name = ""
    image = IMAGE_TOKENS

    def text(self, text: str) -> int:
        """Return the number of tokens of a text."""
        raise NotImplementedError

    def count(self, message: Mapping[str, Any]) -> int:
        """Return the number of tokens of a message in a prompt, including its overhead.

        A prompt takes `REPLY_TOKENS` in addition, once, and the tokens of its tools.
        """
        if not isinstance(message, Mapping):
            raise UsageError(f"a message must be a dict, not {type(message).__name__}")
        if "role" not in message and "type" in message:
            overhead = 0 if _kind(message) in _CALLS else MESSAGE_TOKENS
            return overhead + self._part(message)
        role = message.get("role", "user")
        is_role = isinstance(role, str) and role in ROLES
        total = MESSAGE_TOKENS + (1 if is_role else self._any(role))
        if name := message.get("name"):
            total += NAME_TOKENS + self._any(name)
        total += sum(self._any(message[key]) for key in _SAID if key in message)
        if "tool_call_id" in message:
            total += RESULT_TOKENS
        calls = message.get("tool_calls")
        total += sum(map(self._call, calls if isinstance(calls, list) else ()))
        if deprecated := message.get("function_call"):
            total += self._call(deprecated)
        return total

    def _any(self, content: object) -> int:
        """Count any value found where a text is expected."""
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, list):
            return sum(map(self._any, content))
        if isinstance(content, Mapping):
            return self._json(content) if _MARKS.isdisjoint(content) else self._part(content)
        return 0 if content is None else self.text(str(content))

    def _json(self, value: object) -> int:
        return self.text(_to_json(value).decode())

    def _call(self, call: object) -> int:
        """Count the name and arguments of a call of any provider, nested or not."""
        if not isinstance(call, Mapping):
            return CALL_TOKENS + self._any(call)
        inner = call.get("function", call.get("custom", call))
        inner = inner if isinstance(inner, Mapping) else call
        total = CALL_TOKENS
        for key in ("name", "arguments", "input", "args", "output"):
            if (value := inner.get(key)) is not None:
                total += self.text(value) if isinstance(value, str) else self._json(value)
        return total

    def _part(self, part: Mapping[str, Any]) -> int:
        kind = _kind(part)
        if kind in _IMAGES:
            return self.image
        if kind in _CALLS:
            return self._call(part)
        total = RESULT_TOKENS if kind in _RESULTS else 0
        is_known_type = not kind or kind in _TEXTS or kind in _RESULTS
        has_data = any(key in part for key in _DATA)
        for key, value in part.items():
            if key in _NOT_SHOWN or (has_data and key in _MEDIA):
                continue
            total += self._field(key, value, part)
            if not is_known_type:
                total += self.text(key)
        return total

    def _field(self, key: str, value: object, part: Mapping[str, Any]) -> int:
        kind = _kind(part)
        if key in _IMAGES or key in _REFERENCES or key == kind == "url":
            return self.image  # The size behind a URL is unknown here.
        if key == "functionCall":
            return self._call(value)
        if key == "encrypted_content" or kind == "redacted_thinking":
            return _length(value) // SEALED_LETTERS
        if key in _DATA and kind != "text":
            return self._data(value, part)
        return self._any(value)

    def _data(self, value: object, part: Mapping[str, Any]) -> int:
        """Count base64 data: audio, an image, or pages."""
        media = next((part[key] for key in _MEDIA if isinstance(part.get(key), str)), "")
        if media.startswith("audio/") or media in _SOUNDS or "transcript" in part:
            return _length(value) // AUDIO_LETTERS
        if media.startswith("image/"):
            return self.image
        return max(_length(value) // FILE_LETTERS, self.image)


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0
