"""What SDKs give → the messages to store. Pure; an object is known by its shape, not its class.

A message is kept whole, with fields that no request may carry: what can be sent again is decided
when messages are given out. What came around the message (ids, model, usage, why it ended) is its
meta. A completion with several choices is one message, the first choice; the others are kept in
`meta["choices"]`, since a transcript can go on from one answer only.
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

# How a tool's message says which call it answers: OpenAI and most others, AutoGen, Gemini.
_CALL_NAMES = ("tool_call_id", "tool_responses", "parts")
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


class Taken(NamedTuple):
    """A message to store, and everything else that came with it."""

    message: dict[str, Any]
    meta: dict[str, Any]


def take(given: object) -> list[Taken]:
    """Return the messages in what an SDK or a caller gives, in order; UsageError if there are none.

    A dict with a role is the message itself, not a copy. Roles are not judged: see `require_role`.
    """
    if type(given) is dict and "role" in given and "stop_reason" not in given:
        if type(given.get("content")) is str and "tool_calls" not in given:
            # Every append comes by here, and calling the class takes twice as long.
            return [tuple.__new__(Taken, (given, {}))]
        return [Taken(_with_plain_parts(given), {})]
    if type(given) is not dict and isinstance(given, Mapping) and "role" in given:
        return take(dict(given))  # What is in it is judged as what is in a dict.
    try:
        taken = _take_data(_exported(given))
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_name(given)} holds no message where one is expected") from error
    if taken is None:
        if type(given) is dict:
            return [Taken(given, {})]
        raise UsageError(f"{_name(given)} is not a message: give {ACCEPTED}")
    request_id = getattr(given, "_request_id", None)
    if request_id is not None:
        taken[-1].meta.setdefault("request_id", request_id)
    return taken


def require_role(message: Mapping[str, Any]) -> None:
    """Raise UsageError unless a message has a known role, or is an item with a type.

    A tool's message must say which call it answers.
    """
    role = message.get("role")
    if role is None:
        _require_type(message)
    elif not isinstance(role, str) or role not in ROLES:
        reason = f"this is not a role, known are {', '.join(sorted(ROLES))}"
        raise UsageError(f"{reason}: what nobody said can be kept with session.note(...)", "$.role")
    elif role == "tool" and not any(message.get(name) for name in _CALL_NAMES):
        reason = "a tool's result must say which call it answers"
        raise UsageError(f'{reason}: add "tool_call_id", as in the call', "$.tool_call_id")


def take_completion(data: Mapping[str, Any]) -> list[Taken]:
    """Take a chat completion as data, whole or put together from a stream."""
    meta = dict(data)
    choices = meta.pop("choices", None)
    if not choices:
        return [Taken({"role": "assistant", "content": ""}, meta)]
    first, *others = choices
    taken = _take_wrapped(first)
    for name, value in taken.meta.items():
        if name in meta:  # Some providers report usage or errors in both places.
            meta.setdefault("choice", {})[name] = value
        else:
            meta[name] = value
    if others:
        meta["choices"] = others
    return [Taken(taken.message, meta)]


def take_response(data: Mapping[str, Any]) -> list[Taken]:
    """Take a response as data: each output item is a message, the last one has the meta."""
    meta = dict(data)
    items = meta.pop("output", None)
    if not items:
        items = [{"type": "message", "role": "assistant", "content": []}]
    *before, last = items
    return [*(Taken(item, {}) for item in before), Taken(last, meta)]


def _take_data(data: dict[str, Any]) -> list[Taken] | None:
    """Return what data of a known shape holds; None if it is of none."""
    kind, what = data.get("type"), data.get("object")
    if what == "chat.completion.chunk" or _is_delta(data) or _is_event(kind):
        raise UsageError(_PIECE)
    if "role" in data or kind is not None:
        if kind == "message" and "stop_reason" in data:
            return [_take_anthropic(data)]
        return [Taken(data, {})]
    if what == "response":
        return take_response(data)
    if what == "chat.completion" or isinstance(data.get("choices"), list):
        if any(_is_delta(choice) for choice in data.get("choices") or ()):
            raise UsageError(_PIECE)
        return take_completion(data)
    return [_take_wrapped(data)] if isinstance(data.get("message"), dict) else None


def _take_wrapped(data: Mapping[str, Any]) -> Taken:
    """Take a message that stands inside something else, such as a choice."""
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
    """Return a message with the SDK's objects in it exported, as in `"content": reply.content`."""
    for name in ("content", "tool_calls"):
        parts = message.get(name)
        found = plain_parts(parts)
        if found is not parts:
            message = {**message, name: found}
    return message


def _exported(given: object) -> dict[str, Any]:
    if isinstance(given, type):
        raise UsageError(f"the class {given.__qualname__} is not a message: give an instance")
    data = exported(given)
    if data is not None:
        return data
    if isinstance(given, str):
        raise UsageError('a str has no role: give {"role": "user", "content": …}')
    if isinstance(given, list | tuple):
        raise UsageError("give messages one by one, not as a list")
    if hasattr(given, "__next__") or hasattr(given, "__aiter__"):
        raise UsageError(f"{_name(given)} is a stream: hand it to {_STREAM}")
    raise UsageError(f"{_name(given)} is not a message: give {ACCEPTED}")


_STREAM = "turn.stream(...), or give the whole answer at its end"
_PIECE = f"a piece of a stream is not a message: hand the stream to {_STREAM}"


def _name(given: object) -> str:
    return with_article(type(given).__qualname__)


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
        raise UsageError(f"{reason}: what nobody said can be kept with session.note(...)", "$.role")
    if kind in _OUTPUTS and not message.get("call_id"):
        reason = "a tool's result must say which call it answers"
        raise UsageError(f'{reason}: add "call_id", as in the call', "$.call_id")
