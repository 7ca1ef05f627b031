"""Read the fields of stored messages, and write fields that a provider accepts. Pure.

Objects are trimmed to accepted fields, and dropped fields are reported. Call arguments are
converted between JSON text and objects, results to text, and names and ids to legal ones.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.formats.parts import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    Loss,
    Losses,
    Media,
    Native,
    NormalizedMessage,
    Opaque,
    Part,
    Text,
    ToolCall,
    ToolResult,
    unsupported_part,
)
from perdure.formats.tool_calls import INTERRUPTED_NOTICE

# Fields of answers that requests do not accept, dropped silently: hints, metrics, parsed copies.
# `langchain` has the ids and metadata of LangChain's messages (adapters/langgraph).
IGNORED_FIELDS = frozenset(
    {"annotations", "cache_control", "created_by", "langchain", "logprobs", "parsed"}
    | {"parsed_arguments", "parsed_output", "prompt_cache_breakpoint", "provider_data"}
)

WRAPPER_KEY = "input"  # The key that wraps a text where a format requires an object.

OPENAI_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_encode = msgspec.json.Encoder(enc_hook=str).encode

_decode = msgspec.json.Decoder().decode


class Fields(NamedTuple):
    """The fields that a provider requires, allows, and allows to be null."""

    required: frozenset[str]
    allowed: frozenset[str]
    nullable: frozenset[str]


def fields(required: str, optional: str = "") -> Fields:
    """Return fields from space-separated names; a required one with `?` may be null."""
    names = [name.rstrip("?") for name in required.split()]
    nullable = [name.rstrip("?") for name in required.split() if name.endswith("?")]
    allowed = frozenset([*names, *optional.split()])
    return Fields(frozenset(names), allowed, frozenset(nullable))


def trim(native: Native, spec: Fields, what: str, at: int, losses: Losses) -> Native | None:
    """Return an object with the allowed fields only, or None if a required one is missing.

    Nulls are dropped, unless the field is nullable. Dropped fields are reported as losses, except
    those in `IGNORED_FIELDS`.
    """
    trimmed = {
        name: value
        for name, value in native.items()
        if name in spec.allowed and (value is not None or name in spec.nullable)
    }
    if not trimmed.keys() >= spec.required:
        missing = ", ".join(sorted(spec.required - trimmed.keys()))
        losses.append(Loss(at, f"{what} was left out: it lacks {missing}"))
        return None
    if len(trimmed) < len(native):
        report_unknown(native, spec.allowed, what, at, losses)
    return trimmed


def _unknown_names(native: Native, known: frozenset[str]) -> list[str]:
    return [
        name
        for name, value in native.items()
        if name not in known and name not in IGNORED_FIELDS and value not in (None, [], {}, "")
    ]


def report_unknown(
    native: Native, allowed: frozenset[str], what: str, at: int, losses: Losses
) -> None:
    """Report the non-empty fields of an object that are not allowed as losses."""
    for name in _unknown_names(native, allowed):
        losses.append(Loss(at, f"the field {name!r} of {what} was left out"))


def unknown_fields(message: Native, read_fields: frozenset[str], at: int) -> list[Opaque]:
    """Return the unknown fields of a message as `Opaque` parts, which no provider gets."""
    names = _unknown_names(message, read_fields)
    return [Opaque(at, f"the field {name!r} of the message", {}, "") for name in names]


def normalized(
    message: Native, at: int, parts: list[Part], roles: Mapping[str, str], home: str
) -> NormalizedMessage:
    """Return a message with its parts; a role that `roles` lacks is unknown."""
    role = as_text(message.get("role"))
    name = as_text(message.get("name"))
    return NormalizedMessage(at, roles.get(role, ""), parts, home, role, name)


def read_all(content: Any, at: int, read_part: Callable[[Any, int], Part | None]) -> list[Part]:
    """Parse each part of a list, or a single part; parts parsed as None are omitted."""
    parts = content if type(content) is list else [content]
    return [parsed for part in parts if (parsed := read_part(part, at)) is not None]


def read_output(output: Any, at: int, read_part: Callable[[Any, int], Part | None]) -> list[Any]:
    """Parse the content of a result: parts, a text, or any other value as JSON."""
    if type(output) is list:
        return read_all(output, at, read_part)
    if output is None or output == "":
        return []
    return [Text(at, output if type(output) is str else json_text(output))]


def read_openai_file(at: int, file: Native) -> Media | None:
    """Return media from any of OpenAI's three file forms (URL, data, id); None if it has none."""
    name = as_text(file.get("filename"))
    if url := first_text(file, "file_url"):
        return Media(at, "file", url=url, name=name)
    if data := first_text(file, "file_data"):
        media = Media.from_url(at, "file", data, name)
        # Data without a data-URL prefix is plain base64.
        return media if media.data else Media(at, "file", data=data, name=name)
    id = first_text(file, "file_id")
    return Media(at, "file", file_id=id, name=name) if id else None


def read_arguments(arguments: Any, empty: str | Native = "") -> str | Native:
    """Return arguments as text or dict; any other value, already decoded, becomes JSON again."""
    if type(arguments) is str or type(arguments) is dict:
        return arguments
    return empty if arguments is None else json_text(arguments)


def only_text(written: list[Native]) -> str | None:
    """Return the text of a single block that has nothing else; None for any other blocks."""
    if len(written) == 1 and written[0].keys() == {"type", "text"}:
        text: str = written[0]["text"]
        return text
    return None


def as_text(value: Any) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if type(value) is str else ""


def dicts_in(value: Any) -> list[Native]:
    return [item for item in value if type(item) is dict] if type(value) is list else []


def first_text(value: Mapping[str, Any], *names: str) -> str:
    """Return the first non-empty text under one of the names; "" if there is none."""
    texts = (as_text(value.get(name)) for name in names)
    return next((text for text in texts if text), "")


def json_text(value: Any) -> str:
    return _encode(value).decode()


def input_text(call: ToolCall) -> str:
    """Return the input of a call as text, as OpenAI requires."""
    return call.input if isinstance(call.input, str) else json_text(call.input)


def input_object(call: ToolCall, format: str, losses: Losses) -> Native:
    """Return the input of a call as an object; wrap any other text and report that as a loss."""
    arguments = call.input
    if not isinstance(arguments, str):
        return arguments
    if not arguments:
        return {}
    decoded = None if call.kind == "custom" else _decode_object(arguments)
    if decoded is not None:
        return decoded
    what = f"the input of the call of {call.name!r} is not a JSON object"
    losses.append(Loss(call.at, f"{what}: {format} gets it as a text"))
    return {WRAPPER_KEY: arguments}


def _decode_object(arguments: str) -> Native | None:
    try:
        decoded = _decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # Models do not always write valid JSON.
    return decoded if type(decoded) is dict else None


def result_text(result: ToolResult, format: str, losses: Losses) -> str:
    """Flatten a result to text; report non-text parts as losses."""
    texts = []
    for part in result.parts:
        if type(part) is Text:
            texts.append(part.text)
        else:
            losses.append(unsupported_part(part, format, "in a result"))
    return "\n".join(texts)


def report_error_flag(result: ToolResult, format: str, losses: Losses) -> None:
    """Report as a loss that a format cannot flag a result as an error."""
    is_notice = [part.text for part in result.parts if type(part) is Text] == [INTERRUPTED_NOTICE]
    if result.error and not is_notice:
        what = f"the error flag of the result of {result.name or result.id!r} was left out"
        losses.append(Loss(result.at, f"{what}: {format} has none"))


# Names and ids that a provider accepts.

_NOT_WORD_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")

_NOT_GEMINI_CHARACTER = re.compile(r"[^a-zA-Z0-9_.:-]")

_NOT_SPEAKER_CHARACTER = re.compile(r"[\s<|\\/>]")

_SPEAKER_NAME_MAX = 64


class _Limits(NamedTuple):
    name_max: int
    not_in_names: re.Pattern[str]
    id_max: int
    not_in_ids: re.Pattern[str] | None


_LIMITS = {
    CHAT: _Limits(64, _NOT_WORD_CHARACTER, 40, None),
    RESPONSES: _Limits(128, _NOT_WORD_CHARACTER, 64, None),
    ANTHROPIC: _Limits(200, _NOT_WORD_CHARACTER, 64, _NOT_WORD_CHARACTER),
    GEMINI: _Limits(128, _NOT_GEMINI_CHARACTER, 128, None),
}


def legal_tool_name(name: str, format: str) -> str:
    """Return a tool's name, changed as little as the format requires."""
    limits = _LIMITS[format]
    if format == GEMINI and re.match(r"[^a-zA-Z_]", name):
        name = f"_{name}"
    return limits.not_in_names.sub("_", name)[: limits.name_max] or "tool"


def legal_speaker_name(name: str) -> str:
    """Return a speaker's name, changed as little as chat completions require."""
    return _NOT_SPEAKER_CHARACTER.sub("_", name)[:_SPEAKER_NAME_MAX]


class CallIds:
    """Assigns unique ids to calls; a legal id that is still free is kept."""

    def __init__(self, format: str) -> None:
        self._limits = _LIMITS[format]
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, preferred: str) -> str:
        limits = self._limits
        if limits.not_in_ids is not None:
            preferred = limits.not_in_ids.sub("_", preferred)
        id = preferred = preferred[: limits.id_max]
        while id in self._taken:
            number = self._next.get(preferred, 2)
            self._next[preferred] = number + 1
            suffix = f"_{number}"
            id = preferred[: limits.id_max - len(suffix)] + suffix
        self._taken.add(id)
        return id
