"""Gemini's contents: turns of parts, each part one kind of data. Pure.

Names of fields go out as the REST API has them; the Python SDK's own spelling is read as well.
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
    """Read one content; without a role it is the user's."""
    word = text(content.get("role"))
    given = content.get("parts")
    given = given if type(given) is list else [given]
    parts = [made for part in given if (made := _read_part(part, at)) is not None]
    parts += unknown_fields(content, _READ, at)
    return Speech(at, ROLES.get(word, ""), parts, GEMINI, word, text(content.get("name")))


def _camel(value: Native) -> Native:
    """Spell the names of fields as the API does; bytes become base64, and nulls go."""
    made = {}
    for name, each in value.items():
        head, *tail = name.split("_")
        if each is not None:
            key = head + "".join(word.capitalize() for word in tail)
            made[key] = media.base64_text(each) if isinstance(each, bytes) else each
    return made


def _read_part(given: Any, at: int) -> Part | None:
    if type(given) is str:
        return Text(at, given) if given else None
    part = _camel(given) if type(given) is dict else {}
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
        if (made := _read_data(part, kind, at)) is not None:
            return made
    return Opaque(at, f"a part of {', '.join(kinds) or 'unknown kind'}", {}, "") if given else None


def _read_data(part: Native, kind: str, at: int) -> Part | None:
    value: Native = part[kind]
    mime, name = text(value.get("mimeType")), text(value.get("displayName"))
    if kind == "functionCall":
        id, called = text(value.get("id")), text(value.get("name"))
        given = value.get("args")
        args: str | Native = given if type(given) is dict else {}
        if type(given) is not dict and given is not None:
            args = json_text(given)
        return ToolCall(at, id, called, args, native=part, home=GEMINI)
    if kind == "functionResponse":
        return _read_response(value, at)
    if kind == "inlineData" and held(value, "data"):
        made = Media(at, media.kind_of(mime), mime, value["data"], name=name)
        return made._replace(native=part, home=GEMINI)
    if kind == "fileData" and held(value, "fileUri"):
        made = Media(at, media.kind_of(mime), mime, url=value["fileUri"], name=name)
        return made._replace(native=part, home=GEMINI)
    return Opaque(at, f"a part of {kind}", part, GEMINI) if kind in _HOSTED else None


def _read_response(value: Native, at: int) -> Result:
    """Read a result: one text if there is no more in it, else the JSON of what there is."""
    response = value.get("response")
    parts: list[Any] = []
    error = type(response) is dict and "error" in response
    if type(response) is dict and len(response) == 1:
        (only,) = response.values()
        plain = type(only) is str and response.keys() <= {"output", "error", "result"}
        words = only if plain else json_text(response)
        parts += [Text(at, words)] if words else []
    elif response is not None:
        parts.append(Text(at, response if type(response) is str else json_text(response)))
    for part in dicts(value.get("parts")):
        made = _read_part(part, at)
        known = type(made) in (Text, Media, Opaque)
        parts.append(made if known else Opaque(at, "a part of a result", {}, ""))
    return Result(at, text(value.get("id")), text(value.get("name")), parts, error, value, GEMINI)


def write(speeches: list[Speech], losses: Losses) -> tuple[list[Native], Native | None]:
    """Write speeches as contents, and what the system says."""
    turns = Turns()
    system: list[Native] = []
    for speech in speeches:
        parts = _parts(speech, losses)
        if speech.role == "system":
            system += [part for part, _ in parts]
        elif speech.role == "assistant":
            turns.add("model", _not_last(parts, losses))
            turns.add("user", _responses(speech.parts, losses))
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


def _parts(speech: Speech, losses: Losses) -> list[Placed]:
    placed = []
    model = speech.role == "assistant"
    for part in speech.parts:
        made: Native | None = None
        if type(part) is Text or type(part) is Refusal:
            made = {"text": part.text}
            tell_refusal(part, GEMINI, losses)
            if part.native is not None and part.home == GEMINI and model:
                made = _besides(part.native, {"text": part.text}, part.at, losses)
        elif type(part) is ToolCall:
            made = _call(part, losses)
        elif type(part) is Media and speech.role != "system":
            made = _media(part, losses)
        elif isinstance(part, Reasoning | Opaque) and part.home == GEMINI and model:
            (kind,) = (name for name in part.native if name in _HELD)
            made = _besides(part.native, {kind: part.native[kind]}, part.at, losses)
        if made is not None:
            placed.append((made, part.at))
        else:
            losses.append(inexpressible(part, GEMINI, f"from the {speech.role}"))
    return placed


def _besides(native: Native, made: Native, at: int, losses: Losses) -> Native:
    """Add what may stand beside the data of a part, and tell what may not."""
    more = {name: value for name, value in native.items() if name in _BESIDES}
    if len(made) + len(more) < len(native):
        tell_unknown(native, _HELD | _BESIDES, "a part", at, losses)
    return {**made, **more}


def _call(call: ToolCall, losses: Losses) -> Native | None:
    asked: Native = {"name": call.name, "args": input_object(call, GEMINI, losses)}
    if call.out_id:
        asked["id"] = call.out_id
    made = {"functionCall": asked}
    if call.home == GEMINI and call.native is not None:
        return _besides(call.native, made, call.at, losses)
    return made


def _responses(parts: list[Part], losses: Losses) -> list[Placed]:
    return [
        ({"functionResponse": _response(part, part.result, losses)}, part.result.at)
        for part in parts
        if type(part) is ToolCall and part.result is not None
    ]


def _response(call: ToolCall, result: Result, losses: Losses) -> Native:
    named: Native = {"name": call.name, **({"id": call.out_id} if call.out_id else {})}
    native = result.native if result.home == GEMINI else None
    if native is not None and type(native.get("response")) is dict:
        given = {**native, **named}
        if not call.out_id:
            given.pop("id", None)
        made = fit(given, _RESPONSE, "a result", result.at, losses)
        if made is not None:
            return made
    pictures = [part for part in result.parts if type(part) is Media and part.data]
    rest = [part for part in result.parts if part not in pictures]
    words = result_text(result._replace(parts=rest), GEMINI, losses)
    named["response"] = {"error" if result.error else "output": words}
    if pictures:
        named["parts"] = [
            {"inlineData": {"mimeType": part.mime or media.UNKNOWN_TYPE, "data": part.data}}
            for part in pictures
        ]
    return named


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
