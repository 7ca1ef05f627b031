"""`perdure copy`: sessions go to another store, as they are, while others write to them."""

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import Any, Self

import click

from perdure.backend import Backend
from perdure.cli.progress import Progress
from perdure.cli.stores import (
    BAD_NEWS,
    Reading,
    UnreadableError,
    WrongCallError,
    existing,
    without_password,
)
from perdure.cli.text import counted, safe, say, say_json, sized
from perdure.copying.asking import Progress as Reached
from perdure.copying.moving import carried_out, require_two, selection_of, unmade
from perdure.copying.rounds import Copied, Copying
from perdure.errors import UnavailableError
from perdure.opening import backend_of, scheme_of

TOLD = 20  # Sessions that are told of one by one.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

EXAMPLES = """\b
Examples:
  perdure copy agents.db files:agent_state
  perdure copy agents.db postgresql://db.example/agents
  perdure copy --prefix claim- agents.db claims.db
  perdure copy --dry-run agents.db files:agent_state
  perdure copy --final agents.db files:agent_state
                                      when nobody writes any more

\b
A copy may be stopped at any time and called again: what is there is not
copied again. Agents may go on writing to FROM meanwhile. When it has caught
up, stop them, copy with --final, and start them again on TO.

\b
With --json, the output is one object: source, target, sessions, entries and
bytes that were copied, of_sessions, rounds, left (entries that the last look
still found), ancestors, verified (entries that --final compared), complete,
and problems (session, kind, reason, position). With --watch, it is one such
object a line for each round that found something.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("source", metavar="FROM", type=click.Path())
@click.argument("target", metavar="TO", type=click.Path())
@click.option("--prefix", default="", help="Only sessions whose ids begin so.")
@click.option("--label", "labels", multiple=True, help="Only sessions that bear it.")
@click.option("--session", "sessions", multiple=True, metavar="ID", help="Only this one.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied; write nothing.")
@click.option("--final", is_flag=True, help="Nobody writes any more: compare both sides whole.")
@click.option("--watch", is_flag=True, help="Go on copying what is written, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def copy(source: str, target: str, *, as_json: bool, watch: bool, **chosen: Any) -> None:
    """Copy sessions from one store to another, entry by entry as they are.

    Ids, digests, times, branches, labels and deletions stay what they are. What is read is checked
    against its chain, and what is written is read back. Exits with 1 if a session was not copied,
    because it is damaged or TO has another one of that name, or if --final finds FROM still being
    written to.
    """
    if watch and (chosen["final"] or chosen["dry_run"]):
        raise WrongCallError("--watch goes on for ever: give it without --final and --dry-run.")
    require_two(source, target)
    with _stores(source, target, dry_run=chosen["dry_run"]) as (one, two):
        if watch:
            _follow(one, two, chosen, as_json=as_json)
            return
        with _Bars() as bars:
            copied = _copied(one, two, chosen, bars, {})
        _tell(one, two, copied, as_json=as_json)
        if not as_json:
            _tell_next(source, target, copied, chosen)
    if copied.problems or (chosen["final"] and copied.left):
        raise SystemExit(BAD_NEWS)


@contextmanager
def _stores(source: str, target: str, *, dry_run: bool) -> Iterator[tuple[Backend, Backend]]:
    with ExitStack() as stack:
        one = stack.enter_context(closing(backend_of(existing(source))))
        if scheme_of(target)[0] == "memory":
            raise WrongCallError("A memory store is gone when the command ends: name one on disk.")
        yield one, stack.enter_context(closing(backend_of(unmade(target) if dry_run else target)))


def _copied(
    one: Backend, two: Backend, chosen: dict[str, Any], bars: "_Bars | None", before: dict[str, str]
) -> Copied:
    meant = selection_of(chosen["prefix"], chosen["labels"], chosen["sessions"])
    how = {"final": chosen["final"], "dry_run": chosen["dry_run"]}
    try:
        return carried_out(
            Copying(meant, copied=before, **how), one, two, bars.show if bars else None
        )
    except UnavailableError as error:
        what = "what was copied stays: call it again to go on"
        raise UnreadableError(f"{error}; {what}") from error


class _Bars:
    """A bar for each phase of a copy."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def show(self, reached: Reached) -> None:
        total, noun, done = reached.of_sessions, "session", reached.sessions
        copies = reached.phase == "copying" and reached.of_entries > 0
        if copies:
            total, noun, done = reached.of_entries, "entry", reached.entries
        if reached.phase != self._phase:
            self.__exit__(None, None, None)
            self._phase = reached.phase
            self._bar = Progress(reached.phase, noun, lambda: total).__enter__()
        if self._bar is not None:
            self._bar.done = done
            if reached.phase != "counting":
                self._bar.at = sized(reached.bytes) if copies else counted(reached.entries, "entry")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, traceback)
            self._bar = None


def _follow(one: Backend, two: Backend, chosen: dict[str, Any], *, as_json: bool) -> None:
    """Copy again and again. A round that takes long is followed by a longer pause."""
    pause, first, found = FIRST_PAUSE, True, False
    before: dict[str, str] = {}
    try:
        while True:
            start = time.monotonic()
            with _Bars() as bars:
                copied = _copied(one, two, chosen, bars if first else None, before)
            if copied.entries or first:
                _tell(one, two, copied, as_json=as_json)
            found = bool(copied.problems)
            if first and not as_json:
                say("Following; Ctrl-C ends it.", err=True, dim=True)
            took = time.monotonic() - start
            pause = FIRST_PAUSE if copied.entries else min(pause * 1.5, LONGEST_PAUSE)
            first = False
            time.sleep(max(pause, took))
    except KeyboardInterrupt:
        if found:
            raise SystemExit(BAD_NEWS) from None


def _tell(one: Backend, two: Backend, copied: Copied, *, as_json: bool) -> None:
    if as_json:
        say_json({"source": one.name, "target": two.name, **copied.as_data()})
        return
    size = f" ({sized(copied.bytes)})" if copied.rounds else ""
    what = f"{counted(copied.sessions, 'session')}, {counted(copied.entries, 'entry')}{size}"
    what = what if copied.entries else "nothing"
    where = "" if two.name == "memory:" else f" to {safe(two.name)}"  # Of a dry run.
    say(f"{'copied' if copied.rounds else 'would copy'} {what} from {safe(one.name)}{where}")
    there = copied.of_sessions - copied.sessions - len(copied.problems)
    if there > 0:
        say(f"  {counted(there, 'session')} stood there already", dim=True)
    if copied.ancestors:
        names = ", ".join(map(safe, copied.ancestors[:TOLD]))
        say(f"  with them went what they are branches of: {names}", dim=True)
    if copied.problems:
        say(f"not copied: {counted(len(copied.problems), 'session')}", fg="red", bold=True)
    for problem in copied.problems[:TOLD]:
        where = f" (entry {problem.position})" if problem.position else ""
        say(f"  {safe(problem.session)}: {problem.kind}{where}: {safe(problem.reason)}")
    if len(copied.problems) > TOLD:
        say(f"  and {len(copied.problems) - TOLD:,} more: --json lists them all")


def _tell_next(source: str, target: str, copied: Copied, chosen: dict[str, Any]) -> None:
    """Say what is left to be done."""
    final = f"perdure copy --final {_shown(source)} {_shown(target)}"
    if chosen["dry_run"]:
        return
    if chosen["final"]:
        if copied.left:
            say(f"Still being written to: {counted(copied.left, 'entry')} came meanwhile. Stop the")
            say("writers, then call it again.")
        elif not copied.problems:
            same = counted(copied.verified, "entry")
            say(f"Nothing is left: {same} read on both sides, all equal.", fg="green")
        return
    if copied.left:
        say(f"Writers go on: the last round still found {counted(copied.left, 'entry')}.")
    else:
        say("Caught up: at the last look nothing was left.")
    say(f"To finish, stop the writers, then: {final}")


def _shown(address: str) -> str:
    return safe(shlex.quote(without_password(address)))
