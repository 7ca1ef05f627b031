"""Detect the format of a stored message from the message alone. Pure."""

from perdure.formats.anthropic import BLOCKS
from perdure.formats.fields import as_text, dicts_in
from perdure.formats.parts import ANTHROPIC, CHAT, GEMINI, RESPONSES, Native

_RESPONSES_PARTS = frozenset({"input_text", "input_image", "input_file", "output_text"})

_CHAT_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})

_CHAT_FIELDS = frozenset({"tool_calls", "tool_call_id", "function_call", "refusal", "audio"})

_ANTHROPIC_BLOCKS = BLOCKS.keys() - {"text"}

_ANTHROPIC_FIELDS = frozenset({"cache_control", "citations"})

_ANTHROPIC_ANSWER_FIELDS = frozenset({"stop_reason", "stop_sequence", "usage"})


def detect_format(message: Native) -> str:
    """Return the format of a message: `openai.chat`, `openai.responses`, `anthropic`, `gemini`.

    - `parts`, or the role `model`: gemini.
    - A `type`: responses, unless it is a `message` with blocks that only Anthropic has, or with
      metadata that only Anthropic's answers have.
    - Content in parts that only one format has: that format.
    - Everything else, such as a role and a text, means the same in all: openai.chat.
    """
    content = message.get("content")
    if type(content) is str and "type" not in message:
        return CHAT
    if "parts" in message or message.get("role") == "model":
        return GEMINI
    type_ = message.get("type")
    if type(type_) is str and type_ != "message":
        return RESPONSES
    if message.keys() & _CHAT_FIELDS:
        return CHAT
    if type_ == "message" and message.keys() & _ANTHROPIC_ANSWER_FIELDS:
        return ANTHROPIC
    parts_format = _format_of_parts(dicts_in(content))
    if type_ == "message":
        return RESPONSES if parts_format == CHAT else parts_format or RESPONSES
    # A reference to an item of a response may omit its type.
    return parts_format or (RESPONSES if message.keys() == {"id"} else CHAT)


def _format_of_parts(parts: list[Native]) -> str:
    """Return the format of the first part that only one format has; "" if there is none."""
    for part in parts:
        kind = as_text(part.get("type"))
        if kind in _RESPONSES_PARTS:
            return RESPONSES
        if kind in _CHAT_PARTS:
            return CHAT
        if kind in _ANTHROPIC_BLOCKS or part.keys() & _ANTHROPIC_FIELDS:
            return ANTHROPIC
    return ""
