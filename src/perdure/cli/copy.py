"""`perdure copy`: copy sessions to another store while agents keep writing to them."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import click
from rich.filesize import decimal

from perdure.backends.addresses import open_backend, path_of
from perdure.backends.protocol import Backend
from perdure.cli.salvage import rebuilt, sqlite_path
from perdure.cli.stores import (
    BAD_NEWS,
    InvalidCallError,
    StoreCommand,
    UnreadableStoreError,
    refuse_memory,
    require_existing,
    without_password,
)
from perdure.cli.terminal import ProgressBar, echo, echo_json, plural
from perdure.errors import UnavailableError
from perdure.journal.copying.requests import CopyProgress as Reached
from perdure.journal.copying.rounds import CopyResult, CopyRun
from perdure.safe_text import safe, shell_command
from perdure.sync.copy import missing_store, parse_selection, require_distinct, run_copy

LISTED_MAX = 20  # Sessions listed one by one; --json lists all.

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # Seconds between two rounds of --watch.


EXAMPLES = """\b
Examples:
  perdure copy agents.db files:agent_state
  perdure copy agents.db postgresql://db.example/agents
  perdure copy --prefix claim- agents.db claims.db
  perdure copy --dry-run agents.db files:agent_state
  perdure copy --final agents.db files:agent_state
                                      after the writers have stopped
  perdure copy --salvage damaged.db new.db
                                      what is left of a damaged SQLite file

\b
A copy can be stopped at any time and run again: what TO has already is not
copied again. Agents may keep writing to FROM. When the copy has caught up,
stop them, copy with --final, and start them again on TO.

\b
With --json, the output is one object: source, target, sessions, records and
bytes that were copied, of_sessions, rounds, left (records that the last round
still found), ancestors, verified (records that --final compared), complete,
and problems (session, kind, reason, position). With --watch, it is one such
object per line for each round that copied something.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("source", metavar="FROM", type=click.Path())
@click.argument("target", metavar="TO", type=click.Path())
@click.option("--prefix", default="", help="Only sessions whose id has this prefix.")
@click.option("--label", "labels", multiple=True, help="Only sessions with this label. Repeatable.")
@click.option(
    "--session", "sessions", multiple=True, metavar="ID", help="Only this session. Repeatable."
)
@click.option("--dry-run", is_flag=True, help="Show what would be copied; write nothing.")
@click.option(
    "--final", is_flag=True, help="Final pass with writers stopped: compare both stores in full."
)
@click.option(
    "--salvage", is_flag=True, help="Read a damaged SQLite file page by page, not by its indexes."
)
@click.option("--watch", is_flag=True, help="Keep copying new records until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def copy(source: str, target: str, *, as_json: bool, watch: bool, **options: Any) -> None:
    """Copy sessions from one store to another, entry by entry, unchanged.

    Ids, digests, times, branches, labels and deletions are preserved. Entries are verified against
    their chain when read, and read back after they are written. Exits with 1 if a session was not
    copied, because it is damaged or TO has a different session of that name, or if --final finds
    that FROM is still being written to.
    """
    if watch and (options["final"] or options["dry_run"]):
        raise InvalidCallError("--watch never ends: give it without --final and --dry-run.")
    if options["salvage"] and (watch or options["final"]):
        raise InvalidCallError("--salvage reads FROM once: give it without --watch and --final.")
    require_distinct(source, target)
    with _open_stores(source, target, options) as (source_backend, target_backend):
        if watch:
            _watch(source_backend, target_backend, options, as_json=as_json)
            return
        with _CopyBar() as bar:
            copied = _copy_once(source_backend, target_backend, options, bar, {})
        _print_result(source_backend, target_backend, copied, as_json=as_json)
        if not as_json:
            _print_next_step(source, target, copied, options)
    if copied.problems or (options["final"] and copied.left):
        raise SystemExit(BAD_NEWS)


@contextmanager
def _open_stores(
    source: str, target: str, options: dict[str, Any]
) -> Iterator[tuple[Backend, Backend]]:
    with ExitStack() as stack:
        source = require_existing(source)
        if options["salvage"]:
            source_backend: Backend = stack.enter_context(_rebuilt(source, target))
        else:
            source_backend = stack.enter_context(closing(open_backend(source)))
        refuse_memory(target)
        target = missing_store(target) if options["dry_run"] else target
        yield source_backend, stack.enter_context(closing(open_backend(target)))


def _rebuilt(source: str, target: str) -> AbstractContextManager[Backend]:
    path = sqlite_path(source)
    if path is None:
        raise InvalidCallError("--salvage reads the pages of a SQLite file: FROM is not one.")
    return rebuilt(path, path_of(target))


def _copy_once(
    source_backend: Backend,
    target_backend: Backend,
    options: dict[str, Any],
    bar: "_CopyBar | None",
    previous: dict[str, str],
) -> CopyResult:
    selection = parse_selection(options["prefix"], options["labels"], options["sessions"])
    modes = {"final": options["final"], "dry_run": options["dry_run"]}
    try:
        return run_copy(
            CopyRun(selection, copied=previous, **modes),
            source_backend,
            target_backend,
            bar.show if bar else None,
        )
    except UnavailableError as error:
        hint = "entries copied so far stay: run it again to continue"
        raise UnreadableStoreError(f"{error}; {hint}") from error


class _CopyBar(ProgressBar):
    """Shows one phase of a copy after the other."""

    def __init__(self) -> None:
        super().__init__("preparing", "session", lambda: 0)

    def show(self, reached: Reached) -> None:
        total, noun, done = reached.of_sessions, "session", reached.sessions
        at = "" if reached.phase == "counting" else plural(reached.records, "record")
        if reached.phase == "copying" and reached.of_records > 0:
            total, noun, done = reached.of_records, "record", reached.records
            at = decimal(reached.bytes)
        if reached.phase != self.activity:
            self.begin(reached.phase, noun, lambda: total)
        self.done, self.at = done, at


def _watch(
    source_backend: Backend, target_backend: Backend, options: dict[str, Any], *, as_json: bool
) -> None:
    """Copy in rounds until Ctrl-C. The pause is at least as long as the round before it took."""
    pause, first, has_problems = FIRST_PAUSE, True, False
    previous: dict[str, str] = {}
    try:
        while True:
            start = time.monotonic()
            with _CopyBar() as bar:
                copied = _copy_once(
                    source_backend, target_backend, options, bar if first else None, previous
                )
            if copied.records or first:
                _print_result(source_backend, target_backend, copied, as_json=as_json)
            has_problems = bool(copied.problems)
            if first and not as_json:
                echo("Watching for new records; Ctrl-C stops.", err=True, style="dim")
            took = time.monotonic() - start
            pause = FIRST_PAUSE if copied.records else min(pause * 1.5, LONGEST_PAUSE)
            first = False
            time.sleep(max(pause, took))
    except KeyboardInterrupt:
        if has_problems:
            raise SystemExit(BAD_NEWS) from None


def _print_result(
    source_backend: Backend, target_backend: Backend, copied: CopyResult, *, as_json: bool
) -> None:
    if as_json:
        echo_json(
            {"source": source_backend.name, "target": target_backend.name, **copied.as_data()}
        )
        return
    size = f" ({decimal(copied.bytes)})" if copied.rounds else ""
    amount = f"{plural(copied.sessions, 'session')}, {plural(copied.records, 'record')}{size}"
    amount = amount if copied.records else "nothing"
    where = (
        "" if target_backend.name == "memory:" else f" to {safe(target_backend.name)}"
    )  # The stand-in target of a dry run.
    verb = "copied" if copied.rounds else "would copy"
    echo(f"{verb} {amount} from {safe(source_backend.name)}{where}")
    failed = sum(problem.kind != "store" for problem in copied.problems)
    existing_count = copied.of_sessions - copied.sessions - failed
    if existing_count > 0:
        echo(f"  {plural(existing_count, 'session')} already copied", style="dim")
    if copied.ancestors:
        names = ", ".join(map(safe, copied.ancestors[:LISTED_MAX]))
        echo(f"  also copied, as parents of branches: {names}", style="dim")
    if failed < len(copied.problems):
        echo("a store is damaged, and sessions may be missing: verify it", style="bold red")
    if failed:
        echo(f"not copied: {plural(failed, 'session')}", style="bold red")
    for problem in copied.problems[:LISTED_MAX]:
        where = f" (entry {problem.position})" if problem.position else ""
        session = f"{safe(problem.session)}: " if problem.session else ""
        echo(f"  {session}{problem.kind}{where}: {safe(problem.reason)}")
    if len(copied.problems) > LISTED_MAX:
        echo(f"  and {len(copied.problems) - LISTED_MAX:,} more: --json lists all of them")


def _print_next_step(source: str, target: str, copied: CopyResult, options: dict[str, Any]) -> None:
    """Print the next step for the user."""
    if options["dry_run"] or options["salvage"]:
        return
    if options["final"]:
        if copied.left:
            echo(f"Still being written to: {plural(copied.left, 'record')} arrived meanwhile.")
            echo("Stop the writers, then run it again.")
        elif not copied.problems:
            size = plural(copied.verified, "record")
            echo(f"Complete: {size} compared in both stores, all equal.", style="green")
        return
    if copied.left:
        echo(f"Writers are active: the last round still found {plural(copied.left, 'record')}.")
    else:
        echo("Caught up: the last round found nothing new.")
    echo(f"To finish, stop the writers, then: {_final_command(source, target)}")


def _final_command(source: str, target: str) -> str:
    addresses = without_password(source), without_password(target)
    return shell_command("perdure", "copy", "--final", ids=addresses)
