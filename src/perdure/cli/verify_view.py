"""The output of `perdure verify`: a line per session, a summary, and the salvage file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

import click

from perdure.cli.text import counted, safe, say
from perdure.errors import DamagedError
from perdure.views import Verified

TOLD = 10  # Ranges of unreadable entries listed one by one; --json lists all.


class Result(NamedTuple):
    """The result for one session."""

    session: str
    state: str
    verified: Verified | None = None
    problems: tuple[DamagedError, ...] = ()
    saved: int = 0
    reason: str = ""

    @property
    def first_bad(self) -> int | None:
        return min((error.position for error in self.problems if error.position), default=None)


def result_json(result: Result) -> dict[str, Any]:
    verified = result.verified
    return {
        "session": result.session,
        "state": result.state,
        "entries": verified.entries if verified else None,
        "position": verified.position if verified else None,
        "digest": verified.digest if verified else None,
        "torn": verified.torn if verified else None,
        "half_copied": verified.half_copied if verified else None,
        "first_bad": result.first_bad,
        "problems": [
            {"position": error.position, "reason": error.reason} for error in result.problems
        ],
    }


def print_result(result: Result) -> None:
    name = safe(result.session)
    if result.state == "ok":
        entries = counted(result.verified.entries, "entry") if result.verified else "deleted"
        half = result.verified is not None and result.verified.half_copied
        missing = "; an incomplete copy: copy it again" if half else ""
        say(f"{click.style('OK', fg='green')}       {name}  {entries}{missing}")
        return
    if result.state == "newer":
        say(f"{click.style('NEWER', fg='yellow')}    {name}  {safe(result.reason)}")
        return
    first = result.first_bad
    where = f"first bad position {first}" if first else "not in one entry"
    say(f"{click.style('DAMAGED', fg='red', bold=True)}  {name}  {where}")
    ranges = list(_ranges(result.problems))
    for damaged_range in ranges[:TOLD]:
        say(f"         {safe(damaged_range)}")
    if len(ranges) > TOLD:
        more = counted(len(ranges) - TOLD, "more range")
        say(f"         and {more} like these: --json lists all of them")
    say(f"         {counted(result.saved, 'record')} can be read")


def _ranges(problems: tuple[DamagedError, ...]) -> Iterator[str]:
    """Yield positions with reasons; adjacent positions with the same reason are merged."""
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


def print_summary(checked: int, results: list[Result], target: str | None) -> None:
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
        say("Keep a copy of the store. --salvage FILE saves the readable records.")


class Salvage:
    """Saves records to a file, which is created with the first record."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._file: TextIO | None = None

    def write(self, line: dict[str, Any]) -> None:
        if self._target is None:
            return
        if self._file is None:
            self._file = Path(self._target).open("x", encoding="ascii")  # noqa: SIM115 - see __exit__
        self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
