"""The output of `perdure doctor`: verdict, guarantees, findings and advice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli.doctor.findings import ATOMIC, SHARED_BY, SURVIVES, StoreFinding, StoreVerdict
from perdure.cli.output import echo, pad, safe, terminal_width, wrap_lines

if TYPE_CHECKING:
    from perdure.cli.doctor.command import DoctorReport

MARKS: dict[StoreVerdict, tuple[str, dict[str, object]]] = {
    "sound": ("ok", {"fg": "green"}),
    "note": ("note", {"fg": "cyan"}),
    "weak": ("WEAK", {"fg": "yellow", "bold": True}),
    "unusable": ("BAD", {"fg": "red", "bold": True}),
}

VERDICT_TEXTS: dict[StoreVerdict, str] = {
    "sound": "sound: it keeps what perdure promises.",
    "weak": "weak: it works, but something should be changed.",
    "unusable": "unusable: do not store anything in it.",
}

NAME_WIDTH, MARK_WIDTH = 20, 6  # Columns.


def print_report(report: "DoctorReport") -> None:
    style = MARKS[report.verdict][1]
    verdict = VERDICT_TEXTS[report.verdict]
    if any(finding.name == "opening" for finding in report.opening):
        verdict = "unusable: it cannot be opened."
    echo(click.style(f"{safe(report.store)} is {verdict}", **style))  # type: ignore[arg-type]
    if not report.exists and report.verdict != "unusable":
        echo("It does not exist yet; its directory was tested, and nothing was created.", dim=True)
    if report.guarantees.engine != "undeclared":
        _print_guarantees(report)
    _print_findings("Checked on opening", report.opening)
    _print_findings("Environment", report.machine)
    _print_findings("Tested with a scratch session, now removed", report.trials)
    _print_advice(report.findings)


def _print_guarantees(report: "DoctorReport") -> None:
    guarantees = report.guarantees
    echo()
    for label, text in (
        ("engine", f"{guarantees.engine} {guarantees.version}".strip()),
        ("an append survives", SURVIVES[guarantees.survives]),
        ("shared by", SHARED_BY[guarantees.shared_by]),
        ("atomic", ATOMIC[guarantees.atomic]),
        ("capabilities", ", ".join(guarantees.capabilities) or "none"),
        ("details", guarantees.detail),
    ):
        _print_wrapped(pad(label, 21), text)


def _print_findings(title: str, findings: Sequence[StoreFinding]) -> None:
    if not findings:
        return
    echo()
    echo(title, bold=True)
    for finding in findings:
        word, style = MARKS[finding.verdict]
        mark = click.style(pad(word, MARK_WIDTH), **style)  # type: ignore[arg-type]
        _print_wrapped(
            f"{mark}{pad(safe(finding.name), NAME_WIDTH)}", finding.text, MARK_WIDTH + NAME_WIDTH
        )


def _print_advice(findings: Sequence[StoreFinding]) -> None:
    with_advice = [finding for finding in findings if finding.advice]
    if not with_advice:
        return
    echo()
    echo("Advice", bold=True)
    for number, finding in enumerate(with_advice, 1):
        _print_wrapped(f"{number}. ", f"{finding.name}: {finding.advice}", len(f"{number}. "))


def _print_wrapped(label: str, text: str, indent: int | None = None) -> None:
    width = len(label) if indent is None else indent
    for number, line in enumerate(wrap_lines(text, terminal_width() - width - 2)):
        echo("  " + (label if not number else " " * width) + line)
