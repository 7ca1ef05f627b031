"""`perdure replay`: run an agent's code against a recorded session and compare."""

import contextlib
import sys
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from perdure import replay as replayed
from perdure.aio.store import open_async
from perdure.cli.stores import (
    BAD_NEWS,
    InvalidCallError,
    NoMatchError,
    StoreCommand,
    require_existing,
    store_option,
)
from perdure.cli.terminal import echo, echo_json
from perdure.core.replay.divergence import one_line
from perdure.core.replay.result import Replay
from perdure.errors import NotFoundError
from perdure.safe_text import safe
from perdure.sync.store import open as open_store

EXAMPLES = """\b
Examples:
  perdure replay claim-4711 agent:run
                                      run(session) of agent.py, from the start
  perdure replay claim-4711 agent:run --start turn-7 --end turn-7
                                      one turn
  perdure replay claim-4711 agent:run --json

\b
MODULE:FUNCTION is imported with the current directory first on the path. The
function takes a session, and may be async. With --json, its own output goes
to standard error. Exits with 1 if the agent diverges from the record.

\b
With --json, the object has session, start, end, identical, ended (why the
record ended before the agent), divergence (position, what, path, recorded,
given, or null), served (number of calls by name), compared, messages,
refused (blocked accesses) and error (raised by the agent, or null).
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session")
@click.argument("agent", metavar="MODULE:FUNCTION")
@click.option("--start", metavar="PLACE", help="Position or turn id to start before.")
@click.option("--end", metavar="PLACE", help="Position or turn id to end with.")
@click.option("--ignore", multiple=True, metavar="KIND", help="Kind of record to skip. Repeatable.")
@click.option(
    "--error",
    "errors",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Error class that tools raise. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@store_option
def replay(  # noqa: PLR0913 - the options of the command
    address: str | None,
    session: str,
    agent: str,
    start: str | None,
    end: str | None,
    ignore: tuple[str, ...],
    errors: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Replay an agent against a recorded session, which serves its model and tool calls.

    Nothing is called and nothing is written; network access and subprocesses are blocked. The agent
    must do the same to the byte; otherwise the first difference is shown.
    """
    url = require_existing(address)
    function = _import_named(agent, "function")
    options = {
        "start": _parse_position(start),
        "end": _parse_position(end),
        "ignore": ignore,
        "errors": [_import_named(error, "class") for error in errors],
    }
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        result = _run_replay(url, session, function, options)
    if as_json:
        echo_json(_replay_json(result))
    else:
        _print_replay(result)
    if not result.identical:
        raise SystemExit(BAD_NEWS)


def _run_replay(url: str, session: str, function: Any, options: dict[str, Any]) -> Replay:
    import asyncio
    import inspect

    async def replay_async() -> Replay:
        async with open_async(url) as store:
            return await replayed(await store.resume(session), function, **options)

    try:
        if inspect.iscoroutinefunction(function):
            return asyncio.run(replay_async())
        with open_store(url) as store:
            return replayed(store.resume(session), function, **options)
    except NotFoundError as error:
        raise NoMatchError(f"{error}. `perdure ls` lists the sessions.") from error


def _import_named(text: str, what: str) -> Any:
    """Import an object named on the command line. Names never come from stored data."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise InvalidCallError(f"{text!r} does not name a {what}: write module:{what}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = import_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidCallError(
            f"{text!r} cannot be imported: {_import_error_text(error)}"
        ) from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise InvalidCallError(f"there is no {name} in {module}")
        target = getattr(target, part)
    return target


def _import_error_text(error: BaseException) -> str:
    """Describe the error of a failed import, with its file and line."""
    if isinstance(error, ModuleNotFoundError):
        return str(error)
    description = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    on_disk = [frame for frame in frames if Path(frame.filename).is_file()]
    if isinstance(error, SyntaxError) or not on_disk:
        return description
    return f"{description} ({on_disk[-1].filename}, line {on_disk[-1].lineno})"


def _parse_position(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else text


def _print_replay(result: Replay) -> None:
    served = ", ".join(f"{safe(name)} {count}" for name, count in Counter(result.served).items())
    echo(f"{safe(result.session)}, positions {result.start} to {result.end}")
    echo(f"  {len(result.served)} calls served from the record" + (f": {served}" if served else ""))
    echo(f"  {result.compared} records compared, {len(result.outputs)} messages")
    for event in dict.fromkeys(result.refused):
        echo(f"  blocked: {safe(event)}", style="red")
    if result.error is not None:
        echo(f"  the agent raised {type(result.error).__name__}: {safe(str(result.error))}")
    if result.divergence is not None:
        echo("different", style="bold red")
        for line in str(result.divergence).splitlines():
            echo(f"  {safe(line)}")
    elif result.identical:
        echo(
            "identical"
            + (f", up to the end of the record: {safe(result.ended)}" if result.ended else "")
        )
    else:
        echo("different: the agent tried to access something outside the record", style="bold red")


def _replay_json(result: Replay) -> dict[str, Any]:
    divergence = result.divergence
    difference = None
    if divergence is not None:
        difference = {**divergence._asdict(), "recorded": one_line(divergence.recorded)}
        difference["given"] = one_line(divergence.given)
    error = result.error
    return {
        "session": result.session,
        "start": result.start,
        "end": result.end,
        "identical": result.identical,
        "ended": result.ended,
        "divergence": difference,
        "served": dict(Counter(result.served)),
        "compared": result.compared,
        "messages": len(result.outputs),
        "refused": [*result.refused],
        "error": None if error is None else {"type": type(error).__name__, "text": str(error)},
    }
