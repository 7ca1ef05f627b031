"""`perdure import`: import messages from JSON files into sessions, exactly once."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

import perdure
from perdure.backends.addresses import path_of
from perdure.cli.import_.autogen import AgentPair
from perdure.cli.import_.openai_agents import KIND, read_database
from perdure.cli.import_.plan import (
    ExistingImport,
    ImportPlan,
    find_existing,
    plan_database,
    plan_import,
    require_equal,
    run_import,
)
from perdure.cli.import_.view import ImportResult, outcome_json, print_outcome
from perdure.cli.stores import (
    BAD_NEWS,
    DEFAULT_STORE,
    InvalidCallError,
    StoreCommand,
    given_keys,
    keys_option,
    refuse_memory,
)
from perdure.cli.terminal import ProgressBar, echo_json
from perdure.errors import UsageError
from perdure.sync.store import Store

FILE_MAX = 512 * 2**20  # bytes; a file is parsed in memory, which takes several times its size


EXAMPLES = """\b
Examples:
  perdure import agent_memory.json      into the session agent_memory
  perdure import chat_state.json --session claim-4711
  perdure import --dry-run *.json       show what would be imported
  perdure import --autogen chat_state.json --session claim-4711
  perdure import --openai-agents conversations.db

\b
A file is a list of messages, JSON lines, or an object with a list under
"messages". Errors in a file are repaired if possible and each repair is
printed; content that is not a message is kept in a note. Importing a file
again adds nothing.

\b
With --autogen, a file is the chat history of one agent of a pair. The name in
each message gives its author; agents used with perdure.adapters.autogen then
continue the session, each from its own side.

\b
With --openai-agents, a file is a database of the Agents SDK's SQLiteSession:
each of its sessions is imported under its own id, read back and compared;
with --session, only that one. The database is never changed.

\b
With --json, each line is an object: file, session, state (imported, already,
planned or empty), messages, added, position, sha256, repairs (found, done,
element, byte) and leftovers (element, byte, reason).
"""


@click.command("import", cls=StoreCommand, epilog=EXAMPLES)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--session",
    "session_id",
    metavar="ID",
    help="Session to import into. [default: the name of the file]",
)
@click.option("--append", is_flag=True, help="Allow a session that has other messages.")
@click.option("--autogen", is_flag=True, help="Read the chat histories of AutoGen agents.")
@click.option(
    "--between",
    nargs=2,
    metavar="USER ASSISTANT",
    help="With --autogen: names of the agents. [default: those in the file]",
)
@click.option(
    "--openai-agents",
    is_flag=True,
    help="Read a database of the OpenAI Agents SDK.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
@click.option(
    "--store",
    "address",
    envvar="PERDURE_URL",
    metavar="URL",
    default=DEFAULT_STORE,
    help=f"Store; created if missing. [default: PERDURE_URL, else {DEFAULT_STORE}]",
)
@keys_option
def import_(  # noqa: PLR0913 - the options of the command
    address: str,
    files: tuple[Path, ...],
    session_id: str | None,
    *,
    append: bool,
    autogen: bool,
    between: tuple[str, str] | None,
    openai_agents: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import messages from JSON files that a script without perdure wrote.

    Each file goes into its own session. Its messages are stored unchanged, except for repairs;
    their origin names the file. Exits with 1 if a file has no messages, or has content that is not
    a message.
    """
    if between and not autogen:
        raise InvalidCallError(
            "--between names the agents of AutoGen files: give --autogen as well."
        )
    if openai_agents and autogen:
        raise InvalidCallError("A file is read with --autogen or with --openai-agents, not both.")
    agents = AgentPair(*between) if between else None
    plans = (
        [*_read_databases(files, session_id)]
        if openai_agents
        else [*_read_plans(files, session_id, autogen=autogen, agents=agents)]
    )
    targets = [file_plan.session for file_plan in plans]
    if len({*targets}) < len(targets) and not append:
        raise InvalidCallError("Several files can go into one session only with --append.")
    outcomes = []
    writes = not dry_run and any(file_plan.imported.messages for file_plan in plans)
    with _open_store(address, make=writes) as store:
        existing_states = []
        for file_plan in plans:
            with _named_errors(file_plan.file):
                existing_states.append(find_existing(store, file_plan))
        for file_plan, existing in zip(plans, existing_states, strict=True):
            _require_allowed(existing, file_plan, append=append)
        total = sum(len(file_plan.imported.messages) for file_plan in plans)
        with ProgressBar("importing", "message", lambda: total) as progress:
            for index, file_plan in enumerate(plans):
                progress.at = file_plan.file
                if file_plan.session in targets[:index]:  # An earlier file of this run went there.
                    existing_states[index] = find_existing(store, file_plan)
                outcome = _import_file(
                    store, file_plan, existing_states[index], progress, dry_run=dry_run
                )
                outcomes.append(outcome)
                progress.hide()
                if as_json:
                    echo_json(outcome_json(outcome))
                else:
                    print_outcome(outcome, address)
    if any(outcome.bad_news for outcome in outcomes):
        raise SystemExit(BAD_NEWS)


def _read_plans(
    files: Sequence[Path], session_id: str | None, *, autogen: bool, agents: AgentPair | None
) -> Iterator[ImportPlan]:
    for path in files:
        with _named_errors(path.name):
            target = session_id or path.stem
            yield plan_import(path.name, _read_file(path), target, autogen=autogen, agents=agents)


def _read_databases(files: Sequence[Path], session_id: str | None) -> Iterator[ImportPlan]:
    for path in files:
        with _named_errors(path.name):
            sessions = read_database(path)
            chosen = [each for each in sessions if session_id in (None, each.id)]
            if not chosen:
                missing = f"no session {session_id!r}" if session_id else "no sessions"
                raise UsageError(f"it has {missing}")
            yield from plan_database(path.name, chosen)


def _read_file(path: Path) -> bytes:
    """Return the bytes of a regular file; UsageError for a pipe or a device, or if it is too long.

    Those may never end, or block until another process writes.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    data = bytearray()
    with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("it is a pipe or a device: write its content to a file first")
        # In blocks: a file may grow, and one in /proc has no size.
        while max(len(data), status.st_size) <= FILE_MAX and (block := file.read(2**20)):
            data += block
    if max(len(data), status.st_size) > FILE_MAX:
        raise UsageError(f"it is longer than {FILE_MAX >> 20} MiB: split it into several files")
    return bytes(data)


@contextmanager
def _named_errors(file: str) -> Iterator[None]:
    """Prefix errors with the name of the file that caused them."""
    try:
        yield
    except UsageError as error:
        raise InvalidCallError(f"{file}: {error}; nothing was imported") from error


@contextmanager
def _open_store(address: str, *, make: bool) -> Iterator[Store | None]:
    """Open a store. Yields None for a missing one unless `make` is set, which creates it."""
    refuse_memory(address)
    path = path_of(address)
    if not make and path is not None and not path.exists():
        yield None
        return
    with perdure.open(address, **given_keys().options) as store:
        yield store


def _require_allowed(existing: ExistingImport, file_plan: ImportPlan, *, append: bool) -> None:
    """Refuse to mix the messages of a file with others, unless `append` is set."""
    if existing.others and file_plan.imported.messages and not existing.end and not append:
        raise InvalidCallError(
            f"{file_plan.session!r} has {existing.others:,} other messages, so {file_plan.file} "
            "was not imported: give --session with another id, or --append to combine them."
        )


def _import_file(
    store: Store | None,
    file_plan: ImportPlan,
    existing: ExistingImport,
    progress: ProgressBar,
    *,
    dry_run: bool,
) -> ImportResult:
    if not file_plan.imported.messages:
        return ImportResult(file_plan, "empty")
    if existing.end:
        return ImportResult(file_plan, "already", position=existing.end)
    if store is None or dry_run:
        return ImportResult(file_plan, "planned")
    added = position = 0
    for step in run_import(store, file_plan, existing):
        position, added = step.position, added + step.messages
        progress.done += step.messages
    if file_plan.kind == KIND:
        require_equal(store, file_plan)
    return ImportResult(file_plan, "imported", added, position)
