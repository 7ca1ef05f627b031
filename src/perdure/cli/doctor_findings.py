"""What `perdure doctor` found, in words: the verdicts, and what a store's guarantees mean. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from perdure.errors import PerdureError
from perdure.guarantees import Guarantees

Verdict = Literal["sound", "note", "weak", "unusable"]
_ORDER: tuple[Verdict, ...] = ("sound", "note", "weak", "unusable")

SURVIVES = {
    "nothing": "nothing: it is gone when the process ends",
    "process death": "the death of the process, but not the loss of power",
    "power loss": "the death of the process and the loss of power",
    "undeclared": "undeclared: the backend does not say",
}
SHARED_BY = {
    "one process": "one process at a time",
    "one machine": "any number of processes of one machine",
    "many machines": "any number of processes of any number of machines",
    "undeclared": "undeclared: the backend does not say",
}
ATOMIC = {
    "one append": "each append by itself",
    "one call": "all appends that leave together",
    "undeclared": "undeclared: the backend does not say",
}


class Finding(NamedTuple):
    """One thing that was looked at or tried. `data` has its figures, for programs."""

    name: str
    verdict: Verdict
    text: str
    advice: str = ""
    data: Mapping[str, Any] = {}

    def as_data(self) -> dict[str, Any]:
        """Return the same for JSON."""
        return {**self._asdict(), "data": dict(self.data)}


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; a note is not bad."""
    found = max((_ORDER.index(finding.verdict) for finding in findings), default=0)
    return "sound" if _ORDER[found] == "note" else _ORDER[found]


def of_guarantees(promised: Guarantees) -> Iterator[Finding]:
    """Yield what was found when the store was opened."""
    for check in promised.checks:
        verdict: Verdict = "note" if check.verdict == "unknown" else check.verdict
        if check.name == "writing":
            verdict = "weak"
        yield Finding(check.name, verdict, check.found, check.advice)
    for accepted in promised.accepted:
        advice = f"take `accept={accepted.name}` out of the address once it is not needed"
        yield Finding("accepted", "weak", f"{accepted.name}: {accepted.costs}", advice)
    if promised.survives == "nothing":
        advice = "for anything but tests use a file, a directory or a server"
        yield Finding("durability", "weak", "nothing that is stored here survives", advice)
    elif promised.survives == "undeclared":
        yield Finding("durability", "note", "the backend does not say what survives")


def hint_of(error: PerdureError) -> str:
    """Return what an error says is to be done."""
    return str(getattr(error, "hint", "")) or "mend that, then ask again"


def unusable(name: str, error: PerdureError, store: str) -> Finding:
    """Return an error as a finding: the store stands above it, and what to do below."""
    hint = hint_of(error)
    text = str(error).removesuffix(f": {hint}").removeprefix(f"{store}: ")
    return Finding(name, "unusable", text, hint)


def milliseconds(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
