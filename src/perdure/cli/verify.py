"""`perdure verify`: check sessions for damage, print the results, and salvage readable records."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

import click
from rich.text import Text

from perdure.backends.protocol import DELETED, Head
from perdure.cli.rendering import damage_json, record_json
from perdure.cli.stores import (
    BAD_NEWS,
    UNAVAILABLE,
    InvalidCallError,
    OpenStore,
    StoreCommand,
    find_head,
    list_heads,
    open_store,
    require_head,
    store_option,
)
from perdure.cli.terminal import ProgressBar, echo, echo_json, plural
from perdure.core.verify import VerifyResult
from perdure.errors import DamagedError, IncompleteBatchError, NotFoundError, VersionError
from perdure.private_files import open_private
from perdure.safe_text import safe
from perdure.sync.store import Store

RANGES_LISTED = 10  # Ranges of unreadable entries listed one by one; --json lists all.


class SessionResult(NamedTuple):
    """The result for one session."""

    session: str
    state: str
    verified: VerifyResult | None = None
    problems: tuple[DamagedError, ...] = ()
    saved: int = 0
    reason: str = ""

    @property
    def first_bad(self) -> int | None:
        return min((error.position for error in self.problems if error.position), default=None)


def result_json(result: SessionResult) -> dict[str, Any]:
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


def print_result(result: SessionResult) -> None:
    name = safe(result.session)
    if result.state == "ok":
        entries = plural(result.verified.entries, "entry") if result.verified else "deleted"
        half = result.verified is not None and result.verified.half_copied
        missing = "; an incomplete copy: copy it again" if half else ""
        echo(Text.assemble(("OK", "green"), f"       {name}  {entries}{missing}"))
        return
    if result.state == "newer":
        echo(Text.assemble(("NEWER", "yellow"), f"    {name}  {safe(result.reason)}"))
        return
    first = result.first_bad
    where = f"first bad position {first}" if first else "not in one entry"
    echo(Text.assemble(("DAMAGED", "bold red"), f"  {name}  {where}"))
    ranges = list(_damaged_ranges(result.problems))
    for damaged_range in ranges[:RANGES_LISTED]:
        echo(f"         {safe(damaged_range)}")
    if len(ranges) > RANGES_LISTED:
        more = plural(len(ranges) - RANGES_LISTED, "more range")
        echo(f"         and {more} like these: --json lists all of them")
    echo(f"         {plural(result.saved, 'record')} can be read")


def _damaged_ranges(problems: tuple[DamagedError, ...]) -> Iterator[str]:
    """Yield positions with reasons; adjacent positions with the same reason are merged."""
    first = last = 0
    reason = ""
    for error in sorted(problems, key=lambda error: error.position):
        if reason and (error.reason != reason or error.position > last + 1):
            yield _range_text(first, last, reason)
            reason = ""
        first = first if reason else error.position
        last, reason = error.position, error.reason
    if reason:
        yield _range_text(first, last, reason)


def _range_text(first: int, last: int, reason: str) -> str:
    if not first:
        return reason
    return f"{first}: {reason}" if first == last else f"{first} to {last}: {reason}"


def print_summary(checked: int, results: list[SessionResult], target: str | None) -> None:
    damaged = [result for result in results if result.state == "damaged"]
    newer = len(results) - len(damaged)
    parts = [f"{plural(checked, 'session')} checked"]
    parts.append(f"{len(damaged)} damaged" if damaged else "none damaged")
    if newer:
        parts.append(f"{newer} of a newer version")
    echo(", ".join(parts) + ".", style="bold red" if damaged else "bold")
    if damaged and target is not None:
        saved = sum(result.saved for result in damaged)
        lost = sum(len(result.problems) for result in damaged)
        echo(f"{plural(saved, 'record')} saved to {safe(target)}, {lost} could not be read.")
    elif damaged:
        echo("Keep a copy of the store. --salvage FILE saves the readable records.")


class SalvageFile:
    """Saves records to a file, which is created with the first record."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._file: TextIO | None = None

    def write(self, line: dict[str, Any]) -> None:
        if self._target is None:
            return
        if self._file is None:
            self._file = open(self._target, "x", encoding="ascii", opener=open_private)  # noqa: SIM115 - Path has no opener; see __exit__
        self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


EXAMPLES = """\b
Examples:
  perdure verify                      every session of the store
  perdure verify claim-4711           one, or several, by their ids
  perdure verify --salvage saved.jsonl
                                      save readable records of damaged ones

\b
With --json, each line is an object: session, state (ok, damaged, or newer if
a newer perdure wrote it), entries, position, digest, torn, half_copied (an
incomplete copy), first_bad (a position, or null if the damage is not in one
entry) and problems, each with position and reason. A salvaged line is a
record as `perdure show --json` prints it, or session, position and
unreadable.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--prefix", default="", help="Only sessions whose id has this prefix.")
@click.option(
    "--salvage", "target", metavar="FILE", help="Save the readable records of damaged sessions."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only damaged sessions and the summary.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per session.")
@store_option
def verify(
    address: str | None,
    sessions: tuple[str, ...],
    prefix: str,
    target: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Check sessions for damage: chain, bodies, snapshots, labels.

    Sessions are read in full. Exits with 1 if anything is damaged. Salvaging writes every readable
    record to a new file, as JSON lines; the store itself is never changed.
    """
    if sessions and prefix:
        raise InvalidCallError("Give ids or --prefix, not both.")
    if target is not None and Path(target).exists():
        raise click.BadParameter(f"{target} exists: name a new file.", param_hint="'--salvage'")
    results: list[SessionResult] = []
    checked = 0
    with open_store(address) as source, SalvageFile(target) as salvage:
        heads = _select_heads(source, sessions, prefix)
        with ProgressBar(
            "verifying", "session", lambda: _count_sessions(source, sessions, prefix)
        ) as progress:
            for head in heads:
                progress.at = head.stream
                result = _verify_session(source, head, salvage)
                progress.done += 1
                checked += 1
                if result.state != "ok":
                    results.append(result)
                if as_json:
                    echo_json(result_json(result))
                elif result.state != "ok" or not quiet:
                    progress.hide()
                    print_result(result)
    if not as_json:
        print_summary(checked, results, target)
    _exit(checked, results, filtered=bool(prefix))


def _select_heads(
    source: OpenStore, sessions: tuple[str, ...], prefix: str
) -> Iterator[Head | DamagedError]:
    if sessions:
        yield from [_named_head(source, session) for session in dict.fromkeys(sessions)]
    else:
        yield from list_heads(source.backend, prefix=prefix)


def _named_head(source: OpenStore, session: str) -> Head | DamagedError:
    try:
        return require_head(source, session)
    except DamagedError as error:
        return error


def _count_sessions(source: OpenStore, sessions: tuple[str, ...], prefix: str) -> int:
    return len(sessions) or sum(1 for _ in list_heads(source.backend, prefix=prefix))


def _verify_session(
    source: OpenStore, head: Head | DamagedError, salvage: SalvageFile
) -> SessionResult:
    store = source.store
    if isinstance(head, DamagedError):
        return _examine_damage(store, head.stream, head, salvage)
    try:
        with store.session(head.stream) as session:
            return SessionResult(head.stream, "ok", session.verify())
    except NotFoundError as error:
        now = find_head(source.backend, head.stream)
        if now is None or DELETED in now.labels:  # Deleted since it was listed.
            return SessionResult(head.stream, "ok")
        if now != head:  # Deleted and created again.
            return _verify_session(source, now, salvage)
        lost = DamagedError(head.stream, 0, f"the parent of this branch is gone: {error}")
        return _examine_damage(store, head.stream, lost, salvage)
    except VersionError as error:
        return SessionResult(head.stream, "newer", reason=str(error))
    except DamagedError as error:
        return _examine_damage(store, head.stream, error, salvage)


def _examine_damage(
    store: Store, session: str, first_error: DamagedError, salvage: SalvageFile
) -> SessionResult:
    """Read as much of a damaged session as possible."""
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
    # The same damage can be reported more than once.
    damage = [problem for problem in damage if not isinstance(problem, IncompleteBatchError)] or [
        first_error
    ]
    problems = list({(problem.position, problem.reason): problem for problem in damage}.values())
    for problem in problems:
        salvage.write(damage_json(session, problem))
    return SessionResult(session, "damaged", None, tuple(problems), saved)


def _exit(checked: int, results: list[SessionResult], *, filtered: bool) -> None:
    if any(result.state == "damaged" for result in results):
        raise SystemExit(BAD_NEWS)
    if results:
        raise SystemExit(UNAVAILABLE)
    if filtered and not checked:
        echo("No session matches.", err=True)
        raise SystemExit(BAD_NEWS)
