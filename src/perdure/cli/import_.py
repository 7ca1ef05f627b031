"""`perdure import`: what a script kept in a JSON file goes into a session, once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

import perdure
from perdure.cli.import_plan import Plan, Seen, carry_out, look, plan
from perdure.cli.import_view import Outcome, outcome_json, print_outcome
from perdure.cli.progress import Progress
from perdure.cli.stores import BAD_NEWS, DEFAULT, Reading, WrongCallError
from perdure.cli.text import say_json
from perdure.errors import UsageError
from perdure.importing.autogen import Pair
from perdure.opening import path_of, scheme_of
from perdure.store import Store

EXAMPLES = """\b
Examples:
  perdure import agent_memory.json      into the session agent_memory
  perdure import chat_state.json --session claim-4711
  perdure import --dry-run *.json       say what would be done, and do nothing
  perdure import --autogen chat_state.json --session claim-4711

\b
Read are a list of messages, JSON lines of them, or an object that holds them
under "messages". What is wrong in a file is repaired where that can be done,
each repair is told, and what can not be a message is kept in a note. A file
that was imported before adds nothing.

\b
With --autogen a file is what an agent of a pair kept of its chat. Who said
each message is told by its name; the agents that perdure.adapters.autogen is
given for the session go on with it, each from its own side.

\b
With --json, each line is an object: file, session, state (imported, already,
planned or empty), messages, added, position, sha256, repairs (found, done,
element, byte) and leftovers (element, byte, reason).
"""


@click.command("import", cls=Reading, epilog=EXAMPLES)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--session", "session_id", metavar="ID", help="[default: the name of the file]")
@click.option("--append", is_flag=True, help="Also into a session that holds other messages.")
@click.option("--autogen", is_flag=True, help="The files are lists that AutoGen agents kept.")
@click.option(
    "--between",
    nargs=2,
    metavar="USER ASSISTANT",
    help="With --autogen: the agents' names. [default: those in the file]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each file.")
@click.option(
    "--store",
    "address",
    envvar="PERDURE_URL",
    metavar="URL",
    default=DEFAULT,
    help=f"The store; it is made if need be. [default: PERDURE_URL, else {DEFAULT}]",
)
def import_(  # noqa: PLR0913 - the options of the command
    address: str,
    files: tuple[Path, ...],
    session_id: str | None,
    *,
    append: bool,
    autogen: bool,
    between: tuple[str, str] | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take messages out of JSON files that a script without perdure kept.

    Each file goes into a session of its own. Its messages are stored as they are, but for what is
    repaired; where they came from is in their origin. Exits with 1 if a file holds no messages, or
    anything that could not be one.
    """
    if between and not autogen:
        raise WrongCallError("--between names the agents of AutoGen files: give --autogen as well.")
    targets = [session_id or path.stem for path in files]
    if len({*targets}) < len(targets) and not append:
        raise WrongCallError("Several files go into one session only with --append.")
    agents = Pair(*between) if between else None
    plans = [*_plans(files, targets, autogen=autogen, agents=agents)]
    outcomes = []
    writes = not dry_run and any(made.imported.messages for made in plans)
    with _store(address, make=writes) as store:
        seen = []
        for made in plans:
            with _naming(made.file):
                seen.append(look(store, made))
        for made, found in zip(plans, seen, strict=True):
            _require_allowed(found, made, append=append)
        total = sum(len(made.imported.messages) for made in plans)
        with Progress("importing", "message", lambda: total) as progress:
            for at, made in enumerate(plans):
                progress.at = made.file
                if made.session in targets[:at]:  # What went there just now was not seen yet.
                    seen[at] = look(store, made)
                outcome = _import(store, made, seen[at], progress, dry_run=dry_run)
                outcomes.append(outcome)
                progress.hide()
                if as_json:
                    say_json(outcome_json(outcome))
                else:
                    print_outcome(outcome, address)
    if any(outcome.bad_news for outcome in outcomes):
        raise SystemExit(BAD_NEWS)


def _plans(
    files: Sequence[Path], targets: Sequence[str], *, autogen: bool, agents: Pair | None
) -> Iterator[Plan]:
    for path, target in zip(files, targets, strict=True):
        with _naming(path.name):
            yield plan(path.name, path.read_bytes(), target, autogen=autogen, agents=agents)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Say of which of several files it is that something can not be done."""
    try:
        yield
    except UsageError as error:
        raise WrongCallError(f"{file}: {error}; nothing was imported") from error


@contextmanager
def _store(address: str, *, make: bool) -> Iterator[Store | None]:
    """Open a store, or make it, if anything is to be written."""
    if scheme_of(address)[0] == "memory":
        raise WrongCallError("A memory store is gone when the command ends: name one on disk.")
    path = path_of(address)
    if not make and path is not None and not path.exists():
        yield None
        return
    with perdure.open(address) as store:
        yield store


def _require_allowed(seen: Seen, made: Plan, *, append: bool) -> None:
    """Refuse to mix the messages of a file with others, unless that was asked for."""
    if seen.others and made.imported.messages and not seen.end and not append:
        raise WrongCallError(
            f"{made.session!r} holds {seen.others:,} other messages, so {made.file} was not "
            "imported: give --session with another id, or --append to put them together."
        )


def _import(
    store: Store | None, made: Plan, seen: Seen, progress: Progress, *, dry_run: bool
) -> Outcome:
    if not made.imported.messages:
        return Outcome(made, "empty")
    if seen.end:
        return Outcome(made, "already", position=seen.end)
    if store is None or dry_run:
        return Outcome(made, "planned")
    added = position = 0
    for step in carry_out(store, made, seen):
        position, added = step.position, added + step.messages
        progress.done += step.messages
    return Outcome(made, "imported", added, position)
