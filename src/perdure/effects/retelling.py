"""Store a large result once: if a message contains it verbatim, its outcome refers to the message.

Pure. The outcome is stored right after the message, in the same append, so restoring the result
costs one read.
"""

from typing import Any, Literal

import msgspec

from perdure import codec
from perdure.records import EffectSettled

LARGE = 1024  # characters; a shorter result stays in its outcome, where people look for it

Form = Literal["", "text", "json"]


def form_of(result: Any, message: dict[str, Any]) -> Form:
    """Return how a message contains a packed result: as "text", as "json", or "" if not exactly."""
    text = text_in(message)
    if text is None or len(text) < LARGE:
        return ""
    if result == text:
        return "text"
    return "json" if codec.encode_tree(result) == text.encode() else ""


def restored(settled: EffectSettled, message: dict[str, Any]) -> EffectSettled | None:
    """Return an outcome with its result, or None if the message does not contain one."""
    text = text_in(message)
    if text is None:
        return None
    try:
        result = codec.decode_tree(text.encode()) if settled.told == "json" else text
    except (msgspec.DecodeError, UnicodeError):
        return None
    return msgspec.structs.replace(settled, result=result, told="")


def text_in(message: dict[str, Any]) -> str | None:
    """Return the text of a message that answers a single call, in any known format."""
    text: Any = message.get("content")
    if type(text) is list and len(text) == 1 and type(text[0]) is dict:
        text = text[0].get("content")  # Anthropic
    elif "output" in message:
        text = message["output"]  # Responses API
    elif "parts" in message:
        text = _told_to_gemini(message["parts"])
    return text if type(text) is str else None


def _told_to_gemini(parts: Any) -> Any:
    if type(parts) is list and len(parts) == 1 and type(parts[0]) is dict:
        response = (parts[0].get("function_response") or {}).get("response")
        return response.get("result") if type(response) is dict else None
    return None
