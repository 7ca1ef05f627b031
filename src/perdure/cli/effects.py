"""`perdure effects`: list tool and model calls and their outcomes."""

from collections.abc import Iterator
from typing import Any

import click

from perdure.cli.stores import (
    BAD_NEWS,
    Opened,
    Reading,
    every_head,
    opened,
    require_head,
    store_option,
)
from perdure.cli.text import (
    columns,
    compact,
    exact,
    first_line,
    moment,
    pad,
    safe,
    say,
    say_json,
    terminal_width,
)
from perdure.effects.deed_views import Found
from perdure.errors import DamagedError, NotFoundError
from perdure.fold import DELETED, UNKNOWN_EFFECT

COLOURS = {"unknown": "red", "failed": "yellow", "intended": "yellow"}
STATE = 10  # Columns; the longest state.

EXAMPLES = """\b
Examples:
  perdure effects claim-4711             all calls of a session
  perdure effects --unknown              unknown outcomes, in all sessions
  perdure effects claim-4711 --tool pay  the calls of one tool

\b
With --json, each line is an object: session, id, kind (tool, model), tool,
state (intended, succeeded, failed, unknown, reconciled, repeated), arguments,
result, error, reason, key, policy, version, turn, position, time, duration,
identity, before, usage.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--unknown", is_flag=True, help="Only calls whose outcome is unknown.")
@click.option("--tool", metavar="NAME", help="Only calls of this tool or model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@store_option
def effects(
    address: str | None, session: str | None, tool: str | None, *, unknown: bool, as_json: bool
) -> None:
    """List the tool and model calls of one or all sessions, and their outcomes.

    A call with an unknown outcome may have happened: its process died before the outcome was
    recorded. Find out, then call `session.effects.reconcile(id, …)`. Without --unknown, whole
    sessions are read.
    """
    damaged, last_session = False, ""
    with opened(address) as source:
        for name, effect in _found(source, session, unknown=unknown):
            if isinstance(effect, DamagedError):
                say(f"{safe(name)}: DAMAGED: {safe(effect.reason)}", err=True, fg="red")
                damaged = True
                continue
            if tool is not None and effect.tool != tool:
                continue
            if as_json:
                say_json(effect_json(name, effect))
            else:
                if last_session != name:
                    say(f"{chr(10) if last_session else ''}{click.style(safe(name), bold=True)}")
                _line(effect)
            last_session = name
        if not last_session and not as_json:
            say("There are no unknown outcomes." if unknown else "There are no effects.")
    if damaged:
        raise SystemExit(BAD_NEWS)


def effect_json(session: str, effect: Found) -> dict[str, Any]:
    """Return the JSON object of an effect."""
    return {"session": session, **effect._asdict(), "time": exact(effect.time)}


def _found(
    source: Opened, session: str | None, *, unknown: bool
) -> Iterator[tuple[str, Found | DamagedError]]:
    if session is not None:
        name = require_head(source, session).stream
        yield from ((name, effect) for effect in _of(source, name, unknown=unknown))
        return
    labels = (UNKNOWN_EFFECT,) if unknown else ()
    for head in every_head(source.backend, labels=labels, without=[DELETED]):
        if isinstance(head, DamagedError):
            yield head.stream, head
        else:
            try:
                yield from (
                    (head.stream, effect) for effect in _of(source, head.stream, unknown=unknown)
                )
            except NotFoundError:
                continue  # Deleted since it was listed.
            except DamagedError as error:
                yield head.stream, error


def _of(source: Opened, name: str, *, unknown: bool) -> list[Found]:
    with source.store.resume(name) as session:
        return session.effects.unknown() if unknown else session.effects.list()


def _line(effect: Found) -> None:
    """Print a call on one line; below it, the error, or the ids needed to reconcile it."""
    prefix = f"{effect.position:>6}  {moment(effect.time)}  "
    state = click.style(pad(effect.state, STATE), fg=COLOURS.get(effect.state))
    call = f"{effect.tool}({_arguments(effect)})"
    room = terminal_width() - 1 - columns(prefix) - STATE - 1
    say(click.style(prefix, dim=True) + f"{state} {first_line(call, max(room, 20))}")
    if effect.error or effect.reason:
        reason = (
            f"{effect.error}: {effect.reason}"
            if effect.error and effect.reason
            else effect.error or effect.reason
        )
        say(" " * 8 + first_line(reason, terminal_width() - 9))
    if effect.state == "unknown":
        say(
            f"        effect {safe(effect.id)}, key {safe(effect.key)}, {safe(effect.policy)}",
            dim=True,
        )


def _arguments(effect: Found) -> str:
    if effect.kind == "model" or not isinstance(effect.arguments, dict):
        return "" if effect.arguments is None else compact(effect.arguments)
    return ", ".join(f"{key}={compact(value)}" for key, value in effect.arguments.items())
