"""Parse items of OpenAI's Responses API: messages are one type among many.

A stored item comes in, a `Speech` in the neutral form goes out. Pure; never changes an item.
"""

from typing import Any

from perdure.effects import calls
from perdure.formats import media
from perdure.formats.fields import dicts, held, text, unknown_fields
from perdure.formats.inputs import json_text
from perdure.formats.parts import (
    RESPONSES,
    Media,
    Native,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Result,
    Speech,
    Text,
    ToolCall,
)
from perdure.formats.responses_items import CALLS, CONTEXT, HOSTED, MESSAGE, RESULTS
from perdure.formats.responses_parts import read_part

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_KINDS = {"function_call": "function", "custom_tool_call": "custom"}
_OUTSIDE_INPUT = frozenset({"type", "id", "call_id", "status", "caller", "pending_safety_checks"})


def read(item: Native, at: int) -> Speech:
    """Parse one item; an item that is neither input nor answer has the role `context`."""
    type_ = text(item.get("type")) or ("message" if "role" in item else "")
    if item.keys() == {"id"}:
        type_ = "item_reference"
    if type_ == "message":
        return _message(item, at)
    if type_ in CALLS and calls.call_id(item):
        return Speech(at, "assistant", [_call(item, type_, at)], RESPONSES)
    if type_ in RESULTS and calls.output_id(item):
        return Speech(at, "user", [_result(item, type_, at)], RESPONSES)
    if type_ == "reasoning":
        return Speech(at, "assistant", [Reasoning(at, item, RESPONSES)], RESPONSES)
    is_known_type = type_ in HOSTED or type_ in CONTEXT
    part = Opaque(at, f"an item of type {type_!r}", item, RESPONSES if is_known_type else "")
    return Speech(at, "assistant" if type_ in HOSTED else "context", [part], RESPONSES)


def _message(item: Native, at: int) -> Speech:
    stored_role = text(item.get("role"))
    content = item.get("content")
    content_parts = content if type(content) is list else [content]
    if stored_role == "assistant":
        parts = _answer_parts(item, content_parts, at)
    else:
        parts = [parsed for part in content_parts if (parsed := read_part(part, at)) is not None]
        parts += unknown_fields(item, MESSAGE.allowed | {"name"}, at)
    return Speech(
        at, ROLES.get(stored_role, ""), parts, RESPONSES, stored_role, text(item.get("name"))
    )


def _answer_parts(item: Native, content_parts: list[Any], at: int) -> list[Part]:
    """Parse an answer; its item is sent back whole, unless a part of it is not an answer part."""
    is_whole = all(type(part) is dict and _is_answers(part) for part in content_parts)
    parts: list[Part] = []
    for part in content_parts:
        parsed = read_part(part, at)
        if type(parsed) is Text:
            parsed = Text(at, parsed.text, item, RESPONSES) if is_whole else Text(at, parsed.text)
        elif type(parsed) is Refusal and is_whole:
            parsed = Refusal(at, parsed.text, item, RESPONSES)
        if parsed is not None:
            parts.append(parsed)
    return parts


def _is_answers(part: Native) -> bool:
    if part.get("type") == "refusal":
        return type(part.get("refusal")) is str
    return part.get("type") == "output_text" and type(part.get("text")) is str


def _call(item: Native, type_: str, at: int) -> ToolCall:
    arguments: Any = item.get("input" if type_ == "custom_tool_call" else "arguments")
    if type_ not in _KINDS:
        arguments = {name: value for name, value in item.items() if name not in _OUTSIDE_INPUT}
    elif type(arguments) is not str and type(arguments) is not dict:
        arguments = "" if arguments is None else json_text(arguments)
    (call,) = calls.open_calls(item)
    id = text(item.get("call_id"))
    kind = _KINDS.get(type_, type_)
    return ToolCall(at, id, call.name, arguments, kind=kind, native=item, home=RESPONSES)


def _result(item: Native, type_: str, at: int) -> Result:
    output = item.get("output")
    parts: list[Any] = []
    if type_ == "shell_call_output":
        for command in dicts(output):
            streams = [text(command.get("stdout")), text(command.get("stderr"))]
            parts.append(Text(at, "\n".join(stream for stream in streams if stream)))
        parts = [part for part in parts if part.text]
    elif type_ == "computer_call_output" and type(output) is dict:
        parts.append(_screenshot(output, at))
    elif type_ == "tool_search_output":
        parts.append(Opaque(at, "a list of found tools", item, RESPONSES))
    elif type(output) is list:
        parts += [parsed for part in output if (parsed := read_part(part, at)) is not None]
    elif output is not None and output != "":
        parts.append(Text(at, output if type(output) is str else json_text(output)))
    id = text(item.get("call_id")) or (calls.output_id(item) if "id" in item else "")
    failed = item.get("status") == "failed"
    return Result(at, id, text(item.get("name")), parts, failed, item, RESPONSES)


def _screenshot(output: Native, at: int) -> Media | Opaque:
    if url := held(output, "image_url"):
        return media.from_url(at, "image", url)
    if id := held(output, "file_id"):
        return Media(at, "image", file_id=id, home=RESPONSES)
    return Opaque(at, "a screenshot", output, RESPONSES)
