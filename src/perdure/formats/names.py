"""Names and ids that a provider takes, made of any. Pure."""

import re
from typing import NamedTuple

from perdure.formats.parts import ANTHROPIC, CHAT, GEMINI, RESPONSES

_NOT_A_WORD = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_GEMINIS = re.compile(r"[^a-zA-Z0-9_.:-]")
_NOT_A_PERSON = re.compile(r"[\s<|\\/>]")
_PERSON_MAX = 64


class _Limits(NamedTuple):
    name_max: int
    not_in_names: re.Pattern[str]
    id_max: int
    not_in_ids: re.Pattern[str] | None


_LIMITS = {
    CHAT: _Limits(64, _NOT_A_WORD, 40, None),
    RESPONSES: _Limits(128, _NOT_A_WORD, 64, None),
    ANTHROPIC: _Limits(200, _NOT_A_WORD, 64, _NOT_A_WORD),
    GEMINI: _Limits(128, _NOT_GEMINIS, 128, None),
}


def legal_name(name: str, format: str) -> str:
    """Return a tool's name as near to the given one as the format allows."""
    limits = _LIMITS[format]
    if (
        format == GEMINI
        and name
        and not (name[0].isascii() and (name[0].isalpha() or name[0] == "_"))
    ):
        name = f"_{name}"
    return limits.not_in_names.sub("_", name)[: limits.name_max] or "tool"


def legal_person(name: str) -> str:
    """Return a speaker's name as near to the given one as chat completions allow."""
    return _NOT_A_PERSON.sub("_", name)[:_PERSON_MAX]


class Ids:
    """Gives each call an id of its own; one that is legal and not taken stays."""

    def __init__(self, format: str) -> None:
        self._limits = _LIMITS[format]
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        limits = self._limits
        if limits.not_in_ids is not None:
            wanted = limits.not_in_ids.sub("_", wanted)
        given = wanted = wanted[: limits.id_max]
        while given in self._taken:
            number = self._next.get(wanted, 2)
            self._next[wanted] = number + 1
            suffix = f"_{number}"
            given = wanted[: limits.id_max - len(suffix)] + suffix
        self._taken.add(given)
        return given
