"""What the demo shows. Lines of text for a terminal, or for a pipe, and nothing else."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import click

from perdure.cli.demo_check import Comparison, Verdict
from perdure.cli.demo_run import Found, Life

WIDTH_MIN, WIDTH_MAX = 40, 120  # Narrower, nothing is left of a message; wider, the eye gets lost.
SIDE_BY_SIDE = 64  # Columns; with less, the recovered stands below the acknowledged.
ROWS = 8  # Of a table; what is older is counted in one line.
LABEL = 14
TOLD, FOUND = "acknowledged before the kill", "recovered after it"
KILL = 9  # SIGKILL, which Windows has no name for.


class Signs(NamedTuple):
    """The characters beyond ASCII, where the output can show them."""

    bar: str
    rule: str
    cross: str
    cut: str


UNICODE = Signs("│", "─", "┼", "…")
ASCII = Signs("|", "-", "+", "...")


def signs_for(encoding: str | None) -> Signs:
    """Return the signs that an encoding can carry."""
    try:
        "".join(UNICODE).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


class View:
    """Prints the demo as it goes on."""

    def __init__(self, store: str, session: str, seed: int) -> None:
        columns = shutil.get_terminal_size((80, 24)).columns
        self.width = min(max(columns, WIDTH_MIN), WIDTH_MAX) - 1
        self.is_stacked = columns < SIDE_BY_SIDE
        self.signs = signs_for(getattr(sys.stdout, "encoding", None))  # Closed, it is None.
        self.store = store
        self.session = session
        self.seed = seed

    def _say(self, text: str = "", *, err: bool = False, **style: Any) -> None:
        stream = sys.stderr if err else sys.stdout
        encoding = getattr(stream, "encoding", None) or "ascii"
        # A path may hold what it can not show.
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        click.echo(click.style(text, **style) if style else text, err=err)

    def _fact(self, label: str, text: str, **style: Any) -> None:
        room = self.width - LABEL - 2
        for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
            self._say(f"  {click.style(label.ljust(LABEL), dim=True)}{click.style(line, **style)}")
            label = ""

    def opening(self, kills: int, *, is_new: bool) -> None:
        """Say what is about to happen, and with what."""
        times = {1: "once", 2: "twice"}.get(kills, f"{kills} times")
        happens = f"is killed in the middle of its turn, {times}" if kills else "is left in peace"
        self._say(f"An assistant {happens}.", bold=True)
        self._say()
        self._fact("assistant", "scripted model, no LLM, no network")
        self._fact("store", f"{self.store} ({'new' if is_new else 'it exists, and is added to'})")
        self._fact("session", self.session)
        if kills:
            chooses = f"it chooses when to kill, to some milliseconds: --seed {self.seed}"
            self._fact("seed", f"{self.seed} ({chooses})")

    def began(self, pid: int) -> None:
        """Tell of the first process, which found nothing."""
        self._say()
        self._say(f"Process 1 (pid {pid}) begins the conversation.", bold=True)

    def killed(self, life: Life) -> None:
        """Tell of the end of a process."""
        reason = "SIGKILL" if life.returncode == -KILL else f"exit code {life.returncode}"
        told = f"{_records(len(life.new))} acknowledged"
        self._say(f"  {reason} in the middle of turn {life.killed_in!r}, {told}", fg="red")

    def resumed(
        self, number: int, pid: int, dead: Life, found: Found, comparison: Comparison
    ) -> None:
        """Show what was acknowledged before a kill next to what was recovered after it."""
        self._say()
        took = _milliseconds(found.seconds)
        self._say(f"Process {number} (pid {pid}) resumes in {took}.", bold=True)
        self._say()
        self._table(dead, found, comparison)
        turns = ", ".join(map(repr, found.interrupted))
        state = f"It finds turn {turns} interrupted" if turns else "It finds no turn interrupted"
        self._say(f"  {state}, and goes on.", dim=True)

    def _table(self, dead: Life, found: Found, comparison: Comparison) -> None:
        earlier = dead.found.facts
        rows = list(_rows(dead, found, comparison))
        hidden = len(earlier) + max(len(rows) - ROWS, 0)
        number = max(len(str(len(earlier) + len(rows))), 2)
        line = self._below(number) if self.is_stacked else self._beside(number)
        if hidden:
            lost = sum(fact.position <= hidden for fact in comparison.lost)
            shown = f"{lost} MISSING OR DIFFERENT" if lost else "as before"
            style = _colour(bad=lost) if lost else {"dim": True}
            line("", f"{_records(hidden)} before these", shown, told={"dim": True}, **style)
        for row in rows[-ROWS:]:
            line(*row[:3], **row[3])
        self._say()

    def _beside(self, number: int) -> Callable[..., None]:
        """Print the head of a table of two columns; return what prints a row."""
        room, cut, rule = (self.width - number - 6) // 2, self.signs.cut, self.signs.rule

        def line(position: str, left: str, right: str, **style: Any) -> None:
            told_cell = click.style(shorten(left, room, cut).ljust(room), **style.pop("told", {}))
            there = click.style(shorten(right, room, cut), **style)
            self._say(f"  {position:>{number}} {told_cell} {self.signs.bar} {there}")

        line("", TOLD, FOUND, told={"bold": True}, bold=True)
        self._say(f"  {rule * (number + 1 + room)}{rule}{self.signs.cross}{rule * (room + 1)}")
        return line

    def _below(self, number: int) -> Callable[..., None]:
        """Print what a row of two lines is; return what prints one. For narrow terminals."""
        room, cut = self.width - number - 8, self.signs.cut

        def line(position: str, left: str, right: str, **style: Any) -> None:
            told = click.style(shorten(left, room, cut), **style.pop("told", {}))
            self._say(f"  {position:>{number}} told {told}")
            self._say(f"  {'':{number}} read {click.style(shorten(right, room, cut), **style)}")

        line("", TOLD, FOUND, told={"bold": True}, bold=True)
        self._say()
        return line

    def closing(self, lives: Sequence[Life], verdict: Verdict, seconds: float) -> None:
        """Sum up."""
        kills = len(lives) - 1
        self._say(f"  Process {len(lives)} ends the conversation by itself.", dim=True)
        self._say()
        times = "1 kill" if kills == 1 else f"{kills} kills"
        self._say(f"After {times}, {seconds:.1f} s in all:", bold=True)
        self._say()
        self._fact("acknowledged", self._acknowledged(verdict))
        self._fact("lost", str(verdict.lost or "none"), **_colour(bad=verdict.lost))
        self._fact("doubled", self._doubled(lives, verdict), **_colour(bad=verdict.doubled))
        self._fact("chain", self._chain(verdict), **_colour(bad=verdict.verified is None))
        self._fact("conversation", f"{verdict.messages} messages in 2 turns")
        self._fact("plan", json.dumps(verdict.plan))
        if kills:
            self._fact("resuming", self._resuming(lives))
        for problem in verdict.problems:
            self._say(f"  FAILED: {problem}", fg="red", bold=True)

    def _acknowledged(self, verdict: Verdict) -> str:
        told, more = _records(verdict.acknowledged), verdict.unanswered
        if not more:
            return told
        was, its = ("was", "its answer") if more == 1 else ("were", "their answers")
        return f"{told} ({more} more {was} stored, {its} did not arrive)"

    def _chain(self, verdict: Verdict) -> str:
        if verdict.verified is None:
            return "not verified"
        digest = verdict.verified.digest
        head = f"{digest[:8]}{self.signs.cut}{digest[-8:]}"
        return f"verified, {verdict.verified.entries} entries, head {head}"

    def _doubled(self, lives: Sequence[Life], verdict: Verdict) -> str:
        again = sum(life.again for life in lives)
        if verdict.doubled or not again:
            return str(verdict.doubled or "none")
        times = "once" if again == 1 else f"{again} times"
        return f"none ({times} a message was sent again and known by its id)"

    def _resuming(self, lives: Sequence[Life]) -> str:
        took = sorted(life.found.seconds for life in lives[1:])
        least, most = _milliseconds(took[0]), _milliseconds(took[-1])
        span = least if least == most else f"{least.removesuffix(' ms')} to {most}"
        return f"{span}, to open the file and read the session"

    def look(self) -> None:
        """Say how to look at what is left."""
        store = shlex.quote(self.store)
        self._say()
        self._say("Look at it:", bold=True)
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
        """Say what Ctrl-C has left."""
        store = shlex.quote(self.store)
        left = (
            f"The session is in {self.store}: perdure show {self.session} --store {store}"
            if is_there
            else f"Nothing was stored in {self.store} yet."
        )
        self._say(f"Interrupted. {left}", err=True)

    def _query(self) -> Iterator[str]:
        what = "select position, header->>7, body->1 from entry"
        what = f'sqlite3 {shlex.quote(self.store)} "{what}'
        where = f"where stream = (select id from head where name = '{self.session}')\""  # noqa: S608 - for a person.
        if len(what) + len(where) + 3 <= self.width:
            yield f"{what} {where}"
        else:
            yield from (what, f"  {where}")


Row = tuple[str, str, str, dict[str, Any]]


def _rows(dead: Life, found: Found, comparison: Comparison) -> Iterator[Row]:
    """Yield the records of one life: told and found, told and not found, found and never told."""
    there = {fact.position: fact for fact in found.facts}
    known = {fact.position for fact in chain(dead.found.facts, dead.acknowledged)}
    for fact in dead.new:
        if fact in comparison.lost:
            other = there.get(fact.position)
            shown = f"DIFFERENT: {other.text}" if other else "MISSING"
            yield str(fact.position), fact.text, shown, {"fg": "red", "bold": True}
        else:
            yield str(fact.position), fact.text, fact.text, {"fg": "green"}
    for fact in found.facts:
        if fact.position not in known:
            told = "(the answer did not arrive)"
            yield str(fact.position), told, fact.text, {"fg": "yellow"}


def shorten(text: str, room: int, cut: str) -> str:
    """Return a text that fits, with a sign where it was cut."""
    return text if len(text) <= room else text[: room - len(cut)].rstrip() + cut


def _records(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _colour(*, bad: object) -> dict[str, Any]:
    return {"fg": "red", "bold": True} if bad else {"fg": "green"}
