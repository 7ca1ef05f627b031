"""Parse Anthropic messages: lists of blocks, including calls and results.

A stored message comes in, a `Speech` in the neutral form goes out. Pure; never changes a message.
"""

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
    """Parse one message. Metadata of an answer (its model, its usage) is not content."""
    stored_role = text(message.get("role"))
    content = message.get("content")
    blocks = content if type(content) is list else [content]
    parts = [part for block in blocks if (part := _block(block, at)) is not None]
    parts += unknown_fields(message, _READ, at)
    return Speech(
        at, ROLES.get(stored_role, ""), parts, ANTHROPIC, stored_role, text(message.get("name"))
    )


def _block(block: Any, at: int) -> Part | None:
    """Parse one block; None if it is an empty text. An unknown block becomes `Opaque`."""
    if type(block) is str:
        return Text(at, block) if block else None
    if type(block) is not dict:
        return None if block is None else Opaque(at, "a block", {}, "")
    kind = text(block.get("type"))
    if kind == "text" and type(block.get("text")) is str:
        return Text(at, block["text"], block, ANTHROPIC) if block["text"] else None
    part = _known(block, kind, at)
    if part is None or (type(part) is Text and not part.text):
        return Opaque(at, f"a block of type {kind!r}" if kind else "a block", {}, "")
    return part


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
            texts = [text(part.get("text")) for part in dicts(block.get("content"))]
            heading = [text(block.get("title")), text(block.get("source"))]
            return Text(
                at, "\n".join(line for line in [*heading, *texts] if line), block, ANTHROPIC
            )
    return Opaque(at, f"a block of type {kind!r}", block, ANTHROPIC) if kind in _HOSTED else None


def _call(block: Native, at: int) -> ToolCall:
    arguments = block.get("input")
    if type(arguments) is not dict and type(arguments) is not str:
        arguments = {} if arguments is None else json_text(arguments)
    id, name = text(block.get("id")), text(block.get("name"))
    return ToolCall(at, id, name, arguments, native=block, home=ANTHROPIC)


def _result(block: Native, at: int) -> Result:
    content = block.get("content")
    blocks = content if type(content) is list else [content]
    parts: list[Any] = []
    for nested in blocks:
        part = _block(nested, at)
        if type(part) in (Text, Media, Opaque):
            parts.append(part)
        elif part is not None:
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
            media_part = media.from_url(at, kind, url, name=name)
            return media_part._replace(native=block, home=ANTHROPIC)
        case "file" if id:
            return Media(at, kind, file_id=id, name=name, native=block, home=ANTHROPIC)
        case "text" if data:
            return Text(at, data, block, ANTHROPIC)
        case "content":
            content = source.get("content")
            texts = [text(part.get("text")) for part in dicts(content)] or [text(content)]
            return Text(at, "\n".join(texts), block, ANTHROPIC)
    return None
