"""Render records: as text for people, as JSON for programs.

The JSON of a record has the keys `session`, `position`, `id`, `kind`, `time`, `digest` and
`content`, the payload as the format describes it. An unreadable record has `session`, `position`
(0 if the damage is not in one entry) and `unreadable`, the reason. Headings are safe to print;
texts are returned as stored, so callers must pass them through `perdure.cli.terminal.safe`.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from perdure.cli.terminal import compact_json, plural, timestamp
from perdure.errors import DamagedError, PerdureError
from perdure.formats.bodies import LEAF_MIN, TAG, Body, to_tag
from perdure.formats.intake import IncomingMessage
from perdure.formats.streaming import rebuild
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.large import find_leaf
from perdure.journal.parts import Part
from perdure.journal.records import (
    ApprovalDecided,
    ApprovalRequested,
    Branched,
    BranchKept,
    BranchReleased,
    Content,
    Deleted,
    EffectIntent,
    EffectOutcome,
    EmptiedContent,
    Erased,
    FieldsChanged,
    IndexPage,
    LabelsChanged,
    LeaseChange,
    LeaseTaken,
    Message,
    MessageChunk,
    MessagesReplaced,
    MessagesRetracted,
    Note,
    Pinned,
    Record,
    Snapshot,
    Summary,
    SummaryUndone,
    Tools,
    TurnAbandoned,
    TurnBegun,
    TurnChange,
    TurnFailed,
    Value,
)
from perdure.safe_text import safe

# Keys of a provider's message that have their own rendering; other keys are shown by name.
RENDERED_KEYS = {
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "function_call",
    "refusal",
}


# The same for items of the Responses API, by type.
RENDERED_KEYS_OF = {"function_call": frozenset({"type", "arguments", "call_id"})}

# The values in which adapters keep the state of their framework: long, and not for people.
ADAPTER_KEYS = frozenset({"autogen", "agentchat.run", "agentchat.state"})


def record_json(session: str, record: Record) -> dict[str, Any]:
    """Return the JSON object of a record."""
    return {
        "session": session,
        "position": record.position,
        "id": record.id,
        "kind": record.kind,
        "time": timestamp(record.time),
        "digest": record.digest,
        "content": _to_builtins(record.content),
    }


def _to_builtins(content: Content) -> Any:
    """Return a record's content as JSON has it; a large body is its citation."""
    if isinstance(content, Part):
        return {"size": content.size}
    return msgspec.to_builtins(content, enc_hook=_cite)


def _cite(value: Any) -> dict[str, Any]:
    if isinstance(value, Body):
        return to_tag(value.citation)
    raise NotImplementedError


def _size_text(size: int, media_type: str) -> str:
    return f"[{size:,} bytes{' of ' if media_type else ''}{media_type}]"


def without_media(value: Any, parent: Mapping[str, Any] | None = None) -> Any:
    """Return a value for people, with the size and type of each body in its place."""
    if isinstance(value, Body):
        return _size_text(value.size, value.media_type)
    if isinstance(value, bytes):
        return _size_text(len(value), "")
    if isinstance(value, str):
        leaf = find_leaf(value, parent or {}, None) if len(value) >= LEAF_MIN else None
        if leaf is not None and leaf.media_type:
            return _size_text(len(leaf.data), leaf.media_type)
    if isinstance(value, dict):
        citation = value.get(TAG) if len(value) == 1 else None
        if isinstance(citation, dict) and "size" in citation:  # As stored.
            return _size_text(citation["size"], citation.get("type", ""))
        if [*value] == ["$bytes"] and len(value["$bytes"]) >= LEAF_MIN:
            return _size_text(len(b64decode(value["$bytes"])), "")
        return {key: without_media(item, value) for key, item in value.items()}
    return [without_media(item, parent) for item in value] if isinstance(value, list) else value


def damage_json(session: str, error: DamagedError) -> dict[str, Any]:
    """Return the JSON object of an unreadable record."""
    return {"session": session, "position": error.position, "unreadable": error.reason}


class RenderedRecord(NamedTuple):
    """A rendered record: a safe heading, and the text below it as stored."""

    heading: str
    text: str = ""


def render_record(content: Content, record_id: str) -> RenderedRecord:
    """Render the content of a record; the heading is safe, the text is not."""
    match content:
        case Message():
            return RenderedRecord(
                message_heading(content), "\n".join(message_parts(content.message))
            )
        case Value():
            return RenderedRecord(*_render_value(content))
        case Note(data=data, author=author):
            by = f" by {safe(author)}" if author else ""
            by += f" on {safe(content.topic)}" if content.topic else ""
            data = without_media(data)
            return RenderedRecord(f"note{by}", data if isinstance(data, str) else _json(data))
        case TurnBegun():
            return RenderedRecord(f"{turn_name(record_id, content.correlation_id)} begins")
        case TurnFailed(turn=turn, error=error, reason=reason):
            return RenderedRecord(f"{turn_name(turn)} FAILED: {safe(error)}", reason)
        case TurnAbandoned(turn=turn, reason=reason):
            return RenderedRecord(f"{turn_name(turn)} was abandoned", reason)
        case TurnChange(turn=turn):
            words = {"turn.continued": "is resumed", "turn.completed": "is complete"}
            return RenderedRecord(f"{turn_name(turn)} {words.get(content.kind, content.kind)}")
        case (
            MessageChunk()
            | MessagesReplaced()
            | MessagesRetracted()
            | Pinned()
            | Summary()
            | SummaryUndone()
            | Tools()
        ):
            return _render_conversation(content)
        case EffectIntent() | EffectOutcome() | ApprovalRequested() | ApprovalDecided():
            return _render_effect(content, record_id)
        case _:
            return _render_other(content)


def _render_conversation(content: Content) -> RenderedRecord:
    """Render a conversation record other than a message."""
    match content:
        case MessageChunk():
            return RenderedRecord("a chunk of a streamed answer", _chunk_text(content))
        case Pinned(message=message, on=on):
            return RenderedRecord(f"message {message} is {'pinned' if on else 'no longer pinned'}")
        case Summary(first=first, last=last, previous=previous, text=text):
            more = f" and the summary at {previous}" if previous else ""
            return RenderedRecord(
                f"summary of {first} to {last}{more}, replaces them in windows", text
            )
        case SummaryUndone(summary=summary):
            return RenderedRecord(f"the summary at {summary} is undone")
        case MessagesReplaced() | MessagesRetracted():
            return _render_retraction(content)
        case Tools(catalogue=catalogue):
            return RenderedRecord(f"tools offered: {safe(', '.join(catalogue)) or 'none'}")
        case _:
            return _render_other(content)


def _render_retraction(content: MessagesRetracted | MessagesReplaced) -> RenderedRecord:
    if isinstance(content, MessagesReplaced):
        new = f"those from {content.new_first} to {content.new_last}"
        return RenderedRecord(f"{new} replace the messages from {content.first} to {content.last}")
    names = [str(position) for position in content.positions]
    names += [f"{first} to {last}" for first, last in content.ranges]
    heading = f"{content.count} messages are taken back: {', '.join(names)}"
    return RenderedRecord(heading, content.reason)


def _render_effect(content: Content, record_id: str) -> RenderedRecord:
    """Render a call, its approval, or its outcome."""
    if isinstance(content, ApprovalRequested | ApprovalDecided):
        return _render_approval(content, record_id)
    if isinstance(content, EffectIntent):
        suffix = f", again (as at {content.retry_of})" if content.retry_of else ""
        suffix += f", under approval {safe(content.approval)}" if content.approval else ""
        if content.call_type == "model":
            return RenderedRecord(f"asks {safe(content.tool)}{suffix}", f"request {content.digest}")
        return RenderedRecord(
            f"calls {safe(content.tool)}, {content.policy}{suffix}", _json(content.arguments)
        )
    if not isinstance(content, EffectOutcome):
        return _render_other(content)
    which = f"effect {safe(content.effect or record_id)}"
    if content.state == "unknown":
        return RenderedRecord(f"may have happened, outcome unknown: {which}", content.reason)
    if content.error:
        return RenderedRecord(f"{content.state}: {safe(content.error)}, {which}", content.reason)
    if content.shared_form or content.message_count:
        result = "the result is in the message above"
    else:
        result = _json(content.result)
    if content.unstored:
        which += f"; its result of type {safe(content.unstored)} could not be stored"
    return RenderedRecord(f"{content.state} in {content.duration:.3f} s, {which}", result)


def _render_approval(
    content: ApprovalRequested | ApprovalDecided, record_id: str
) -> RenderedRecord:
    """Render an approval request or its decision."""
    if isinstance(content, ApprovalRequested):
        version = f" (version {safe(content.version)})" if content.version else ""
        until = f"until {safe(content.expires)}\n" if content.expires else ""
        heading = f"{safe(content.tool)}{version} waits for approval {safe(record_id)}"
        return RenderedRecord(heading, until + _json(content.arguments))
    which = f"approval {safe(content.approval)}"
    if content.decision == "expired":
        return RenderedRecord(f"{which} has expired")
    by = f" by {safe(content.by)}" if content.by else ""
    return RenderedRecord(f"{which} is {content.decision}{by}", content.reason)


def _chunk_text(content: MessageChunk) -> str:
    """Return the text of a chunk. Chunks are cut anywhere, so some have no readable text."""
    try:
        return messages_text(rebuild([content.data]))
    except PerdureError:
        return _json(content.data)


def messages_text(messages: Sequence[IncomingMessage]) -> str:
    """Return the text of messages, as stored."""
    return "\n".join(part for message, _ in messages for part in message_parts(message))


def _render_other(content: Content) -> RenderedRecord:
    match content:
        case LabelsChanged() | FieldsChanged():
            return RenderedRecord(_change_text(content))
        case Branched(parent=parent, at=at):
            return RenderedRecord(f"branch of {safe(parent)} at {at}: shared up to here")
        case BranchKept(branch=branch) if branch:
            state = "begins" if not content.complete else "is complete, and keeps this session"
            return RenderedRecord(f"branch {safe(branch)} {state}")
        case BranchKept(reason=reason):
            return RenderedRecord("kept", reason)
        case BranchReleased(keep=keep):
            return RenderedRecord(f"keep {safe(keep)} is released")
        case LeaseChange():
            return _render_lease(content)
        case Deleted(reason=reason):
            return RenderedRecord("DELETED: all earlier records are dropped", reason)
        case Erased() | EmptiedContent():
            is_list = isinstance(content, Erased)
            return RenderedRecord("earlier records were erased" if is_list else "ERASED")
        case IndexPage() | Part() | Snapshot():
            return RenderedRecord(_derived_text(content))
        case _:
            return RenderedRecord(safe(content.kind), _json(_to_builtins(content)))


def _derived_text(content: IndexPage | Part | Snapshot) -> str:
    if isinstance(content, Part):
        return f"part of a large body, {content.size:,} bytes"
    if isinstance(content, IndexPage):
        return "page of the index of ids"
    return "snapshot of the state, for faster opening"


def _render_lease(content: LeaseChange) -> RenderedRecord:
    heading = f"lease {content.epoch} is {content.kind.removeprefix('lease.')}"
    if not isinstance(content, LeaseTaken):
        return RenderedRecord(heading)
    force = ", by force" if content.forced else ""
    return RenderedRecord(f"{heading} by {safe(content.holder)} for {content.ttl:g} s{force}")


def turn_name(turn: str, correlation_id: str = "") -> str:
    """Return the display name of a turn: the caller's own id, and the correlation id."""
    own = "" if turn.startswith(GENERATED_PREFIX) else f" {safe(turn)}"
    return f"turn{own}" + (f" ({safe(correlation_id)})" if correlation_id else "")


def message_heading(content: Message) -> str:
    """Return the heading of a message: role, author, recipient, and its marks."""
    message = content.message
    if content.opaque:
        message = {"role": "opaque message"}
    words = [message.get("role") or "message", content.author or message.get("name") or ""]
    if content.recipient:
        words += ["to", content.recipient]
    if message.get("tool_call_id"):
        words.append(f"[{message['tool_call_id']}]")
    if content.channel:
        words.append(f"in {content.channel}")
    if content.origin:
        words.append(f"from {content.origin}")
    if content.interrupted:
        words.append("INTERRUPTED")
    return safe(" ".join(str(word) for word in words if word))


def message_parts(message: dict[str, Any]) -> Iterator[str]:
    """Yield the text of a provider's message, part by part, as stored."""
    message = without_media(message)
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            yield _part_text(part)
    elif content is not None:
        yield _json(content)
    if message.get("refusal") is not None:
        yield f"refusal: {message['refusal']}"
    for call in _tool_calls(message):
        yield _call_text(call)
    shown = RENDERED_KEYS | RENDERED_KEYS_OF.get(str(message.get("type")), frozenset())
    for key, value in message.items():
        if key not in shown and value is not None:
            yield f"{key}: {value if isinstance(value, str) else _json(value)}"


def _part_text(part: Any) -> str:
    """Return the text of one content part, in OpenAI's or Anthropic's format."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        if part.get("type") == "tool_use":
            return f"→ {part.get('name')}({_json(part.get('input'))}) [{part.get('id')}]"
    return _json(part)


def _tool_calls(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls") or []
    legacy_call = message.get("function_call")
    if message.get("type") == "function_call":  # An item of the Responses API.
        calls = [{"id": message.get("call_id"), "function": message}]
    return [
        *(calls if isinstance(calls, list) else [calls]),
        *([{"function": legacy_call}] if legacy_call else []),
    ]


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return f"→ {_json(call)}"
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except ValueError:  # Not JSON: show it as the model wrote it.
            return f"→ {function.get('name')}({arguments}){_call_id(call)}"
    if isinstance(arguments, dict):
        argument_list = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    else:
        argument_list = _json(arguments)
    return f"→ {function.get('name')}({argument_list}){_call_id(call)}"


def _call_id(call: dict[str, Any]) -> str:
    return f" [{call['id']}]" if call.get("id") else ""


def _render_value(content: Value) -> tuple[str, str]:
    heading = f"value {safe(content.key)} (version {content.version})"
    if content.form == "deleted":
        return f"{heading} is deleted", ""
    if content.form == "full":
        return heading, _json(without_media(content.data))
    return f"{heading} changes", "\n".join(_render_edit(edit) for edit in content.data)


def data_summary(data: Any) -> str:
    """Return the size of a JSON value and the keys or paths in it, as stored, for one line."""
    names = [*data] if isinstance(data, dict) else []
    return f"{plural(len(_json(data)), 'character')} of JSON: {', '.join(names) or '…'}"


def state_summary(content: Value) -> str:
    """Return the size of an adapter's state, or of a change of it, and what is in it."""
    if content.form != "delta":
        return data_summary(content.data)
    return data_summary({_path_text(path): edit for path, *edit in content.data})


def _path_text(path: Sequence[Any]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path) or "."


def _render_edit(edit: Any) -> str:
    """Render one edit of a delta; see `perdure.core.state.values`."""
    path, operation, *arguments = edit
    path_text = _path_text(path)
    if operation == "=":
        return f"{path_text} = {_json(arguments[0])}"
    if operation == "-":
        return f"{path_text} is removed"
    start, removed, added = arguments
    return f"{path_text}: from {start} on, {removed} replaced by {_json(added)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def one_line(record: Record) -> str:
    """Render a record on one line, not yet safe to print."""
    heading, text = render_record(record.content, record.id)
    return f"{heading}: {text}" if text else heading


def _change_text(content: LabelsChanged | FieldsChanged) -> str:
    if isinstance(content, FieldsChanged):
        return f"fields {fields_text(content.fields)}"
    marks = [f"+{label}" for label in content.add] + [f"-{label}" for label in content.remove]
    return f"labels {safe(' '.join(marks))}"


def fields_text(fields: dict[str, Any]) -> str:
    """Return fields with their values, comma-separated and safe to print; None is left empty."""
    return safe(", ".join(f"{name}={_field_text(value)}" for name, value in fields.items()))


def _field_text(value: Any) -> str:
    if isinstance(value, dict):  # A time, as a record has it.
        (value,) = value.values()
    if isinstance(value, datetime):
        value = value.isoformat()
    return "" if value is None else value if isinstance(value, str) else _json(value)


def labels_text(labels: frozenset[str]) -> str:
    """Return labels sorted, comma-separated and safe to print."""
    return safe(", ".join(sorted(labels)))


def raw_json(record: Record) -> str:
    """Return the whole content of a record as JSON on one safe line."""
    return compact_json(_to_builtins(record.content))
