"""Parse and write Gemini contents: turns of parts, each part one kind of data.

`read` turns a stored content into the neutral form, `write` the neutral form into contents. Pure;
never changes a stored message. Content that cannot be written is reported as a loss.

Field names are written as in the REST API; the Python SDK's snake_case spelling is read as well.
"""

import base64
from typing import Any

from perdure.formats.alternation import OPENING, BlockWriter, PositionedBlock
from perdure.formats.fields import (
    as_text,
    dicts_in,
    fields,
    first_text,
    input_object,
    json_text,
    normalized,
    read_all,
    report_unknown,
    result_text,
    trim,
    unknown_fields,
)
from perdure.formats.parts import (
    GEMINI,
    UNKNOWN_TYPE,
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

ROLES = {"user": "user", "model": "assistant", "function": "user", "system": "system", "": "user"}

_DATA_FIELDS = ("text", "inlineData", "fileData", "functionCall", "functionResponse")

_HOSTED_FIELDS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")

_PAYLOAD_FIELDS = frozenset({*_DATA_FIELDS, *_HOSTED_FIELDS})

_COMPANION_FIELDS = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution"})

_READ_FIELDS = frozenset({"role", "parts", "name"})

_RESPONSE = fields("name response", "id parts scheduling willContinue")

_BLOB = fields("mimeType data", "displayName")

_FILE = fields("fileUri", "mimeType displayName")


def read(content: Native, at: int) -> NormalizedMessage:
    """Parse one content; without a role it is the user's."""
    parts = read_all(content.get("parts"), at, _read_part)
    parts += unknown_fields(content, _READ_FIELDS, at)
    return normalized(content, at, parts, ROLES, GEMINI)


def _to_camel_case(value: Native) -> Native:
    """Convert field names to camelCase, as in the API; bytes become base64, nulls are dropped."""
    converted = {}
    for name, item in value.items():
        head, *tail = name.split("_")
        if item is not None:
            key = head + "".join(word.capitalize() for word in tail)
            converted[key] = base64.b64encode(item).decode() if isinstance(item, bytes) else item
    return converted


def _read_part(native: Any, at: int) -> Part | None:
    if type(native) is str:
        return Text(at, native) if native else None
    part = _to_camel_case(native) if type(native) is dict else {}
    kinds = [name for name in part if name in _PAYLOAD_FIELDS]
    kind = kinds[0] if len(kinds) == 1 else ""
    value = part.get(kind)
    if kind == "text" and type(value) is str:
        if not value and not part.get("thoughtSignature"):
            return None
        if part.get("thought") is True:
            return Reasoning(at, part, GEMINI)
        if not value:
            return Opaque(at, "a thought", part, GEMINI)
        return Text(at, value, part, GEMINI) if len(part) > 1 else Text(at, value)
    if type(value) is dict:
        part = {**part, kind: _to_camel_case(value)}
        if (parsed := _read_data(part, kind, at)) is not None:
            return parsed
    return Opaque(at, f"a part of {', '.join(kinds) or 'unknown kind'}", {}, "") if native else None


def _read_data(part: Native, kind: str, at: int) -> Part | None:
    value: Native = part[kind]
    mime, name = as_text(value.get("mimeType")), as_text(value.get("displayName"))
    if kind == "functionCall":
        id, tool, args = as_text(value.get("id")), as_text(value.get("name")), value.get("args")
        if type(args) is not dict:
            args = {} if args is None else json_text(args)
        return ToolCall(at, id, tool, args, native=part, home=GEMINI)
    if kind == "functionResponse":
        return _read_response(value, at)
    data = first_text(value, "data") if kind == "inlineData" else ""
    url = first_text(value, "fileUri") if kind == "fileData" else ""
    if data or url:
        family = mime.partition("/")[0]
        media_kind = family if family in ("image", "audio") else "file"
        return Media(at, media_kind, mime, data, url, name=name, native=part, home=GEMINI)
    return Opaque(at, f"a part of {kind}", part, GEMINI) if kind in _HOSTED_FIELDS else None


def _read_response(value: Native, at: int) -> ToolResult:
    """Parse a result: a lone text as it is, anything else as JSON."""
    response = value.get("response")
    parts: list[Any] = []
    error = type(response) is dict and "error" in response
    if type(response) is dict and len(response) == 1:
        (only,) = response.values()
        plain = type(only) is str and response.keys() <= {"output", "error", "result"}
        text_value = only if plain else json_text(response)
        parts += [Text(at, text_value)] if text_value else []
    elif response is not None:
        parts.append(Text(at, response if type(response) is str else json_text(response)))
    for part in dicts_in(value.get("parts")):
        parsed = _read_part(part, at)
        is_result_part = type(parsed) in (Text, Media, Opaque)
        parts.append(parsed if is_result_part else Opaque(at, "a part of a result", {}, ""))
    return ToolResult(
        at, as_text(value.get("id")), as_text(value.get("name")), parts, error, value, GEMINI
    )


def write(messages: list[NormalizedMessage], losses: Losses) -> tuple[list[Native], Native | None]:
    """Write contents, and the system instruction."""
    turns, system = _WRITER.write(messages, losses)
    turns.open("user", {"text": OPENING})
    contents = [{"role": role, "parts": [part for part, _ in parts]} for role, parts in turns.turns]
    return contents, {"parts": system} if system else None


def _write_parts(message: NormalizedMessage, losses: Losses) -> list[PositionedBlock]:
    placed = []
    model = message.role == "assistant"
    for part in message.parts:
        native: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            native = {"text": part.text}
            report_refusal(part, GEMINI, losses)
            stored = native_in(part, GEMINI)
            if stored is not None and model:
                native = _with_companions(stored, native, part.at, losses)
        elif type(part) is ToolCall:
            native = _write_call(part, losses)
        elif type(part) is Media and message.role != "system":
            native = _write_media(part, losses)
        elif isinstance(part, Reasoning | Opaque) and part.home == GEMINI and model:
            (kind,) = (name for name in part.native if name in _PAYLOAD_FIELDS)
            native = _with_companions(part.native, {kind: part.native[kind]}, part.at, losses)
        if native is not None:
            placed.append((native, part.at))
        else:
            losses.append(unsupported_part(part, GEMINI, f"from the {message.role}"))
    return placed


def _with_companions(native: Native, data: Native, at: int, losses: Losses) -> Native:
    """Add the fields allowed beside the data of a part, and report the others as losses."""
    companions = {name: value for name, value in native.items() if name in _COMPANION_FIELDS}
    if len(data) + len(companions) < len(native):
        report_unknown(native, _PAYLOAD_FIELDS | _COMPANION_FIELDS, "a part", at, losses)
    return {**data, **companions}


def _write_call(call: ToolCall, losses: Losses) -> Native | None:
    function: Native = {"name": call.name, "args": input_object(call, GEMINI, losses)}
    if call.out_id:
        function["id"] = call.out_id
    native = {"functionCall": function}
    stored = native_in(call, GEMINI)
    return native if stored is None else _with_companions(stored, native, call.at, losses)


def _write_response(call: ToolCall, result: ToolResult, losses: Losses) -> Native:
    response: Native = {"name": call.name, **({"id": call.out_id} if call.out_id else {})}
    native = native_in(result, GEMINI)
    if native is not None and type(native.get("response")) is dict:
        merged = {**native, **response}
        if not call.out_id:
            merged.pop("id", None)
        trimmed = trim(merged, _RESPONSE, "a result", result.at, losses)
        if trimmed is not None:
            return trimmed
    inline = [part for part in result.parts if type(part) is Media and part.data]
    rest = [part for part in result.parts if part not in inline]
    output = result_text(result._replace(parts=rest), GEMINI, losses)
    response["response"] = {"error" if result.error else "output": output}
    if inline:
        response["parts"] = [_inline_data(part) for part in inline]
    return response


def _inline_data(part: Media) -> Native:
    return {"inlineData": {"mimeType": part.mime or UNKNOWN_TYPE, "data": part.data}}


def _write_media(part: Media, losses: Losses) -> Native | None:
    native = native_in(part, GEMINI)
    if native is not None:
        kind = "inlineData" if "inlineData" in native else "fileData"
        data = trim(native[kind], _BLOB if kind == "inlineData" else _FILE, "data", part.at, losses)
        return None if data is None else _with_companions(native, {kind: data}, part.at, losses)
    if part.data:
        return _inline_data(part)
    if part.url:
        uri = {"fileUri": part.url, **({"mimeType": part.mime} if part.mime else {})}
        return {"fileData": uri}
    return None


def _write_result(call: ToolCall, result: ToolResult, losses: Losses) -> Native:
    return {"functionResponse": _write_response(call, result, losses)}


_WRITER = BlockWriter(
    GEMINI, "model", _write_parts, _write_result, lambda part: part.get("thought") is True
)
