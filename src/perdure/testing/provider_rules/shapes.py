"""What every rule book needs: findings, and the check of an object's fields. Pure.

A finding is worded and coded as the provider does it where its wording is known, so that a server
for tests can answer with it as it is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard


class Finding(NamedTuple):
    """One breach of a rule: what is wrong, where, and OpenAI's code for it if there is one."""

    text: str
    param: str
    code: str | None = None

    def __str__(self) -> str:
        return self.text if self.param in self.text else f"{self.param}: {self.text}"


class Shape(NamedTuple):
    """The fields that an object must have, may have, and may have as null."""

    required: frozenset[str]
    allowed: frozenset[str]
    nullable: frozenset[str]


def shape(required: str, optional: str = "") -> Shape:
    """Make a shape of two lists of names; a name with `~` may be null."""
    words = [*required.split(), *optional.split()]
    return Shape(
        required=frozenset(name.rstrip("~") for name in required.split()),
        allowed=frozenset(name.rstrip("~") for name in words),
        nullable=frozenset(name.rstrip("~") for name in words if name.endswith("~")),
    )


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def items(value: object) -> list[Any]:
    """Return the elements of a list, and nothing of anything else."""
    return [*value] if is_list(value) else []


def objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in items(value) if isinstance(item, Mapping)]


def in_place(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the objects, each where it was; what is none counts as one without fields."""
    return [value if isinstance(value, Mapping) else {} for value in values]


def check_fields(
    value: object, at: str, wanted: Shape, *, strict: bool = True
) -> Iterator[Finding]:
    """Yield missing, null and unknown fields; when not strict, only what is missing."""
    if not isinstance(value, Mapping):
        yield wrong_type(at, "an object", value)
        return
    for name in sorted(wanted.required - value.keys()):
        where = f"{at}.{name}"
        text = f"Missing required parameter: '{where}'."
        yield Finding(text, where, "missing_required_parameter")
    if not strict:
        return
    for name in value:
        where = f"{at}.{name}"
        if name not in wanted.allowed:
            yield Finding(f"Unknown parameter: '{where}'.", where, "unknown_parameter")
        elif value[name] is None and name not in wanted.nullable:
            yield wrong_type(where, "a value", None)


def check_text(value: Mapping[str, Any], at: str, *names: str) -> Iterator[Finding]:
    """Yield those of the named fields that are there, but are not strings."""
    for name in names:
        if name in value and not isinstance(value[name], str):
            yield wrong_type(f"{at}.{name}", "a string", value[name])


def check_name(value: Any, at: str, pattern: re.Pattern[str]) -> Iterator[Finding]:
    """Yield a finding unless the value is a string that matches the pattern entirely."""
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
    text = f"Invalid type for '{at}': expected {expected}, but got {kind(value)} instead."
    return Finding(text, at, "invalid_type")


def wrong_value(at: str, value: object, known: Sequence[str]) -> Finding:
    *first, last = (f"'{name}'" for name in known)
    names = f"{', '.join(first)} and {last}" if first else last
    shown = value if isinstance(value, str) else kind(value)
    return Finding(f"Invalid value: '{shown}'. Supported values are: {names}.", at, "invalid_value")


def empty_array(at: str) -> Finding:
    text = (
        f"Invalid '{at}': empty array. Expected an array with minimum length 1, "
        "but got an empty array instead."
    )
    return Finding(text, at, "empty_array")


def kind(value: object) -> str:
    """Name the JSON type of a value."""
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
