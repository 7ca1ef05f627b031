"""Convert any names and ids to ones that a provider accepts. Pure."""

import re
from typing import NamedTuple

from perdure.formats.parts import ANTHROPIC, CHAT, GEMINI, RESPONSES

_NOT_WORD_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")

_NOT_GEMINI_CHARACTER = re.compile(r"[^a-zA-Z0-9_.:-]")

_NOT_SPEAKER_CHARACTER = re.compile(r"[\s<|\\/>]")

_SPEAKER_NAME_MAX = 64


class _Limits(NamedTuple):
    name_max: int
    not_in_names: re.Pattern[str]
    id_max: int
    not_in_ids: re.Pattern[str] | None


_LIMITS = {
    CHAT: _Limits(64, _NOT_WORD_CHARACTER, 40, None),
    RESPONSES: _Limits(128, _NOT_WORD_CHARACTER, 64, None),
    ANTHROPIC: _Limits(200, _NOT_WORD_CHARACTER, 64, _NOT_WORD_CHARACTER),
    GEMINI: _Limits(128, _NOT_GEMINI_CHARACTER, 128, None),
}


def legal_tool_name(name: str, format: str) -> str:
    """Return a tool's name, changed as little as the format requires."""
    limits = _LIMITS[format]
    if (
        format == GEMINI
        and name
        and not (name[0].isascii() and (name[0].isalpha() or name[0] == "_"))
    ):
        name = f"_{name}"
    return limits.not_in_names.sub("_", name)[: limits.name_max] or "tool"


def legal_speaker_name(name: str) -> str:
    """Return a speaker's name, changed as little as chat completions require."""
    return _NOT_SPEAKER_CHARACTER.sub("_", name)[:_SPEAKER_NAME_MAX]


class CallIds:
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
