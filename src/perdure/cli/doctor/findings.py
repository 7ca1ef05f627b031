"""Findings of `perdure doctor`: verdicts, and the meaning of guarantees. Does no I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from perdure.backends.guarantees import Guarantees
from perdure.errors import PerdureError

StoreVerdict = Literal["sound", "note", "weak", "unusable"]

_ORDER: tuple[StoreVerdict, ...] = ("sound", "note", "weak", "unusable")


SURVIVES = {
    "nothing": "nothing: it is lost when the process ends",
    "process death": "process death, but not power loss",
    "power loss": "process death and power loss",
    "undeclared": "undeclared: the backend does not say",
}

SHARED_BY = {
    "one process": "one process at a time",
    "one machine": "any number of processes on one machine",
    "many machines": "any number of processes on any number of machines",
    "undeclared": "undeclared: the backend does not say",
}

ATOMIC = {
    "one append": "each append by itself",
    "one call": "all appends of one call together",
    "undeclared": "undeclared: the backend does not say",
}


class StoreFinding(NamedTuple):
    """The result of one check or trial. `data` has its figures, for programs."""

    name: str
    verdict: StoreVerdict
    text: str
    advice: str = ""
    data: Mapping[str, Any] = {}

    def as_data(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {**self._asdict(), "data": dict(self.data)}


def worst_verdict(findings: Iterable[StoreFinding]) -> StoreVerdict:
    """Return the worst verdict; a note counts as sound."""
    rank = max((_ORDER.index(finding.verdict) for finding in findings), default=0)
    return "sound" if _ORDER[rank] == "note" else _ORDER[rank]


def guarantee_findings(guarantees: Guarantees) -> Iterator[StoreFinding]:
    """Yield the findings from opening the store."""
    for check in guarantees.checks:
        verdict: StoreVerdict = "note" if check.verdict == "unknown" else check.verdict
        if check.name == "writing":
            verdict = "weak"
        yield StoreFinding(check.name, verdict, check.found, check.advice)
    for accepted in guarantees.accepted:
        advice = f"remove `accept={accepted.name}` from the address once it is not needed"
        yield StoreFinding("accepted", "weak", f"{accepted.name}: {accepted.costs}", advice)
    if guarantees.survives == "nothing":
        advice = "except for tests, use a file, a directory or a server"
        yield StoreFinding("durability", "weak", "nothing stored here survives the process", advice)
    elif guarantees.survives == "undeclared":
        yield StoreFinding("durability", "note", "the backend does not say what survives")


def error_hint(error: PerdureError) -> str:
    """Return the remedy that an error names."""
    return str(getattr(error, "hint", "")) or "fix that, then run perdure doctor again"


def unusable_finding(name: str, error: PerdureError, store: str) -> StoreFinding:
    """Return an error as a finding, without the store name and the hint, which are shown apart."""
    hint = error_hint(error)
    text = str(error).removesuffix(f": {hint}").removeprefix(f"{store}: ")
    return StoreFinding(name, "unusable", text, hint)


def human_duration(seconds: float) -> str:
    """Format a duration for people: µs, ms or s."""
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
