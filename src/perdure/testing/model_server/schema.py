"""Generate an example value for a JSON schema of structured outputs. Pure.

It supports the strict subset except regular expressions (`pattern`), which are ignored.
"""

import math
from collections.abc import Mapping
from typing import Any

# Levels; a recursive schema ends here: lists stay empty, options are null or the last one.
DEPTH_SHORT = 4

DEPTH_MAX = 40  # levels; a schema that is deeper has no finite value

_STRINGS = {
    "date-time": "2024-05-01T12:00:00Z",
    "date": "2024-05-01",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def example_value(schema: Mapping[str, Any], word: str) -> Any:
    """Return a value, always the same for a schema and a word; the word fills the strings."""
    return _ExampleBuilder(schema, word).value(schema, 0)


class _ExampleBuilder:
    def __init__(self, root: Mapping[str, Any], word: str) -> None:
        self.root = root
        self.word = word

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
            return self.word  # the schema is `true` (any value is valid), or too deep
        schema = self._resolve(schema)
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
                return {name: self.value(inner, depth + 1) for name, inner in properties.items()}
            case "array":
                count = schema.get("minItems", 0 if depth >= DEPTH_SHORT else 1)
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

    def _resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for inner in schema.get("allOf", ()):
            schema = {**schema, **self._resolve(inner)}
        steps = 0
        while isinstance(schema.get("$ref"), str) and steps < DEPTH_SHORT:
            target: Any = self.root
            for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
                target = target.get(step, {}) if step else target
            schema = {**target, **{name: schema[name] for name in schema if name != "$ref"}}
            steps += 1
        return schema

    def _one_of(self, options: list[Any], depth: int) -> Any:
        others = [option for option in options if not _is_null(option)]
        if not others or (depth >= DEPTH_SHORT and len(others) < len(options)):
            return None
        return self.value(others[-1 if depth >= DEPTH_SHORT else 0], depth + 1)

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        named = schema.get("type", "object" if "properties" in schema else "")
        if isinstance(named, str):
            return named
        if "null" in named and depth >= DEPTH_SHORT:
            return "null"
        return next((name for name in named if name != "null"), "null")

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
