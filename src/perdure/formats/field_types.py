"""Refuse a message whose fields have a type that no provider accepts. Pure.

A message comes in; nothing goes out, or a UsageError with the path of the field. Content of a wrong
type would be stored, and then be left out of every transcript: the caller should know at once. Only
types are checked: parts of an unknown type are stored, as providers add new ones, and whether a
provider accepts a message is decided when a transcript is rendered.

Only the type of a value goes into an error, never the value.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from perdure.errors import UsageError
from perdure.formats.bodies import Body
from perdure.formats.intake import require_role, with_article

_NULL = type(None)


class Expected(NamedTuple):
    """The types of a field, and their names for people."""

    types: tuple[type, ...]
    name: str


TEXT = Expected((str,), "a text")
OPTIONAL_TEXT = Expected((str, _NULL), "a text")
OBJECT = Expected((dict,), "an object")
OPTIONAL_OBJECT = Expected((dict, _NULL), "an object")
ARGUMENTS = Expected((str, dict, _NULL), "a JSON text or an object")
LIST = Expected((list,), "a list")
OPTIONAL_LIST = Expected((list, _NULL), "a list")
BLOB = Expected((str, bytes, _NULL), "base64 text or bytes")

# By type of a part or block: its fields that have content.
_PARTS: dict[str, dict[str, Expected]] = {
    "text": {"text": TEXT},
    "input_text": {"text": TEXT},
    "output_text": {"text": TEXT},
    "refusal": {"refusal": TEXT},
    "thinking": {"thinking": TEXT},
    "input_audio": {"input_audio": OBJECT},
    "file": {"file": OBJECT},
    "image": {"source": OBJECT},
    "document": {"source": OBJECT},
    "search_result": {"content": LIST, "source": TEXT},
    "server_tool_use": {"input": ARGUMENTS, "id": OPTIONAL_TEXT, "name": OPTIONAL_TEXT},
    "tool_use": {"input": ARGUMENTS, "id": OPTIONAL_TEXT, "name": OPTIONAL_TEXT},
    "tool_result": {"tool_use_id": OPTIONAL_TEXT},
}

# By type of an item of the Responses API: its fields that have content.
_ITEMS: dict[str, dict[str, Expected]] = {
    "function_call": {"arguments": ARGUMENTS, "name": OPTIONAL_TEXT},
    "custom_tool_call": {"input": ARGUMENTS, "name": OPTIONAL_TEXT},
    "shell_call_output": {"output": LIST},
}

# Fields of any message, beside its content.
_FIELDS: dict[str, Expected] = {
    "name": OPTIONAL_TEXT,
    "refusal": OPTIONAL_TEXT,
    "tool_call_id": OPTIONAL_TEXT,
    "call_id": OPTIONAL_TEXT,
    "audio": OPTIONAL_OBJECT,
    "tool_calls": OPTIONAL_LIST,
    "function_call": OPTIONAL_OBJECT,
}

# By field of a part of Gemini, in both spellings: the fields inside of it.
_GEMINI: dict[str, dict[str, Expected]] = {
    "function_call": {"name": OPTIONAL_TEXT, "id": OPTIONAL_TEXT, "args": OPTIONAL_OBJECT},
    "function_response": {"name": OPTIONAL_TEXT, "id": OPTIONAL_TEXT, "parts": OPTIONAL_LIST},
    "inline_data": {"data": BLOB},
    "file_data": {},
}
_GEMINI |= {
    head + tail.capitalize(): fields
    for (head, tail), fields in [(name.split("_"), fields) for name, fields in _GEMINI.items()]
}

_AUDIO = {"id": OPTIONAL_TEXT, "transcript": OPTIONAL_TEXT}

_CALL = {"id": OPTIONAL_TEXT, "type": OPTIONAL_TEXT}

_FUNCTION = {"name": OPTIONAL_TEXT, "arguments": ARGUMENTS, "input": ARGUMENTS}

_SHELL_OUTPUT = {"stdout": TEXT, "stderr": TEXT}

_CONTENT = "a text or a list of parts"


def require_message(message: dict[str, Any]) -> None:
    """Raise UsageError unless a message has a role or type, and fields of possible types."""
    require_role(message)
    require_field_types(message)


_SPEAKERS = frozenset({"user", "system", "developer"})

# Fields that a message has in place of content: Gemini's parts, and calls and results of AutoGen.
_IN_PLACE_OF_CONTENT = ("parts", "tool_calls", "function_call", "tool_responses", "tool_call_id")


def require_content(message: dict[str, Any]) -> None:
    """Raise UsageError if a message of a user or a system has no content, as after a typo.

    The model would get an empty prompt. An assistant may say nothing but a call.
    """
    if message.get("content") is not None or message.get("role") not in _SPEAKERS:
        return
    if all(message.get(name) is None for name in _IN_PLACE_OF_CONTENT):
        reason = f"a message of the role {message['role']!r} has no content"
        raise UsageError(f'{reason}: pass {_CONTENT} as "content"', "$.content")


def require_field_types(message: dict[str, Any]) -> None:
    """Raise UsageError if a field of a message has a type that no provider accepts."""
    for name in message.copy():  # A copy, as another thread may add a field meanwhile.
        if name in _FIELDS:
            _require(message[name], _FIELDS[name], f"$.{name}")
    type_ = message.get("type")
    if type(type_) is str and type_ in _ITEMS:
        _require_fields(message, _ITEMS[type_], "$")
    if message.get("content") is not None:
        # A result may be any JSON value, which becomes a text; a list is one of parts.
        is_result = message.get("role") in ("tool", "function") or "tool_call_id" in message
        _require_content(message["content"], "$.content", is_result=is_result)
    for index, call in enumerate(message.get("tool_calls") or ()):
        _require_call(call, f"$.tool_calls[{index}]")
    if not _RARE_FIELDS.isdisjoint(message):
        _require_rare_fields(message)


_RARE_FIELDS = frozenset({"audio", "function_call", "output", "parts", "tool_responses"})


def _require_rare_fields(message: dict[str, Any]) -> None:
    if message.get("type") == "shell_call_output":
        _require_objects(message["output"], _SHELL_OUTPUT, "$.output")
    else:
        _require_content(message.get("output"), "$.output", is_result=True)
    _require_fields(message.get("audio") or {}, _AUDIO, "$.audio")
    _require_fields(message.get("function_call") or {}, _FUNCTION, "$.function_call")
    _require_responses(message.get("tool_responses"))
    if "parts" in message:
        _require_gemini_parts(message["parts"], "$.parts")


def _require_content(value: Any, path: str, *, is_result: bool) -> None:
    """Check the content of a message or a result: a text, parts, or a single part."""
    if type(value) is list:
        for index, part in enumerate(value):
            _require_part(part, f"{path}[{index}]")
    elif type(value) is dict and not is_result:
        _require_part(value, path)
    elif type(value) not in (str, _NULL) and not is_result and not _is_text(value):
        _refuse(value, _CONTENT, path)


def _require_part(part: Any, path: str) -> None:
    if type(part) is str or _is_text(part):
        return
    if type(part) is not dict:
        _refuse(part, "a text or an object with a type; other data as a JSON text", path)
    kind = part.get("type")
    if type(kind) is not str:
        if "type" not in part:
            hint = 'add it, such as "text", or pass other data as a JSON text'
            raise UsageError(f"a part has no type: {hint}", f"{path}.type")
        _refuse(kind, "a text", f"{path}.type")
    _require_fields(part, _PARTS.get(kind, {}), path)
    if kind == "tool_result":
        _require_content(part.get("content"), f"{path}.content", is_result=False)
    elif kind == "search_result":
        _require_objects(part["content"], {"text": TEXT}, f"{path}.content")


def _require_call(call: Any, path: str) -> None:
    _require(call, OBJECT, path)
    _require_fields(call, _CALL, path)
    kind = "custom" if call.get("type") == "custom" else "function"
    where = f"{path}.{kind}"
    _require(call.get(kind), OBJECT, where)
    _require_fields(call[kind], _FUNCTION, where)


def _require_responses(responses: Any) -> None:
    """Check the results of several calls in one message of AutoGen."""
    if responses is None:
        return
    _require(responses, LIST, "$.tool_responses")
    for index, response in enumerate(responses):
        path = f"$.tool_responses[{index}]"
        _require(response, OBJECT, path)
        _require_content(response.get("content"), f"{path}.content", is_result=True)


def _require_gemini_parts(parts: Any, path: str) -> None:
    if type(parts) not in (list, str, dict, _NULL):
        _refuse(parts, "a list of parts", path)
    for index, part in enumerate(parts if type(parts) is list else ()):
        where = f"{path}[{index}]"
        if type(part) is str:
            continue
        if type(part) is not dict:
            _refuse(part, "a text or an object", where)
        _require_gemini_part(part, where)
    if type(parts) is dict:
        _require_gemini_part(parts, path)


def _require_gemini_part(part: dict[str, Any], path: str) -> None:
    _require(part.get("text"), OPTIONAL_TEXT, f"{path}.text")
    for name, fields in _GEMINI.items():
        if part.get(name) is not None:
            _require(part[name], OBJECT, f"{path}.{name}")
            _require_fields(part[name], fields, f"{path}.{name}")
            _require_objects(part[name].get("parts") or (), {}, f"{path}.{name}.parts")


def _require_objects(values: Sequence[Any], fields: dict[str, Expected], path: str) -> None:
    """Check a list of objects that all have these fields."""
    for index, value in enumerate(values):
        _require(value, OBJECT, f"{path}[{index}]")
        _require_fields(value, fields, f"{path}[{index}]")


def _require_fields(value: dict[str, Any], fields: dict[str, Expected], path: str) -> None:
    for name, expected in fields.items():
        if type(value.get(name)) not in expected.types:  # Usually the path is not needed.
            _require(value.get(name), expected, f"{path}.{name}")


def _require(value: Any, expected: Expected, path: str) -> None:
    # By exact type: a subclass would not be read as its base is.
    if type(value) not in expected.types and not (str in expected.types and _is_text(value)):
        _refuse(value, expected.name, path)


def _is_text(value: object) -> bool:
    """Whether a value is a body that stands for a text."""
    if isinstance(value, Body) and not value.is_text:
        reason = "a body of bytes is not a text"
        raise UsageError(f"{reason}: pass body.as_text, body.as_base64 or body.as_data_url")
    return isinstance(value, Body)


_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    _NULL: "null",
}


def _refuse(value: object, expected: str, path: str) -> NoReturn:
    kind = _NAMES.get(type(value)) or with_article(type(value).__qualname__)
    raise UsageError(f"{kind}; pass {expected}", path)
