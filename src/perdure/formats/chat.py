"""OpenAI's chat completions: messages with a role, calls in a field, results as messages. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.formats import media
from perdure.formats.fields import Fields, dicts, fields, fit, held, text, unknown_fields
from perdure.formats.inputs import input_text, json_text, result_text, tell_error
from perdure.formats.parts import (
    CHAT,
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
)

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "thinking")
_ANSWERS = ("refusal", "audio", "tool_calls", "function_call")
_RESULTS = frozenset({"tool_call_id", "tool_responses"})
_READ = frozenset({"role", "content", "name", *_ANSWERS, *_REASONING})
PARTS: dict[str, Fields] = {
    "text": fields("type text", "prompt_cache_breakpoint"),
    "image_url": fields("type image_url", "prompt_cache_breakpoint"),
    "input_audio": fields("type input_audio", "prompt_cache_breakpoint"),
    "file": fields("type file", "prompt_cache_breakpoint"),
}
SPOKEN = "spoken"  # The home of the words of a sound, which need not be said twice.
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def read(message: Native, at: int) -> Speech:
    """Read one message; a role that is not known stays in `word`, and the speech has none."""
    word = text(message.get("role"))
    content = message.get("content")
    if word in ("tool", "function") or not message.keys().isdisjoint(_RESULTS):
        return Speech(at, "user", _results(message, at), CHAT, word)
    parts: list[Part] = []
    if type(content) is str:
        if content:
            parts.append(Text(at, content))
    elif content is not None:
        parts += read_content(content, at)
    if len(message) > 2 or "content" not in message:  # noqa: PLR2004 - most have just these two
        _read_rest(message, at, parts)
    return Speech(at, ROLES.get(word, ""), parts, CHAT, word, text(message.get("name")))


def _read_rest(message: Native, at: int, parts: list[Part]) -> None:
    parts += [Reasoning(at, {name: message[name]}, "") for name in _REASONING if message.get(name)]
    if refusal := text(message.get("refusal")):
        parts.append(Refusal(at, refusal))
    audio = message.get("audio")
    if type(audio) is dict:
        sound = {"id": audio["id"]} if text(audio.get("id")) else {}
        parts.append(Opaque(at, "a spoken answer", sound, CHAT if sound else ""))
        if words := text(audio.get("transcript")):
            parts.append(Text(at, words, audio, SPOKEN))
    calls = message.get("tool_calls")
    for call in calls if type(calls) is list else ():
        parts.append(_call(call, at) if type(call) is dict else Opaque(at, "a call", {}, ""))
    function = message.get("function_call")
    if type(function) is dict:
        name, arguments = text(function.get("name")), _argument(function.get("arguments"))
        parts.append(ToolCall(at, "", name, arguments, kind="deprecated", home=CHAT))
    for field, wanted in zip(_ANSWERS, (str, dict, list, dict), strict=True):
        if message.get(field) and type(message[field]) is not wanted:
            parts.append(Opaque(at, f"the field {field!r} of the message", {}, ""))
    parts += unknown_fields(message, _READ, at)


def _call(call: Native, at: int) -> ToolCall:
    custom = call.get("type") == "custom"
    asked = call.get("custom" if custom else "function")
    asked = asked if type(asked) is dict else {}
    given = _argument(asked.get("input" if custom else "arguments"))
    kind = "custom" if custom else "function"
    return ToolCall(at, text(call.get("id")), text(asked.get("name")), given, kind=kind, home=CHAT)


def _argument(given: Any) -> str | Native:
    """Return arguments as they are; a value that is no text was decoded by somebody."""
    if type(given) is str or type(given) is dict:
        return given
    return "" if given is None else json_text(given)


def _results(message: Native, at: int) -> list[Part]:
    """Read a tool's message; AutoGen puts the results of several calls into one."""
    several = dicts(message.get("tool_responses"))
    if several and not message.get("tool_call_id"):
        return [_result(each, at) for each in several]
    return [_result(message, at)]


def _result(message: Native, at: int) -> Result:
    content = message.get("content")
    parts: list[Any] = []
    if type(content) is list:
        parts += read_content(content, at)
    elif content is not None and content != "":
        parts.append(Text(at, content if type(content) is str else json_text(content)))
    return Result(
        at, text(message.get("tool_call_id")), text(message.get("name")), parts, home=CHAT
    )


def read_content(content: Any, at: int) -> list[Part]:
    """Read a list of parts; what is none of them is kept for nobody."""
    given = content if type(content) is list else [content]
    return [made for part in given if (made := _read_part(part, at)) is not None]


def _read_part(part: Any, at: int) -> Part | None:
    if type(part) is str:
        return Text(at, part) if part else None
    kind = part.get("type") if type(part) is dict else ""
    made: Media | None = None
    if kind == "text" and type(part.get("text")) is str:
        return Text(at, part["text"], part, CHAT) if part["text"] else None
    if kind == "refusal" and type(part.get("refusal")) is str:
        return Refusal(at, part["refusal"])
    if kind == "image_url":
        url = part.get("image_url")
        found = held(url, "url") if type(url) is dict else text(url)
        if found and type(url) is dict:
            detail = text(url.get("detail"))
            made = media.from_url(at, "image", found)._replace(detail=detail)
    elif kind == "input_audio" and type(sound := part.get("input_audio")) is dict:
        mime = "audio/" + text(sound.get("format"))
        made = Media(at, "audio", mime=mime, data=text(sound.get("data")))
    elif kind == "file" and type(file := part.get("file")) is dict:
        made = media.openai_file(at, file)
    if made is None:
        return Opaque(at, f"a part of type {kind!r}" if kind else "a part", {}, "")
    return made._replace(native=part, home=CHAT)


def write(speeches: list[Speech], losses: Losses) -> tuple[list[Native], None]:
    """Write speeches as messages; results follow the message that made their calls."""
    messages: list[Native] = []
    for speech in speeches:
        parts, role = speech.parts, speech.role
        word = speech.word if speech.word == "developer" else role
        first = parts[0]
        if len(parts) == 1 and type(first) is Text and first.native is None:
            message: Native | None = {"role": word, "content": first.text}
        elif role == "assistant":
            message = _assistant(parts, losses)
        else:
            content = _content(parts, role, losses)
            message = {"role": word, "content": content} if content else None
        if message is None:
            continue
        if speech.name:
            message["name"] = speech.name
        messages.append(message)
        if len(message) > 2:  # noqa: PLR2004 - as above
            messages += _answers(parts, losses, deprecated="function_call" in message)
    return messages, None


def _content(parts: list[Part], role: str, losses: Losses) -> str | list[Native]:
    written = []
    for part in parts:
        if type(part) is Text or type(part) is Refusal:
            written.append(_text_part(part, losses))
        elif type(part) is Media and role == "user" and (made := _media_part(part, losses)):
            written.append(made)
        else:
            losses.append(inexpressible(part, CHAT, f"from the {role}"))
    return _shortest(written, parts)


def _shortest(written: list[Native], parts: Sequence[Part]) -> str | list[Native]:
    """Return a lone text as a text, unless its own message had it in a list."""
    if len(written) == 1 and written[0].keys() == {"type", "text"}:
        in_list = any(type(part) is Text and part.home == CHAT for part in parts)
        if not in_list:
            only: str = written[0]["text"]
            return only
    return written


def _text_part(part: Text | Refusal, losses: Losses) -> Native:
    made = None
    if part.home == CHAT and part.native is not None:
        made = fit(part.native, PARTS["text"], "a text", part.at, losses)
    return made or {"type": "text", "text": part.text}


def _media_part(part: Media, losses: Losses) -> Native | None:
    if part.home == CHAT and part.native is not None:
        return fit(part.native, PARTS[part.native["type"]], "a part", part.at, losses)
    if part.kind == "image" and (part.url or part.data):
        url = {"url": part.url or media.data_url(part)}
        return {"type": "image_url", "image_url": url | media.detail(part)}
    if part.kind == "audio" and part.data and part.mime in _SOUNDS:
        sound = {"data": part.data, "format": _SOUNDS[part.mime]}
        return {"type": "input_audio", "input_audio": sound}
    if part.kind == "file" and part.data:
        file = {"file_data": media.data_url(part), "filename": part.name or "file"}
        return {"type": "file", "file": file}
    if part.kind == "file" and part.file_id and media.same_maker(part.home, CHAT):
        return {"type": "file", "file": {"file_id": part.file_id}}
    return None


def _assistant(parts: list[Part], losses: Losses) -> Native | None:
    message: Native = {"role": "assistant", "content": None}
    for part in parts:
        if type(part) is Opaque and part.home == CHAT:
            message["audio"] = part.native
        elif type(part) not in (Text, Refusal, ToolCall):
            losses.append(inexpressible(part, CHAT, "from the assistant"))
    said_in_sound = "audio" in message
    texts = [
        part for part in parts if type(part) is Text and not (said_in_sound and part.home == SPOKEN)
    ]
    if texts:
        message["content"] = _shortest([_text_part(part, losses) for part in texts], texts)
    if refusals := [part.text for part in parts if type(part) is Refusal]:
        message["refusal"] = "\n".join(refusals)
    calls = [part for part in parts if type(part) is ToolCall]
    if len(calls) == 1 and calls[0].kind == "deprecated":
        message["function_call"] = {"name": calls[0].name, "arguments": input_text(calls[0])}
    elif calls:
        message["tool_calls"] = [_write_call(call) for call in calls]
    said = texts or len(message) > 2  # noqa: PLR2004 - more than a role and no content
    return message if said else None


def _write_call(call: ToolCall) -> Native:
    kind = "custom" if call.kind == "custom" else "function"
    name_of_input = "input" if kind == "custom" else "arguments"
    asked = {"name": call.name, name_of_input: input_text(call)}
    return {"id": call.out_id, "type": kind, kind: asked}


def _answers(parts: list[Part], losses: Losses, *, deprecated: bool) -> Iterator[Native]:
    for part in parts:
        if type(part) is not ToolCall or part.result is None:
            continue
        tell_error(part.result, CHAT, losses)
        if deprecated:
            words = result_text(part.result, CHAT, losses)
            yield {"role": "function", "name": part.name, "content": words}
        else:
            content = _result_content(part.result, losses)
            yield {"role": "tool", "tool_call_id": part.out_id, "content": content}


def _result_content(result: Result, losses: Losses) -> str | list[Native]:
    if any(type(part) is Text and part.home == CHAT for part in result.parts):
        listed = []
        for part in result.parts:
            if type(part) is Text:
                listed.append(_text_part(part, losses))
            else:
                losses.append(inexpressible(part, CHAT, "in a result"))
        return listed
    return result_text(result, CHAT, losses)
