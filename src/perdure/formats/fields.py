"""Trim objects to the fields that a provider accepts, and report dropped fields. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.formats.parts import Loss, Losses, Native, Opaque

# Fields of answers that requests do not accept, dropped silently: hints, metrics, parsed copies.
IGNORED_FIELDS = frozenset(
    {
        "annotations",
        "cache_control",
        "created_by",
        "logprobs",
        "parsed",
        "parsed_arguments",
        "parsed_output",
        "prompt_cache_breakpoint",
        "provider_data",
    }
)


class Fields(NamedTuple):
    """The fields that a provider requires, allows, and allows to be null."""

    required: frozenset[str]
    allowed: frozenset[str]
    nullable: frozenset[str]


def fields(required: str, optional: str = "") -> Fields:
    """Return fields from space-separated names; a required one with `?` may be null."""
    names = [name.rstrip("?") for name in required.split()]
    nullable = [name.rstrip("?") for name in required.split() if name.endswith("?")]
    allowed = frozenset([*names, *optional.split()])
    return Fields(frozenset(names), allowed, frozenset(nullable))


def trim(native: Native, spec: Fields, what: str, at: int, losses: Losses) -> Native | None:
    """Return an object with the allowed fields only, or None if a required one is missing.

    Nulls are dropped, unless the field is nullable. Dropped fields are reported as losses, except
    those in `IGNORED_FIELDS`.
    """
    trimmed = {
        name: value
        for name, value in native.items()
        if name in spec.allowed and (value is not None or name in spec.nullable)
    }
    if not trimmed.keys() >= spec.required:
        missing = ", ".join(sorted(spec.required - trimmed.keys()))
        losses.append(Loss(at, f"{what} was left out: it lacks {missing}"))
        return None
    if len(trimmed) < len(native):
        report_unknown(native, spec.allowed, what, at, losses)
    return trimmed


def report_unknown(
    native: Native, allowed: frozenset[str], what: str, at: int, losses: Losses
) -> None:
    """Report the non-empty fields of an object that are not allowed as losses."""
    for name, value in native.items():
        if name not in allowed and name not in IGNORED_FIELDS and value not in (None, [], {}, ""):
            losses.append(Loss(at, f"the field {name!r} of {what} was left out"))


def unknown_fields(message: Native, read_fields: frozenset[str], at: int) -> list[Opaque]:
    """Return the unknown fields of a message as `Opaque` parts, which no provider gets."""
    losses: Losses = []
    if not message.keys() <= read_fields:
        report_unknown(message, read_fields, "the message", at, losses)
    return [Opaque(at, loss.what.removesuffix(" was left out"), {}, "") for loss in losses]


def as_text(value: Any) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if type(value) is str else ""


def dicts_in(value: Any) -> list[Native]:
    return [item for item in value if type(item) is dict] if type(value) is list else []


def first_text(value: Mapping[str, Any], *names: str) -> str:
    """Return the first non-empty text under one of the names; "" if there is none."""
    for name in names:
        field = value.get(name)
        if type(field) is str and field:
            return field
    return ""
