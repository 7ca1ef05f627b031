"""Large results are stored once: where a message tells one word for word, its outcome refers to it.

Pure. The outcome stands right after the message, in the same append, so finding the result again
costs one read.
"""

from typing import Any, Literal

import msgspec

from perdure import codec
from perdure.records import EffectSettled

LARGE = 1024  # Letters; a shorter result stays in its outcome, where people look for it.

Form = Literal["", "text", "json"]


def form_of(result: Any, message: dict[str, Any]) -> Form:
    """Say how a message tells a packed result: as text, as JSON, or not so that it comes back."""
    text = text_in(message)
    if text is None or len(text) < LARGE:
        return ""
    if result == text:
        return "text"
    return "json" if codec.encode_tree(result) == text.encode() else ""


def restored(settled: EffectSettled, message: dict[str, Any]) -> EffectSettled | None:
    """Return an outcome with its result, or None if the message does not tell one."""
    text = text_in(message)
    if text is None:
        return None
    try:
        result = codec.decode_tree(text.encode()) if settled.told == "json" else text
    except (msgspec.DecodeError, UnicodeError):
        return None
    return msgspec.structs.replace(settled, result=result, told="")


def text_in(message: dict[str, Any]) -> str | None:
    """Return the text of a message that answers one call, in whichever format it does."""
    found: Any = message.get("content")
    if type(found) is list and len(found) == 1 and type(found[0]) is dict:
        found = found[0].get("content")  # Anthropic's
    elif "output" in message:
        found = message["output"]  # The Responses API's
    elif "parts" in message:
        found = _told_to_gemini(message["parts"])
    return found if type(found) is str else None


def _told_to_gemini(parts: Any) -> Any:
    if type(parts) is list and len(parts) == 1 and type(parts[0]) is dict:
        response = (parts[0].get("function_response") or {}).get("response")
        return response.get("result") if type(response) is dict else None
    return None
