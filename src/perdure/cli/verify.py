"""`perdure verify`: check sessions for damage, and salvage readable records."""

from collections.abc import Iterator
from pathlib import Path

import click

from perdure.backend import Head
from perdure.cli.progress import Progress
from perdure.cli.rendering import damage_json, record_json
from perdure.cli.stores import (
    BAD_NEWS,
    UNAVAILABLE,
    Opened,
    Reading,
    WrongCallError,
    every_head,
    head_of,
    opened,
    require_head,
    store_option,
)
from perdure.cli.text import say, say_json
from perdure.cli.verify_view import Result, Salvage, print_result, print_summary, result_json
from perdure.errors import DamagedError, NotFoundError, TornError, VersionError
from perdure.fold import DELETED
from perdure.store import Store

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


@click.command(cls=Reading, epilog=EXAMPLES)
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
        raise WrongCallError("Give ids or --prefix, not both.")
    if target is not None and Path(target).exists():
        raise click.BadParameter(f"{target} exists: name a new file.", param_hint="'--salvage'")
    results: list[Result] = []
    checked = 0
    with opened(address) as source, Salvage(target) as salvage:
        heads = _wanted(source, sessions, prefix)
        with Progress("verifying", "session", lambda: _total(source, sessions, prefix)) as progress:
            for head in heads:
                progress.at = head.stream
                result = _verify(source, head, salvage)
                progress.done += 1
                checked += 1
                if result.state != "ok":
                    results.append(result)
                if as_json:
                    say_json(result_json(result))
                elif result.state != "ok" or not quiet:
                    progress.hide()
                    print_result(result)
    if not as_json:
        print_summary(checked, results, target)
    _end(checked, results, filtered=bool(prefix))


def _wanted(
    source: Opened, sessions: tuple[str, ...], prefix: str
) -> Iterator[Head | DamagedError]:
    if sessions:
        yield from [_named(source, session) for session in dict.fromkeys(sessions)]
    else:
        yield from every_head(source.backend, prefix=prefix)


def _named(source: Opened, session: str) -> Head | DamagedError:
    try:
        return require_head(source, session)
    except DamagedError as error:
        return error


def _total(source: Opened, sessions: tuple[str, ...], prefix: str) -> int:
    return len(sessions) or sum(1 for _ in every_head(source.backend, prefix=prefix))


def _verify(source: Opened, head: Head | DamagedError, salvage: Salvage) -> Result:
    store = source.store
    if isinstance(head, DamagedError):
        return _examined(store, head.stream, head, salvage)
    try:
        with store.session(head.stream) as session:
            return Result(head.stream, "ok", session.verify())
    except NotFoundError as error:
        now = head_of(source.backend, head.stream)
        if now is None or DELETED in now.labels:  # Deleted since it was listed.
            return Result(head.stream, "ok")
        if now != head:  # Deleted and created again.
            return _verify(source, now, salvage)
        lost = DamagedError(head.stream, 0, f"the parent of this branch is gone: {error}")
        return _examined(store, head.stream, lost, salvage)
    except VersionError as error:
        return Result(head.stream, "newer", reason=str(error))
    except DamagedError as error:
        return _examined(store, head.stream, error, salvage)


def _examined(store: Store, session: str, first_error: DamagedError, salvage: Salvage) -> Result:
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
    damage = [problem for problem in damage if not isinstance(problem, TornError)] or [first_error]
    problems = list({(problem.position, problem.reason): problem for problem in damage}.values())
    for problem in problems:
        salvage.write(damage_json(session, problem))
    return Result(session, "damaged", None, tuple(problems), saved)


def _end(checked: int, results: list[Result], *, filtered: bool) -> None:
    if any(result.state == "damaged" for result in results):
        raise SystemExit(BAD_NEWS)
    if results:
        raise SystemExit(UNAVAILABLE)
    if filtered and not checked:
        say("No session matches.", err=True)
        raise SystemExit(BAD_NEWS)
