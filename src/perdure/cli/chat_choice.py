"""Which session `perdure chat` goes on with, where none is named."""

import secrets
from datetime import UTC, datetime
from itertools import islice

from perdure.backend import Head
from perdure.cli.chat_stop import Stop
from perdure.cli.ls import most_recent, row_of
from perdure.cli.stores import Opened, head_of
from perdure.cli.text import ago, columns, counted, pad, safe, say

LISTED = 8


def new_name(source: Opened) -> str:
    """Return the name of a session that the store does not have, after the date."""
    while True:
        name = f"chat-{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
        if head_of(source.backend, name) is None:
            return name


def ask_which(source: Opened, stop: Stop) -> str:
    """Let the user choose one of the most recent sessions, or name one; Enter is a new one."""
    fresh = new_name(source)
    rows = []
    for head in islice(most_recent(source, "", (), deleted=False), LISTED * 2):
        row = row_of(source.store, head) if isinstance(head, Head) else None
        if row is not None and row.state == "live":
            rows.append(row)
    rows = rows[:LISTED]
    if not rows:
        return fresh
    say(f"Sessions in {source.name}:", bold=True)
    names = [row.head.stream for row in rows]
    width = min(max(columns(safe(name)) for name in names), 40)
    for number, row in enumerate(rows, start=1):
        when = ago(row.changed) if row.changed else ""
        count = counted(row.messages or 0, "message")
        say(f"  {number}  {pad(safe(row.head.stream), width)}  {pad(count, 14)} {when}")
    while True:
        with stop.waiting():
            typed = input(f"Which? A number, a name, or Enter for a new one ({fresh}): ").strip()
        if not typed:
            return fresh
        if not typed.isdecimal() or typed in names:
            return typed
        if 1 <= int(typed) <= len(names):
            return names[int(typed) - 1]
        say(f"There are 1 to {len(names)}.", fg="red")
