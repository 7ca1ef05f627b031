"""`perdure effects`: tool and model calls, and what became of them."""

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
STATE = 10  # Columns: the longest state.

EXAMPLES = """\b
Examples:
  perdure effects claim-4711             every call of a session
  perdure effects --unknown              what may have happened, anywhere
  perdure effects claim-4711 --tool pay  those of one tool

\b
With --json, each line is an object: session, id, kind (tool, model), tool,
state (intended, succeeded, failed, unknown, reconciled, repeated), arguments,
result, error, reason, key, policy, version, turn, position, time, duration,
identity, before, usage.
"""


@click.command(cls=Reading, epilog=EXAMPLES)
@click.argument("session", required=False)
@click.option("--unknown", is_flag=True, help="Only calls of which nobody knows whether they ran.")
@click.option("--tool", metavar="NAME", help="Only calls of this tool or model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@store_option
def effects(
    address: str | None, session: str | None, tool: str | None, *, unknown: bool, as_json: bool
) -> None:
    """List the tool and model calls of a session, or of all, and what became of them.

    An unknown one may have happened: its process died before the outcome was recorded. Find out,
    then `session.effects.reconcile(id, …)`. Without --unknown, whole sessions are read.
    """
    damaged, shown = False, ""
    with opened(address) as source:
        for name, found in _found(source, session, unknown=unknown):
            if isinstance(found, DamagedError):
                say(f"{safe(name)}: DAMAGED: {safe(found.reason)}", err=True, fg="red")
                damaged = True
                continue
            if tool is not None and found.tool != tool:
                continue
            if as_json:
                say_json(effect_json(name, found))
            else:
                if shown != name:
                    say(f"{chr(10) if shown else ''}{click.style(safe(name), bold=True)}")
                _line(found)
            shown = name
        if not shown and not as_json:
            say("No outcome is unknown." if unknown else "There are no effects.")
    if damaged:
        raise SystemExit(BAD_NEWS)


def effect_json(session: str, one: Found) -> dict[str, Any]:
    """Return an effect for programs."""
    return {"session": session, **one._asdict(), "time": exact(one.time)}


def _found(
    source: Opened, session: str | None, *, unknown: bool
) -> Iterator[tuple[str, Found | DamagedError]]:
    if session is not None:
        name = require_head(source, session).stream
        yield from ((name, one) for one in _of(source, name, unknown=unknown))
        return
    labels = (UNKNOWN_EFFECT,) if unknown else ()
    for head in every_head(source.backend, labels=labels, without=[DELETED]):
        if isinstance(head, DamagedError):
            yield head.stream, head
        else:
            try:
                yield from ((head.stream, one) for one in _of(source, head.stream, unknown=unknown))
            except NotFoundError:
                continue  # It was deleted meanwhile.
            except DamagedError as error:
                yield head.stream, error


def _of(source: Opened, name: str, *, unknown: bool) -> list[Found]:
    with source.store.resume(name) as session:
        return session.effects.unknown() if unknown else session.effects.list()


def _line(one: Found) -> None:
    """Print a call on one line, and below it what a person needs to find out about it."""
    place = f"{one.position:>6}  {moment(one.time)}  "
    state = click.style(pad(one.state, STATE), fg=COLOURS.get(one.state))
    called = f"{one.tool}({_arguments(one)})"
    room = terminal_width() - 1 - columns(place) - STATE - 1
    say(click.style(place, dim=True) + f"{state} {first_line(called, max(room, 20))}")
    if one.error or one.reason:
        why = f"{one.error}: {one.reason}" if one.error and one.reason else one.error or one.reason
        say(" " * 8 + first_line(why, terminal_width() - 9))
    if one.state == "unknown":
        say(f"        effect {safe(one.id)}, key {safe(one.key)}, {safe(one.policy)}", dim=True)


def _arguments(one: Found) -> str:
    if one.kind == "model" or not isinstance(one.arguments, dict):
        return "" if one.arguments is None else compact(one.arguments)
    return ", ".join(f"{key}={compact(value)}" for key, value in one.arguments.items())
