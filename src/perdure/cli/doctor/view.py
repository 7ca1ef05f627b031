"""The output of `perdure doctor`: verdict, guarantees, findings and advice."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from perdure.cli.doctor.findings import ATOMIC, SHARED_BY, SURVIVES, StoreFinding, StoreVerdict
from perdure.cli.terminal import echo, echo_table, grid, safe_lines
from perdure.safe_text import safe

if TYPE_CHECKING:
    from perdure.cli.doctor.command import DoctorReport

MARKS: dict[StoreVerdict, tuple[str, str]] = {
    "sound": ("ok", "green"),
    "note": ("note", "cyan"),
    "weak": ("WEAK", "bold yellow"),
    "unusable": ("BAD", "bold red"),
}

VERDICT_TEXTS: dict[StoreVerdict, str] = {
    "sound": "sound: it keeps what perdure promises.",
    "weak": "weak: it works, but something should be changed.",
    "unusable": "unusable: do not store anything in it.",
}

INDENT, MARK_WIDTH, NAME_WIDTH = 2, 6, 20  # Columns.


def print_report(report: "DoctorReport") -> None:
    verdict = VERDICT_TEXTS[report.verdict]
    if any(finding.name == "opening" for finding in report.opening):
        verdict = "unusable: it cannot be opened."
    echo(f"{safe(report.store)} is {verdict}", style=MARKS[report.verdict][1])
    if not report.exists and report.verdict != "unusable":
        echo(
            "It does not exist yet; its directory was tested, and nothing was created.",
            style="dim",
        )
    if report.guarantees.engine != "undeclared":
        _print_guarantees(report)
    _print_findings("Checked on opening", report.opening)
    _print_findings("Environment", report.machine)
    _print_findings("Tested with a scratch session, now removed", report.trials)
    _print_advice(report.findings)


def _print_guarantees(report: "DoctorReport") -> None:
    guarantees = report.guarantees
    echo()
    table = grid(INDENT, 21, None)
    for label, text in (
        ("engine", f"{guarantees.engine} {guarantees.version}".strip()),
        ("an append survives", SURVIVES[guarantees.survives]),
        ("shared by", SHARED_BY[guarantees.shared_by]),
        ("atomic", ATOMIC[guarantees.atomic]),
        ("capabilities", ", ".join(guarantees.capabilities) or "none"),
        ("details", guarantees.detail),
    ):
        table.add_row("", label, safe_lines(text))
    echo_table(table)


def _print_findings(title: str, findings: Sequence[StoreFinding]) -> None:
    if not findings:
        return
    echo()
    echo(title, style="bold")
    table = grid(INDENT, MARK_WIDTH, NAME_WIDTH, None)
    for finding in findings:
        table.add_row(
            "", Text(*MARKS[finding.verdict]), safe(finding.name), safe_lines(finding.text)
        )
    echo_table(table)


def _print_advice(findings: Sequence[StoreFinding]) -> None:
    with_advice = [finding for finding in findings if finding.advice]
    if not with_advice:
        return
    echo()
    echo("Advice", style="bold")
    table = grid(INDENT, None, None)
    for number, finding in enumerate(with_advice, 1):
        table.add_row("", f"{number}. ", safe_lines(f"{finding.name}: {finding.advice}"))
    echo_table(table)
