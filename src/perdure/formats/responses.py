"""OpenAI's Responses API, reading: items of many types, of which messages are one. Pure."""

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
    """Read one item; what neither side says has the role `context`."""
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
    known = type_ in HOSTED or type_ in CONTEXT
    part = Opaque(at, f"an item of type {type_!r}", item, RESPONSES if known else "")
    return Speech(at, "assistant" if type_ in HOSTED else "context", [part], RESPONSES)


def _message(item: Native, at: int) -> Speech:
    word = text(item.get("role"))
    content = item.get("content")
    given = content if type(content) is list else [content]
    if word == "assistant":
        parts = _answer_parts(item, given, at)
    else:
        parts = [made for part in given if (made := read_part(part, at)) is not None]
        parts += unknown_fields(item, MESSAGE.allowed | {"name"}, at)
    return Speech(at, ROLES.get(word, ""), parts, RESPONSES, word, text(item.get("name")))


def _answer_parts(item: Native, given: list[Any], at: int) -> list[Part]:
    """Read an answer; its item goes back whole, unless something in it is not an answer's."""
    whole = all(type(part) is dict and _is_answers(part) for part in given)
    parts: list[Part] = []
    for part in given:
        made = read_part(part, at)
        if type(made) is Text:
            made = Text(at, made.text, item, RESPONSES) if whole else Text(at, made.text)
        elif type(made) is Refusal and whole:
            made = Refusal(at, made.text, item, RESPONSES)
        if made is not None:
            parts.append(made)
    return parts


def _is_answers(part: Native) -> bool:
    if part.get("type") == "refusal":
        return type(part.get("refusal")) is str
    return part.get("type") == "output_text" and type(part.get("text")) is str


def _call(item: Native, type_: str, at: int) -> ToolCall:
    given: Any = item.get("input" if type_ == "custom_tool_call" else "arguments")
    if type_ not in _KINDS:
        given = {name: value for name, value in item.items() if name not in _OUTSIDE_INPUT}
    elif type(given) is not str and type(given) is not dict:
        given = "" if given is None else json_text(given)
    (call,) = calls.open_calls(item)
    id = text(item.get("call_id"))
    kind = _KINDS.get(type_, type_)
    return ToolCall(at, id, call.name, given, kind=kind, native=item, home=RESPONSES)


def _result(item: Native, type_: str, at: int) -> Result:
    output = item.get("output")
    parts: list[Any] = []
    if type_ == "shell_call_output":
        for said in dicts(output):
            words = [text(said.get("stdout")), text(said.get("stderr"))]
            parts.append(Text(at, "\n".join(word for word in words if word)))
        parts = [part for part in parts if part.text]
    elif type_ == "computer_call_output" and type(output) is dict:
        parts.append(_screenshot(output, at))
    elif type_ == "tool_search_output":
        parts.append(Opaque(at, "a list of found tools", item, RESPONSES))
    elif type(output) is list:
        parts += [made for part in output if (made := read_part(part, at)) is not None]
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
