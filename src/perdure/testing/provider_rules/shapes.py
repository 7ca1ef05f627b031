"""Findings, and checks of the fields of an object, shared by the rules of all providers. Pure.

A finding has the provider's wording and code where they are known, so that the model server can
send it unchanged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard


class Finding(NamedTuple):
    """One violation: its text, its location, and OpenAI's code for it, if there is one."""

    text: str
    param: str
    code: str | None = None

    def __str__(self) -> str:
        return self.text if self.param in self.text else f"{self.param}: {self.text}"


class Shape(NamedTuple):
    """The required, allowed and nullable fields of an object."""

    required: frozenset[str]
    allowed: frozenset[str]
    nullable: frozenset[str]


def shape(required: str, optional: str = "") -> Shape:
    """Build a shape from two lists of names; a field marked with `~` may be null."""
    words = [*required.split(), *optional.split()]
    return Shape(
        required=frozenset(name.rstrip("~") for name in required.split()),
        allowed=frozenset(name.rstrip("~") for name in words),
        nullable=frozenset(name.rstrip("~") for name in words if name.endswith("~")),
    )


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def items(value: object) -> list[Any]:
    """Return the elements of a list, or an empty list for any other value."""
    return [*value] if is_list(value) else []


def objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in items(value) if isinstance(item, Mapping)]


def objects_in_place(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the objects at their positions, with an empty one for any other value."""
    return [value if isinstance(value, Mapping) else {} for value in values]


def check_fields(
    value: object, at: str, expected: Shape, *, strict: bool = True
) -> Iterator[Finding]:
    """Yield missing, null and unknown fields; if not strict, only missing ones."""
    if not isinstance(value, Mapping):
        yield wrong_type(at, "an object", value)
        return
    for name in sorted(expected.required - value.keys()):
        where = f"{at}.{name}"
        text = f"Missing required parameter: '{where}'."
        yield Finding(text, where, "missing_required_parameter")
    if not strict:
        return
    for name in value:
        where = f"{at}.{name}"
        if name not in expected.allowed:
            yield Finding(f"Unknown parameter: '{where}'.", where, "unknown_parameter")
        elif value[name] is None and name not in expected.nullable:
            yield wrong_type(where, "a value", None)


def check_text(value: Mapping[str, Any], at: str, *names: str) -> Iterator[Finding]:
    """Yield the named fields that are present but are not strings."""
    for name in names:
        if name in value and not isinstance(value[name], str):
            yield wrong_type(f"{at}.{name}", "a string", value[name])


def check_name(value: Any, at: str, pattern: re.Pattern[str]) -> Iterator[Finding]:
    """Yield a finding unless the value is a string that matches the whole pattern."""
    if not isinstance(value, str):
        yield wrong_type(at, "a string", value)
    elif not value:
        text = (
            f"Invalid '{at}': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        )
        yield Finding(text, at, "empty_string")
    elif not pattern.fullmatch(value):
        text = (
            f"Invalid '{at}': string does not match pattern. Expected a string that matches "
            f"the pattern '{pattern.pattern}'."
        )
        yield Finding(text, at, "invalid_value")


def wrong_type(at: str, expected: str, value: object) -> Finding:
    text = f"Invalid type for '{at}': expected {expected}, but got {json_type(value)} instead."
    return Finding(text, at, "invalid_type")


def wrong_value(at: str, value: object, allowed: Sequence[str]) -> Finding:
    *first, last = (f"'{name}'" for name in allowed)
    names = f"{', '.join(first)} and {last}" if first else last
    shown = value if isinstance(value, str) else json_type(value)
    return Finding(f"Invalid value: '{shown}'. Supported values are: {names}.", at, "invalid_value")


def empty_array(at: str) -> Finding:
    text = (
        f"Invalid '{at}': empty array. Expected an array with minimum length 1, "
        "but got an empty array instead."
    )
    return Finding(text, at, "empty_array")


def json_type(value: object) -> str:
    """Return the name of the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
    return "an array" if is_list(value) else f"a {type(value).__name__}"
