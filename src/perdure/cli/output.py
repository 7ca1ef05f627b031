"""Text output for a terminal or a pipe. Stored text is untrusted and is never printed raw.

Stored text can hold escape sequences that rewrite the screen and invisible characters that reverse
the reading direction. `safe` shows such characters as escapes; nothing reaches a terminal without
it. Colors are `click.style`s around safe text; `click.echo` strips them for a pipe.
"""

import json
import re
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO

import click

from perdure.events import LOGGER

WIDTH_MIN, WIDTH_MAX = 40, 120  # Columns; narrower breaks words apart, wider is hard to read.

TAB_WIDTH = 4  # Columns.


# Controls, reading directions, line separators, invisible marks, surrogates, non-characters.
# The joiners U+200C and U+200D stay: some languages, and emoji, need them.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)


def safe(text: str) -> str:
    """Return the text on one line, with every invisible or control character escaped."""
    return UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def compact_json(value: Any) -> str:
    """Return a value as JSON for people, on one safe line."""
    return safe(json.dumps(value, ensure_ascii=False))


def echo(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line of safe text; characters that the output cannot encode become escapes."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(text, **style) if style else text, err=err, nl=nl)


def echo_json(value: Any) -> None:
    """Print a JSON document on one line of ASCII, so that it cannot hide or forge characters."""
    click.echo(json.dumps(value, ensure_ascii=True))


def is_tty(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal. A closed standard stream is None."""
    return stream is not None and stream.isatty()


def terminal_width() -> int:
    """Return the number of columns to use."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, WIDTH_MIN), WIDTH_MAX)


def display_width(text: str) -> int:
    """Return the display width of a safe text, in columns."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def pad(text: str, width: int) -> str:
    """Pad a text with spaces to at least `width` columns."""
    return text + " " * max(width - display_width(text), 0)


def wrap_lines(text: str, width: int) -> Iterator[str]:
    """Yield a stored text as safe lines, none wider than `width` columns."""
    for line in re.split(r"\r?\n", text):
        yield from _fill(safe(line.expandtabs(TAB_WIDTH)), width)


def _fill(line: str, width: int) -> Iterator[str]:
    filled, used = "", 0
    for token in re.findall(r" +|[^ ]+", line):
        size = display_width(token)
        if filled and used + size > width:
            yield filled.rstrip(" ")
            filled, used = "", 0
            if token.isspace():
                continue
        while size > width:
            cut = _fitting_length(token, width)
            yield token[:cut]
            token = token[cut:]  # noqa: PLW2901 - the rest of the token
            size = display_width(token)
        filled, used = filled + token, used + size
    yield filled.rstrip(" ")


def _fitting_length(token: str, width: int) -> int:
    if token[:width].isascii():
        return width
    used = 0
    for index, character in enumerate(token):
        used += _character_width(character)
        if used > width:
            return max(index, 1)
    return len(token)


def first_line(text: str, width: int | None) -> str:
    """Return a stored text on one safe line; a cut line ends with the number of cut characters."""
    line = safe(re.sub(r"\r?\n", " ⏎ ", text.strip()).expandtabs(TAB_WIDTH))
    if width is None or display_width(line) <= width:
        return line
    room = max(width - 12, 8)
    cut = _fitting_length(line, room)
    return f"{line[:cut].rstrip()} … +{len(line) - cut:,}"


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


def human_bytes(number: int) -> str:
    """Format a number of bytes for people, in powers of 1000."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - a kilobyte
            return f"{number:,} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


BAR_DELAY = 1.0  # Seconds; shorter work needs no bar.

PAINT_INTERVAL = 0.1  # Seconds between two paints.

BAR_WIDTH = 20  # Columns.

NAME_MIN = 16  # Columns; a session name cut shorter than this is useless.


class ProgressBar:
    """Shows how far a command has come; update `done` and `at` as it runs.

    `total` is called once, and only if a bar is shown. A total of 0 means unknown: the bar then
    shows the count alone.
    """

    def __init__(self, activity: str, noun: str, total: Callable[[], int]) -> None:
        self.done = 0
        self.at = ""
        self._activity, self._noun = activity, noun
        self._total = total
        self._shown = False
        self._finished = threading.Event()
        self._paint_lock = threading.Lock()
        self._thread = threading.Thread(target=self._paint_loop, daemon=True)

    def __enter__(self) -> Self:
        if is_tty(sys.stderr):
            self._thread.start()
        return self

    def hide(self) -> None:
        """Erase the bar so that a line can be printed; the next paint restores it."""
        with self._paint_lock:
            self._erase()

    def _paint_loop(self) -> None:
        start = time.monotonic()
        if self._finished.wait(BAR_DELAY):
            return
        total = self._total()
        while not self._finished.is_set():
            line = self._line(total, time.monotonic() - start)
            with self._paint_lock:
                click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
                self._shown = True
            self._finished.wait(PAINT_INTERVAL)

    def _line(self, total: int, seconds: float) -> str:
        line = f"{self._activity} {self._share(total)}, {seconds:.0f} s"
        room = terminal_width() - display_width(line) - 3
        return f"{line}  {first_line(self.at, room)}" if self.at and room >= NAME_MIN else line

    def _share(self, total: int) -> str:
        if not total:
            return plural(self.done, self._noun)
        filled = int(min(self.done / total, 1.0) * BAR_WIDTH)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        return f"[{bar}] {self.done:,} of {plural(total, self._noun)}"

    def _erase(self) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)
            self._shown = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join(timeout=BAR_DELAY)
        self._erase()


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
