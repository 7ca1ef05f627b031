"""Describe a function as a tool for a model: its name, its docstring, a schema of its parameters.

A function comes in; JSON Schema goes out. Pure. The types are those that msgspec knows, and models
of pydantic, which is not imported: they are recognized by their methods.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import msgspec

from perdure.errors import UsageError


class ToolDescription(NamedTuple):
    """A tool as a model sees it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


def describe_tool(function: Callable[..., Any], name: str) -> ToolDescription:
    """Return the description of a function, from its signature and its docstring.

    UsageError if a parameter cannot be passed by name, or has a type without a schema.
    """
    import inspect  # Imported here: it takes as long to load as the rest of perdure.

    types, required, defaults = {}, [], {}
    for parameter in _parameters(function, name):
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        types[parameter.name] = _type_of(parameter)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float | bool):
            defaults[parameter.name] = {"default": parameter.default}
    schemas, definitions = _schemas(name, types)
    properties = {key: {**schema, **defaults.get(key, {})} for key, schema in schemas.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if definitions:
        schema["$defs"] = definitions
    return ToolDescription(name, inspect.getdoc(function) or "", schema)


def with_types(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that takes JSON values, and passes them on in the types of its parameters.

    A value of another type is a ValidationError that names the parameter, for the model.
    """
    import inspect

    types = {parameter.name: _type_of(parameter) for parameter in _parameters(function, name)}

    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        return {key: _convert(key, value, types.get(key, Any)) for key, value in arguments.items()}

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_async(**arguments: Any) -> Any:
            return await function(**convert(arguments))

        return call_async

    @wraps(function)
    def call(**arguments: Any) -> Any:
        return function(**convert(arguments))

    return call


def _parameters(function: Callable[..., Any], name: str) -> list[Any]:
    """Return the parameters of a function, with their annotations evaluated."""
    import inspect

    try:
        signature = inspect.signature(function, eval_str=True)
    except (TypeError, ValueError, NameError) as error:
        reason = f"the signature of the tool {name!r} cannot be read"
        raise UsageError(f"{reason}: define the function and its types at module level") from error
    parameters = [*signature.parameters.values()]
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            reason = f"the parameter {parameter.name!r} of the tool {name!r} has no keyword"
            raise UsageError(f"{reason}: a model passes arguments by name")
    return parameters


def _type_of(parameter: Any) -> Any:
    is_free = parameter.annotation is parameter.empty or parameter.kind is parameter.VAR_KEYWORD
    return Any if is_free else parameter.annotation


def _schemas(name: str, types: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the schema of each type, and the definitions that they refer to."""
    definitions: dict[str, Any] = {}

    def describe_model(kind: Any) -> dict[str, Any]:
        if not hasattr(kind, "model_json_schema"):
            raise NotImplementedError
        schema: dict[str, Any] = kind.model_json_schema()
        definitions.update(schema.pop("$defs", {}))  # Its references begin at the root.
        return schema

    try:
        schemas, components = msgspec.json.schema_components(
            types.values(), schema_hook=describe_model, ref_template="#/$defs/{name}"
        )
    except (TypeError, NotImplementedError) as error:
        reason = f"a parameter of the tool {name!r} has a type without a JSON Schema"
        hint = "use builtin types, dataclasses, msgspec or pydantic models"
        raise UsageError(f"{reason}: {hint}") from error
    return dict(zip(types, schemas, strict=True)), {**components, **definitions}


def _convert(name: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, dec_hook=_validate)
    except msgspec.ValidationError as error:
        message = f"the argument {name!r} is invalid: {error}"
        raise msgspec.ValidationError(message) from error


def _validate(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    return value
