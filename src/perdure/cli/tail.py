"""`perdure tail`: show the last records of a session, and follow new ones."""

import sys
import time
from collections.abc import Callable

import click
from rich.text import Text

from perdure.backends.protocol import DELETED
from perdure.cli.rendering import damage_json, one_line, record_json
from perdure.cli.stores import (
    BAD_NEWS,
    OpenStore,
    StoreCommand,
    open_store,
    require_head,
    store_option,
)
from perdure.cli.terminal import (
    echo,
    echo_json,
    first_line,
    is_tty,
    plural,
    terminal_width,
    timestamp_seconds,
)
from perdure.errors import DamagedError, NotFoundError, UnavailableError
from perdure.journal.records import Record
from perdure.safe_text import safe
from perdure.sync.verify import find_head

FIRST_PAUSE = 0.05  # Seconds between polls; shorter than people notice.

LONGEST_PAUSE = 1.0  # Seconds; the limit while no record arrives.


EXAMPLES = """\b
Examples:
  perdure tail claim-4711             the last 10 records
  perdure tail claim-4711 -f -n 0     new records only, until Ctrl-C
  perdure tail claim-4711 --json      for a program

\b
With --json, each line is an object: session, position, id, kind, time,
digest, content; or session, position, unreadable for a record that cannot
be read.
"""


@click.command(cls=StoreCommand, epilog=EXAMPLES)
@click.argument("session")
@click.option("-f", "--follow", is_flag=True, help="Follow new records until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of last records to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@store_option
def tail(address: str | None, session: str, *, follow: bool, lines: int, as_json: bool) -> None:
    """Show the last records of a session, one per line.

    On a terminal, a long record is cut to one line that ends with the number of missing characters;
    in a pipe and with --json it is complete. With -f, the session may be created later, or deleted.
    """
    with open_store(address) as source:
        if not follow:
            require_head(source, session)
        printer = _RecordPrinter(source, session, as_json=as_json)
        try:
            printer.last(lines)
            if follow:
                printer.follow(time.sleep)
        except KeyboardInterrupt:
            return
    if printer.damaged:
        raise SystemExit(BAD_NEWS)


class _RecordPrinter:
    """Prints the records of one session, each exactly once."""

    def __init__(self, source: OpenStore, session: str, *, as_json: bool) -> None:
        self._store, self._backend = source
        self._session = session
        self._as_json = as_json
        self._position = 0
        self._width = terminal_width() - 1 if is_tty(sys.stdout) else None
        self._last_error = ""
        self.damaged = False

    def last(self, count: int) -> None:
        """Print the last `count` records."""
        head = find_head(self._backend, self._session)
        if head is None:
            self._notify(f"There is no session {self._session!r} yet: waiting for it.")
            return
        self._position = max(head.position - count, 0)
        if count:
            self._print_new()
        self._position = max(self._position, head.position)

    def follow(self, sleep: Callable[[float], None]) -> None:
        """Print new records forever; pauses between polls grow while no record arrives."""
        pause = FIRST_PAUSE
        while True:
            sleep(pause)
            pause = FIRST_PAUSE if self._poll() else min(pause * 1.5, LONGEST_PAUSE)

    def _poll(self) -> bool:
        """Print new records; return False if there are none, or the store is unavailable."""
        try:
            head = find_head(self._backend, self._session)
            if head is None or head.position <= self._position:
                return False
            self._print_new()
            if DELETED in head.labels:
                self._notify(f"Session {self._session!r} was deleted. It may be created again.")
        except NotFoundError:  # Deleted while it was read: the next poll shows that.
            return False
        except (UnavailableError, DamagedError) as error:
            if str(error) != self._last_error:  # Reported once, not at every poll.
                self._notify(str(error))
            self._last_error = str(error)
            return False
        self._last_error = ""
        return True

    def _print_new(self) -> None:
        damage: list[DamagedError] = []
        session, after = self._session, self._position
        for record in self._store.records(session, after=after, on_damage=damage.append):
            self._unreadable(damage, before=record.position)
            if record.position > self._position + 1 and record.kind == "deleted":
                missed = record.position - self._position - 1
                self._notify(
                    f"{plural(missed, 'record')} before it: dropped before they were shown."
                )
            self._position = record.position
            echo_json(record_json(session, record)) if self._as_json else self._print(record)
        self._unreadable(damage, before=None)

    def _print(self, record: Record) -> None:
        prefix = f"{record.position:>6}  {timestamp_seconds(record.time)}  "
        room = None if self._width is None else self._width - len(prefix)
        echo(Text.assemble((prefix, "dim"), first_line(one_line(record), room)))

    def _unreadable(self, damage: list[DamagedError], *, before: int | None) -> None:
        while damage and (before is None or damage[0].position < before):
            error = damage.pop(0)
            self._position = max(self._position, error.position)
            self.damaged = True
            if self._as_json:
                echo_json(damage_json(self._session, error))
            else:
                echo(f"{error.position:>6}  UNREADABLE: {safe(error.reason)}", style="red")

    def _notify(self, text: str) -> None:
        echo(safe(text), err=True, style="dim")
