"""Extract the messages to store from SDK objects and dicts.

SDK objects come in; messages with their meta go out. Pure; objects are recognized by their shape,
never by their class, so that no SDK is imported.

A message is kept whole, including fields that no request may carry: which fields can be sent again
is decided when a transcript is rendered. Data around the message (ids, model, usage, finish reason)
is its meta. A completion with several choices is one message, the first choice; the others are kept
in `meta["choices"]`, since a transcript can continue from one answer only.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.plain import exported, plain_parts

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "model"})

ACCEPTED = (
    'a message such as {"role": "user", "content": "…"}, a chat completion, its choice or message, '
    "a response or one of its items, an Anthropic message, or an object that exports one of these"
)

# Fields in which a tool's message names the call it answers: OpenAI and most others, AutoGen,
# Gemini.
_CALL_NAMES = ("tool_call_id", "tool_responses", "parts")
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


class Taken(NamedTuple):
    """A message to store, and its meta: the data that came with it."""

    message: dict[str, Any]
    meta: dict[str, Any]


def take(source: object) -> list[Taken]:
    """Return the messages in an SDK object or a dict, in order; UsageError if there are none.

    A dict with a role is the message itself, not a copy. Roles are not checked: see `require_role`.
    """
    if type(source) is dict and "role" in source and "stop_reason" not in source:
        if type(source.get("content")) is str and "tool_calls" not in source:
            # Every append passes here, and calling the class takes twice as long.
            return [tuple.__new__(Taken, (source, {}))]
        return [Taken(_with_plain_parts(source), {})]
    if type(source) is not dict and isinstance(source, Mapping) and "role" in source:
        return take(dict(source))  # Its contents are checked like those of a dict.
    try:
        messages = _take_data(_exported(source))
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_name(source)} holds no message where one is expected") from error
    if messages is None:
        if type(source) is dict:
            return [Taken(source, {})]
        raise UsageError(f"{_name(source)} is not a message: pass {ACCEPTED}")
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
    elif role == "tool" and not any(message.get(name) for name in _CALL_NAMES):
        reason = "a tool's result must name the call it answers"
        raise UsageError(f'{reason}: add "tool_call_id" with the id of the call', "$.tool_call_id")


def take_completion(data: Mapping[str, Any]) -> list[Taken]:
    """Extract the message of a chat completion, whole or assembled from a stream."""
    meta = dict(data)
    choices = meta.pop("choices", None)
    if not choices:
        return [Taken({"role": "assistant", "content": ""}, meta)]
    first, *others = choices
    extracted = _take_wrapped(first)
    for name, value in extracted.meta.items():
        if name in meta:  # Some providers report usage or errors in both places.
            meta.setdefault("choice", {})[name] = value
        else:
            meta[name] = value
    if others:
        meta["choices"] = others
    return [Taken(extracted.message, meta)]


def take_response(data: Mapping[str, Any]) -> list[Taken]:
    """Extract the messages of a response: one per output item; the last has the meta."""
    meta = dict(data)
    items = meta.pop("output", None)
    if not items:
        items = [{"type": "message", "role": "assistant", "content": []}]
    *earlier, last = items
    return [*(Taken(item, {}) for item in earlier), Taken(last, meta)]


def _take_data(data: dict[str, Any]) -> list[Taken] | None:
    """Return the messages in data of a known shape; None if the shape is unknown."""
    kind, object_type = data.get("type"), data.get("object")
    if object_type == "chat.completion.chunk" or _is_delta(data) or _is_event(kind):
        raise UsageError(_PIECE)
    if "role" in data or kind is not None:
        if kind == "message" and "stop_reason" in data:
            return [_take_anthropic(data)]
        return [Taken(data, {})]
    if object_type == "response":
        return take_response(data)
    if object_type == "chat.completion" or isinstance(data.get("choices"), list):
        if any(_is_delta(choice) for choice in data.get("choices") or ()):
            raise UsageError(_PIECE)
        return take_completion(data)
    return [_take_wrapped(data)] if isinstance(data.get("message"), dict) else None


def _take_wrapped(data: Mapping[str, Any]) -> Taken:
    """Extract a message nested in an object such as a choice."""
    meta = dict(data)
    message = meta.pop("message", None) or {"content": ""}
    if not message.get("role"):
        message = {**message, "role": "assistant"}
    return Taken(message, meta)


def _take_anthropic(data: Mapping[str, Any]) -> Taken:
    meta = dict(data)
    message = {"role": meta.pop("role", "assistant"), "content": meta.pop("content", [])}
    return Taken(message, meta)


def _with_plain_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Export SDK objects inside a message, as in `"content": reply.content`."""
    for name in ("content", "tool_calls"):
        parts = message.get(name)
        plain = plain_parts(parts)
        if plain is not parts:
            message = {**message, name: plain}
    return message


def _exported(source: object) -> dict[str, Any]:
    if isinstance(source, type):
        raise UsageError(f"the class {source.__qualname__} is not a message: pass an instance")
    data = exported(source)
    if data is not None:
        return data
    if isinstance(source, str):
        raise UsageError('a str has no role: pass {"role": "user", "content": …}')
    if isinstance(source, list | tuple):
        raise UsageError("pass messages one by one, not as a list")
    if hasattr(source, "__next__") or hasattr(source, "__aiter__"):
        raise UsageError(f"{_name(source)} is a stream: pass it to {_STREAM}")
    raise UsageError(f"{_name(source)} is not a message: pass {ACCEPTED}")


_STREAM = "turn.stream(...), or append the whole answer when it has ended"
_PIECE = f"a chunk of a stream is not a message: pass the stream to {_STREAM}"


def _name(source: object) -> str:
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
        raise UsageError(f"{reason}: store other data with session.note(...)", "$.role")
    if kind in _OUTPUTS and not message.get("call_id"):
        reason = "a tool's result must name the call it answers"
        raise UsageError(f'{reason}: add "call_id" with the id of the call', "$.call_id")
