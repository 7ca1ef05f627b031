"""Find the tool calls that a stored message makes, and those that it answers. Pure.

Every append uses this, so an ordinary message costs only a few lookups: keep it cheap. The format
is detected from the fields, which do not collide between the four formats. If a format has no ids
(Gemini, and OpenAI's deprecated functions), the tool's name is used as the id.
"""

from collections.abc import Container
from typing import Any, NamedTuple

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
OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}
_OUTPUT_TYPES = frozenset(OUTPUTS.values())
_SPEAKERS = ("user", "assistant", "system", "developer")
_PLAIN = 2  # fields; most messages have only a role and a text as content


def open_calls(message: Message) -> list[Call]:
    """Return the calls that a stored message makes, in order, in any known format."""
    content = message.get("content")
    if type(content) is str and "tool_calls" not in message and "function_call" not in message:
        return []
    if _is_one_of(message, OUTPUTS):
        return _item_calls(message)
    calls = []
    if type(content) is list:
        calls += [
            Call(_text(block.get("id")) or _text(block.get("name")), _text(block.get("name")))
            for block in content
            if type(block) is dict and block.get("type") == "tool_use"
        ]
    if "tool_calls" in message or "function_call" in message:
        calls += _chat_calls(message)
    if "parts" in message:
        calls += [
            Call(_text(call.get("id")) or _text(call.get("name")), _text(call.get("name")))
            for call in _gemini(message, "function_call", "functionCall")
        ]
    return calls


def answers(message: Message) -> list[str]:
    """Return the ids of the calls that a stored message answers, in order."""
    content = message.get("content")
    if len(message) == _PLAIN and type(content) is str and message.get("role") in _SPEAKERS:
        return []
    if "tool_call_id" in message:
        return [_text(message["tool_call_id"])]
    if "tool_responses" in message:  # AutoGen: several answers in one message.
        responses = message["tool_responses"]
        responses = responses if type(responses) is list else []
        return [_text(each.get("tool_call_id")) for each in responses if type(each) is dict]
    if type(content) is list:
        return [
            _text(block.get("tool_use_id"))
            for block in content
            if type(block) is dict and block.get("type") == "tool_result"
        ]
    if _is_one_of(message, _OUTPUT_TYPES):
        id = output_id(message)
        return [id] if id else []
    if "parts" in message:
        responses = _gemini(message, "function_response", "functionResponse")
        return [_text(each.get("id")) or _text(each.get("name")) for each in responses]
    if message.get("role") == "function":
        return [_text(message.get("name"))]
    return []


def closing(
    message: Message, call: Call, notice: str = INTERRUPTED_NOTICE, *, failed: bool = True
) -> Message:
    """Return a result for an open call, in the format of the message that made it."""
    if _is_one_of(message, OUTPUTS):
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
        return {"type": OUTPUTS[type_], "call_id": id, "output": [output]}
    if type_ == "apply_patch_call":
        return {"type": OUTPUTS[type_], "call_id": id, "status": "failed", "output": text}
    if type_ == "local_shell_call":
        return {"type": OUTPUTS[type_], "id": id, "output": text}
    custom = type_ == "custom_tool_call"
    return {"type": OUTPUTS[type_ if custom else "function_call"], "call_id": id, "output": text}


def call_id(item: Message) -> str:
    """Return the id for the output of a Responses API item, or "" if it needs no output."""
    if item["type"] == "tool_search_call" and item.get("execution") == "server":
        return ""
    return _text(item.get("call_id")) or _text(item.get("name"))


def output_id(item: Message) -> str:
    """Return the id of the call that an output item of the Responses API answers."""
    id = _text(item.get("call_id"))
    if not id and item["type"] == "local_shell_call_output":
        id = _text(item.get("id"))  # The id of the call: this item may use either field.
    return id or _text(item.get("name"))


def _is_one_of(item: Message, types: Container[str]) -> bool:
    return "type" in item and type(item["type"]) is str and item["type"] in types


def _item_calls(item: Message) -> list[Call]:
    id = call_id(item)
    name = _text(item.get("name")) or item["type"].removesuffix("_call")
    return [Call(id, name)] if id else []


def _chat_calls(message: Message) -> list[Call]:
    calls = []
    tool_calls = message.get("tool_calls")
    for call in tool_calls if type(tool_calls) is list else ():
        if type(call) is dict:
            function = call.get("custom" if call.get("type") == "custom" else "function")
            name = _text(function.get("name")) if type(function) is dict else ""
            calls.append(Call(_text(call.get("id")) or name, name))
    function = message.get("function_call")
    if type(function) is dict:
        calls.append(Call(_text(function.get("name")), _text(function.get("name"))))
    return calls


def _gemini(message: Message, snake: str, camel: str) -> list[Message]:
    parts = message["parts"]
    values = [
        part.get(snake) or part.get(camel)
        for part in (parts if type(parts) is list else ())
        if type(part) is dict
    ]
    return [value for value in values if type(value) is dict]


def _text(value: object) -> str:
    return value if type(value) is str else ""
