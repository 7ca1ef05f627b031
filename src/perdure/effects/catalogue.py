"""Catalogs of the tools offered to a model: a name and a digest for each tool, and their changes.

Pure. A tool has the same digest in every provider's format, so that another client or API does not
look like other tools.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from perdure.errors import UsageError
from perdure.plain import exported

_encode = msgspec.json.Encoder(order="deterministic").encode

# The fields for a function's schema, by provider; and fields that do not change the tool.
_SCHEMAS = ("parameters", "input_schema")
_ATTACHED = frozenset({"cache_control"})


class Changes(NamedTuple):
    """The sorted names of tools that differ between two catalogs. False if none do."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return any(self)


def normal(tools: Iterable[object] | None) -> dict[str, str]:
    """Return the digest of each tool by its name, for tools in the format of any known API.

    A hosted tool without a name is listed under its type. Tools with the same name share a digest.
    """
    if isinstance(tools, str | Mapping):
        raise UsageError("tools must be a list of tools", "$.tools")
    digests: dict[str, list[str]] = {}
    for number, tool in enumerate(tools or ()):
        name, form = _form(tool, f"$.tools[{number}]")
        digests.setdefault(name, []).append(_digest(form, name))
    return {
        name: same_name[0] if len(same_name) == 1 else _digest(sorted(same_name), name)
        for name, same_name in digests.items()
    }


def digest(catalogue: Mapping[str, str]) -> str:
    """Return one digest for a whole catalog, independent of the order of its tools."""
    return sha256(_encode(dict(catalogue))).hexdigest()


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    """Return the differences between two catalogs."""
    both = before.keys() & after.keys()
    return Changes(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in both if before[name] != after[name])),
    )


def _form(tool: object, path: str) -> tuple[str, dict[str, Any]]:
    """Return a tool's name, and the normalized form that is digested."""
    data = exported(tool)
    if data is None:
        raise UsageError(f"a {type(tool).__qualname__} is not a tool: give its schema", path)
    kind = data.get("type")
    inner = data.get(kind) if isinstance(kind, str) else None
    form = {**data, **inner} if isinstance(inner, dict) else dict(data)
    if isinstance(inner, dict):
        del form[kind]
    for schema in _SCHEMAS:
        if schema in form:
            form["schema"] = form.pop(schema)
    if kind is None or (kind == "custom" and "schema" in form):
        form["type"] = "function"
    form = {k: v for k, v in form.items() if v is not None and k not in _ATTACHED}
    name = form.get("name") or (_hosted_name(form) if kind else None)
    if not isinstance(name, str):
        raise UsageError("a tool needs a name or a type", path)
    return name, form


def _hosted_name(form: Mapping[str, Any]) -> object:
    kind, label = form.get("type"), form.get("server_label")
    return f"{kind}:{label}" if kind and label else kind


def _digest(form: object, name: str) -> str:
    try:
        return sha256(_encode(form)).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the tool {name!r} is not plain JSON data: {error}") from error
