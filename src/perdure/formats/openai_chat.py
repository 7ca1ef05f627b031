"""Parse and write chat completions: calls are a field of a message, results are messages.

`read` turns a stored message into the neutral form, `write` the neutral form into messages. Pure;
never changes a stored message. Content that cannot be written is reported as a loss.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.formats.fields import (
    OPENAI_ROLES,
    Fields,
    as_text,
    dicts_in,
    fields,
    first_text,
    input_text,
    normalized,
    only_text,
    read_all,
    read_arguments,
    read_openai_file,
    read_output,
    report_error_flag,
    result_text,
    trim,
    unknown_fields,
)
from perdure.formats.parts import (
    CHAT,
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
    unsupported_part,
)

_REASONING_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "reasoning_text",
    "thinking",
)

_ANSWER_FIELDS = ("refusal", "audio", "tool_calls", "function_call")

_RESULT_FIELDS = frozenset({"tool_call_id", "tool_responses"})

_KNOWN_BY_RESULTS = frozenset({"role", "content", "name", *_RESULT_FIELDS})

_READ_FIELDS = frozenset({"role", "content", "name", *_ANSWER_FIELDS, *_REASONING_FIELDS})

PARTS: dict[str, Fields] = {
    "text": fields("type text", "prompt_cache_breakpoint"),
    "image_url": fields("type image_url", "prompt_cache_breakpoint"),
    "input_audio": fields("type input_audio", "prompt_cache_breakpoint"),
    "file": fields("type file", "prompt_cache_breakpoint"),
}

# The home of a transcript of audio: left out where the audio itself is sent.
# By type of call: the field that holds it, and the field of its input there.
_CALL_FIELDS = {"function": ("function", "arguments"), "custom": ("custom", "input")}

AUDIO_TRANSCRIPT = "spoken"

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def read(message: Native, at: int) -> NormalizedMessage:
    """Parse one message; an unknown role is kept in `stored_role`, and `role` is empty."""
    stored_role = as_text(message.get("role"))
    content = message.get("content")
    if stored_role in ("tool", "function") or not message.keys().isdisjoint(_RESULT_FIELDS):
        return NormalizedMessage(at, "user", _read_results(message, at), CHAT, stored_role)
    parts: list[Part] = []
    if type(content) is str:
        if content:
            parts.append(Text(at, content))
    elif content is not None:
        parts += read_all(content, at, _read_part)
    if len(message) > 2 or "content" not in message:  # noqa: PLR2004 - most have just these two
        _read_rest(message, at, parts)
    return normalized(message, at, parts, OPENAI_ROLES, CHAT)


def _read_rest(message: Native, at: int, parts: list[Part]) -> None:
    parts += [
        Reasoning(at, {name: message[name]}, "") for name in _REASONING_FIELDS if message.get(name)
    ]
    if refusal := as_text(message.get("refusal")):
        parts.append(Refusal(at, refusal))
    audio = message.get("audio")
    if type(audio) is dict:
        sound = {"id": audio["id"]} if as_text(audio.get("id")) else {}
        parts.append(Opaque(at, "a spoken answer", sound, CHAT if sound else ""))
        if transcript := as_text(audio.get("transcript")):
            parts.append(Text(at, transcript, audio, AUDIO_TRANSCRIPT))
    calls = message.get("tool_calls")
    for call in calls if type(calls) is list else ():
        parts.append(_read_call(call, at) if type(call) is dict else Opaque(at, "a call", {}, ""))
    function = message.get("function_call")
    if type(function) is dict:
        name, arguments = as_text(function.get("name")), read_arguments(function.get("arguments"))
        parts.append(ToolCall(at, "", name, arguments, kind="deprecated", home=CHAT))
    for field, expected in zip(_ANSWER_FIELDS, (str, dict, list, dict), strict=True):
        if message.get(field) and type(message[field]) is not expected:
            parts.append(Opaque(at, f"the field {field!r} of the message", {}, ""))
    parts += unknown_fields(message, _READ_FIELDS, at)


def _read_call(call: Native, at: int) -> ToolCall:
    kind, field = _CALL_FIELDS.get(as_text(call.get("type")), _CALL_FIELDS["function"])
    function = call.get(kind)
    function = function if type(function) is dict else {}
    id, name = as_text(call.get("id")), as_text(function.get("name"))
    return ToolCall(at, id, name, read_arguments(function.get(field)), kind=kind, home=CHAT)


def _read_results(message: Native, at: int) -> list[Part]:
    """Parse a tool's message; AutoGen puts the results of several calls into one."""
    several = dicts_in(message.get("tool_responses"))
    is_several = several and not message.get("tool_call_id")
    results = [_read_result(one, at) for one in (several if is_several else [message])]
    results[0].parts.extend(unknown_fields(message, _KNOWN_BY_RESULTS, at))
    return [*results]


def _read_result(message: Native, at: int) -> ToolResult:
    parts = read_output(message.get("content"), at, _read_part)
    id, name = as_text(message.get("tool_call_id")), as_text(message.get("name"))
    return ToolResult(at, id, name, parts, home=CHAT)


def _read_part(part: Any, at: int) -> Part | None:
    """Parse a content part; an unknown part becomes `Opaque` and is sent to no provider."""
    if type(part) is str:
        return Text(at, part) if part else None
    kind = part.get("type") if type(part) is dict else ""
    media_part: Media | None = None
    if kind == "text" and type(part.get("text")) is str:
        return Text(at, part["text"], part, CHAT) if part["text"] else None
    if kind == "refusal" and type(part.get("refusal")) is str:
        return Refusal(at, part["refusal"])
    if kind == "image_url":
        url = part.get("image_url")
        if type(url) is dict and (address := first_text(url, "url")):
            detail = as_text(url.get("detail"))
            media_part = Media.from_url(at, "image", address)._replace(detail=detail)
    elif kind == "input_audio" and type(sound := part.get("input_audio")) is dict:
        mime = "audio/" + as_text(sound.get("format"))
        media_part = Media(at, "audio", mime=mime, data=as_text(sound.get("data")))
    elif kind == "file" and type(file := part.get("file")) is dict:
        media_part = read_openai_file(at, file)
    if media_part is None:
        return Opaque(at, f"a part of type {kind!r}" if kind else "a part", {}, "")
    return media_part._replace(native=part, home=CHAT)


def write(messages: list[NormalizedMessage], losses: Losses) -> tuple[list[Native], None]:
    """Write messages; results follow the message that made their calls."""
    written: list[Native] = []
    for message in messages:
        parts, role = message.parts, message.role
        native_role = message.stored_role if message.stored_role == "developer" else role
        first = parts[0]
        if len(parts) == 1 and type(first) is Text and first.native is None:
            native: Native | None = {"role": native_role, "content": first.text}
        elif role == "assistant":
            native = _write_assistant(parts, losses)
        else:
            content = _write_content(parts, role, losses)
            native = {"role": native_role, "content": content} if content else None
        if native is None:
            continue
        if message.name:
            native["name"] = message.name
        written.append(native)
        if len(native) > 2:  # noqa: PLR2004 - as above
            written += _write_results(parts, losses, deprecated="function_call" in native)
    return written, None


def _write_content(parts: list[Part], role: str, losses: Losses) -> str | list[Native]:
    written = []
    for part in parts:
        if type(part) is Text or type(part) is Refusal:
            written.append(_write_text(part, losses))
        elif type(part) is Media and role == "user" and (native := _write_media(part, losses)):
            written.append(native)
        else:
            losses.append(unsupported_part(part, CHAT, f"from the {role}"))
    return _shorten_content(written, parts)


def _shorten_content(written: list[Native], parts: Sequence[Part]) -> str | list[Native]:
    """Return a single text as a str, unless its stored message had it in a list."""
    text = only_text(written)
    if text is None or any(type(part) is Text and part.home == CHAT for part in parts):
        return written
    return text


def _write_text(part: Text | Refusal, losses: Losses) -> Native:
    native = native_in(part, CHAT)
    trimmed = native and trim(native, PARTS["text"], "a text", part.at, losses)
    return trimmed or {"type": "text", "text": part.text}


def _write_media(part: Media, losses: Losses) -> Native | None:
    native = native_in(part, CHAT)
    if native is not None:
        return trim(native, PARTS[native["type"]], "a part", part.at, losses)
    if part.kind == "image" and (part.url or part.data):
        url = {"url": part.url or part.data_url}
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": url | detail}
    if part.kind == "audio" and part.data and part.mime in _AUDIO_FORMATS:
        sound = {"data": part.data, "format": _AUDIO_FORMATS[part.mime]}
        return {"type": "input_audio", "input_audio": sound}
    if part.kind == "file" and part.data:
        file = {"file_data": part.data_url, "filename": part.name or "file"}
        return {"type": "file", "file": file}
    if part.kind == "file" and (id := part.file_id_for(CHAT)):
        return {"type": "file", "file": {"file_id": id}}
    return None


def _write_assistant(parts: list[Part], losses: Losses) -> Native | None:
    message: Native = {"role": "assistant", "content": None}
    for part in parts:
        if type(part) is Opaque and part.home == CHAT:
            message["audio"] = part.native
        elif type(part) not in (Text, Refusal, ToolCall):
            losses.append(unsupported_part(part, CHAT, "from the assistant"))
    has_audio = "audio" in message
    texts = [
        part
        for part in parts
        if type(part) is Text and not (has_audio and part.home == AUDIO_TRANSCRIPT)
    ]
    if texts:
        message["content"] = _shorten_content([_write_text(part, losses) for part in texts], texts)
    if refusals := [part.text for part in parts if type(part) is Refusal]:
        message["refusal"] = "\n".join(refusals)
    calls = [part for part in parts if type(part) is ToolCall]
    if len(calls) == 1 and calls[0].kind == "deprecated":
        message["function_call"] = {"name": calls[0].name, "arguments": input_text(calls[0])}
    elif calls:
        message["tool_calls"] = [_write_call(call) for call in calls]
    has_content = texts or len(message) > 2  # noqa: PLR2004 - more than a role and no content
    return message if has_content else None


def _write_call(call: ToolCall) -> Native:
    kind, field = _CALL_FIELDS.get(call.kind, _CALL_FIELDS["function"])
    return {"id": call.out_id, "type": kind, kind: {"name": call.name, field: input_text(call)}}


def _write_results(parts: list[Part], losses: Losses, *, deprecated: bool) -> Iterator[Native]:
    for part in parts:
        if type(part) is not ToolCall or part.result is None:
            continue
        report_error_flag(part.result, CHAT, losses)
        if deprecated:
            text = result_text(part.result, CHAT, losses)
            yield {"role": "function", "name": part.name, "content": text}
        else:
            content = _write_result_content(part.result, losses)
            yield {"role": "tool", "tool_call_id": part.out_id, "content": content}


def _write_result_content(result: ToolResult, losses: Losses) -> str | list[Native]:
    if any(type(part) is Text and part.home == CHAT for part in result.parts):
        written = []
        for part in result.parts:
            if type(part) is Text:
                written.append(_write_text(part, losses))
            else:
                losses.append(unsupported_part(part, CHAT, "in a result"))
        return written
    return result_text(result, CHAT, losses)
