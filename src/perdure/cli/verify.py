"""`perdure verify`: what is whole, what is damaged and where, and what can be saved of it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click

from perdure.backend import Head
from perdure.cli.progress import Progress
from perdure.cli.rendering import damage_json, record_json
from perdure.cli.stores import (
    BAD_NEWS,
    UNAVAILABLE,
    Opened,
    Reading,
    every_head,
    opened,
    require_head,
    store_option,
)
from perdure.cli.text import counted, safe, say, say_json
from perdure.errors import DamagedError, NotFoundError, TornError, VersionError
from perdure.store import Store
from perdure.views import Verified

TOLD = 10  # Stretches of unreadable entries that are told of one by one.

EXAMPLES = """\b
Examples:
  perdure verify                      every session of the store
  perdure verify claim-4711           one, or several, by their ids
  perdure verify --salvage saved.jsonl
                                      and save what damaged ones still hold

\b
With --json, each line is an object: session, state (ok, damaged, or newer for what
a newer perdure wrote), entries, position, digest, torn, first_bad (a position, or
null where the damage is not in one entry) and problems, each with position and
reason. A saved line is a record as `perdure show --json` prints it, or session,
position and unreadable.
"""


class Result(NamedTuple):
    """What became of one session."""

    session: str
    state: str
    verified: Verified | None = None
    problems: tuple[DamagedError, ...] = ()
    saved: int = 0
    reason: str = ""

    @property
    def first_bad(self) -> int | None:
        return min((error.position for error in self.problems if error.position), default=None)


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--prefix", default="", help="Only sessions whose ids begin so.")
@click.option("--salvage", "target", metavar="FILE", help="Save what damaged sessions still hold.")
@click.option("-q", "--quiet", is_flag=True, help="Only damaged sessions, and the summary.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each session.")
@store_option
def verify(  # noqa: PLR0913 - one parameter for each option.
    address: str | None,
    sessions: tuple[str, ...],
    prefix: str,
    target: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Read sessions whole and check them: chain, bodies, snapshots, labels.

    Exits with 1 if anything is damaged. Salvaging writes every record that can be read to a new
    file, as JSON lines; the store itself is never changed.
    """
    if target is not None and Path(target).exists():
        raise click.BadParameter(f"{target} exists: name a new file.", param_hint="'--salvage'")
    results: list[Result] = []
    checked = 0
    with opened(address) as source, Salvage(target) as salvage:
        heads = _wanted(source, sessions, prefix)
        with Progress("verifying", "session", lambda: _total(source, sessions, prefix)) as progress:
            for head in heads:
                progress.at = head.stream
                result = _verify(source.store, head, salvage)
                progress.done += 1
                checked += 1
                if result.state != "ok":
                    results.append(result)
                if as_json:
                    say_json(_json(result))
                elif result.state != "ok" or not quiet:
                    progress.hide()
                    _print(result)
    if not as_json:
        _summary(checked, results, target)
    _end(checked, results, asked=bool(prefix))


def _wanted(
    source: Opened, sessions: tuple[str, ...], prefix: str
) -> Iterator[Head | DamagedError]:
    if sessions:
        yield from [require_head(source.store, session) for session in dict.fromkeys(sessions)]
    else:
        yield from every_head(source.backend, prefix)


def _total(source: Opened, sessions: tuple[str, ...], prefix: str) -> int:
    return len(sessions) or sum(1 for _ in every_head(source.backend, prefix))


class Salvage:
    """Saves records to a file that is made when there is something to save."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._file: TextIO | None = None

    def write(self, line: dict[str, Any]) -> None:
        if self._target is None:
            return
        if self._file is None:
            self._file = Path(self._target).open("x", encoding="ascii")
        self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> "Salvage":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _verify(store: Store, head: Head | DamagedError, salvage: Salvage) -> Result:
    if isinstance(head, DamagedError):
        return _examined(store, head.stream, head, salvage)
    try:
        with store.session(head.stream) as session:
            return Result(head.stream, "ok", session.verify())
    except NotFoundError:  # Deleted meanwhile; what stays of it is checked then.
        return Result(head.stream, "ok")
    except VersionError as error:
        return Result(head.stream, "newer", reason=str(error))
    except DamagedError as error:
        return _examined(store, head.stream, error, salvage)


def _examined(store: Store, session: str, found: DamagedError, salvage: Salvage) -> Result:
    """Read as much of a damaged session as there is."""
    damage: list[DamagedError] = []
    saved = 0
    try:
        for record in store.records(session, on_damage=damage.append):
            salvage.write(record_json(session, record))
            saved += 1
    except DamagedError as error:
        damage.append(error)
    except (NotFoundError, VersionError) as error:
        damage.append(DamagedError(session, 0, str(error)))
    problems = [error for error in damage if not isinstance(error, TornError)] or [found]
    for error in problems:
        salvage.write(damage_json(session, error))
    return Result(session, "damaged", None, tuple(problems), saved)


def _json(result: Result) -> dict[str, Any]:
    verified = result.verified
    return {
        "session": result.session,
        "state": result.state,
        "entries": verified.entries if verified else None,
        "position": verified.position if verified else None,
        "digest": verified.digest if verified else None,
        "torn": verified.torn if verified else None,
        "first_bad": result.first_bad,
        "problems": [
            {"position": error.position, "reason": error.reason} for error in result.problems
        ],
    }


def _print(result: Result) -> None:
    name = safe(result.session)
    if result.state == "ok":
        entries = counted(result.verified.entries, "entry") if result.verified else "deleted"
        say(f"{click.style('OK', fg='green')}       {name}  {entries}")
        return
    if result.state == "newer":
        say(f"{click.style('NEWER', fg='yellow')}    {name}  {safe(result.reason)}")
        return
    first = result.first_bad
    where = f"first bad position {first}" if first else "not in one entry"
    say(f"{click.style('DAMAGED', fg='red', bold=True)}  {name}  {where}")
    stretches = list(_stretches(result.problems))
    for stretch in stretches[:TOLD]:
        say(f"         {safe(stretch)}")
    if len(stretches) > TOLD:
        more = counted(len(stretches) - TOLD, "more stretch")
        say(f"         and {more} like these: --json lists all of them")
    say(f"         {counted(result.saved, 'record')} can be read")


def _stretches(problems: tuple[DamagedError, ...]) -> Iterator[str]:
    """Yield positions and reasons, neighbours with the same reason together."""
    first = last = 0
    reason = ""
    for error in sorted(problems, key=lambda error: error.position):
        if reason and (error.reason != reason or error.position > last + 1):
            yield _stretch(first, last, reason)
            reason = ""
        first = first if reason else error.position
        last, reason = error.position, error.reason
    if reason:
        yield _stretch(first, last, reason)


def _stretch(first: int, last: int, reason: str) -> str:
    if not first:
        return reason
    return f"{first}: {reason}" if first == last else f"{first} to {last}: {reason}"


def _summary(checked: int, results: list[Result], target: str | None) -> None:
    damaged = [result for result in results if result.state == "damaged"]
    newer = len(results) - len(damaged)
    parts = [f"{counted(checked, 'session')} checked"]
    parts.append(f"{len(damaged)} damaged" if damaged else "none damaged")
    if newer:
        parts.append(f"{newer} of a newer version")
    say(", ".join(parts) + ".", bold=True, fg="red" if damaged else None)
    if damaged and target is not None:
        saved = sum(result.saved for result in damaged)
        lost = sum(len(result.problems) for result in damaged)
        say(f"{counted(saved, 'record')} saved to {safe(target)}, {lost} could not be read.")
    elif damaged:
        say("Keep a copy of the store. --salvage FILE saves what can be read.")


def _end(checked: int, results: list[Result], *, asked: bool) -> None:
    if any(result.state == "damaged" for result in results):
        raise SystemExit(BAD_NEWS)
    if results:
        raise SystemExit(UNAVAILABLE)
    if asked and not checked:
        say("No session matches.", err=True)
        raise SystemExit(BAD_NEWS)
