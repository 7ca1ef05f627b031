"""What `perdure doctor` prints: the verdict, what the store is, what was found, what to change."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli.doctor_findings import ATOMIC, SHARED_BY, SURVIVES, Finding, Verdict
from perdure.cli.text import pad, safe, say, terminal_width, wrapped

if TYPE_CHECKING:
    from perdure.cli.doctor import Report

WORDS: dict[Verdict, tuple[str, dict[str, object]]] = {
    "sound": ("ok", {"fg": "green"}),
    "note": ("note", {"fg": "cyan"}),
    "weak": ("WEAK", {"fg": "yellow", "bold": True}),
    "unusable": ("BAD", {"fg": "red", "bold": True}),
}
VERDICTS: dict[Verdict, str] = {
    "sound": "sound: it keeps what perdure promises.",
    "weak": "weak: it works, but something should be changed.",
    "unusable": "unusable: do not keep anything in it.",
}
NAME, MARK = 20, 6


def print_report(report: "Report") -> None:
    style = WORDS[report.verdict][1]
    verdict = VERDICTS[report.verdict]
    if any(finding.name == "opening" for finding in report.opening):
        verdict = "unusable: it can not be opened."
    say(click.style(f"{safe(report.store)} is {verdict}", **style))  # type: ignore[arg-type]
    if not report.exists and report.verdict != "unusable":
        say("It is not there yet; its directory was tried, and nothing was made.", dim=True)
    if report.guarantees.engine != "undeclared":
        _print_meaning(report)
    _print_list("Found when it was opened", report.opening)
    _print_list("Around it", report.machine)
    _print_list("Tried, with a session of its own that was removed again", report.trials)
    _print_advice(report.findings)


def _print_meaning(report: "Report") -> None:
    promised = report.guarantees
    say()
    for label, text in (
        ("engine", f"{promised.engine} {promised.version}".strip()),
        ("an append survives", SURVIVES[promised.survives]),
        ("shared by", SHARED_BY[promised.shared_by]),
        ("whole or not at all", ATOMIC[promised.atomic]),
        ("can also", ", ".join(promised.capabilities) or "nothing else"),
        ("in short", promised.detail),
    ):
        _print_wrapped(pad(label, 21), text)


def _print_list(title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    say()
    say(title, bold=True)
    for finding in findings:
        word, style = WORDS[finding.verdict]
        mark = click.style(pad(word, MARK), **style)  # type: ignore[arg-type]
        _print_wrapped(f"{mark}{pad(safe(finding.name), NAME)}", finding.text, MARK + NAME)


def _print_advice(findings: Sequence[Finding]) -> None:
    advised = [finding for finding in findings if finding.advice]
    if not advised:
        return
    say()
    say("What to change, or to know", bold=True)
    for number, finding in enumerate(advised, 1):
        _print_wrapped(f"{number}. ", f"{finding.name}: {finding.advice}", len(f"{number}. "))


def _print_wrapped(label: str, text: str, indent: int | None = None) -> None:
    width = len(label) if indent is None else indent
    for number, line in enumerate(wrapped(text, terminal_width() - width - 2)):
        say("  " + (label if not number else " " * width) + line)
