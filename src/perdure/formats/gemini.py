"""Parse and write Gemini contents: turns of parts, each part one kind of data.

`read` turns a stored content into the neutral form, `write` the neutral form into contents. Pure;
never changes a stored message. Content that cannot be written is reported as a loss.

Field names are written as in the REST API; the Python SDK's snake_case spelling is read as well.
"""

from typing import Any

from perdure.formats import media
from perdure.formats.alternating import OPENING, Placed, Turns
from perdure.formats.fields import dicts, fields, fit, held, tell_unknown, text, unknown_fields
from perdure.formats.inputs import input_object, json_text, result_text
from perdure.formats.parts import (
    GEMINI,
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

ROLES = {"user": "user", "model": "assistant", "function": "user", "system": "system", "": "user"}
_DATA = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
_HOSTED = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_HELD = frozenset({*_DATA, *_HOSTED})
_BESIDES = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution"})
_READ = frozenset({"role", "parts", "name"})
_RESPONSE = fields("name response", "id parts scheduling willContinue")
_BLOB = fields("mimeType data", "displayName")
_FILE = fields("fileUri", "mimeType displayName")


def read(content: Native, at: int) -> Speech:
    """Parse one content; without a role it is the user's."""
    stored_role = text(content.get("role"))
    native_parts = content.get("parts")
    native_parts = native_parts if type(native_parts) is list else [native_parts]
    parts = [parsed for part in native_parts if (parsed := _read_part(part, at)) is not None]
    parts += unknown_fields(content, _READ, at)
    return Speech(
        at, ROLES.get(stored_role, ""), parts, GEMINI, stored_role, text(content.get("name"))
    )


def _camel(value: Native) -> Native:
    """Convert field names to camelCase, as in the API; bytes become base64, nulls are dropped."""
    converted = {}
    for name, item in value.items():
        head, *tail = name.split("_")
        if item is not None:
            key = head + "".join(word.capitalize() for word in tail)
            converted[key] = media.base64_text(item) if isinstance(item, bytes) else item
    return converted


def _read_part(native: Any, at: int) -> Part | None:
    if type(native) is str:
        return Text(at, native) if native else None
    part = _camel(native) if type(native) is dict else {}
    kinds = [name for name in part if name in _HELD]
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
        part = {**part, kind: _camel(value)}
        if (parsed := _read_data(part, kind, at)) is not None:
            return parsed
    return Opaque(at, f"a part of {', '.join(kinds) or 'unknown kind'}", {}, "") if native else None


def _read_data(part: Native, kind: str, at: int) -> Part | None:
    value: Native = part[kind]
    mime, name = text(value.get("mimeType")), text(value.get("displayName"))
    if kind == "functionCall":
        id, tool = text(value.get("id")), text(value.get("name"))
        arguments = value.get("args")
        args: str | Native = arguments if type(arguments) is dict else {}
        if type(arguments) is not dict and arguments is not None:
            args = json_text(arguments)
        return ToolCall(at, id, tool, args, native=part, home=GEMINI)
    if kind == "functionResponse":
        return _read_response(value, at)
    if kind == "inlineData" and held(value, "data"):
        media_part = Media(at, media.kind_of(mime), mime, value["data"], name=name)
        return media_part._replace(native=part, home=GEMINI)
    if kind == "fileData" and held(value, "fileUri"):
        media_part = Media(at, media.kind_of(mime), mime, url=value["fileUri"], name=name)
        return media_part._replace(native=part, home=GEMINI)
    return Opaque(at, f"a part of {kind}", part, GEMINI) if kind in _HOSTED else None


def _read_response(value: Native, at: int) -> Result:
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
    for part in dicts(value.get("parts")):
        parsed = _read_part(part, at)
        is_result_part = type(parsed) in (Text, Media, Opaque)
        parts.append(parsed if is_result_part else Opaque(at, "a part of a result", {}, ""))
    return Result(at, text(value.get("id")), text(value.get("name")), parts, error, value, GEMINI)


def write(messages: list[Speech], losses: Losses) -> tuple[list[Native], Native | None]:
    """Write contents, and the system instruction."""
    turns = Turns()
    system: list[Native] = []
    for message in messages:
        parts = _parts(message, losses)
        if message.role == "system":
            system += [part for part, _ in parts]
        elif message.role == "assistant":
            turns.add("model", _not_last(parts, losses))
            turns.add("user", _responses(message.parts, losses))
        else:
            turns.add("user", parts)
    turns.open("user", {"text": OPENING})
    contents = [{"role": role, "parts": [part for part, _ in parts]} for role, parts in turns.turns]
    return contents, {"parts": system} if system else None


def _not_last(parts: list[Placed], losses: Losses) -> list[Placed]:
    while parts and parts[-1][0].get("thought") is True:
        part, at = parts.pop()
        losses.append(inexpressible(Reasoning(at, part, GEMINI), GEMINI))
    return parts


def _parts(message: Speech, losses: Losses) -> list[Placed]:
    placed = []
    model = message.role == "assistant"
    for part in message.parts:
        native: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            native = {"text": part.text}
            tell_refusal(part, GEMINI, losses)
            if part.native is not None and part.home == GEMINI and model:
                native = _besides(part.native, {"text": part.text}, part.at, losses)
        elif type(part) is ToolCall:
            native = _call(part, losses)
        elif type(part) is Media and message.role != "system":
            native = _media(part, losses)
        elif isinstance(part, Reasoning | Opaque) and part.home == GEMINI and model:
            (kind,) = (name for name in part.native if name in _HELD)
            native = _besides(part.native, {kind: part.native[kind]}, part.at, losses)
        if native is not None:
            placed.append((native, part.at))
        else:
            losses.append(inexpressible(part, GEMINI, f"from the {message.role}"))
    return placed


def _besides(native: Native, data: Native, at: int, losses: Losses) -> Native:
    """Add the fields allowed beside the data of a part, and report the others as losses."""
    companions = {name: value for name, value in native.items() if name in _BESIDES}
    if len(data) + len(companions) < len(native):
        tell_unknown(native, _HELD | _BESIDES, "a part", at, losses)
    return {**data, **companions}


def _call(call: ToolCall, losses: Losses) -> Native | None:
    function: Native = {"name": call.name, "args": input_object(call, GEMINI, losses)}
    if call.out_id:
        function["id"] = call.out_id
    native = {"functionCall": function}
    if call.home == GEMINI and call.native is not None:
        return _besides(call.native, native, call.at, losses)
    return native


def _responses(parts: list[Part], losses: Losses) -> list[Placed]:
    return [
        ({"functionResponse": _response(part, part.result, losses)}, part.result.at)
        for part in parts
        if type(part) is ToolCall and part.result is not None
    ]


def _response(call: ToolCall, result: Result, losses: Losses) -> Native:
    response: Native = {"name": call.name, **({"id": call.out_id} if call.out_id else {})}
    native = result.native if result.home == GEMINI else None
    if native is not None and type(native.get("response")) is dict:
        merged = {**native, **response}
        if not call.out_id:
            merged.pop("id", None)
        trimmed = fit(merged, _RESPONSE, "a result", result.at, losses)
        if trimmed is not None:
            return trimmed
    inline = [part for part in result.parts if type(part) is Media and part.data]
    rest = [part for part in result.parts if part not in inline]
    output = result_text(result._replace(parts=rest), GEMINI, losses)
    response["response"] = {"error" if result.error else "output": output}
    if inline:
        response["parts"] = [
            {"inlineData": {"mimeType": part.mime or media.UNKNOWN_TYPE, "data": part.data}}
            for part in inline
        ]
    return response


def _media(part: Media, losses: Losses) -> Native | None:
    native = part.native
    if native is not None and part.home == GEMINI:
        kind = "inlineData" if "inlineData" in native else "fileData"
        data = fit(native[kind], _BLOB if kind == "inlineData" else _FILE, "data", part.at, losses)
        return None if data is None else _besides(native, {kind: data}, part.at, losses)
    if part.data:
        mime = part.mime or media.UNKNOWN_TYPE
        return {"inlineData": {"mimeType": mime, "data": part.data}}
    if part.url:
        uri = {"fileUri": part.url, **({"mimeType": part.mime} if part.mime else {})}
        return {"fileData": uri}
    return None
