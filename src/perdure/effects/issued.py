"""The tool calls that a model's message makes, with their arguments, whatever its format. Pure."""

from typing import Any, NamedTuple

import msgspec

from perdure.effects.calls import Call, open_calls

Message = dict[str, Any]


class Issued(NamedTuple):
    """A call that a message makes: which of them it is, and its arguments, or what is wrong."""

    call: Call
    number: int
    arguments: dict[str, Any]
    problem: str = ""


def issued_calls(message: Message) -> list[Issued]:
    """Return the calls of a stored message, in order."""
    given = _arguments(message)
    return [
        _issued(call, index, given[index] if index < len(given) else None)
        for index, call in enumerate(open_calls(message))
    ]


def _issued(call: Call, index: int, given: object) -> Issued:
    if isinstance(given, dict):
        return Issued(call, index, given)
    if given is None or given == "":
        return Issued(call, index, {})
    if not isinstance(given, str):
        return Issued(call, index, {}, "its arguments are not an object")
    try:
        found = msgspec.json.decode(given.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Issued(call, index, {}, f"its arguments are not JSON: {error}")
    if not isinstance(found, dict):
        return Issued(call, index, {}, "its arguments are not a JSON object")
    return Issued(call, index, found)


def _arguments(message: Message) -> list[object]:
    """Return what each call was given, in the order of `open_calls`."""
    if "call_id" in message:
        return [_of(message)]
    found: list[object] = []
    content = message.get("content")
    if isinstance(content, list):
        found += [one.get("input") for one in _dicts(content) if one.get("type") == "tool_use"]
    found += [
        _of(call.get(call.get("type") or "function") or call.get("function"))
        for call in _dicts(message.get("tool_calls"))
    ]
    if isinstance(message.get("function_call"), dict):
        found.append(_of(message["function_call"]))
    for part in _dicts(message.get("parts")):
        made = part.get("function_call") or part.get("functionCall")
        found += [made.get("args")] if isinstance(made, dict) else []
    return found


def _dicts(values: object) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _of(call: object) -> object:
    if not isinstance(call, dict):
        return None
    if "input" in call and "arguments" not in call:
        return {"input": call["input"]}  # A custom tool takes one text.
    return call.get("arguments")
