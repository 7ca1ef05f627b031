"""Choose the session of `perdure chat` if none is named."""

import secrets
from datetime import UTC, datetime
from itertools import islice

from perdure.backend import Head
from perdure.cli.chat_stop import Stop
from perdure.cli.ls import most_recent, row_of
from perdure.cli.stores import Opened, head_of
from perdure.cli.text import ago, columns, counted, pad, safe, say

LISTED = 8  # Sessions; a short list fits above the prompt.


def new_name(source: Opened) -> str:
    """Return a session name, made from the date, that the store does not have yet."""
    while True:
        name = f"chat-{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
        if head_of(source.backend, name) is None:
            return name


def ask_which(source: Opened, stop: Stop) -> str:
    """Let the user choose a recent session, or name one. Enter starts a new session."""
    new_session = new_name(source)
    rows = []
    for head in islice(most_recent(source, "", (), deleted=False), LISTED * 2):
        row = row_of(source.store, head) if isinstance(head, Head) else None
        if row is not None and row.state == "live":
            rows.append(row)
    rows = rows[:LISTED]
    if not rows:
        return new_session
    say(f"Sessions in {source.name}:", bold=True)
    names = [row.head.stream for row in rows]
    width = min(max(columns(safe(name)) for name in names), 40)
    for number, row in enumerate(rows, start=1):
        when = ago(row.changed) if row.changed else ""
        count = counted(row.messages or 0, "message")
        say(f"  {number}  {pad(safe(row.head.stream), width)}  {pad(count, 14)} {when}")
    while True:
        with stop.interruptible():
            typed = input(
                f"Which session? A number, a name, or Enter for a new one ({new_session}): "
            ).strip()
        if not typed:
            return new_session
        if not typed.isdecimal() or typed in names:
            return typed
        if 1 <= int(typed) <= len(names):
            return names[int(typed) - 1]
        say(f"Choose a number from 1 to {len(names)}.", fg="red")
