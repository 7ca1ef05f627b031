"""The rules of Anthropic's Messages API for `messages` and `system`. Pure.

Stricter than the API in one point: all results must be in the one message after their calls,
although the API combines consecutive messages of one role. Not supported: a `system` message
between others, which only the newest models accept.
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
    objects,
    objects_in_place,
    shape,
    wrong_type,
    wrong_value,
)

MESSAGE = shape("role content")

_RESULT = shape("type tool_use_id content", "cache_control~ caller")

BLOCKS = {
    "text": shape("type text", "cache_control~ citations~"),
    "image": shape("type source", "cache_control~ transformations~"),
    "document": shape("type source", "cache_control~ citations~ context~ title~"),
    "search_result": shape("type content source title", "cache_control~ citations"),
    "container_upload": shape("type file_id", "cache_control~"),
    "tool_result": shape("type tool_use_id", "cache_control~ content is_error toolset_name~"),
    "tool_use": shape("type id name input", "cache_control~ caller toolset_name~"),
    "thinking": shape("type thinking signature"),
    "redacted_thinking": shape("type data"),
    "server_tool_use": shape("type id name input", "cache_control~ caller"),
    "web_search_tool_result": _RESULT,
    "web_fetch_tool_result": _RESULT,
    "code_execution_tool_result": _RESULT,
    "bash_code_execution_tool_result": _RESULT,
    "text_editor_code_execution_tool_result": _RESULT,
    "tool_search_tool_result": _RESULT,
}

BLOCKS_OF = {
    "user": ("text", "image", "document", "search_result", "container_upload", "tool_result"),
    "assistant": (
        "text",
        *[name for name in BLOCKS if name.endswith(("_use", "thinking", "_tool_result"))],
    ),
}

THINKING = ("thinking", "redacted_thinking")

RESULT_BLOCKS = ("text", "image", "document", "search_result")


ID = re.compile(r"^[a-zA-Z0-9_-]+$")

TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,200}$")


def findings(
    messages: Sequence[Mapping[str, Any]], *, system: Any = None, prefill: bool = True
) -> Iterator[Finding]:
    """Yield every violation; `prefill` allows a conversation that ends with the assistant."""
    if system is not None and not isinstance(system, str):
        yield from _blocks(system, "system", ("text",))
    if not messages:
        yield empty_array("messages")
        return
    for index, message in enumerate(messages):
        yield from _message(message, f"messages.{index}", last=index == len(messages) - 1)
    whole = objects_in_place(messages)
    if whole[0].get("role") != "user":
        yield Finding("first message must use the 'user' role", "messages.0")
    yield from _pairs(whole)
    yield from _server_pairs(whole)
    yield from _end(whole, prefill=prefill)


def _message(message: Any, at: str, *, last: bool) -> Iterator[Finding]:
    yield from check_fields(message, at, MESSAGE)
    if not isinstance(message, Mapping):
        return
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in BLOCKS_OF:
        yield wrong_value(f"{at}.role", role, [*BLOCKS_OF])
    elif content in ("", []) and last and role == "assistant":
        return
    elif isinstance(content, str):
        yield from _text(content, at)
    elif "content" in message:
        yield from _blocks(content, f"{at}.content", BLOCKS_OF[role])
        if role == "assistant":
            yield from _thinking(objects(content), at)


def _text(text: Any, at: str) -> Iterator[Finding]:
    if not isinstance(text, str):
        yield wrong_type(at, "a string", text)
    elif not text:
        yield Finding("text content blocks must be non-empty", at)
    elif not text.strip():
        yield Finding("text content blocks must contain non-whitespace text", at)


def _blocks(blocks: Any, at: str, allowed: tuple[str, ...]) -> Iterator[Finding]:
    if not is_list(blocks):
        yield wrong_type(at, "a string or an array of blocks", blocks)
        return
    if not blocks:
        yield Finding("all messages must have non-empty content", at)
    for index, block in enumerate(blocks):
        where = f"{at}.{index}"
        name = block.get("type") if isinstance(block, Mapping) else None
        if name not in allowed:
            yield wrong_value(f"{where}.type", name, allowed)
            continue
        yield from check_fields(block, where, BLOCKS[name])
        yield from _block(block, where, name)


def _block(block: Mapping[str, Any], at: str, name: str) -> Iterator[Finding]:
    match name:
        case "text" if "text" in block:
            yield from _text(block["text"], at)
        case "thinking":
            yield from check_text(block, at, "thinking", "signature")
            if block.get("signature") == "":
                yield Finding("Invalid `signature` in `thinking` block", at)
        case "tool_use" | "server_tool_use":
            yield from check_name(block.get("id"), f"{at}.id", ID)
            yield from check_name(block.get("name"), f"{at}.name", TOOL_NAME)
            if not isinstance(block.get("input"), Mapping):
                yield wrong_type(f"{at}.input", "an object", block.get("input"))
        case "tool_result":
            yield from check_name(block.get("tool_use_id"), f"{at}.tool_use_id", ID)
            content = block.get("content", "")
            if not isinstance(content, str) and content != []:
                yield from _blocks(content, f"{at}.content", RESULT_BLOCKS)


def _thinking(blocks: Sequence[Mapping[str, Any]], at: str) -> Iterator[Finding]:
    """Yield thinking blocks that are not first, or that no other block follows."""
    may_think = True
    for index, block in enumerate(blocks):
        name = str(block.get("type"))
        if name in THINKING and not may_think:
            yield Finding("thinking blocks must come first", f"{at}.content.{index}")
        # the model may think again after the result of a server tool
        may_think = name in THINKING or name.endswith("_tool_result")
    if blocks and blocks[-1].get("type") in THINKING:
        yield Finding("The final block in an assistant message cannot be `thinking`.", at)


def _blocks_of_type(message: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    return [block for block in objects(message.get("content")) if block.get("type") in names]


def _pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield calls without a result in the next message, and results without a call."""
    seen: set[str] = set()
    call_ids: list[str] = []
    for index, message in enumerate(messages):
        user = message.get("role") == "user"
        results = _blocks_of_type(message, "tool_result") if user else []
        yield from _results(message, results, index, call_ids)
        call_ids = [
            str(block.get("id"))
            for block in _blocks_of_type(message, "tool_use")
            if message.get("role") == "assistant"
        ]
        for id in call_ids:
            if id in seen:
                yield Finding(f"`tool_use` ids must be unique: {id}", f"messages.{index}")
            seen.add(id)
    if call_ids:
        yield _unanswered(call_ids, len(messages) - 1)


def _results(
    message: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    index: int,
    call_ids: Sequence[str],
) -> Iterator[Finding]:
    at = f"messages.{index}"
    result_ids = [str(block.get("tool_use_id")) for block in results]
    missing = [id for id in call_ids if id not in result_ids]
    if missing:
        yield _unanswered(missing, index - 1)
    for id in dict.fromkeys(result_ids):
        if id not in call_ids:
            text = (
                f"unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message."
            )
            yield Finding(text, at)
        elif result_ids.count(id) > 1:
            text = "each tool_use must have a single result. Found multiple `tool_result` blocks"
            yield Finding(f"{text} with id: {id}", at)
    first = objects(message.get("content"))[: len(results)]
    if any(block.get("type") != "tool_result" for block in first):
        yield Finding("`tool_result` blocks must come first in their message", at)


def _unanswered(ids: Sequence[str], index: int) -> Finding:
    text = (
        f"`tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block "
        "in the next message."
    )
    return Finding(text, f"messages.{index}")


def _server_pairs(messages: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    called: set[str] = set()
    for index, message in enumerate(messages):
        for block in objects(message.get("content")):
            name = str(block.get("type"))
            if name == "server_tool_use":
                called.add(str(block.get("id")))
            elif name.endswith("_tool_result") and str(block.get("tool_use_id")) not in called:
                text = f"unexpected `tool_use_id` found in `{name}` blocks: "
                yield Finding(f"{text}{block.get('tool_use_id')}", f"messages.{index}")


def _end(messages: Sequence[Mapping[str, Any]], *, prefill: bool) -> Iterator[Finding]:
    last, at = messages[-1], f"messages.{len(messages) - 1}"
    if last.get("role") != "assistant":
        return
    if not prefill:
        text = "This model does not support assistant message prefill. "
        yield Finding(f"{text}The conversation must end with a user message.", at)
    content = last.get("content")
    blocks = objects(content)
    ending = content if isinstance(content, str) else blocks[-1].get("text") if blocks else None
    if isinstance(ending, str) and ending != ending.rstrip():
        yield Finding("final assistant content cannot end with trailing whitespace", at)
