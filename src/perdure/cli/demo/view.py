"""The output of the demo: lines of text for a terminal or a pipe."""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain

from rich.box import MINIMAL
from rich.console import OverflowMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.cli.demo.check import DemoVerdict, RecordComparison
from perdure.cli.demo.run import ProcessRun, RecoveredState
from perdure.cli.terminal import echo, echo_table, grid, plural, terminal_width
from perdure.safe_text import safe, shell_command, shell_word

ROWS_MAX = 8  # Rows of a table; older records are counted in one line.

INDENT, LABEL_WIDTH = 2, 14  # Columns.

SIGKILL = 9  # SIGKILL; Windows does not define the name.


class DemoView:
    """Prints the demo while it runs."""

    def __init__(self, store: str, session: str, seed: int) -> None:
        self.store = store
        self.session = session
        self.seed = seed

    def _fact(self, label: str, text: str, style: str = "") -> None:
        table = grid(INDENT, LABEL_WIDTH, None)
        table.add_row("", Text(label, "dim"), Text(safe(text), style))
        echo_table(table)

    def opening(self, kills: int, *, is_new: bool) -> None:
        """Print what the demo does, and its settings."""
        times = {1: "once", 2: "twice"}.get(kills, f"{kills} times")
        happens = (
            f"is killed in the middle of its turn, {times}" if kills else "runs without a kill"
        )
        echo(f"An assistant {happens}.", style="bold")
        echo()
        self._fact("assistant", "scripted model, no LLM, no network")
        self._fact("store", f"{self.store} ({'new' if is_new else 'existing; a session is added'})")
        self._fact("session", self.session)
        if kills:
            repeat = f"repeat with --seed {self.seed}; kill times vary by some milliseconds"
            self._fact("seed", f"{self.seed} ({repeat})")

    def began(self, pid: int) -> None:
        """Report the start of the first process."""
        echo()
        echo(f"Process 1 (pid {pid}) starts the conversation.", style="bold")

    def killed(self, run: ProcessRun) -> None:
        """Report the end of a killed process."""
        reason = "SIGKILL" if run.returncode == -SIGKILL else f"exit code {run.returncode}"
        count = f"{plural(len(run.new), 'record')} acknowledged"
        echo(f"  {reason} in the middle of turn {run.killed_in!r}, {count}", style="red")

    def resumed(
        self,
        number: int,
        pid: int,
        killed: ProcessRun,
        recovered: RecoveredState,
        comparison: RecordComparison,
    ) -> None:
        """Show the records acknowledged before a kill next to those recovered after it."""
        echo()
        duration = _milliseconds(recovered.seconds)
        echo(f"Process {number} (pid {pid}) resumes in {duration}.", style="bold")
        echo()
        self._table(killed, recovered, comparison)
        turns = ", ".join(map(repr, recovered.interrupted))
        state = f"It finds turn {turns} interrupted" if turns else "It finds no interrupted turn"
        echo(f"  {state}, and continues.", style="dim")

    def _table(
        self, killed: ProcessRun, recovered: RecoveredState, comparison: RecordComparison
    ) -> None:
        earlier = len(killed.found.facts)
        rows = list(_table_rows(killed, recovered, comparison))
        hidden = earlier + max(len(rows) - ROWS_MAX, 0)
        number = max(len(str(earlier + len(rows))), 2)
        table = Table(box=MINIMAL, show_edge=False)
        # A rich table in an ASCII output has ASCII lines, but its ellipsis would be an escape.
        is_unicode = getattr(sys.stdout, "encoding", None) in {"utf-8", "UTF-8"}
        overflow: OverflowMethod = "ellipsis" if is_unicode else "crop"
        room = (terminal_width() - number - 8) // 2  # Both sides are cut at the same place.
        for title, width in (
            (f"{'':{number}} acknowledged before the kill", number + 1 + room),
            ("recovered after it", room),
        ):
            table.add_column(Text(title, "bold"), width=width, no_wrap=True, overflow=overflow)
        if hidden:
            lost = sum(fact.position <= hidden for fact in comparison.lost)
            shown = f"{lost} MISSING OR DIFFERENT" if lost else "as before"
            left = f"{'':{number}} {plural(hidden, 'record')} before these"
            table.add_row(Text(left, "dim"), Text(shown, "bold red" if lost else "dim"))
        for position, left, right, style in rows[-ROWS_MAX:]:
            table.add_row(f"{position:>{number}} {left}", Text(right, style))
        echo_table(Padding(table, (0, 0, 0, 1)))
        echo()

    def closing(self, runs: Sequence[ProcessRun], verdict: DemoVerdict, seconds: float) -> None:
        """Print the summary."""
        kills = len(runs) - 1
        echo(f"  Process {len(runs)} completes the conversation.", style="dim")
        echo()
        echo(f"After {plural(kills, 'kill')}, {seconds:.1f} s in total:", style="bold")
        echo()
        self._fact("acknowledged", self._acknowledged(verdict))
        self._fact("lost", str(verdict.lost or "none"), _result_style(bad=verdict.lost))
        self._fact("duplicated", self._doubled(runs, verdict), _result_style(bad=verdict.doubled))
        self._fact("chain", self._chain(verdict), _result_style(bad=verdict.verified is None))
        self._fact("conversation", f"{verdict.messages} messages in 2 turns")
        self._fact("plan", json.dumps(verdict.plan))
        if kills:
            self._fact("resuming", self._resuming(runs))
        for problem in verdict.problems:
            echo(f"  FAILED: {problem}", style="bold red")

    def _acknowledged(self, verdict: DemoVerdict) -> str:
        records, more = plural(verdict.acknowledged, "record"), verdict.unanswered
        if not more:
            return records
        was, its = (
            ("was", "its acknowledgement") if more == 1 else ("were", "their acknowledgements")
        )
        return f"{records} ({more} more {was} stored, {its} did not arrive)"

    def _chain(self, verdict: DemoVerdict) -> str:
        if verdict.verified is None:
            return "not verified"
        digest = verdict.verified.digest
        head = f"{digest[:8]}...{digest[-8:]}"
        return f"verified, {verdict.verified.records} records, head {head}"

    def _doubled(self, runs: Sequence[ProcessRun], verdict: DemoVerdict) -> str:
        resent = sum(run.again for run in runs)
        if verdict.doubled or not resent:
            return str(verdict.doubled or "none")
        times = "once" if resent == 1 else f"{resent} times"
        return f"none ({times} a resent message was recognized by its id)"

    def _resuming(self, runs: Sequence[ProcessRun]) -> str:
        durations = sorted(run.found.seconds for run in runs[1:])
        least, most = _milliseconds(durations[0]), _milliseconds(durations[-1])
        span = least if least == most else f"{least.removesuffix(' ms')} to {most}"
        return f"{span}, to open the file and read the session"

    def look(self) -> None:
        """Print commands to inspect the store."""
        opened = f"session = perdure.open({self.store!r}).session({self.session!r})"
        printed = "print(session.messages(), session.get('plan'), session.verify())"
        verify = shell_command("perdure", "verify", "--store", self.store)
        for title, lines in (
            ("Inspect it:", (self._show_command(), verify)),
            ("from Python:", ("import perdure", opened, printed)),
            ("or, if you have the sqlite3 shell:", self._query()),
        ):
            echo(f"\n{title}\n", style="bold")
            for line in lines:
                echo(f"  {line}")

    def interrupted(self, *, is_there: bool) -> None:
        """Report what is stored after Ctrl-C."""
        hint = (
            f"The session is in {safe(self.store)}: {self._show_command()}"
            if is_there
            else f"Nothing was stored in {safe(self.store)} yet."
        )
        echo(f"Interrupted. {hint}", err=True)

    def _show_command(self) -> str:
        options = ("--store", self.store)
        return shell_command("perdure", "show", ids=[self.session], options=options)

    def _query(self) -> Iterator[str]:
        select = "select position, kind, payload from record"
        select = f'sqlite3 {shell_word(self.store)} "{select}'
        condition = f"where session = '{self.session}'\""
        if len(select) + len(condition) + INDENT < terminal_width():
            yield f"{select} {condition}"
        else:
            yield from (select, f"  {condition}")


def _table_rows(
    killed: ProcessRun, recovered: RecoveredState, comparison: RecordComparison
) -> Iterator[tuple[int, str, str, str]]:
    """Yield the rows of one process: matching, missing or changed, and unacknowledged records.

    A row has a position, both texts, and the style of the second.
    """
    by_position = {fact.position: fact for fact in recovered.facts}
    reported = {fact.position for fact in chain(killed.found.facts, killed.acknowledged)}
    for fact in killed.new:
        if fact in comparison.lost:
            other = by_position.get(fact.position)
            shown = f"DIFFERENT: {other.text}" if other else "MISSING"
            yield fact.position, fact.text, shown, "bold red"
        else:
            yield fact.position, fact.text, fact.text, "green"
    for fact in recovered.facts:
        if fact.position not in reported:
            yield fact.position, "(not acknowledged)", fact.text, "yellow"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _result_style(*, bad: object) -> str:
    return "bold red" if bad else "green"
