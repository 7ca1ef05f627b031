"""The rules of OpenAI's chat completions for `messages`. Pure.

The shapes are those of requests. A response has more fields; the hosted API ignores most of them
(`annotations`, a null `refusal`), strict gateways reject them: `strict` does as the latter.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.testing.provider_rules.shapes import (
    Finding,
    check_fields,
    check_name,
    check_text,
    empty_array,
    is_list,
    items,
    objects,
    objects_in_place,
    shape,
    wrong_type,
    wrong_value,
)

MESSAGES = {
    "system": shape("role content", "name"),
    "developer": shape("role content", "name"),
    "user": shape("role content", "name"),
    "assistant": shape("role", "content~ name refusal audio function_call tool_calls"),
    "tool": shape("role content tool_call_id"),
    "function": shape("role content~ name"),
}

PARTS = {
    "text": shape("type text", "prompt_cache_breakpoint"),
    "image_url": shape("type image_url", "prompt_cache_breakpoint"),
    "input_audio": shape("type input_audio", "prompt_cache_breakpoint"),
    "file": shape("type file", "prompt_cache_breakpoint"),
    "refusal": shape("type refusal"),
}

PARTS_OF = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}

CALLS = {
    "function": (shape("id type function"), shape("name arguments")),
    "custom": (shape("id type custom"), shape("name input")),
}

# Fields that an assistant message may have instead of content.
CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "audio")


TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")

# The name of a participant: letters of any script.
PARTICIPANT_NAME = re.compile(r"^[^\s<|\\/>]{1,64}$")

CALL_ID = re.compile(r"^.{1,40}$", re.DOTALL)


def findings(messages: Sequence[Mapping[str, Any]], *, strict: bool = True) -> Iterator[Finding]:
    """Yield every violation: message by message, then those of calls and their results."""
    if not messages:
        yield empty_array("messages")
    for index, message in enumerate(messages):
        yield from _message(message, f"messages[{index}]", index, strict=strict)
    yield from _pairs(objects_in_place(messages))


def _message(message: Any, at: str, index: int, *, strict: bool) -> Iterator[Finding]:
    if not isinstance(message, Mapping):
        yield wrong_type(at, "an object", message)
        return
    role = message.get("role")
    if not isinstance(role, str) or role not in MESSAGES:
        yield wrong_value(f"{at}.role", role, [*MESSAGES])
        return
    yield from check_fields(message, at, MESSAGES[role], strict=strict)
    if message.get("name") is not None:
        yield from check_name(message["name"], f"{at}.name", PARTICIPANT_NAME)
    if "content" in message or role == "assistant":
        yield from _content(message, at, index, role, strict=strict)
    if role == "assistant":
        yield from _assistant(message, at, strict=strict)
    if "tool_call_id" in message:
        yield from check_name(message["tool_call_id"], f"{at}.tool_call_id", CALL_ID)


def _content(
    message: Mapping[str, Any], at: str, index: int, role: str, *, strict: bool
) -> Iterator[Finding]:
    content = message.get("content")
    if content is None:
        substitutes = CONTENT_SUBSTITUTES if role == "assistant" else ()
        if role != "function" and not any(message.get(name) for name in substitutes):
            text = "Invalid value for 'content': expected a string, got null."
            yield Finding(text, f"messages.[{index}].content")
    elif is_list(content) and role != "function":
        yield from _parts(content, f"{at}.content", role, strict=strict)
    elif not isinstance(content, str):
        yield wrong_type(f"{at}.content", "a string or an array of parts", content)


def _parts(parts: Sequence[Any], at: str, role: str, *, strict: bool) -> Iterator[Finding]:
    if not parts:
        yield empty_array(at)
    allowed = PARTS_OF.get(role, ("text",))
    for index, part in enumerate(parts):
        where = f"{at}[{index}]"
        name = part.get("type") if isinstance(part, Mapping) else None
        if name not in allowed:
            yield wrong_value(where, name, allowed)
            continue
        yield from check_fields(part, where, PARTS[name], strict=strict)
        yield from check_text(part, where, "text", "refusal")
        if name == "refusal" and len(parts) > 1:
            yield Finding("A refusal must be the only part of its message.", where)


def _assistant(message: Mapping[str, Any], at: str, *, strict: bool) -> Iterator[Finding]:
    if message.get("refusal") is not None:
        yield from check_text(message, at, "refusal")
    if message.get("audio") is not None:
        yield from check_fields(message["audio"], f"{at}.audio", shape("id"), strict=strict)
    if message.get("function_call") is not None:
        call, where = message["function_call"], f"{at}.function_call"
        yield from check_fields(call, where, shape("name arguments"), strict=strict)
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not is_list(calls):
        yield wrong_type(f"{at}.tool_calls", "an array", calls)
    elif not calls:
        yield empty_array(f"{at}.tool_calls")
    seen: set[str] = set()
    for index, call in enumerate(items(calls)):
        yield from _call(call, f"{at}.tool_calls[{index}]", seen, strict=strict)


def _call(call: Any, at: str, seen: set[str], *, strict: bool) -> Iterator[Finding]:
    name = call.get("type") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or name not in CALLS:
        yield wrong_value(f"{at}.type", name, [*CALLS])
        return
    outer, inner = CALLS[name]
    yield from check_fields(call, at, outer, strict=strict)
    if "id" in call:
        yield from check_name(call["id"], f"{at}.id", CALL_ID)
        id = str(call["id"])
        if id in seen:
            yield Finding(f"Duplicate value for '{at}.id': '{id}'.", f"{at}.id")
        seen.add(id)
    body = call.get(name)
    yield from check_fields(body, f"{at}.{name}", inner, strict=strict)
    if isinstance(body, Mapping):
        yield from check_name(body.get("name"), f"{at}.{name}.name", TOOL_NAME)
        yield from check_text(body, f"{at}.{name}", "arguments", "input")


def _pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield calls whose results do not follow at once, and results without a call."""
    call_ids: list[str] | None = None
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            yield from _answer(message, index, call_ids, open_ids)
            continue
        if open_ids:
            yield _unanswered(open_ids, index)
        calls = objects(message.get("tool_calls")) if message.get("role") == "assistant" else []
        call_ids = [str(call.get("id")) for call in calls] or None
        open_ids = [*call_ids] if call_ids else []
    if open_ids:
        yield _unanswered(open_ids, len(messages))


def _answer(
    message: Mapping[str, Any], index: int, call_ids: list[str] | None, open_ids: list[str]
) -> Iterator[Finding]:
    id = str(message.get("tool_call_id"))
    if call_ids is None:
        text = (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
            "message with 'tool_calls'."
        )
        yield Finding(text, f"messages.[{index}].role")
    elif id in open_ids:
        open_ids.remove(id)
    elif id in call_ids:
        text = f"Duplicate response for 'tool_call_id' of '{id}'."
        yield Finding(text, f"messages.[{index}].tool_call_id")
    else:
        text = (
            f"Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of "
            "previous message."
        )
        yield Finding(text, f"messages.[{index}].tool_call_id")


def _unanswered(ids: Sequence[str], index: int) -> Finding:
    text = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'. The following tool_call_ids did not have response messages: "
    )
    return Finding(text + ", ".join(ids), f"messages.[{index}].role")
