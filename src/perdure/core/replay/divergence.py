"""Find and describe the first difference between a record and a replay. Pure."""

from typing import Any, NamedTuple

import msgspec

from perdure.journal.large import canonical_content
from perdure.journal.records import (
    Content,
    EffectIntent,
    EffectOutcome,
    Message,
    Note,
    Summary,
    TurnFailed,
    Value,
)

LINE_MAX = 300  # characters of a value shown in one line


# Fields that do not depend on the agent's behavior: token counts, positions, ids chosen per run.
_IGNORED_FIELDS = {
    "message": ("tokens", "counter", "append_digest"),
    "summary": ("tokens", "counter"),
    "turn.begun": ("correlation_id",),
    "turn.completed": ("begun", "reopened"),
    "turn.failed": ("begun", "reopened"),
    "turn.abandoned": ("begun", "reopened"),
    "effect.intent": ("identity", "key", "owner", "retry_of", "approval", "turn", "begun_after"),
}


class Divergence(NamedTuple):
    """The first difference between a record and a run of its agent.

    `position` is where the record differs, or 0 after its end. `path` is the place inside the
    record, and `recorded` and `given` are the two values there.
    """

    position: int
    what: str
    path: str
    recorded: Any
    given: Any

    def __str__(self) -> str:
        where = f"position {self.position}" if self.position else "the end of the record"
        lines = [f"{where}: {self.what}"]
        lines += [f"  at {self.path}"] if self.path else []
        lines += [f"- recorded: {one_line(self.recorded)}", f"+ now:      {one_line(self.given)}"]
        return "\n".join(lines)


def one_line(value: Any) -> str:
    """Return a value as one line, shortened."""
    if value is MISSING:
        return "(nothing)"
    is_text = isinstance(value, Described)
    text = value if is_text else msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}… ({len(text)} characters)"


class Described(str):
    """A description, as opposed to a value that is a string: it is shown without quotes."""

    __slots__ = ()


MISSING = Described("(nothing)")


def compared_fields(content: Content) -> dict[str, Any]:
    """Return the fields of a record that a replay compares."""
    content = canonical_content(content)  # A body is compared by its size and digest.
    ignored = _IGNORED_FIELDS.get(content.kind, ())
    names = [name for name in content.__struct_fields__ if name not in ignored]
    return {name: getattr(content, name) for name in names}


def is_identical(recorded: Any, given: Any) -> bool:
    """Whether two trees are byte-identical as JSON, including the order of keys."""
    return msgspec.json.encode(recorded) == msgspec.json.encode(given)


def first_difference(recorded: Any, given: Any, path: str = "$") -> tuple[str, Any, Any] | None:
    """Return the path of the first difference between two trees, and both values there."""
    if isinstance(recorded, dict) and isinstance(given, dict):
        for name in [*recorded, *(name for name in given if name not in recorded)]:
            here = f"{path}.{name}"
            if name not in recorded or name not in given:
                return here, recorded.get(name, MISSING), given.get(name, MISSING)
            inner = first_difference(recorded[name], given[name], here)
            if inner is not None:
                return inner
        if [*recorded] != [*given]:
            before, after = (Described(f"keys {', '.join(tree)}") for tree in (recorded, given))
            return path, before, after
        return None
    if isinstance(recorded, list | tuple) and isinstance(given, list | tuple):
        for number, (before, after) in enumerate(zip(recorded, given, strict=False)):
            inner = first_difference(before, after, f"{path}[{number}]")
            if inner is not None:
                return inner
        if len(recorded) != len(given):
            number = min(len(recorded), len(given))
            before, after = ([*values, MISSING][number] for values in (recorded, given))
            return f"{path}[{number}]", before, after
        return None
    return None if is_identical(recorded, given) else (path, recorded, given)


def describe_record(content: Content | None) -> Described:
    """Describe a record in a few words."""
    match content:
        case None:
            return Described("nothing")
        case EffectIntent(call_type="model"):
            return Described(f"calls the model {content.tool}, request {content.digest}")
        case EffectIntent():
            return Described(f"calls {content.tool} with {one_line(content.arguments)}")
        case EffectOutcome():
            return Described(f"a call ended: {content.state}")
        case Message():
            return Described(f"a message, {one_line(content.message)}")
        case Value():
            return Described(f"the value {content.key!r}, version {content.version}")
        case Note():
            return Described(f"a note, {one_line(content.data)}")
        case Summary():
            return Described(f"a summary, {one_line(content.text)}")
        case TurnFailed():
            return Described(f"the turn failed, {content.error}: {content.reason}")
    return Described(_DESCRIPTIONS.get(content.kind, content.kind))


_DESCRIPTIONS = {
    "turn.begun": "a turn begins",
    "turn.completed": "the turn completes",
    "turn.abandoned": "the turn is abandoned",
    "labels": "labels change",
    "fields": "fields change",
    "pinned": "a message is pinned or unpinned",
    "tools": "tools are offered",
    "summary.undone": "a summary is undone",
}
