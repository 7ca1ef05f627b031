"""Which tool calls a stored message makes, and which it answers. Pure, and cheap.

Every append asks, so an ordinary message costs a few lookups. Messages are read by what they hold:
the fields of the four formats do not collide. Where a format has no ids (Gemini, and the deprecated
functions of OpenAI), the tool's name stands for the id.
"""

from collections.abc import Container
from typing import Any, NamedTuple

Message = dict[str, Any]

INTERRUPTED_NOTICE = (
    "Interrupted: the result of this call was not recorded. The call may have taken effect, wholly "
    "or in part, or not at all. Find out before you repeat it."
)


class Call(NamedTuple):
    """A tool call that wants an answer from the application."""

    id: str
    name: str


# Items of the Responses API that want an output from the application, and the type of that output.
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
_PLAIN = 2  # Fields: a role, and the words as content. Most messages have no more.


def open_calls(message: Message) -> list[Call]:
    """Return the calls that a stored message makes, in order, whatever its format."""
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
            Call(_text(found.get("id")) or _text(found.get("name")), _text(found.get("name")))
            for found in _gemini(message, "function_call", "functionCall")
        ]
    return calls


def answers(message: Message) -> list[str]:
    """Return the ids of the calls that a stored message answers, in order."""
    content = message.get("content")
    if len(message) == _PLAIN and type(content) is str and message.get("role") in _SPEAKERS:
        return []
    if "tool_call_id" in message:
        return [_text(message["tool_call_id"])]
    if "tool_responses" in message:  # AutoGen's way to answer several calls at once.
        several = message["tool_responses"]
        found = several if type(several) is list else []
        return [_text(each.get("tool_call_id")) for each in found if type(each) is dict]
    if type(content) is list:
        return [
            _text(block.get("tool_use_id"))
            for block in content
            if type(block) is dict and block.get("type") == "tool_result"
        ]
    if _is_one_of(message, _OUTPUT_TYPES):
        answered = output_id(message)
        return [answered] if answered else []
    if "parts" in message:
        found = _gemini(message, "function_response", "functionResponse")
        return [_text(each.get("id")) or _text(each.get("name")) for each in found]
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
        told = {"error" if failed else "result": notice}
        response: dict[str, Any] = {"name": call.name, "response": told}
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

    A computer's answer is a screenshot and a tool search's is a list of tools: neither can carry a
    text, so the plain output stands for them, and a transcript leaves the two out together.
    """
    if type_ == "shell_call":
        said = {"stdout": "", "stderr": text, "outcome": {"type": "timeout"}}
        return {"type": OUTPUTS[type_], "call_id": id, "output": [said]}
    if type_ == "apply_patch_call":
        return {"type": OUTPUTS[type_], "call_id": id, "status": "failed", "output": text}
    if type_ == "local_shell_call":
        return {"type": OUTPUTS[type_], "id": id, "output": text}
    custom = type_ == "custom_tool_call"
    return {"type": OUTPUTS[type_ if custom else "function_call"], "call_id": id, "output": text}


def call_id(item: Message) -> str:
    """Return the id under which an item of the Responses API wants its output, if it wants one."""
    if item["type"] == "tool_search_call" and item.get("execution") == "server":
        return ""
    return _text(item.get("call_id")) or _text(item.get("name"))


def output_id(item: Message) -> str:
    """Return the id of the call that an output item of the Responses API answers."""
    id = _text(item.get("call_id"))
    if not id and item["type"] == "local_shell_call_output":
        id = _text(item.get("id"))  # The call's, whichever of the two names it goes by.
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
    found = [
        part.get(snake) or part.get(camel)
        for part in (parts if type(parts) is list else ())
        if type(part) is dict
    ]
    return [each for each in found if type(each) is dict]


def _text(value: object) -> str:
    return value if type(value) is str else ""
