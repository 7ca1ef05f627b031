"""What a store promises, as data: found out when it is opened, and the same for every kind. Pure.

A backend has an attribute `guarantees`. It names only what it knows: whatever a store does not
declare is "undeclared", never a guess. A setting that would break a promise is refused at opening,
unless the address accepts that by name (`sqlite:agents.db?accept=network-filesystem`); what was
accepted lowers the promise, stands in `accepted`, and is logged as the event `downgrade`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from perdure.errors import UnsupportedError, UsageError

UNDECLARED: Final = "undeclared"

Survives = Literal["nothing", "process death", "power loss", "undeclared"]
SharedBy = Literal["one process", "one machine", "many machines", "undeclared"]
Atomic = Literal["one append", "one call", "undeclared"]


class Check(NamedTuple):
    """A setting that was looked at when the store was opened.

    *sound* keeps the promise, *weak* lowers it, of *unknown* nobody can tell. `advice` says what to
    change, "" where there is nothing to say.
    """

    name: str
    found: str
    verdict: Literal["sound", "weak", "unknown"] = "sound"
    advice: str = ""


class Downgrade(NamedTuple):
    """A weakness that whoever opened the store accepted, and what it may cost."""

    name: str
    costs: str


class Guarantees(NamedTuple):
    """What a store promises on return from `append`, named so that a person can compare."""

    survives: Survives
    shared_by: SharedBy
    detail: str
    atomic: Atomic = UNDECLARED
    """What is stored whole or not at all: one append of a stream, or all appends of a call."""
    engine: str = UNDECLARED
    version: str = UNDECLARED
    capabilities: tuple[str, ...] = ()
    """What the store can do beyond the five methods of the waist, by name."""
    checks: tuple[Check, ...] = ()
    accepted: tuple[Downgrade, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the same as dictionaries and lists, for JSON."""
        return {
            **self._asdict(),
            "capabilities": [*self.capabilities],
            "checks": [check._asdict() for check in self.checks],
            "accepted": [one._asdict() for one in self.accepted],
        }


NOTHING_DECLARED = Guarantees(
    UNDECLARED, UNDECLARED, "the backend declares nothing: ask whoever wrote it"
)


def guarantees_of(backend: Any) -> Guarantees:
    """Return what a backend declares, with its capabilities in order."""
    declared = getattr(backend, "guarantees", NOTHING_DECLARED)
    if not isinstance(declared, Guarantees):
        kind = type(declared).__name__
        raise UsageError(f"the guarantees of {type(backend).__name__} are {kind}, not Guarantees")
    return declared._replace(capabilities=tuple(sorted(getattr(backend, "capabilities", ()))))


class Acceptance:
    """What the opener of a store accepts, and what of it was needed.

    `acceptable` has the words that this kind of store knows, each with what it may cost.
    """

    def __init__(
        self, given: Collection[str], acceptable: Mapping[str, str], *, store: str
    ) -> None:
        if isinstance(given, str):
            raise UsageError(f"accept must be a collection of words, not the text {given!r}")
        for word in sorted(given):
            if word not in acceptable:
                known = ", ".join(map(repr, acceptable)) or "nothing"
                raise UsageError(f"{store} can not accept {word!r}: it knows {known}")
        self._given = frozenset(given)
        self._acceptable = acceptable
        self._taken: dict[str, Downgrade] = {}

    def require(self, word: str, error: UnsupportedError) -> None:
        """Take a weakness as accepted, or raise the error with the way to accept it."""
        self.require_all([word], error)

    def require_all(self, words: Sequence[str], error: UnsupportedError) -> None:
        """The same for several that belong together, so that nobody meets them one by one."""
        missing = [word for word in words if word not in self._given]
        if missing:
            costs = ", and that ".join(self._acceptable[word] for word in missing)
            hint = f"{error.hint}; or accept that {costs}: ?accept={','.join(words)}"
            raise UnsupportedError(error.capability, hint) from error
        self._taken.update({word: Downgrade(word, self._acceptable[word]) for word in words})

    @property
    def taken(self) -> tuple[Downgrade, ...]:
        """Those that the store could not have been opened without."""
        return tuple(self._taken.values())


def weakest(verdicts: Iterable[Check]) -> Literal["sound", "weak", "unknown"]:
    """Return the worst verdict of some checks."""
    found = {check.verdict for check in verdicts}
    return "weak" if "weak" in found else "unknown" if "unknown" in found else "sound"
