"""Write Anthropic messages: roles alternate, and results begin the turn after their calls.

Messages in the neutral form come in; messages and the separate system prompt go out. Pure. System
messages leave the conversation, whatever their position. Content that cannot be written is reported
as a loss.
"""

import base64
import re
from collections.abc import Iterator

from perdure.formats.alternating import OPENING, Placed, Turns
from perdure.formats.anthropic import BLOCKS
from perdure.formats.fields import fit
from perdure.formats.inputs import input_object
from perdure.formats.parts import (
    ANTHROPIC,
    Loss,
    Losses,
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
    inexpressible,
    tell_refusal,
)

_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_THINKING = ("thinking", "redacted_thinking")
_USERS = frozenset({"text", "image", "document", "search_result", "container_upload"})
_SERVED = "_tool_result"  # Suffix of the types of blocks with results of server tools.
_WORD = re.compile(r"[a-zA-Z0-9_-]{1,200}")


def write(messages: list[Speech], losses: Losses) -> tuple[list[Native], str | list[Native] | None]:
    """Write messages, and the system prompt."""
    turns = Turns()
    system: list[Native] = []
    for message in messages:
        blocks = list(_blocks(message, losses))
        if message.role == "system":
            system += [block for block, _ in blocks]
        elif message.role == "assistant":
            turns.add("assistant", _not_last(blocks, losses))
            turns.add("user", _results(message.parts, losses))
        else:
            turns.add("user", blocks)
    _without_unpaired(turns, losses)
    turns.revise("assistant", lambda blocks: _think_first(blocks, losses))
    turns.open("user", {"type": "text", "text": OPENING})
    written = [
        {"role": role, "content": _shortest([block for block, _ in blocks])}
        for role, blocks in turns.turns
    ]
    if written and written[-1]["role"] == "assistant":
        _trim_end(written[-1])
    return written, _system(system)


def _system(blocks: list[Native]) -> str | list[Native] | None:
    if all(block.keys() == {"type", "text"} for block in blocks):
        return "\n\n".join(block["text"] for block in blocks) or None
    return blocks


def _shortest(blocks: list[Native]) -> str | list[Native]:
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        only: str = blocks[0]["text"]
        return only
    return blocks


def _trim_end(message: Native) -> None:
    """Strip trailing whitespace of the last message: the API rejects it."""
    content = message["content"]
    if type(content) is str:
        message["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        content[-1] = {**content[-1], "text": content[-1]["text"].rstrip()}


def _blocks(message: Speech, losses: Losses) -> Iterator[Placed]:
    role = message.role
    for part in message.parts:
        block: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            block = _text(part, role, losses)
            if block is None:
                continue
            tell_refusal(part, ANTHROPIC, losses)
        elif type(part) is ToolCall:
            block = _call(part, losses)
        elif type(part) is Reasoning and part.home == ANTHROPIC and role == "assistant":
            block = _thinking(part, losses)
        elif type(part) is Media and role == "user":
            block = _media(part, losses)
        elif type(part) is Opaque and part.home == ANTHROPIC:
            block = _opaque(part, role, losses)
        if block is not None:
            yield block, part.at
        else:
            losses.append(inexpressible(part, ANTHROPIC, f"from the {role}"))


def _text(part: Text | Refusal, role: str, losses: Losses) -> Native | None:
    if not part.text.strip():
        what = f"a whitespace-only text was left out: {ANTHROPIC} does not accept it"
        losses.append(Loss(part.at, what))
        return None
    native = part.native
    if native is not None and part.home == ANTHROPIC:
        kind = native["type"]
        if kind == "text" or role == "user":
            return fit(native, BLOCKS[kind], f"a block of type {kind!r}", part.at, losses)
    return {"type": "text", "text": part.text}


def _call(call: ToolCall, losses: Losses) -> Native | None:
    native = call.native if call.home == ANTHROPIC and call.native is not None else {}
    arguments = input_object(call, ANTHROPIC, losses)
    block = {**native, "type": "tool_use", "id": call.out_id, "name": call.name, "input": arguments}
    return fit(block, BLOCKS["tool_use"], "a call", call.at, losses)


def _thinking(part: Reasoning, losses: Losses) -> Native | None:
    native = part.native
    kind = native["type"]
    required = ("data",) if kind == "redacted_thinking" else ("thinking", "signature")
    is_complete = all(type(native.get(name)) is str for name in required) and native[required[-1]]
    return fit(native, BLOCKS[kind], "thinking", part.at, losses) if is_complete else None


def _opaque(part: Opaque, role: str, losses: Losses) -> Native | None:
    native = part.native
    kind = native["type"]
    if (kind in _USERS) != (role == "user"):
        return None
    is_call = kind == "server_tool_use"
    if is_call and type(native.get("input")) is not dict:
        return None
    for name in ("id", "name") if is_call else ("tool_use_id",) if kind.endswith(_SERVED) else ():
        if type(native.get(name)) is not str or not _WORD.fullmatch(native[name]):
            return None
    return fit(native, BLOCKS[kind], f"a block of type {kind!r}", part.at, losses)


def _results(parts: list[Part], losses: Losses) -> list[Placed]:
    return [
        (_result(part.out_id, part.result, losses), part.result.at)
        for part in parts
        if type(part) is ToolCall and part.result is not None
    ]


def _result(id: str, result: Result, losses: Losses) -> Native:
    block: Native = {"type": "tool_result", "tool_use_id": id}
    if result.home == ANTHROPIC and result.native is not None:
        block = fit(result.native, BLOCKS["tool_result"], "a result", result.at, losses) or block
        block["tool_use_id"] = id
        block.pop("content", None)
    parts = result.parts
    first = parts[0] if len(parts) == 1 else None
    if type(first) is Text and (first.native is None or first.home != ANTHROPIC):
        block["content"] = first.text
    elif parts:
        message = Speech(result.at, "user", [*parts], result.home)
        content = [nested for nested, _ in _blocks(message, losses)]
        if content:
            block["content"] = content
    if result.error:
        block["is_error"] = True
    return block


def _media(part: Media, losses: Losses) -> Native | None:
    if part.native is not None and part.home == ANTHROPIC:
        return fit(part.native, BLOCKS[part.native["type"]], "a media block", part.at, losses)
    source: Native | None = None
    if part.kind == "image" and part.data and part.mime in _PICTURES:
        source = {"type": "base64", "media_type": part.mime, "data": part.data}
    elif part.kind in ("image", "file") and part.url:
        source = {"type": "url", "url": part.url}
    elif part.kind == "file" and part.data and part.mime == "application/pdf":
        source = {"type": "base64", "media_type": part.mime, "data": part.data}
    elif part.kind == "file" and part.data and part.mime == "text/plain":
        source = _plain(part.data)
    if source is None:
        return None
    block: Native = {"type": "image" if part.kind == "image" else "document", "source": source}
    if part.name and part.kind == "file":
        block["title"] = part.name
    return block


def _plain(data: str) -> Native | None:
    try:
        text = base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None
    return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None


def _without_unpaired(turns: Turns, losses: Losses) -> None:
    """Drop server tool calls without a result, and server results without a call.

    Open calls of the last turn stay: the server continues them.
    """
    open_calls: dict[str, list[Native]] = {}
    unpaired: list[Native] = []
    for role, blocks in turns.turns:
        for block, _ in blocks if role == "assistant" else ():
            if block["type"] == "server_tool_use":
                open_calls.setdefault(block["id"], []).append(block)
            elif block["type"].endswith(_SERVED):
                calls = open_calls.get(block["tool_use_id"])
                unpaired += [] if calls and calls.pop() else [block]
    last = [block for block, _ in turns.turns[-1][1]] if turns.turns else []
    unanswered = [block for calls in open_calls.values() for block in calls]
    unpaired += [block for block in unanswered if not _among(block, last)]
    if unpaired:
        turns.revise("assistant", lambda blocks: _without(blocks, unpaired, losses))


def _without(blocks: list[Placed], unpaired: list[Native], losses: Losses) -> list[Placed]:
    kept = []
    for block, at in blocks:
        if _among(block, unpaired):
            what = f"a block of type {block['type']!r} was left out: its counterpart is missing"
            losses.append(Loss(at, what))
        else:
            kept.append((block, at))
    return kept


def _among(block: Native, others: list[Native]) -> bool:
    return any(block is other for other in others)


def _think_first(blocks: list[Placed], losses: Losses) -> list[Placed]:
    """Drop thinking that is neither at the start of a turn nor after a server result.

    Two answers in a row become one turn, and the API rejects thinking in the middle of a turn.
    """
    kept: list[Placed] = []
    may_think = True
    for block, at in blocks:
        kind = block["type"]
        if kind in _THINKING and not may_think:
            losses.append(inexpressible(Reasoning(at, block, ANTHROPIC), ANTHROPIC))
            continue
        kept.append((block, at))
        may_think = (may_think and kind in _THINKING) or kind.endswith(_SERVED)
    return _not_last(kept, losses)


def _not_last(blocks: list[Placed], losses: Losses) -> list[Placed]:
    """Drop thinking at the end: the content it led to is missing."""
    while blocks and blocks[-1][0]["type"] in _THINKING:
        block, at = blocks.pop()
        losses.append(inexpressible(Reasoning(at, block, ANTHROPIC), ANTHROPIC))
    return blocks
