"""`perdure replay`: an agent's code runs again on the record of a session, and is compared."""

import contextlib
import sys
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from perdure.cli.stores import (
    BAD_NEWS,
    NotThereError,
    Reading,
    WrongCallError,
    existing,
    store_option,
)
from perdure.cli.text import safe, say, say_json
from perdure.errors import NotFoundError
from perdure.opening import open as open_store
from perdure.opening import open_async
from perdure.replays.diverging import shown
from perdure.replays.replaying import Replay
from perdure.replays.replaying import replay as replayed

EXAMPLES = """\b
Examples:
  perdure replay claim-4711 agent:run
                                      run(session) of agent.py, from the start
  perdure replay claim-4711 agent:run --start turn-7 --end turn-7
                                      one turn
  perdure replay claim-4711 agent:run --json

\b
MODULE:FUNCTION is imported with the current directory first. The function
takes a session, and may be async. What it prints goes to standard error with
--json. Exits with 1 if it did something else than what is recorded.

\b
With --json, the object has session, start, end, identical, ended (why the
record stopped before the agent), divergence (position, what, path, recorded,
given, or null), served (how often what was called), compared, messages,
refused (what was reached for) and error (what the agent raised, or null).
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session")
@click.argument("agent", metavar="MODULE:FUNCTION")
@click.option("--start", metavar="PLACE", help="A position, or the id of a turn, to begin before.")
@click.option("--end", metavar="PLACE", help="A position, or the id of a turn, to end with.")
@click.option("--ignore", multiple=True, metavar="KIND", help="Records that are not compared.")
@click.option(
    "--error", "errors", multiple=True, metavar="MODULE:CLASS", help="An error that tools raise."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@store_option
def replay(  # noqa: PLR0913 - what the command takes
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
    """Run an agent's code again, with its model and tools served from the record of a session.

    Nothing is called and nothing is written; the network and other programs are refused. What the
    agent does is the same to the byte, or the first difference is shown.
    """
    url = existing(address)
    function = _named(agent, "function")
    options = {
        "start": _place(start),
        "end": _place(end),
        "ignore": ignore,
        "errors": [_named(error, "class") for error in errors],
    }
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = _replayed(url, session, function, options)
    if as_json:
        say_json(_json(found))
    else:
        _print(found)
    if not found.identical:
        raise SystemExit(BAD_NEWS)


def _replayed(url: str, session: str, function: Any, options: dict[str, Any]) -> Replay:
    import asyncio
    import inspect

    async def awaiting() -> Replay:
        async with open_async(url) as store:
            return await replayed(await store.resume(session), function, **options)

    try:
        if inspect.iscoroutinefunction(function):
            return asyncio.run(awaiting())
        with open_store(url) as store:
            return replayed(store.resume(session), function, **options)
    except NotFoundError as error:
        raise NotThereError(f"{error}. `perdure ls` lists the sessions.") from error


def _named(text: str, what: str) -> Any:
    """Import what the caller of the command named; nothing that is stored names anything."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise WrongCallError(f"{text!r} does not name a {what}: write module:{what}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:
        raise WrongCallError(f"{text!r} can not be imported: {_why(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise WrongCallError(f"there is no {name} in {module}")
        found = getattr(found, part)
    return found


def _why(error: BaseException) -> str:
    """Return what is wrong with a module, and where in it."""
    if isinstance(error, ModuleNotFoundError):
        return str(error)
    told = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_file()]
    if isinstance(error, SyntaxError) or not own:
        return told
    return f"{told} ({own[-1].filename}, line {own[-1].lineno})"


def _place(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else text


def _print(found: Replay) -> None:
    served = ", ".join(f"{safe(name)} {count}" for name, count in Counter(found.served).items())
    say(f"{safe(found.session)}, positions {found.start} to {found.end}")
    say(f"  {len(found.served)} calls served from the record" + (f": {served}" if served else ""))
    say(f"  {found.compared} records compared, {len(found.outputs)} messages")
    for event in dict.fromkeys(found.refused):
        say(f"  refused: {safe(event)}", fg="red")
    if found.error is not None:
        say(f"  the agent raised {type(found.error).__name__}: {safe(str(found.error))}")
    if found.divergence is not None:
        say("different", fg="red", bold=True)
        for line in str(found.divergence).splitlines():
            say(f"  {safe(line)}")
    elif found.identical:
        say("identical" + (f", as far as it goes: {safe(found.ended)}" if found.ended else ""))
    else:
        say("different: the agent reached for what is not in the record", fg="red", bold=True)


def _json(found: Replay) -> dict[str, Any]:
    divergence = found.divergence
    told = None
    if divergence is not None:
        told = {**divergence._asdict(), "recorded": shown(divergence.recorded)}
        told["given"] = shown(divergence.given)
    error = found.error
    return {
        "session": found.session,
        "start": found.start,
        "end": found.end,
        "identical": found.identical,
        "ended": found.ended,
        "divergence": told,
        "served": dict(Counter(found.served)),
        "compared": found.compared,
        "messages": len(found.outputs),
        "refused": [*found.refused],
        "error": None if error is None else {"type": type(error).__name__, "text": str(error)},
    }
