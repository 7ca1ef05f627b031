"""Text output for a terminal or a pipe; rich draws tables, bars and colors.

Stored text is untrusted and never printed raw: it can hold escape sequences that rewrite the screen
and invisible characters that reverse the reading direction. `safe` shows such characters as
escapes; nothing reaches a terminal without it. Stored text is never read as markup either.
"""

import errno
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self, TextIO

import click
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from perdure.events import LOGGER
from perdure.safe_text import safe

WIDTH_MIN, WIDTH_MAX = 40, 120  # Columns; narrower breaks words apart, wider is hard to read.

TAB_WIDTH = 4  # Columns.

# The colors of rich need more than the 16 that every terminal has.
BAR_COLORS = Theme({"bar.back": "bright_black", "bar.complete": "green", "bar.finished": "green"})


def compact_json(value: Any) -> str:
    """Return a value as JSON for people, on one safe line."""
    return safe(json.dumps(value, ensure_ascii=False))


class _Console(Console):
    """Leaves a broken pipe to the command, which ends with the exit code that shells expect."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _console(stream: TextIO) -> Console:
    """Return the console of a stream. Text is never markup, and no color goes into a pipe."""
    context = click.get_current_context(silent=True)
    wanted = None if context is None else context.color
    has_colors = is_tty(stream) if wanted is None else wanted
    return _make_console(stream, terminal_width() - 1, has_colors=has_colors)


@lru_cache(maxsize=2)  # Standard output and standard error; a test may replace them.
def _make_console(stream: TextIO, width: int, *, has_colors: bool) -> Console:
    return _Console(
        file=stream,
        width=width,
        theme=BAR_COLORS,
        color_system="standard" if has_colors else None,
        force_terminal=is_tty(stream),
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def echo(text: str | Text = "", *, style: str = "", err: bool = False, nl: bool = True) -> None:
    """Print safe text as it is; it is wrapped neither on a terminal nor in a pipe."""
    stream, end = sys.stderr if err else sys.stdout, "\n" if nl else ""
    if stream is None:  # It is closed.
        return
    if isinstance(text, str) and not style:
        stream.write(text + end)  # Not click.echo, which writes UTF-8 where ASCII is asked for.
        stream.flush()
    else:
        styled = Text(text, style) if isinstance(text, str) else text
        _console(stream).print(styled, soft_wrap=True, end=end)


def grid(*widths: int | None) -> Table:
    """Return an empty table without lines; a column without a width takes the rest and wraps."""
    table = Table.grid()
    for width in widths:
        table.add_column(width=width, overflow="fold")
    return table


def echo_table(table: Table | Padding) -> None:
    """Print a table of safe cells, without the spaces that fill its last column."""
    if sys.stdout is not None:
        console = _console(sys.stdout)
        with console.capture() as capture:
            console.print(table)
        for line in capture.get().splitlines():
            echo(line.rstrip())


def echo_json(value: Any) -> None:
    """Print a JSON document on one line of ASCII, so that it cannot hide or forge characters."""
    click.echo(json.dumps(value, ensure_ascii=True))


def is_tty(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal. A closed standard stream is None."""
    return stream is not None and stream.isatty()


def terminal_width() -> int:
    """Return the number of columns to use."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, WIDTH_MIN), WIDTH_MAX)


def safe_lines(text: str) -> str:
    """Return a stored text safe to print; its line breaks stay."""
    return "\n".join(safe(line.expandtabs(TAB_WIDTH)) for line in re.split(r"\r?\n", text))


def wrap_lines(text: str, width: int) -> Iterator[str]:
    """Yield a stored text as safe lines, none wider than `width` columns."""
    for line in Text(safe_lines(text)).wrap(Console(), width):
        yield line.plain.rstrip(" ")


def first_line(text: str, width: int | None) -> str:
    """Return a stored text on one safe line; a cut line ends with the number of cut characters."""
    line = safe(re.sub(r"\r?\n", " ⏎ ", text.strip()).expandtabs(TAB_WIDTH))
    if width is None or cell_len(line) <= width:
        return line
    room = max(width - 12, 8)
    start = chop_cells(line[:room], room)[0]
    return f"{start.rstrip()} … +{len(line) - len(start):,}"


def timestamp_seconds(time: datetime) -> str:
    """Format a time for people: UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def timestamp(time: datetime) -> str:
    """Format a time for programs: ISO 8601, UTC, microseconds."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def relative_time(time: datetime, now: datetime | None = None) -> str:
    """Format a time relative to `now`, in the largest unit that fits."""
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    size = abs(seconds)
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if size >= unit:
            count = int(size // unit)
            span = f"{count:,} {name}{'s' * (count != 1)}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "now"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    if number == 1:
        return f"1 {noun}"
    nouns = (
        f"{noun[:-1]}ies" if noun.endswith("ry") else noun + ("es" if noun[-2:] == "ch" else "s")
    )
    return f"{number:,} {nouns}"


BAR_DELAY = 1.0  # Seconds; shorter work needs no bar.

PAINTS_PER_SECOND = 10

BAR_WIDTH = 20  # Columns.

NAME_MIN = 16  # Columns; a session name cut shorter than this is useless.


class ProgressBar:
    """Shows how far a command has come; update `done` and `at` as it runs.

    `total` is called once, and only if a bar is shown. A total of 0 means unknown: the count is
    then shown without a bar.
    """

    def __init__(self, activity: str, noun: str, total: Callable[[], int]) -> None:
        self._live: Live | None = None
        self._hidden = self._is_painted = False
        self.begin(activity, noun, total)
        self._lock = threading.Lock()
        self._timer = threading.Timer(BAR_DELAY, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if is_tty(sys.stderr):
            self._live = Live(
                console=_console(sys.stderr),
                get_renderable=self._line,
                refresh_per_second=PAINTS_PER_SECOND,
                transient=True,
                redirect_stdout=False,  # Otherwise a redirected output would go to the terminal.
                redirect_stderr=False,
            )
            self._timer.start()
        return self

    def begin(self, activity: str, noun: str, total: Callable[[], int]) -> None:
        """Start again from zero with another activity."""
        self.activity, self._noun, self._count = activity, noun, total
        self.done, self.at, self._start = 0, "", time.monotonic()
        self._total = total() if self._live is not None and self._live.is_started else 0

    def _show(self) -> None:
        self._total = self._count()
        with self._lock:
            if self._live is not None:
                self._live.start(refresh=True)

    def hide(self) -> None:
        """Erase the bar so that a line can be printed; the next paint restores it."""
        if self._live is not None and self._is_painted:
            self._hidden = True
            self._live.refresh()
            self._hidden = False

    def _line(self) -> Table | str:
        self._is_painted = not self._hidden
        if self._hidden:
            return ""
        count = f"{self.done:,} of " if self._total else ""
        count += plural(self._total or self.done, self._noun)
        count += f", {time.monotonic() - self._start:.0f} s"
        bar = [Bar(self._total, self.done, width=BAR_WIDTH)] if self._total else []
        room = terminal_width() - len(self.activity + count) - (BAR_WIDTH + 1) * len(bar) - 4
        at = f" {first_line(self.at, room)}" if self.at and room >= NAME_MIN else ""
        table = Table.grid(padding=(0, 1))
        table.add_row(self.activity, *bar, count, at)
        return table

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()


@contextmanager
def muted_event(event: str) -> Iterator[None]:
    """Suppress log records of one event while the block runs."""
    import logging  # Imported late: most commands do not need it.

    def is_other(record: Any) -> bool:
        return getattr(record, "event", "") != event

    logger = logging.getLogger(LOGGER)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
