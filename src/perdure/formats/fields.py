"""The fields that a provider takes of an object, and how an object is made to fit. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.formats.parts import Loss, Losses, Native, Opaque

# Fields of answers that requests do not take and nobody misses: hints, measures, parsed copies.
UNMISSED = frozenset(
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
    required: frozenset[str]
    allowed: frozenset[str]
    nullable: frozenset[str]


def fields(required: str, optional: str = "") -> Fields:
    """Make fields of names; a required one with `?` may be null."""
    names = [name.rstrip("?") for name in required.split()]
    nullable = [name.rstrip("?") for name in required.split() if name.endswith("?")]
    allowed = frozenset([*names, *optional.split()])
    return Fields(frozenset(names), allowed, frozenset(nullable))


def fit(native: Native, wanted: Fields, what: str, at: int, losses: Losses) -> Native | None:
    """Return an object with the wanted fields only, or None where a required one is missing.

    A null says nothing and goes, unless it must be there. Fields that are left out are told, except
    those that nobody misses.
    """
    made = {
        name: value
        for name, value in native.items()
        if name in wanted.allowed and (value is not None or name in wanted.nullable)
    }
    if not made.keys() >= wanted.required:
        missing = ", ".join(sorted(wanted.required - made.keys()))
        losses.append(Loss(at, f"{what} was left out: it lacks {missing}"))
        return None
    if len(made) < len(native):
        tell_unknown(native, wanted.allowed, what, at, losses)
    return made


def tell_unknown(
    native: Native, allowed: frozenset[str], what: str, at: int, losses: Losses
) -> None:
    """Report the fields of an object that are left out, and hold something."""
    for name, value in native.items():
        if name not in allowed and name not in UNMISSED and value not in (None, [], {}, ""):
            losses.append(Loss(at, f"the field {name!r} of {what} was left out"))


def unknown_fields(message: Native, known: frozenset[str], at: int) -> list[Opaque]:
    """Return the fields of a message that its reader does not know, as parts for nobody."""
    found: Losses = []
    if not message.keys() <= known:
        tell_unknown(message, known, "the message", at, found)
    return [Opaque(at, loss.what.removesuffix(" was left out"), {}, "") for loss in found]


def text(value: Any) -> str:
    """Return a text, or nothing where there is none."""
    return value if type(value) is str else ""


def dicts(value: Any) -> list[Native]:
    return [each for each in value if type(each) is dict] if type(value) is list else []


def held(value: Mapping[str, Any], *names: str) -> str:
    """Return the first text that is there under one of the names."""
    for name in names:
        found = value.get(name)
        if type(found) is str and found:
            return found
    return ""
