"""A value that fits a JSON schema, as far as structured outputs go. Pure.

Regular expressions (`pattern`) are not looked at; everything else of the strict subset is.
"""

import math
from collections.abc import Mapping
from typing import Any

# Where a schema that contains itself stops: lists are left empty, options are null or the last.
DEEP = 4

DEEPEST = 40  # No value fits a schema that goes on from there.

_STRINGS = {
    "date-time": "2024-05-01T12:00:00Z",
    "date": "2024-05-01",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "somebody@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fitting(schema: Mapping[str, Any], word: str) -> Any:
    """Make the same value for the same schema and word; the word fills the strings."""
    return _Maker(schema, word).value(schema, 0)


class _Maker:
    def __init__(self, root: Mapping[str, Any], word: str) -> None:
        self.root = root
        self.word = word

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return self.word  # `true` in the place of a schema: anything fits.
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for name in ("anyOf", "oneOf"):
            if schema.get(name):
                return self._one_of(schema[name], depth)
        return self._of_type(schema, depth)

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        match self._type(schema, depth):
            case "object":
                properties = schema.get("properties", {})
                return {name: self.value(one, depth + 1) for name, one in properties.items()}
            case "array":
                count = schema.get("minItems", 0 if depth >= DEEP else 1)
                return [self.value(schema.get("items", True), depth + 1) for _ in range(count)]
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return False
            case "null":
                return None
        return self.word

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for inner in schema.get("allOf", ()):
            schema = {**schema, **self._resolved(inner)}
        seen = 0
        while isinstance(schema.get("$ref"), str) and seen < DEEP:
            found: Any = self.root
            for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
                found = found.get(step, {}) if step else found
            schema = {**found, **{name: schema[name] for name in schema if name != "$ref"}}
            seen += 1
        return schema

    def _one_of(self, options: list[Any], depth: int) -> Any:
        others = [one for one in options if not _is_null(one)]
        if not others or (depth >= DEEP and len(others) < len(options)):
            return None
        return self.value(others[-1 if depth >= DEEP else 0], depth + 1)

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        named = schema.get("type", "object" if "properties" in schema else "")
        if isinstance(named, str):
            return named
        if "null" in named and depth >= DEEP:
            return "null"
        return next((one for one in named if one != "null"), "null")

    def _string(self, schema: Mapping[str, Any]) -> str:
        text = _STRINGS.get(schema.get("format", ""), self.word)
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]

    def _number(self, schema: Mapping[str, Any]) -> int | float:
        whole = schema.get("type") == "integer"
        edge = 1 if whole else 1e-3
        least = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + edge)
        most = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - edge)
        value: int | float = max(min(1, most), least)
        step = schema.get("multipleOf", 1 if whole else 0)
        return -(-value // step) * step if step else value


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"
