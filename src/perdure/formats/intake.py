"""Extract the messages to store from SDK objects and dicts.

SDK objects come in; messages with their meta go out. Pure; objects are recognized by their shape,
never by their class, so that no SDK is imported.

A message is kept whole, including fields that no request may carry: which fields can be sent again
is decided when a transcript is rendered. Data around the message (ids, model, usage, finish reason)
is its meta. A completion with several choices is one message, the first choice; the others are kept
in `meta["choices"]`, since a transcript can continue from one answer only.
"""

from collections.abc import Mapping
from copy import deepcopy
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure.errors import UsageError

# levels; deeper trees are left as they are, and `codec` rejects them with their path
_DEPTH_MAX = 100


_ATOMS = frozenset({str, int, float, bool, type(None)})

_STORABLE = frozenset({bytes, date, Decimal})


def is_sdk_object(value: object) -> bool:
    """Whether a value is a model of the OpenAI or Anthropic SDK, or of a similar one."""
    kind = type(value)
    return hasattr(kind, "to_dict") and hasattr(kind, "model_dump")


def field_of(value: object, name: str) -> Any:
    """Return a field of a dict or an attribute of an object; None if missing."""
    return value.get(name) if type(value) is dict else getattr(value, name, None)


def export(value: object, *, mode: str = "python") -> Any:
    """Return the result of an object's own export method; None if it has none.

    An SDK object exports to plain data, except for values parsed into the user's own classes.
    """
    kind = type(value)
    try:
        if is_sdk_object(value):
            if hasattr(kind, "__pydantic_validator__"):
                # SDKs build objects without validation, and parsed ones differ from their
                # annotations: pydantic would warn about both.
                return value.to_dict(mode=mode, warnings=False)  # type: ignore[attr-defined]
            return value.to_dict()  # type: ignore[attr-defined]
        if hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump"):
            return value.model_dump(mode=mode, by_alias=True, warnings=False)  # type: ignore[attr-defined]
        if hasattr(kind, "__fields__") and hasattr(kind, "parse_obj"):
            return value.dict(by_alias=True)  # type: ignore[attr-defined]
        if isinstance(value, msgspec.Struct):
            return msgspec.to_builtins(value, builtin_types=(bytes, datetime, date, Decimal))
    except (ValueError, TypeError, RecursionError) as error:
        name = kind.__qualname__
        reason = f"a {name} cannot be exported"
        raise UsageError(f"{reason}: convert it to a dict of plain JSON data first") from error
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    return dict(value) if isinstance(value, Mapping) else None


def to_plain(value: object) -> dict[str, Any] | None:
    """Return an object as plain data; None if it cannot be exported.

    Tuples and sets become lists, enums their values. Bytes, dates and decimals are kept: `codec`
    packs them. If a pydantic model contains any other value, its JSON form is used.
    """
    data = export(value)
    if not isinstance(data, dict):
        return None
    foreign: list[object] = []
    plain: dict[str, Any] = _plain_value(data, foreign, 0)
    if foreign and hasattr(type(value), "__pydantic_validator__"):
        plain = _plain_value(export(value, mode="json"), foreign, 0)
    return plain


def copy_data(value: Any, *, objects: bool, depth: int = 0) -> Any:
    """Return a copy of a request, which changes of the original do not reach.

    Dicts, lists and tuples are copied; with `objects`, other objects are too, if they can be.
    Without it, objects may be live ones, such as a client or a context.
    """
    kind = type(value)
    if kind in _ATOMS or depth > _DEPTH_MAX:
        return value
    copy_item = partial(copy_data, objects=objects, depth=depth + 1)
    if kind is dict:
        # `dict.copy` is one step for other threads; an iteration fails if one adds a key meanwhile.
        return {key: copy_item(item) for key, item in value.copy().items()}
    if kind is list or kind is tuple:
        return kind(map(copy_item, value))
    if not objects:
        return value
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - its copy method is the application's code
        return value


def export_parts(parts: Any) -> Any:
    """Return a list with its SDK objects exported; the same list if it has none."""
    if type(parts) is not list:
        return parts
    if any(type(part) is not dict and is_sdk_object(part) for part in parts):
        return [to_plain(part) if is_sdk_object(part) else part for part in parts]
    return parts


def _plain_value(value: Any, foreign: list[object], depth: int) -> Any:
    """Return a value as plain data; values without a plain form stay and go into `foreign`."""
    kind = type(value)
    if kind in _ATOMS or depth > _DEPTH_MAX:
        return value
    if kind is dict:
        return {key: _plain_value(item, foreign, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item, foreign, depth + 1) for item in value]
    if isinstance(value, Enum):
        return _plain_value(value.value, foreign, depth + 1)
    if isinstance(value, set | frozenset):
        return [_plain_value(item, foreign, depth + 1) for item in sorted(value, key=repr)]
    if isinstance(value, str):
        return str(value)
    if _is_storable(value, kind):
        return value
    data = export(value)
    if data is None:
        foreign.append(value)
        return value
    return _plain_value(data, foreign, depth + 1)


def _is_storable(value: Any, kind: type) -> bool:
    if kind is datetime:
        zone = type(value.tzinfo)
        return zone is timezone or zone.__name__ == "ZoneInfo"
    return kind in _STORABLE or kind.__name__ == "UUID"


ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "model"})


ACCEPTED = (
    'a message such as {"role": "user", "content": "…"}, a chat completion, its choice or message, '
    "a response or one of its items, an Anthropic message, or an object that exports one of these"
)


# Fields in which a tool's message names the call it answers: OpenAI and most others, AutoGen,
# Gemini.
_CALL_ID_FIELDS = ("tool_call_id", "tool_responses", "parts")

_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})


class IncomingMessage(NamedTuple):
    """A message to store, and its meta: the data that came with it."""

    message: dict[str, Any]
    meta: dict[str, Any]


def extract_messages(source: object) -> list[IncomingMessage]:
    """Return the messages in an SDK object or a dict, in order; UsageError if there are none.

    A dict with a role is the message itself, not a copy. Roles are not checked: see `require_role`.
    """
    if type(source) is dict and "role" in source and "stop_reason" not in source:
        if type(source.get("content")) is str and "tool_calls" not in source:
            # Every append passes here, and calling the class takes twice as long.
            return [tuple.__new__(IncomingMessage, (source, {}))]
        return [IncomingMessage(_export_nested(source), {})]
    if type(source) is IncomingMessage:  # Recorded before, and appended again in a replay.
        return [source]
    if type(source) is not dict and isinstance(source, Mapping) and "role" in source:
        return extract_messages(dict(source))  # Its contents are checked like those of a dict.
    try:
        messages = _extract_data(_to_data(source))
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_type_name(source)} holds no message where one is expected") from error
    if messages is None:
        if type(source) is dict:
            return [IncomingMessage(source, {})]
        raise UsageError(f"{_type_name(source)} is not a message: pass {ACCEPTED}")
    request_id = getattr(source, "_request_id", None)
    if request_id is not None:
        messages[-1].meta.setdefault("request_id", request_id)
    return messages


def require_role(message: Mapping[str, Any]) -> None:
    """Raise UsageError unless a message has a known role, or is an item with a type.

    A tool's message must name the call it answers.
    """
    role = message.get("role")
    if role is None:
        _require_type(message)
    elif not isinstance(role, str) or role not in ROLES:
        reason = f"this is not a role; the roles are {', '.join(sorted(ROLES))}"
        raise UsageError(f"{reason}: store other data with session.note(...)", "$.role")
    elif role == "tool" and not any(message.get(name) for name in _CALL_ID_FIELDS):
        reason = "a tool's result must name the call it answers"
        raise UsageError(f'{reason}: add "tool_call_id" with the id of the call', "$.tool_call_id")


def extract_completion(data: Mapping[str, Any]) -> list[IncomingMessage]:
    """Extract the message of a chat completion, whole or assembled from a stream."""
    meta = dict(data)
    choices = meta.pop("choices", None)
    if not choices:
        return [IncomingMessage({"role": "assistant", "content": ""}, meta)]
    first, *others = choices
    extracted = _extract_wrapped(first)
    for name, value in extracted.meta.items():
        if name in meta:  # Some providers report usage or errors in both places.
            meta.setdefault("choice", {})[name] = value
        else:
            meta[name] = value
    if others:
        meta["choices"] = others
    return [IncomingMessage(extracted.message, meta)]


def extract_response(data: Mapping[str, Any]) -> list[IncomingMessage]:
    """Extract the messages of a response: one per output item; the last has the meta."""
    meta = dict(data)
    items = meta.pop("output", None)
    if not items:
        items = [{"type": "message", "role": "assistant", "content": []}]
    *earlier, last = items
    return [*(IncomingMessage(item, {}) for item in earlier), IncomingMessage(last, meta)]


def _extract_data(data: dict[str, Any]) -> list[IncomingMessage] | None:
    """Return the messages in data of a known shape; None if the shape is unknown."""
    kind, object_type = data.get("type"), data.get("object")
    if object_type == "chat.completion.chunk" or _is_delta(data) or _is_event(kind):
        raise UsageError(_CHUNK_ERROR)
    if "role" in data or kind is not None:
        if kind == "message" and "stop_reason" in data:
            return [_extract_anthropic(data)]
        return [IncomingMessage(data, {})]
    if object_type == "response":
        return extract_response(data)
    if object_type == "chat.completion" or isinstance(data.get("choices"), list):
        if any(_is_delta(choice) for choice in data.get("choices") or ()):
            raise UsageError(_CHUNK_ERROR)
        return extract_completion(data)
    return [_extract_wrapped(data)] if isinstance(data.get("message"), dict) else None


def _extract_wrapped(data: Mapping[str, Any]) -> IncomingMessage:
    """Extract a message nested in an object such as a choice."""
    meta = dict(data)
    message = meta.pop("message", None) or {"content": ""}
    if not message.get("role"):
        message = {**message, "role": "assistant"}
    return IncomingMessage(message, meta)


def _extract_anthropic(data: Mapping[str, Any]) -> IncomingMessage:
    meta = dict(data)
    message = {"role": meta.pop("role", "assistant"), "content": meta.pop("content", [])}
    return IncomingMessage(message, meta)


def _export_nested(message: dict[str, Any]) -> dict[str, Any]:
    """Export SDK objects inside a message, as in `"content": reply.content`."""
    for name in ("content", "tool_calls"):
        parts = message.get(name)
        plain = export_parts(parts)
        if plain is not parts:
            message = {**message, name: plain}
    return message


def _to_data(source: object) -> dict[str, Any]:
    if isinstance(source, type):
        raise UsageError(f"the class {source.__qualname__} is not a message: pass an instance")
    data = to_plain(source)
    if data is not None:
        return data
    if isinstance(source, str):
        raise UsageError('a str has no role: pass {"role": "user", "content": …}')
    if isinstance(source, list | tuple):
        raise UsageError("pass messages one by one, not as a list")
    if hasattr(source, "__next__") or hasattr(source, "__aiter__"):
        raise UsageError(f"{_type_name(source)} is a stream: pass it to {_STREAM_HINT}")
    raise UsageError(f"{_type_name(source)} is not a message: pass {ACCEPTED}")


_STREAM_HINT = "turn.stream(...), or append the whole answer when it has ended"

_CHUNK_ERROR = f"a chunk of a stream is not a message: pass the stream to {_STREAM_HINT}"


def _type_name(source: object) -> str:
    return with_article(type(source).__qualname__)


def with_article(name: str) -> str:
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def _is_delta(data: object) -> bool:
    return isinstance(data, dict) and "delta" in data and not {"role", "message"} & data.keys()


def _is_event(kind: object) -> bool:
    return isinstance(kind, str) and (kind.startswith("response.") or kind == "error")


def _require_type(message: Mapping[str, Any]) -> None:
    kind = message.get("type")
    if not isinstance(kind, str) or not kind:
        reason = 'a message needs a "role", and an item of a response a "type"'
        hint = "append other items with opaque=True, or store them with session.note(...)"
        raise UsageError(f"{reason}: {hint}", "$.role")
    if kind in _OUTPUT_TYPES and not message.get("call_id"):
        reason = "a tool's result must name the call it answers"
        raise UsageError(f'{reason}: add "call_id" with the id of the call', "$.call_id")
