"""Find the tool calls that a stored message makes, and those that it answers. Pure.

Every append uses this, so an ordinary message costs only a few lookups: keep it cheap. The format
is detected from the fields, which do not collide between the four formats. If a format has no ids
(Gemini, and OpenAI's deprecated functions), the tool's name is used as the id.
"""

from collections.abc import Container
from typing import Any, NamedTuple

import msgspec

Message = dict[str, Any]


INTERRUPTED_NOTICE = (
    "Interrupted: the result of this call was not recorded. The call may have taken effect, wholly "
    "or in part, or not at all. Find out before you repeat it."
)


class Call(NamedTuple):
    """A tool call that the application has to answer."""

    id: str
    name: str


# Items of the Responses API that the application has to answer, and the type of their output.
OUTPUT_TYPES = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}

_ALL_OUTPUT_TYPES = frozenset(OUTPUT_TYPES.values())

_PLAIN_ROLES = ("user", "assistant", "system", "developer")

_PLAIN_FIELDS = 2  # fields; most messages have only a role and a text as content


def open_calls(message: Message) -> list[Call]:
    """Return the calls that a stored message makes, in order, in any known format."""
    content = message.get("content")
    if type(content) is str and "tool_calls" not in message and "function_call" not in message:
        return []
    if _has_type(message, OUTPUT_TYPES):
        return _item_calls(message)
    calls = [_call_of(block) for block in _dicts(content) if block.get("type") == "tool_use"]
    if "tool_calls" in message or "function_call" in message:
        calls += _chat_calls(message)
    if "parts" in message:
        calls += map(_call_of, _gemini_parts(message, "function_call", "functionCall"))
    return calls


def answers(message: Message) -> list[str]:
    """Return the ids of the calls that a stored message answers, in order."""
    content = message.get("content")
    if (
        len(message) == _PLAIN_FIELDS
        and type(content) is str
        and message.get("role") in _PLAIN_ROLES
    ):
        return []
    if "tool_call_id" in message:
        return [_text(message["tool_call_id"])]
    if "tool_responses" in message:  # AutoGen: several answers in one message.
        return [_text(each.get("tool_call_id")) for each in _dicts(message["tool_responses"])]
    if type(content) is list:
        results = [block for block in _dicts(content) if block.get("type") == "tool_result"]
        return [_text(block.get("tool_use_id")) for block in results]
    if _has_type(message, _ALL_OUTPUT_TYPES):
        id = item_output_id(message)
        return [id] if id else []
    if "parts" in message:
        responses = _gemini_parts(message, "function_response", "functionResponse")
        return [_call_of(response).id for response in responses]
    if message.get("role") == "function":
        return [_text(message.get("name"))]
    return []


def closing(
    message: Message, call: Call, notice: str = INTERRUPTED_NOTICE, *, failed: bool = True
) -> Message:
    """Return a result for an open call, in the format of the message that made it."""
    if _has_type(message, OUTPUT_TYPES):
        return item_output(message["type"], call.id, notice)
    if "parts" in message:
        body = {"error" if failed else "result": notice}
        response: dict[str, Any] = {"name": call.name, "response": body}
        if call.id != call.name:
            response["id"] = call.id
        return {"role": "user", "parts": [{"function_response": response}]}
    if type(message.get("content")) is list and call in open_calls({"content": message["content"]}):
        result = {"type": "tool_result", "tool_use_id": call.id, "content": notice}
        return {"role": "user", "content": [{**result, "is_error": True} if failed else result]}
    function = message.get("function_call")
    if type(function) is dict and call.id == call.name == function.get("name"):
        return {"role": "function", "name": call.name, "content": notice}
    return {"role": "tool", "tool_call_id": call.id, "content": notice}


def item_output(type_: str, id: str, text: str) -> Message:
    """Return the item that answers a call of the Responses API with a text.

    The output of a computer call is a screenshot and that of a tool search a list of tools: neither
    can hold a text. They get a plain function output, and a transcript omits the call and it.
    """
    if type_ == "shell_call":
        output = {"stdout": "", "stderr": text, "outcome": {"type": "timeout"}}
        return {"type": OUTPUT_TYPES[type_], "call_id": id, "output": [output]}
    if type_ == "apply_patch_call":
        return {"type": OUTPUT_TYPES[type_], "call_id": id, "status": "failed", "output": text}
    if type_ == "local_shell_call":
        return {"type": OUTPUT_TYPES[type_], "id": id, "output": text}
    answered = type_ if type_ == "custom_tool_call" else "function_call"
    return {"type": OUTPUT_TYPES[answered], "call_id": id, "output": text}


def item_call_id(item: Message) -> str:
    """Return the id for the output of a Responses API item, or "" if it needs no output."""
    if item["type"] == "tool_search_call" and item.get("execution") == "server":
        return ""
    return _text(item.get("call_id")) or _text(item.get("name"))


def item_output_id(item: Message) -> str:
    """Return the id of the call that an output item of the Responses API answers."""
    id = _text(item.get("call_id"))
    if not id and item["type"] == "local_shell_call_output":
        id = _text(item.get("id"))  # The id of the call: this item may use either field.
    return id or _text(item.get("name"))


def _has_type(item: Message, types: Container[str]) -> bool:
    return "type" in item and type(item["type"]) is str and item["type"] in types


def _item_calls(item: Message) -> list[Call]:
    id = item_call_id(item)
    name = _text(item.get("name")) or item["type"].removesuffix("_call")
    return [Call(id, name)] if id else []


def _chat_calls(message: Message) -> list[Call]:
    calls = []
    for call in _dicts(message.get("tool_calls")):
        function = call.get("custom" if call.get("type") == "custom" else "function")
        name = _text(function.get("name")) if type(function) is dict else ""
        calls.append(Call(_text(call.get("id")) or name, name))
    function = message.get("function_call")
    if type(function) is dict:
        name = _text(function.get("name"))
        calls.append(Call(name, name))
    return calls


def _gemini_parts(message: Message, snake: str, camel: str) -> list[Message]:
    return _dicts([part.get(snake) or part.get(camel) for part in _dicts(message.get("parts"))])


def _call_of(data: Message) -> Call:
    """Return the call that a part makes or answers; without an id, its name is the id."""
    name = _text(data.get("name"))
    return Call(_text(data.get("id")) or name, name)


def _dicts(values: object) -> list[Message]:
    return [value for value in values if type(value) is dict] if type(values) is list else []


def _text(value: object) -> str:
    return value if type(value) is str else ""


class RequestedCall(NamedTuple):
    """A call in a message: its number there, and its arguments, or the problem with them."""

    call: Call
    number: int
    arguments: dict[str, Any]
    problem: str = ""


def parse_calls(message: Message) -> list[RequestedCall]:
    """Return the calls of a stored message, in order."""
    arguments = _raw_arguments(message)
    return [
        _parse_call(call, index, arguments[index] if index < len(arguments) else None)
        for index, call in enumerate(open_calls(message))
    ]


def _parse_call(call: Call, index: int, arguments: object) -> RequestedCall:
    if isinstance(arguments, dict):
        return RequestedCall(call, index, arguments)
    if arguments is None or arguments == "":
        return RequestedCall(call, index, {})
    if not isinstance(arguments, str):
        return RequestedCall(call, index, {}, "its arguments are not an object")
    try:
        decoded = msgspec.json.decode(arguments.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return RequestedCall(call, index, {}, f"its arguments are not JSON: {error}")
    if not isinstance(decoded, dict):
        return RequestedCall(call, index, {}, "its arguments are not a JSON object")
    return RequestedCall(call, index, decoded)


def _raw_arguments(message: Message) -> list[object]:
    """Return the arguments of each call, in the order of `open_calls`."""
    if "call_id" in message:
        return [_arguments_of(message)]
    blocks = _dicts(message.get("content"))
    arguments: list[object] = [
        block.get("input") for block in blocks if block.get("type") == "tool_use"
    ]
    arguments += [
        _arguments_of(call.get(call.get("type") or "function") or call.get("function"))
        for call in _dicts(message.get("tool_calls"))
    ]
    if isinstance(message.get("function_call"), dict):
        arguments.append(_arguments_of(message["function_call"]))
    calls = _gemini_parts(message, "function_call", "functionCall")
    return arguments + [call.get("args") for call in calls]


def _arguments_of(call: object) -> object:
    if not isinstance(call, dict):
        return None
    if "input" in call and "arguments" not in call:
        return {"input": call["input"]}  # A custom tool takes a single text.
    return call.get("arguments")
