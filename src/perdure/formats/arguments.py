"""Convert call arguments between JSON text and objects, and results to text. Pure."""

from typing import Any

import msgspec

from perdure.formats.parts import Loss, Losses, Native, Text, ToolCall, ToolResult, unsupported_part
from perdure.formats.tool_calls import INTERRUPTED_NOTICE

WRAPPER_KEY = "input"  # The key that wraps a text where a format requires an object.

_encode = msgspec.json.Encoder(enc_hook=str).encode

_decode = msgspec.json.Decoder().decode


def json_text(value: Any) -> str:
    return _encode(value).decode()


def input_text(call: ToolCall) -> str:
    """Return the input of a call as text, as OpenAI requires."""
    return call.input if isinstance(call.input, str) else json_text(call.input)


def input_object(call: ToolCall, format: str, losses: Losses) -> Native:
    """Return the input of a call as an object; wrap any other text and report that as a loss."""
    arguments = call.input
    if not isinstance(arguments, str):
        return arguments
    if not arguments:
        return {}
    decoded = None if call.kind == "custom" else _decode_object(arguments)
    if decoded is not None:
        return decoded
    what = (
        f"the input of the call of {call.name!r} is not a JSON object: {format} gets it as a text"
    )
    losses.append(Loss(call.at, what))
    return {WRAPPER_KEY: arguments}


def _decode_object(arguments: str) -> Native | None:
    try:
        decoded = _decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # Models do not always write valid JSON.
    return decoded if type(decoded) is dict else None


def result_text(result: ToolResult, format: str, losses: Losses) -> str:
    """Flatten a result to text; report non-text parts as losses."""
    texts = []
    for part in result.parts:
        if type(part) is Text:
            texts.append(part.text)
        else:
            losses.append(unsupported_part(part, format, "in a result"))
    return "\n".join(texts)


def report_error_flag(result: ToolResult, format: str, losses: Losses) -> None:
    """Report as a loss that a format cannot flag a result as an error."""
    is_notice = [part.text for part in result.parts if type(part) is Text] == [INTERRUPTED_NOTICE]
    if result.error and not is_notice:
        what = f"the error flag of the result of {result.name or result.id!r} was left out"
        losses.append(Loss(result.at, f"{what}: {format} has none"))
