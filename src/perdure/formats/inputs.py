"""What goes into calls and comes out of them, between JSON texts and objects. Pure."""

from typing import Any

import msgspec

from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.formats.parts import Loss, Losses, Native, Result, Text, ToolCall, inexpressible

WRAPPED = "input"  # The key under which a text stands where a format wants an object.
_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder().decode


def json_text(value: Any) -> str:
    return _encode(value).decode()


def input_text(call: ToolCall) -> str:
    """Return the input of a call as the text that OpenAI wants."""
    return call.input if isinstance(call.input, str) else json_text(call.input)


def input_object(call: ToolCall, format: str, losses: Losses) -> Native:
    """Return the input of a call as an object; a text that is none is wrapped, and that told."""
    given = call.input
    if not isinstance(given, str):
        return given
    if not given:
        return {}
    decoded = None if call.kind == "custom" else _object(given)
    if decoded is not None:
        return decoded
    what = f"the input of the call of {call.name!r} is no JSON object: {format} gets it as a text"
    losses.append(Loss(call.at, what))
    return {WRAPPED: given}


def _object(given: str) -> Native | None:
    try:
        decoded = _decode(given)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # A model writes what it likes.
    return decoded if type(decoded) is dict else None


def result_text(result: Result, format: str, losses: Losses) -> str:
    """Return a result as one text; what in it is none is told."""
    words = []
    for part in result.parts:
        if type(part) is Text:
            words.append(part.text)
        else:
            losses.append(inexpressible(part, format, "in a result"))
    return "\n".join(words)


def tell_error(result: Result, format: str, losses: Losses) -> None:
    """Report that a format has no mark for a result that is an error."""
    told = [part.text for part in result.parts if type(part) is Text] == [INTERRUPTED_NOTICE]
    if result.error and not told:
        what = f"the mark of an error on the result of {result.name or result.id!r} was left out"
        losses.append(Loss(result.at, f"{what}: {format} has none"))
