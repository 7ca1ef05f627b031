"""Convert any names and ids to ones that a provider accepts. Pure."""

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
    """Return a tool's name, changed as little as the format requires."""
    limits = _LIMITS[format]
    if (
        format == GEMINI
        and name
        and not (name[0].isascii() and (name[0].isalpha() or name[0] == "_"))
    ):
        name = f"_{name}"
    return limits.not_in_names.sub("_", name)[: limits.name_max] or "tool"


def legal_person(name: str) -> str:
    """Return a speaker's name, changed as little as chat completions require."""
    return _NOT_A_PERSON.sub("_", name)[:_PERSON_MAX]


class Ids:
    """Assigns unique ids to calls; a legal id that is still free is kept."""

    def __init__(self, format: str) -> None:
        self._limits = _LIMITS[format]
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, preferred: str) -> str:
        limits = self._limits
        if limits.not_in_ids is not None:
            preferred = limits.not_in_ids.sub("_", preferred)
        id = preferred = preferred[: limits.id_max]
        while id in self._taken:
            number = self._next.get(preferred, 2)
            self._next[preferred] = number + 1
            suffix = f"_{number}"
            id = preferred[: limits.id_max - len(suffix)] + suffix
        self._taken.add(id)
        return id
