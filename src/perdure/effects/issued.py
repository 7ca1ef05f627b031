"""Parse the tool calls of a model's message, with their arguments, in any known format. Pure."""

from typing import Any, NamedTuple

import msgspec

from perdure.effects.calls import Call, open_calls

Message = dict[str, Any]


class Issued(NamedTuple):
    """A call in a message: its number there, and its arguments, or the problem with them."""

    call: Call
    number: int
    arguments: dict[str, Any]
    problem: str = ""


def issued_calls(message: Message) -> list[Issued]:
    """Return the calls of a stored message, in order."""
    arguments = _arguments(message)
    return [
        _issued(call, index, arguments[index] if index < len(arguments) else None)
        for index, call in enumerate(open_calls(message))
    ]


def _issued(call: Call, index: int, arguments: object) -> Issued:
    if isinstance(arguments, dict):
        return Issued(call, index, arguments)
    if arguments is None or arguments == "":
        return Issued(call, index, {})
    if not isinstance(arguments, str):
        return Issued(call, index, {}, "its arguments are not an object")
    try:
        decoded = msgspec.json.decode(arguments.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Issued(call, index, {}, f"its arguments are not JSON: {error}")
    if not isinstance(decoded, dict):
        return Issued(call, index, {}, "its arguments are not a JSON object")
    return Issued(call, index, decoded)


def _arguments(message: Message) -> list[object]:
    """Return the arguments of each call, in the order of `open_calls`."""
    if "call_id" in message:
        return [_of(message)]
    arguments: list[object] = []
    content = message.get("content")
    if isinstance(content, list):
        blocks = _dicts(content)
        arguments += [block.get("input") for block in blocks if block.get("type") == "tool_use"]
    arguments += [
        _of(call.get(call.get("type") or "function") or call.get("function"))
        for call in _dicts(message.get("tool_calls"))
    ]
    if isinstance(message.get("function_call"), dict):
        arguments.append(_of(message["function_call"]))
    for part in _dicts(message.get("parts")):
        call = part.get("function_call") or part.get("functionCall")
        arguments += [call.get("args")] if isinstance(call, dict) else []
    return arguments


def _dicts(values: object) -> list[dict[str, Any]]:
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )


def _of(call: object) -> object:
    if not isinstance(call, dict):
        return None
    if "input" in call and "arguments" not in call:
        return {"input": call["input"]}  # A custom tool takes a single text.
    return call.get("arguments")
