"""Catalogs of the tools offered to a model: a name and a digest for each tool, and their changes.

Pure. A tool has the same digest in every provider's format, so that another client or API does not
look like other tools.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.errors import UsageError
from perdure.formats.intake import to_plain
from perdure.journal import reader
from perdure.journal.records import Tools
from perdure.journal.requests import Steps


def record_tools(replica: Replica, tools: Sequence[Any], turn: str) -> Plan[int]:
    """Plan to record the tools offered to the model, unless they are the same as before."""
    record_id = replica.new_id()
    normalized = tool_digests(tools)
    content = Tools(
        digest=catalogue_digest(normalized),
        catalogue=normalized,
        tools=replica.settings.codec.pack([to_plain(tool) for tool in tools]),
        turn=turn,
    )

    def make(batch: RecordBatch) -> int:
        if batch.state.conversation.tools[0] == content.digest:
            return batch.state.conversation.tools[1]
        return batch.add_content(record_id, content)

    return Plan("tools", turn, make)


def latest_catalogue(replica: Replica) -> Steps[dict[str, str]]:
    """Return the latest catalogue offered to the model: names and digests."""
    state, past, _ = replica.view
    _, position = state.conversation.tools
    if not position:
        return {}
    return (yield from reader.read_kind(past, position, Tools)).catalogue


_encode = msgspec.json.Encoder(order="deterministic").encode


# The fields for a function's schema, by provider; and fields that do not change the tool.
_SCHEMA_FIELDS = ("parameters", "input_schema")

_IGNORED_FIELDS = frozenset({"cache_control"})


class ToolChanges(NamedTuple):
    """The sorted names of tools that differ between two catalogs. False if none do."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return any(self)


def tool_digests(tools: Iterable[object] | None) -> dict[str, str]:
    """Return the digest of each tool by its name, for tools in the format of any known API.

    A hosted tool without a name is listed under its type. Tools with the same name share a digest.
    """
    if isinstance(tools, str | Mapping):
        raise UsageError("tools must be a list of tools", "$.tools")
    digests: dict[str, list[str]] = {}
    for number, tool in enumerate(tools or ()):
        name, form = _normalize_tool(tool, f"$.tools[{number}]")
        digests.setdefault(name, []).append(_digest(form, name))
    return {
        name: same_name[0] if len(same_name) == 1 else _digest(sorted(same_name), name)
        for name, same_name in digests.items()
    }


def catalogue_digest(catalogue: Mapping[str, str]) -> str:
    """Return one digest for a whole catalog, independent of the order of its tools."""
    return sha256(_encode(dict(catalogue))).hexdigest()


def compare_catalogues(before: Mapping[str, str], after: Mapping[str, str]) -> ToolChanges:
    """Return the differences between two catalogs."""
    both = before.keys() & after.keys()
    return ToolChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in both if before[name] != after[name])),
    )


def _normalize_tool(tool: object, path: str) -> tuple[str, dict[str, Any]]:
    """Return a tool's name, and the normalized form that is digested."""
    data = to_plain(tool)
    if data is None:
        raise UsageError(f"a {type(tool).__qualname__} is not a tool: give its schema", path)
    kind = data.get("type")
    inner = data.get(kind) if isinstance(kind, str) else None
    form = {**data, **inner} if isinstance(inner, dict) else dict(data)
    if isinstance(inner, dict):
        del form[kind]
    for schema in _SCHEMA_FIELDS:
        if schema in form:
            form["schema"] = form.pop(schema)
    if kind is None or (kind == "custom" and "schema" in form):
        form["type"] = "function"
    form = {k: v for k, v in form.items() if v is not None and k not in _IGNORED_FIELDS}
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
