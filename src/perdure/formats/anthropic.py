"""Anthropic's messages, reading: turns of blocks, calls and results among them. Pure."""

from typing import Any

from perdure.formats import media
from perdure.formats.fields import Fields, dicts, fields, held, text, unknown_fields
from perdure.formats.inputs import json_text
from perdure.formats.parts import (
    ANTHROPIC,
    Media,
    Native,
    Opaque,
    Part,
    Reasoning,
    Result,
    Speech,
    Text,
    ToolCall,
)

ROLES = {"user": "user", "assistant": "assistant", "system": "system"}

_SERVER_RESULT = fields("type tool_use_id content", "cache_control caller")
BLOCKS: dict[str, Fields] = {
    "text": fields("type text", "cache_control citations"),
    "image": fields("type source", "cache_control transformations"),
    "document": fields("type source", "cache_control citations context title"),
    "search_result": fields("type content source title", "cache_control citations"),
    "container_upload": fields("type file_id", "cache_control"),
    "tool_result": fields("type tool_use_id", "cache_control content is_error toolset_name"),
    "tool_use": fields("type id name input", "cache_control caller toolset_name"),
    "thinking": fields("type thinking signature"),
    "redacted_thinking": fields("type data"),
    "server_tool_use": fields("type id name input", "cache_control caller"),
    "web_search_tool_result": _SERVER_RESULT,
    "web_fetch_tool_result": _SERVER_RESULT,
    "code_execution_tool_result": _SERVER_RESULT,
    "bash_code_execution_tool_result": _SERVER_RESULT,
    "text_editor_code_execution_tool_result": _SERVER_RESULT,
    "tool_search_tool_result": _SERVER_RESULT,
}
_ABOUT_ITSELF = (
    "id type model stop_reason stop_sequence stop_details usage container context_management"
)
_READ = frozenset(f"role content name {_ABOUT_ITSELF}".split())
_HOSTED = {"server_tool_use", "container_upload"} | {
    name for name in BLOCKS if name.endswith("_tool_result")
}


def read(message: Native, at: int) -> Speech:
    """Read one message. What an answer says of itself (its model, its usage) is not content."""
    word = text(message.get("role"))
    content = message.get("content")
    given = content if type(content) is list else [content]
    parts = [made for block in given if (made := _block(block, at)) is not None]
    parts += unknown_fields(message, _READ, at)
    return Speech(at, ROLES.get(word, ""), parts, ANTHROPIC, word, text(message.get("name")))


def _block(block: Any, at: int) -> Part | None:
    """Read one block; an empty text is nothing."""
    if type(block) is str:
        return Text(at, block) if block else None
    if type(block) is not dict:
        return None if block is None else Opaque(at, "a block", {}, "")
    kind = text(block.get("type"))
    if kind == "text" and type(block.get("text")) is str:
        return Text(at, block["text"], block, ANTHROPIC) if block["text"] else None
    made = _known(block, kind, at)
    if made is None or (type(made) is Text and not made.text):
        return Opaque(at, f"a block of type {kind!r}" if kind else "a block", {}, "")
    return made


def _known(block: Native, kind: str, at: int) -> Part | None:
    match kind:
        case "thinking" | "redacted_thinking":
            return Reasoning(at, block, ANTHROPIC)
        case "tool_use":
            return _call(block, at)
        case "tool_result":
            return _result(block, at)
        case "image" | "document" if type(source := block.get("source")) is dict:
            return _sourced(block, kind, source, at)
        case "search_result":
            words = [text(part.get("text")) for part in dicts(block.get("content"))]
            head = [text(block.get("title")), text(block.get("source"))]
            return Text(at, "\n".join(word for word in [*head, *words] if word), block, ANTHROPIC)
    return Opaque(at, f"a block of type {kind!r}", block, ANTHROPIC) if kind in _HOSTED else None


def _call(block: Native, at: int) -> ToolCall:
    given = block.get("input")
    if type(given) is not dict and type(given) is not str:
        given = {} if given is None else json_text(given)
    id, name = text(block.get("id")), text(block.get("name"))
    return ToolCall(at, id, name, given, native=block, home=ANTHROPIC)


def _result(block: Native, at: int) -> Result:
    content = block.get("content")
    given = content if type(content) is list else [content]
    parts: list[Any] = []
    for each in given:
        made = _block(each, at)
        if type(made) in (Text, Media, Opaque):
            parts.append(made)
        elif made is not None:
            parts.append(Opaque(at, "a block", {}, ""))
    id = text(block.get("tool_use_id"))
    return Result(at, id, "", parts, block.get("is_error") is True, block, ANTHROPIC)


def _sourced(block: Native, kind: str, source: Native, at: int) -> Text | Media | None:
    kind = "image" if kind == "image" else "file"
    name = text(block.get("title"))
    data, url, id = held(source, "data"), held(source, "url"), held(source, "file_id")
    match source.get("type"):
        case "base64" if data:
            mime = text(source.get("media_type"))
            return Media(at, kind, mime, data, name=name, native=block, home=ANTHROPIC)
        case "url" if url:
            made = media.from_url(at, kind, url, name=name)
            return made._replace(native=block, home=ANTHROPIC)
        case "file" if id:
            return Media(at, kind, file_id=id, name=name, native=block, home=ANTHROPIC)
        case "text" if data:
            return Text(at, data, block, ANTHROPIC)
        case "content":
            content = source.get("content")
            words = [text(part.get("text")) for part in dicts(content)] or [text(content)]
            return Text(at, "\n".join(words), block, ANTHROPIC)
    return None
