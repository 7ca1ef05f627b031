"""The output of the demo: lines of text for a terminal or a pipe."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import click

from perdure.cli.demo.check import DemoVerdict, RecordComparison
from perdure.cli.demo.run import ProcessRun, RecoveredState

WIDTH_MIN, WIDTH_MAX = (
    40,
    120,
)  # Columns; narrower leaves no room for a message, wider is hard to read.

SIDE_BY_SIDE = 64  # Columns; below that, recovered records are shown under acknowledged ones.

ROWS_MAX = 8  # Rows of a table; older records are counted in one line.

LABEL_WIDTH = 14  # Columns.

ACKNOWLEDGED_TITLE, RECOVERED_TITLE = "acknowledged before the kill", "recovered after it"

SIGKILL = 9  # SIGKILL; Windows does not define the name.


class Glyphs(NamedTuple):
    """The drawing characters that the output can show."""

    bar: str
    rule: str
    cross: str
    cut: str


UNICODE_GLYPHS = Glyphs("│", "─", "┼", "…")

ASCII_GLYPHS = Glyphs("|", "-", "+", "...")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the drawing characters that an encoding supports."""
    try:
        "".join(UNICODE_GLYPHS).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_GLYPHS
    return UNICODE_GLYPHS


class DemoView:
    """Prints the demo while it runs."""

    def __init__(self, store: str, session: str, seed: int) -> None:
        columns = shutil.get_terminal_size((80, 24)).columns
        self.width = min(max(columns, WIDTH_MIN), WIDTH_MAX) - 1
        self.is_stacked = columns < SIDE_BY_SIDE
        self.signs = glyphs_for(getattr(sys.stdout, "encoding", None))  # None if closed.
        self.store = store
        self.session = session
        self.seed = seed

    def _say(self, text: str = "", *, err: bool = False, **style: Any) -> None:
        stream = sys.stderr if err else sys.stdout
        encoding = getattr(stream, "encoding", None) or "ascii"
        # A path may have characters that the output cannot encode.
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        click.echo(click.style(text, **style) if style else text, err=err)

    def _fact(self, label: str, text: str, **style: Any) -> None:
        room = self.width - LABEL_WIDTH - 2
        for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
            self._say(
                f"  {click.style(label.ljust(LABEL_WIDTH), dim=True)}{click.style(line, **style)}"
            )
            label = ""

    def opening(self, kills: int, *, is_new: bool) -> None:
        """Print what the demo does, and its settings."""
        times = {1: "once", 2: "twice"}.get(kills, f"{kills} times")
        happens = (
            f"is killed in the middle of its turn, {times}" if kills else "runs without a kill"
        )
        self._say(f"An assistant {happens}.", bold=True)
        self._say()
        self._fact("assistant", "scripted model, no LLM, no network")
        self._fact("store", f"{self.store} ({'new' if is_new else 'existing; a session is added'})")
        self._fact("session", self.session)
        if kills:
            repeat = f"repeat with --seed {self.seed}; kill times vary by some milliseconds"
            self._fact("seed", f"{self.seed} ({repeat})")

    def began(self, pid: int) -> None:
        """Report the start of the first process."""
        self._say()
        self._say(f"Process 1 (pid {pid}) starts the conversation.", bold=True)

    def killed(self, run: ProcessRun) -> None:
        """Report the end of a killed process."""
        reason = "SIGKILL" if run.returncode == -SIGKILL else f"exit code {run.returncode}"
        count = f"{_record_count(len(run.new))} acknowledged"
        self._say(f"  {reason} in the middle of turn {run.killed_in!r}, {count}", fg="red")

    def resumed(
        self,
        number: int,
        pid: int,
        killed: ProcessRun,
        recovered: RecoveredState,
        comparison: RecordComparison,
    ) -> None:
        """Show the records acknowledged before a kill next to those recovered after it."""
        self._say()
        duration = _milliseconds(recovered.seconds)
        self._say(f"Process {number} (pid {pid}) resumes in {duration}.", bold=True)
        self._say()
        self._table(killed, recovered, comparison)
        turns = ", ".join(map(repr, recovered.interrupted))
        state = f"It finds turn {turns} interrupted" if turns else "It finds no interrupted turn"
        self._say(f"  {state}, and continues.", dim=True)

    def _table(
        self, killed: ProcessRun, recovered: RecoveredState, comparison: RecordComparison
    ) -> None:
        earlier = killed.found.facts
        rows = list(_table_rows(killed, recovered, comparison))
        hidden = len(earlier) + max(len(rows) - ROWS_MAX, 0)
        number = max(len(str(len(earlier) + len(rows))), 2)
        line = self._below(number) if self.is_stacked else self._beside(number)
        if hidden:
            lost = sum(fact.position <= hidden for fact in comparison.lost)
            shown = f"{lost} MISSING OR DIFFERENT" if lost else "as before"
            style = _result_style(bad=lost) if lost else {"dim": True}
            line(
                "",
                f"{_record_count(hidden)} before these",
                shown,
                left_style={"dim": True},
                **style,
            )
        for row in rows[-ROWS_MAX:]:
            line(*row[:3], **row[3])
        self._say()

    def _beside(self, number: int) -> Callable[..., None]:
        """Print the header of a two-column table; return the row printer."""
        room, cut, rule = (self.width - number - 6) // 2, self.signs.cut, self.signs.rule

        def line(position: str, left: str, right: str, **style: Any) -> None:
            left_cell = click.style(
                shorten(left, room, cut).ljust(room), **style.pop("left_style", {})
            )
            right_cell = click.style(shorten(right, room, cut), **style)
            self._say(f"  {position:>{number}} {left_cell} {self.signs.bar} {right_cell}")

        line("", ACKNOWLEDGED_TITLE, RECOVERED_TITLE, left_style={"bold": True}, bold=True)
        self._say(f"  {rule * (number + 1 + room)}{rule}{self.signs.cross}{rule * (room + 1)}")
        return line

    def _below(self, number: int) -> Callable[..., None]:
        """Print the header of a table for narrow terminals; return the row printer."""
        room, cut = self.width - number - 8, self.signs.cut

        def line(position: str, left: str, right: str, **style: Any) -> None:
            left_cell = click.style(shorten(left, room, cut), **style.pop("left_style", {}))
            self._say(f"  {position:>{number}} ack  {left_cell}")
            self._say(f"  {'':{number}} read {click.style(shorten(right, room, cut), **style)}")

        line("", ACKNOWLEDGED_TITLE, RECOVERED_TITLE, left_style={"bold": True}, bold=True)
        self._say()
        return line

    def closing(self, runs: Sequence[ProcessRun], verdict: DemoVerdict, seconds: float) -> None:
        """Print the summary."""
        kills = len(runs) - 1
        self._say(f"  Process {len(runs)} completes the conversation.", dim=True)
        self._say()
        times = "1 kill" if kills == 1 else f"{kills} kills"
        self._say(f"After {times}, {seconds:.1f} s in total:", bold=True)
        self._say()
        self._fact("acknowledged", self._acknowledged(verdict))
        self._fact("lost", str(verdict.lost or "none"), **_result_style(bad=verdict.lost))
        self._fact("duplicated", self._doubled(runs, verdict), **_result_style(bad=verdict.doubled))
        self._fact("chain", self._chain(verdict), **_result_style(bad=verdict.verified is None))
        self._fact("conversation", f"{verdict.messages} messages in 2 turns")
        self._fact("plan", json.dumps(verdict.plan))
        if kills:
            self._fact("resuming", self._resuming(runs))
        for problem in verdict.problems:
            self._say(f"  FAILED: {problem}", fg="red", bold=True)

    def _acknowledged(self, verdict: DemoVerdict) -> str:
        records, more = _record_count(verdict.acknowledged), verdict.unanswered
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
        head = f"{digest[:8]}{self.signs.cut}{digest[-8:]}"
        return f"verified, {verdict.verified.entries} entries, head {head}"

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
        store = shlex.quote(self.store)
        self._say()
        self._say("Inspect it:", bold=True)
        self._say()
        self._say(f"  perdure show {self.session} --store {store}")
        self._say(f"  perdure verify --store {store}")
        self._say()
        self._say("from Python:", bold=True)
        self._say()
        self._say("  import perdure")
        self._say(f"  session = perdure.open({self.store!r}).session({self.session!r})")
        self._say("  print(session.messages(), session.get('plan'), session.verify())")
        self._say()
        self._say("or, if you have the sqlite3 shell:", bold=True)
        self._say()
        for line in self._query():
            self._say(f"  {line}")

    def interrupted(self, *, is_there: bool) -> None:
        """Report what is stored after Ctrl-C."""
        store = shlex.quote(self.store)
        hint = (
            f"The session is in {self.store}: perdure show {self.session} --store {store}"
            if is_there
            else f"Nothing was stored in {self.store} yet."
        )
        self._say(f"Interrupted. {hint}", err=True)

    def _query(self) -> Iterator[str]:
        select = "select position, header->>7, body->1 from entry"
        select = f'sqlite3 {shlex.quote(self.store)} "{select}'
        condition = f"where stream = (select id from head where name = '{self.session}')\""  # noqa: S608 - printed for the user, not run
        if len(select) + len(condition) + 3 <= self.width:
            yield f"{select} {condition}"
        else:
            yield from (select, f"  {condition}")


TableRow = tuple[str, str, str, dict[str, Any]]


def _table_rows(
    killed: ProcessRun, recovered: RecoveredState, comparison: RecordComparison
) -> Iterator[TableRow]:
    """Yield the rows of one process: matching, missing or changed, and unacknowledged records."""
    by_position = {fact.position: fact for fact in recovered.facts}
    reported = {fact.position for fact in chain(killed.found.facts, killed.acknowledged)}
    for fact in killed.new:
        if fact in comparison.lost:
            other = by_position.get(fact.position)
            shown = f"DIFFERENT: {other.text}" if other else "MISSING"
            yield str(fact.position), fact.text, shown, {"fg": "red", "bold": True}
        else:
            yield str(fact.position), fact.text, fact.text, {"fg": "green"}
    for fact in recovered.facts:
        if fact.position not in reported:
            missing = "(not acknowledged)"
            yield str(fact.position), missing, fact.text, {"fg": "yellow"}


def shorten(text: str, room: int, cut: str) -> str:
    """Cut a text to `room` characters, marked with `cut` where it was cut."""
    return text if len(text) <= room else text[: room - len(cut)].rstrip() + cut


def _record_count(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _result_style(*, bad: object) -> dict[str, Any]:
    return {"fg": "red", "bold": True} if bad else {"fg": "green"}
