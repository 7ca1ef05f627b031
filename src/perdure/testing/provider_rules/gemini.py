"""The rules of Google's Gemini API for `contents` and `systemInstruction`. Pure.

Field names are those of the REST API. Endpoints differ in how strict they are; these are the rules
of the strict ones.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perdure.testing.provider_rules.shapes import (
    Finding,
    check_fields,
    check_name,
    empty_array,
    is_list,
    objects,
    objects_in_place,
    shape,
    wrong_type,
    wrong_value,
)

CONTENT = shape("role parts")

# The data fields of a part, by role: a part has exactly one of them.
PART_FIELDS = {
    "user": ("text", "inlineData", "fileData", "functionResponse"),
    "model": (
        *("text", "inlineData", "fileData", "functionCall"),
        *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
    ),
}

PART_METADATA = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution"})

CALL = shape("name", "id args")

RESPONSE = shape("name response", "id parts scheduling willContinue")

NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}$")


def findings(
    contents: Sequence[Mapping[str, Any]],
    *,
    system: Any = None,
    prefill: bool = True,
    thought_signatures: bool = False,
) -> Iterator[Finding]:
    """Yield every violation; `prefill` allows a conversation that ends with the model.

    `thought_signatures` requires the signatures that Gemini 3 and later expect in the current turn.
    """
    if system is not None and not isinstance(system, str):
        yield from _parts(system, "systemInstruction", ("text",))
    if not contents:
        yield empty_array("contents")
        return
    for index, content in enumerate(contents):
        yield from _content(content, f"contents[{index}]")
    whole = objects_in_place(contents)
    yield from _order(whole, prefill=prefill)
    yield from _pairs(whole)
    if thought_signatures:
        yield from _signatures(whole)


def _content(content: Any, at: str) -> Iterator[Finding]:
    yield from check_fields(content, at, CONTENT)
    if not isinstance(content, Mapping):
        return
    role = content.get("role")
    if not isinstance(role, str) or role not in PART_FIELDS:
        yield wrong_value(f"{at}.role", role, [*PART_FIELDS])
    else:
        yield from _parts(content, at, PART_FIELDS[role])


def _parts(content: Any, at: str, allowed: tuple[str, ...]) -> Iterator[Finding]:
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if not is_list(parts):
        yield wrong_type(f"{at}.parts", "an array", parts)
        return
    if not parts:
        yield Finding("must include at least one parts field", f"{at}.parts")
    for index, part in enumerate(parts):
        where = f"{at}.parts[{index}]"
        if not isinstance(part, Mapping):
            yield wrong_type(where, "an object", part)
            continue
        for name in part:
            if name not in allowed and name not in PART_METADATA:
                text = f"Unknown name \"{name}\" at '{where}': Cannot find field."
                yield Finding(text, where)
        yield from _part(part, where, [name for name in allowed if name in part])


def _part(part: Mapping[str, Any], at: str, fields: Sequence[str]) -> Iterator[Finding]:
    if len(fields) > 1 or (not fields and "thoughtSignature" not in part):
        text = f"a part holds exactly one kind of data, not {len(fields)}"
        yield Finding(text, at)
    if "text" in part:
        if not isinstance(part["text"], str):
            yield wrong_type(f"{at}.text", "a string", part["text"])
        elif not part["text"] and "thoughtSignature" not in part:
            yield Finding("has an empty text parameter", at)
    if "functionCall" in part:
        yield from _function(part["functionCall"], f"{at}.functionCall", "args")
    if "functionResponse" in part:
        yield from _function(part["functionResponse"], f"{at}.functionResponse", "response")


def _function(value: Any, at: str, inside: str) -> Iterator[Finding]:
    yield from check_fields(value, at, CALL if inside == "args" else RESPONSE)
    if not isinstance(value, Mapping):
        return
    if "name" in value:
        yield from check_name(value["name"], f"{at}.name", NAME)
    if inside in value and not isinstance(value[inside], Mapping):
        yield wrong_type(f"{at}.{inside}", "an object", value[inside])


def _order(contents: Sequence[Mapping[str, Any]], *, prefill: bool) -> Iterator[Finding]:
    if contents[0].get("role") != "user":
        text = "Please ensure that the first content comes from the user."
        yield Finding(text, "contents[0].role")
    for index in range(1, len(contents)):
        if contents[index].get("role") == contents[index - 1].get("role"):
            text = "Please ensure that multiturn requests alternate between user and model."
            yield Finding(text, f"contents[{index}].role")
    if not prefill and contents[-1].get("role") != "user":
        text = "Please ensure that multiturn requests end with a user role or a function response."
        yield Finding(text, f"contents[{len(contents) - 1}].role")


def _part_values(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return objects([part[name] for part in objects(content.get("parts")) if name in part])


def _pairs(contents: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield calls and responses that do not match one to one."""
    calls: list[Mapping[str, Any]] = []
    for index, content in enumerate([*contents, {}]):
        responses = _part_values(content, "functionResponse")
        at = f"contents[{index}]"
        if len(calls) != len(responses):
            text = (
                "Please ensure that the number of function response parts is equal to the "
                "number of function call parts of the function call turn."
            )
            yield Finding(f"{text} ({len(responses)} and {len(calls)})", at)
        elif Counter(map(_key, calls)) != Counter(map(_key, responses)):
            yield Finding("function responses must name the functions that were called", at)
        calls = _part_values(content, "functionCall")


def _key(part: Mapping[str, Any]) -> tuple[str, str]:
    return str(part.get("name")), str(part.get("id"))


def _signatures(contents: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield steps of the current turn whose first call has no signature."""
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        if content.get("role") == "user" and not _part_values(content, "functionResponse"):
            return
        calls = [part for part in objects(content.get("parts")) if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            text = "Function call is missing a thought_signature in functionCall parts."
            yield Finding(text, f"contents[{index}]")
