"""The guarantees of a store, as data: determined at open, with the same fields for every backend.

A backend has an attribute `guarantees`. It names only what it knows: a property that a backend does
not declare is "undeclared", never a guess. A setting that would break a promise is refused at open,
unless the address accepts it by name (`sqlite:agents.db?accept=network-filesystem`); an accepted
weakness lowers the promise, is listed in `accepted`, and is logged as the event `downgrade`.
Pure: no I/O; backends do the checking.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from perdure.errors import UnsupportedError, UsageError

UNDECLARED: Final = "undeclared"


Survives = Literal["nothing", "process death", "power loss", "undeclared"]

SharedBy = Literal["one process", "one machine", "many machines", "undeclared"]

Atomic = Literal["one append", "one call", "undeclared"]


class Check(NamedTuple):
    """A setting that was checked when the store was opened.

    A *sound* setting keeps the promise, a *weak* one lowers it, and for *unknown* the effect could
    not be determined. `advice` says what to change, "" if nothing.
    """

    name: str
    found: str
    verdict: Literal["sound", "weak", "unknown"] = "sound"
    advice: str = ""


class Downgrade(NamedTuple):
    """A weakness that the opener of the store accepted, and what it may cost."""

    name: str
    costs: str


class Guarantees(NamedTuple):
    """The promises of a store on return from `append`, in terms that people can compare."""

    survives: Survives
    shared_by: SharedBy
    detail: str
    atomic: Atomic = UNDECLARED
    """The unit that is stored completely or not at all: one stream's append, or a whole call."""
    engine: str = UNDECLARED
    version: str = UNDECLARED
    capabilities: tuple[str, ...] = ()
    """Optional abilities beyond the five methods of the backend protocol, by name."""
    checks: tuple[Check, ...] = ()
    accepted: tuple[Downgrade, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the guarantees as dictionaries and lists, for JSON."""
        return {
            **self._asdict(),
            "capabilities": [*self.capabilities],
            "checks": [check._asdict() for check in self.checks],
            "accepted": [downgrade._asdict() for downgrade in self.accepted],
        }


NOTHING_DECLARED = Guarantees(
    UNDECLARED, UNDECLARED, "the backend declares nothing: ask its author"
)


def guarantees_of(backend: Any) -> Guarantees:
    """Return the guarantees that a backend declares, with its capabilities sorted."""
    declared = getattr(backend, "guarantees", NOTHING_DECLARED)
    if not isinstance(declared, Guarantees):
        kind = type(declared).__name__
        name = type(backend).__name__
        raise UsageError(f"{name}.guarantees is a {kind}: it must be a perdure.Guarantees")
    return declared._replace(capabilities=tuple(sorted(getattr(backend, "capabilities", ()))))


class Acceptance:
    """The weaknesses that the opener of a store accepts, and those that were actually needed.

    `acceptable` maps the words that this kind of store knows to what each may cost.
    """

    def __init__(
        self, given: Collection[str], acceptable: Mapping[str, str], *, store: str
    ) -> None:
        if isinstance(given, str):
            raise UsageError(f"accept must be a collection of words, not the str {given!r}")
        for word in sorted(given):
            if word not in acceptable:
                known = ", ".join(map(repr, acceptable)) or "nothing"
                raise UsageError(f"{store} cannot accept {word!r}: it knows {known}")
        self._accepted = frozenset(given)
        self._acceptable = acceptable
        self._used: dict[str, Downgrade] = {}

    def require(self, words: Sequence[str], error: UnsupportedError) -> None:
        """Use accepted weaknesses, or raise the error with a hint how to accept all of them."""
        missing = [word for word in words if word not in self._accepted]
        if missing:
            costs = ", and that ".join(self._acceptable[word] for word in missing)
            hint = f"{error.hint}; or accept that {costs}: ?accept={','.join(words)}"
            raise UnsupportedError(error.capability, hint) from error
        self._used.update({word: Downgrade(word, self._acceptable[word]) for word in words})

    @property
    def used(self) -> tuple[Downgrade, ...]:
        """The accepted weaknesses that were necessary to open the store."""
        return tuple(self._used.values())


def weakest(checks: Iterable[Check]) -> Literal["sound", "weak", "unknown"]:
    """Return the worst verdict of some checks."""
    verdicts = {check.verdict for check in checks}
    return "weak" if "weak" in verdicts else "unknown" if "unknown" in verdicts else "sound"
