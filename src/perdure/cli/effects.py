"""`perdure effects`: list tool and model calls and their outcomes."""

from typing import Any

import click
from rich.text import Text

from perdure.cli.stores import (
    BAD_NEWS,
    StoreCommand,
    open_store,
    print_damage,
    read_sessions,
    store_option,
)
from perdure.cli.terminal import (
    compact_json,
    echo,
    echo_json,
    first_line,
    terminal_width,
    timestamp,
    timestamp_seconds,
)
from perdure.core.effects.listing import EffectInfo
from perdure.core.state.session_state import UNKNOWN_EFFECT
from perdure.errors import DamagedError
from perdure.safe_text import safe
from perdure.sync.session import Session

STATE_COLORS = {"unknown": "red", "failed": "yellow", "intended": "yellow"}

STATE_WIDTH = 10  # Columns; the longest state.


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


@click.command(cls=StoreCommand, epilog=EXAMPLES)
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

    def read(opened: Session) -> list[EffectInfo]:
        return opened.effects.unknown() if unknown else opened.effects.list()

    damaged, last_session = False, ""
    with open_store(address) as source:
        labels = (UNKNOWN_EFFECT,) if unknown else ()
        for name, effect in read_sessions(source, session, labels, read):
            if isinstance(effect, DamagedError):
                print_damage(name, effect)
                damaged = True
                continue
            if tool is not None and effect.tool != tool:
                continue
            if as_json:
                echo_json(effect_json(name, effect))
            else:
                if last_session != name:
                    echo(f"{chr(10) if last_session else ''}{safe(name)}", style="bold")
                _print_effect(effect)
            last_session = name
        if not last_session and not as_json:
            echo("There are no unknown outcomes." if unknown else "There are no effects.")
    if damaged:
        raise SystemExit(BAD_NEWS)


def effect_json(session: str, effect: EffectInfo) -> dict[str, Any]:
    """Return the JSON object of an effect."""
    return {"session": session, **effect._asdict(), "time": timestamp(effect.time)}


def _print_effect(effect: EffectInfo) -> None:
    """Print a call on one line; below it, the error, or the ids needed to reconcile it."""
    prefix = f"{effect.position:>6}  {timestamp_seconds(effect.time)}  "
    state = f"{effect.state:<{STATE_WIDTH}} ", STATE_COLORS.get(effect.state, "")
    call = f"{effect.tool}({_arguments_text(effect)})"
    room = terminal_width() - 1 - len(prefix) - STATE_WIDTH - 1
    echo(Text.assemble((prefix, "dim"), state, first_line(call, max(room, 20))))
    if reason := ": ".join(filter(None, (effect.error, effect.reason))):
        echo(" " * 8 + first_line(reason, terminal_width() - 9))
    if effect.state == "unknown":
        echo(
            f"        effect {safe(effect.id)}, key {safe(effect.key)}, {safe(effect.policy)}",
            style="dim",
        )


def _arguments_text(effect: EffectInfo) -> str:
    if effect.kind == "model" or not isinstance(effect.arguments, dict):
        return "" if effect.arguments is None else compact_json(effect.arguments)
    return ", ".join(f"{key}={compact_json(value)}" for key, value in effect.arguments.items())
