"""LangChain's messages as messages of a session, and back, without loss.

A stored message has the form of OpenAI's chat format, so that windows, other formats and other
frameworks can read it. What that form cannot express (ids, metadata, classes of chunks) is under
the key `langchain`. Messages of other classes are not converted here: `to_stored` returns None.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from langchain_core import messages as lc

EXTRA = "langchain"
Convert = Callable[[Any], Any]

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
_CLASSES: dict[str, Any] = {
    name: getattr(lc, name)
    for name in (
        "AIMessage",
        "AIMessageChunk",
        "ChatMessage",
        "ChatMessageChunk",
        "FunctionMessage",
        "FunctionMessageChunk",
        "HumanMessage",
        "HumanMessageChunk",
        "RemoveMessage",
        "SystemMessage",
        "SystemMessageChunk",
        "ToolMessage",
        "ToolMessageChunk",
    )
}
_USUAL = {
    "user": lc.HumanMessage,
    "assistant": lc.AIMessage,
    "system": lc.SystemMessage,
    "tool": lc.ToolMessage,
}
_USUAL_ROLES: dict[type, str] = {cls: role for role, cls in _USUAL.items()}
# The fields of each class with their defaults; a field without a default has `...`.
_DEFAULTS: dict[type, dict[str, Any]] = {
    cls: {
        name: field.get_default(call_default_factory=True) if not field.is_required() else ...
        for name, field in cls.model_fields.items()
    }
    for cls in _CLASSES.values()
}
_SETS = {cls: {*defaults} for cls, defaults in _DEFAULTS.items()}  # Shared: all fields are set.
_CONTAINERS = {
    cls: [name for name, default in defaults.items() if type(default) in (dict, list)]
    for cls, defaults in _DEFAULTS.items()
}
_IN_FORM = frozenset({"content", "name", "tool_call_id", "tool_calls"})
_PLAIN = frozenset({str, int, bool, float, type(None)})


_STORABLE = frozenset(_CLASSES.values()) - {lc.RemoveMessage}


def are_storable(values: Iterable[Any]) -> bool:
    """Whether values can be messages of a session. RemoveMessage is none: it is an instruction."""
    return {*map(type, values)} <= _STORABLE


def to_stored(message: Any, encode: Convert) -> dict[str, Any] | None:
    """Return a message as it is stored, or None if its class is not one of LangChain's own."""
    cls = type(message)
    if cls not in _DEFAULTS:
        return None
    fields, content = message.__dict__, message.__dict__["content"]
    role = _USUAL_ROLES.get(cls) or _ROLES.get(fields["type"].lower().removesuffix("messagechunk"))
    stored: dict[str, Any] = {
        "role": role or str(fields.get("role") or fields["type"]),
        "content": content if type(content) is str else encode(content),
    }
    if fields["name"] is not None:
        stored["name"] = fields["name"]
    if "tool_call_id" in fields:
        stored["tool_call_id"] = fields["tool_call_id"]
    calls = fields.get("tool_calls")
    in_form = None if _calls_in_content(content) or not calls else _stored_calls(calls)
    if in_form is not None:
        stored["tool_calls"] = in_form
    extra = _extra_fields(message, encode)
    if calls and in_form is None:
        extra["tool_calls"] = encode(calls)
    if extra:
        stored[EXTRA] = extra
    return stored


def _extra_fields(message: Any, encode: Convert) -> dict[str, Any]:
    """Return what the chat format has no field for, unless it is as in a new message."""
    cls, fields = type(message), message.__dict__
    extra: dict[str, Any] = {} if cls in _USUAL_ROLES else {"class": cls.__name__}
    for name, default in _DEFAULTS[cls].items():
        if name not in _IN_FORM and (value := fields[name]) != default:
            extra[name] = value if type(value) in _PLAIN else encode(value)
    if message.__pydantic_extra__:
        extra["extra"] = encode(message.__pydantic_extra__)
    return extra


def without_id(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored message as it was before it had an id."""
    extra = {name: value for name, value in stored.get(EXTRA, {}).items() if name != "id"}
    bare = {name: value for name, value in stored.items() if name != EXTRA}
    return bare | ({EXTRA: extra} if extra else {})


def _calls_in_content(content: Any) -> bool:
    return type(content) is list and any(
        type(block) is dict and block.get("type") in ("tool_use", "tool_call", "function_call")
        for block in content
    )


def _stored_calls(calls: Any) -> list[dict[str, Any]] | None:
    """Return tool calls in the chat format, or None if that would lose something."""
    stored = []
    for call in calls:
        if {*call} - {"name", "args", "id", "type"} or type(call.get("id")) is not str:
            return None
        try:
            arguments = json.dumps(call["args"], ensure_ascii=False)
            if json.loads(arguments) != call["args"] or call.get("type") != "tool_call":
                return None
        except (TypeError, ValueError):
            return None
        function = {"name": call["name"], "arguments": arguments}
        stored.append({"id": call["id"], "type": "function", "function": function})
    return stored


def to_message(stored: dict[str, Any], decode: Convert) -> Any:
    """Return a new message with the class and the fields that were stored."""
    return build(*to_fields(stored, decode))


def to_fields(
    stored: dict[str, Any], decode: Convert
) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    """Return the class, the fields and the additional fields of a stored message."""
    extra = stored.get(EXTRA) or {}
    cls = _CLASSES[extra["class"]] if "class" in extra else _USUAL[stored["role"]]
    content = stored["content"]
    fields = _DEFAULTS[cls].copy()
    for name in _CONTAINERS[cls]:
        fields[name] = fields[name].copy()
    fields["content"] = content if type(content) is str else decode(content)
    if "name" in stored:
        fields["name"] = stored["name"]
    if "tool_call_id" in fields:
        fields["tool_call_id"] = stored.get("tool_call_id")
    if "role" in fields:
        fields["role"] = stored["role"]
    if "tool_calls" in stored:
        fields["tool_calls"] = [
            {
                "name": call["function"]["name"],
                "args": json.loads(call["function"]["arguments"]),
                "id": call["id"],
                "type": "tool_call",
            }
            for call in stored["tool_calls"]
        ]
    more: dict[str, Any] | None = None if cls.model_config.get("extra") != "allow" else {}
    for name, value in extra.items():
        if name == "extra":
            more = decode(value)
        elif name != "class":
            fields[name] = value if type(value) in _PLAIN else decode(value)
    return cls, fields, more


_set = object.__setattr__


def build(cls: type, fields: dict[str, Any], extra: dict[str, Any] | None) -> Any:
    """Return a message with these fields, which were valid when they were stored."""
    message: Any = object.__new__(cls)
    _set(message, "__dict__", fields)
    _set(message, "__pydantic_fields_set__", _SETS[cls])
    _set(message, "__pydantic_extra__", extra)
    _set(message, "__pydantic_private__", None)
    return message
