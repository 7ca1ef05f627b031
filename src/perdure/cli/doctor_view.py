"""The output of `perdure doctor`: verdict, guarantees, findings and advice."""

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
    "unusable": "unusable: do not store anything in it.",
}
NAME, MARK = 20, 6  # Columns.


def print_report(report: "Report") -> None:
    style = WORDS[report.verdict][1]
    verdict = VERDICTS[report.verdict]
    if any(finding.name == "opening" for finding in report.opening):
        verdict = "unusable: it cannot be opened."
    say(click.style(f"{safe(report.store)} is {verdict}", **style))  # type: ignore[arg-type]
    if not report.exists and report.verdict != "unusable":
        say("It does not exist yet; its directory was tested, and nothing was created.", dim=True)
    if report.guarantees.engine != "undeclared":
        _print_meaning(report)
    _print_list("Checked on opening", report.opening)
    _print_list("Environment", report.machine)
    _print_list("Tested with a scratch session, now removed", report.trials)
    _print_advice(report.findings)


def _print_meaning(report: "Report") -> None:
    guarantees = report.guarantees
    say()
    for label, text in (
        ("engine", f"{guarantees.engine} {guarantees.version}".strip()),
        ("an append survives", SURVIVES[guarantees.survives]),
        ("shared by", SHARED_BY[guarantees.shared_by]),
        ("atomic", ATOMIC[guarantees.atomic]),
        ("capabilities", ", ".join(guarantees.capabilities) or "none"),
        ("details", guarantees.detail),
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
    with_advice = [finding for finding in findings if finding.advice]
    if not with_advice:
        return
    say()
    say("Advice", bold=True)
    for number, finding in enumerate(with_advice, 1):
        _print_wrapped(f"{number}. ", f"{finding.name}: {finding.advice}", len(f"{number}. "))


def _print_wrapped(label: str, text: str, indent: int | None = None) -> None:
    width = len(label) if indent is None else indent
    for number, line in enumerate(wrapped(text, terminal_width() - width - 2)):
        say("  " + (label if not number else " " * width) + line)
