"""Parse and write Anthropic messages: roles alternate, results begin the turn after their calls.

`read` turns a stored message into the neutral form, `write` the neutral form into messages and the
separate system prompt. Pure; never changes a stored message. System messages leave the
conversation, whatever their position. Content that cannot be written is reported as a loss.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

from perdure.formats.alternation import OPENING, AlternatingTurns, BlockWriter, PositionedBlock
from perdure.formats.fields import (
    Fields,
    as_text,
    dicts_in,
    fields,
    first_text,
    input_object,
    normalized,
    only_text,
    read_all,
    read_arguments,
    trim,
    unknown_fields,
)
from perdure.formats.parts import (
    ANTHROPIC,
    Loss,
    Losses,
    Media,
    Native,
    NormalizedMessage,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    native_in,
    report_refusal,
    unsupported_part,
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

_ANSWER_META = (
    "id type model stop_reason stop_sequence stop_details usage container context_management"
)

_READ_FIELDS = frozenset(f"role content name {_ANSWER_META}".split())

_HOSTED_BLOCKS = {"server_tool_use", "container_upload"} | {
    name for name in BLOCKS if name.endswith("_tool_result")
}


def read(message: Native, at: int) -> NormalizedMessage:
    """Parse one message. Metadata of an answer (its model, its usage) is not content."""
    parts = read_all(message.get("content"), at, _read_block)
    parts += unknown_fields(message, _READ_FIELDS, at)
    return normalized(message, at, parts, ROLES, ANTHROPIC)


def _read_block(block: Any, at: int) -> Part | None:
    """Parse one block; None if it is an empty text. An unknown block becomes `Opaque`."""
    if type(block) is str:
        return Text(at, block) if block else None
    if type(block) is not dict:
        return None if block is None else Opaque(at, "a block", {}, "")
    kind = as_text(block.get("type"))
    if kind == "text" and type(block.get("text")) is str:
        return Text(at, block["text"], block, ANTHROPIC) if block["text"] else None
    part = _read_known_block(block, kind, at)
    if part is None or (type(part) is Text and not part.text):
        return Opaque(at, f"a block of type {kind!r}" if kind else "a block", {}, "")
    return part


def _read_known_block(block: Native, kind: str, at: int) -> Part | None:
    match kind:
        case "thinking" | "redacted_thinking":
            return Reasoning(at, block, ANTHROPIC)
        case "tool_use":
            id, name = as_text(block.get("id")), as_text(block.get("name"))
            arguments = read_arguments(block.get("input"), {})
            return ToolCall(at, id, name, arguments, native=block, home=ANTHROPIC)
        case "tool_result":
            return _read_result(block, at)
        case "image" | "document" if type(source := block.get("source")) is dict:
            return _read_source(block, kind, source, at)
        case "search_result":
            texts = [as_text(part.get("text")) for part in dicts_in(block.get("content"))]
            lines = [as_text(block.get("title")), as_text(block.get("source")), *texts]
            return Text(at, "\n".join(line for line in lines if line), block, ANTHROPIC)
        case _ if kind in _HOSTED_BLOCKS:
            return Opaque(at, f"a block of type {kind!r}", block, ANTHROPIC)
    return None


def _read_result(block: Native, at: int) -> ToolResult:
    parts: list[Any] = [
        part if type(part) in (Text, Media, Opaque) else Opaque(at, "a block", {}, "")
        for part in read_all(block.get("content"), at, _read_block)
    ]
    id = as_text(block.get("tool_use_id"))
    return ToolResult(at, id, "", parts, block.get("is_error") is True, block, ANTHROPIC)


def _read_source(block: Native, kind: str, source: Native, at: int) -> Text | Media | Opaque | None:
    kind = "image" if kind == "image" else "file"
    name = as_text(block.get("title"))
    data, url, id = (first_text(source, field) for field in ("data", "url", "file_id"))
    match source.get("type"):
        case "base64" if data:
            mime = as_text(source.get("media_type"))
            return Media(at, kind, mime, data, name=name, native=block, home=ANTHROPIC)
        case "url" if url:
            return Media.from_url(at, kind, url, name)._replace(native=block, home=ANTHROPIC)
        case "file" if id:
            return Media(at, kind, file_id=id, name=name, native=block, home=ANTHROPIC)
        case "text" if data:
            return Text(at, data, block, ANTHROPIC)
        case "content":
            content = source.get("content")
            parts = dicts_in(content)
            if any(part.get("type") != "text" for part in parts):
                # Its images would be missing from a text.
                return Opaque(at, "a document with images", block, ANTHROPIC)
            texts = [as_text(part.get("text")) for part in parts] or [as_text(content)]
            return Text(at, "\n".join(texts), block, ANTHROPIC)
    return None


_BASE64_TYPES = {
    "image": ("image/jpeg", "image/png", "image/gif", "image/webp"),
    "file": ("application/pdf",),
}

_THINKING = ("thinking", "redacted_thinking")

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result", "container_upload"})

# Suffix of the types of blocks with results of server tools.
_SERVER_RESULT_SUFFIX = "_tool_result"

_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,200}")


def write(
    messages: list[NormalizedMessage], losses: Losses
) -> tuple[list[Native], str | list[Native] | None]:
    """Write messages, and the system prompt."""
    turns, system = _WRITER.write(messages, losses)
    _drop_unpaired(turns, losses)
    turns.revise("assistant", lambda blocks: _drop_late_thinking(blocks, losses))
    turns.open("user", {"type": "text", "text": OPENING})
    written: list[Native] = []
    for role, positioned in turns.turns:
        blocks = [block for block, _ in positioned]
        text = only_text(blocks)
        written.append({"role": role, "content": blocks if text is None else text})
    if written and written[-1]["role"] == "assistant":
        _strip_trailing_space(written[-1])
    return written, _write_system(system)


def _write_system(blocks: list[Native]) -> str | list[Native] | None:
    if all(block.keys() == {"type", "text"} for block in blocks):
        return "\n\n".join(block["text"] for block in blocks) or None
    return blocks


def _strip_trailing_space(message: Native) -> None:
    """Strip trailing whitespace of the last message: the API rejects it."""
    content = message["content"]
    if type(content) is str:
        message["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        content[-1] = {**content[-1], "text": content[-1]["text"].rstrip()}


def _write_blocks(message: NormalizedMessage, losses: Losses) -> Iterator[PositionedBlock]:
    role = message.role
    for part in message.parts:
        block: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            block = _write_text(part, role, losses)
            if block is None:
                continue
            report_refusal(part, ANTHROPIC, losses)
        elif type(part) is ToolCall:
            block = _write_call(part, losses)
        elif type(part) is Reasoning and part.home == ANTHROPIC and role == "assistant":
            block = _write_thinking(part, losses)
        elif type(part) is Media and role == "user":
            block = _write_media(part, losses)
        elif type(part) is Opaque and part.home == ANTHROPIC:
            block = _write_opaque(part, role, losses)
        if block is not None:
            yield block, part.at
        else:
            losses.append(unsupported_part(part, ANTHROPIC, f"from the {role}"))


def _write_text(part: Text | Refusal, role: str, losses: Losses) -> Native | None:
    if not part.text.strip():
        what = f"a whitespace-only text was left out: {ANTHROPIC} does not accept it"
        losses.append(Loss(part.at, what))
        return None
    native = native_in(part, ANTHROPIC)
    if native is not None and (native["type"] == "text" or role == "user"):
        return _trim_block(native, part.at, losses)
    return {"type": "text", "text": part.text}


def _write_call(call: ToolCall, losses: Losses) -> Native | None:
    native = native_in(call, ANTHROPIC) or {}
    arguments = input_object(call, ANTHROPIC, losses)
    block = {**native, "type": "tool_use", "id": call.out_id, "name": call.name, "input": arguments}
    return trim(block, BLOCKS["tool_use"], "a call", call.at, losses)


def _write_thinking(part: Reasoning, losses: Losses) -> Native | None:
    native = part.native
    kind = native["type"]
    required = ("data",) if kind == "redacted_thinking" else ("thinking", "signature")
    is_complete = all(type(native.get(name)) is str for name in required) and native[required[-1]]
    return trim(native, BLOCKS[kind], "thinking", part.at, losses) if is_complete else None


def _write_opaque(part: Opaque, role: str, losses: Losses) -> Native | None:
    native = part.native
    kind = native["type"]
    if (kind in _USER_BLOCKS) != (role == "user"):
        return None
    ids: tuple[str, ...] = ()
    if kind == "server_tool_use":
        if type(native.get("input")) is not dict:
            return None
        ids = ("id", "name")
    elif kind.endswith(_SERVER_RESULT_SUFFIX):
        ids = ("tool_use_id",)
    if not all(_ID_PATTERN.fullmatch(as_text(native.get(name))) for name in ids):
        return None
    return _trim_block(native, part.at, losses)


def _trim_block(native: Native, at: int, losses: Losses) -> Native | None:
    kind = native["type"]
    return trim(native, BLOCKS[kind], f"a block of type {kind!r}", at, losses)


def _write_result(call: ToolCall, result: ToolResult, losses: Losses) -> Native:
    block: Native = {"type": "tool_result", "tool_use_id": call.out_id}
    native = native_in(result, ANTHROPIC)
    if native is not None:
        block = trim(native, BLOCKS["tool_result"], "a result", result.at, losses) or block
        block["tool_use_id"] = call.out_id
        block.pop("content", None)
    parts = result.parts
    first = parts[0] if len(parts) == 1 else None
    if type(first) is Text and native_in(first, ANTHROPIC) is None:
        block["content"] = first.text
    elif parts:
        message = NormalizedMessage(result.at, "user", [*parts], result.home)
        content = [nested for nested, _ in _write_blocks(message, losses)]
        if content:
            block["content"] = content
    if result.error:
        block["is_error"] = True
    return block


def _write_media(part: Media, losses: Losses) -> Native | None:
    native = native_in(part, ANTHROPIC)
    if native is not None:
        return trim(native, BLOCKS[native["type"]], "a media block", part.at, losses)
    source: Native | None = None
    if part.data and part.mime in _BASE64_TYPES.get(part.kind, ()):
        source = {"type": "base64", "media_type": part.mime, "data": part.data}
    elif part.kind in ("image", "file") and part.url:
        source = {"type": "url", "url": part.url}
    elif part.kind == "file" and part.data and part.mime == "text/plain":
        source = _plain_text_source(part.data)
    if source is None:
        return None
    block: Native = {"type": "image" if part.kind == "image" else "document", "source": source}
    if part.name and part.kind == "file":
        block["title"] = part.name
    return block


def _plain_text_source(data: str) -> Native | None:
    try:
        text = base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None
    return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None


def _drop_unpaired(turns: AlternatingTurns, losses: Losses) -> None:
    """Drop server tool calls without a result, and server results without a call.

    Open calls of the last turn stay: the server continues them.
    """
    open_calls: dict[str, list[Native]] = {}
    unpaired: list[Native] = []
    for role, blocks in turns.turns:
        for block, _ in blocks if role == "assistant" else ():
            if block["type"] == "server_tool_use":
                open_calls.setdefault(block["id"], []).append(block)
            elif block["type"].endswith(_SERVER_RESULT_SUFFIX):
                calls = open_calls.get(block["tool_use_id"])
                unpaired += [] if calls and calls.pop() else [block]
    last = [block for block, _ in turns.turns[-1][1]] if turns.turns else []
    unanswered = [block for calls in open_calls.values() for block in calls]
    unpaired += [block for block in unanswered if not _is_among(block, last)]
    if unpaired:
        turns.revise("assistant", lambda blocks: _drop_blocks(blocks, unpaired, losses))


def _drop_blocks(
    blocks: list[PositionedBlock], unpaired: list[Native], losses: Losses
) -> list[PositionedBlock]:
    kept = []
    for block, at in blocks:
        if _is_among(block, unpaired):
            what = f"a block of type {block['type']!r} was left out: its counterpart is missing"
            losses.append(Loss(at, what))
        else:
            kept.append((block, at))
    return kept


def _is_among(block: Native, others: list[Native]) -> bool:
    return any(block is other for other in others)


def _drop_late_thinking(blocks: list[PositionedBlock], losses: Losses) -> list[PositionedBlock]:
    """Drop thinking that is neither at the start of a turn nor after a server result.

    Two answers in a row become one turn, and the API rejects thinking in the middle of a turn.
    """
    kept: list[PositionedBlock] = []
    may_think = True
    for block, at in blocks:
        kind = block["type"]
        if kind in _THINKING and not may_think:
            losses.append(unsupported_part(Reasoning(at, block, ANTHROPIC), ANTHROPIC))
            continue
        kept.append((block, at))
        may_think = (may_think and kind in _THINKING) or kind.endswith(_SERVER_RESULT_SUFFIX)
    return _WRITER.drop_trailing_reasoning(kept, losses)


_WRITER = BlockWriter(
    ANTHROPIC, "assistant", _write_blocks, _write_result, lambda block: block["type"] in _THINKING
)
