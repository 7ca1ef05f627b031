"""Text output for a terminal or a pipe. Stored text is untrusted and is never printed raw.

Stored text can hold escape sequences that rewrite the screen and invisible characters that reverse
the reading direction. `safe` shows such characters as escapes; nothing reaches a terminal without
it. Colors are `click.style`s around safe text; `click.echo` strips them for a pipe.
"""

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import click

WIDTH_MIN, WIDTH_MAX = 40, 120  # Columns; narrower breaks words apart, wider is hard to read.
TAB = 4  # Columns.

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


def compact(value: Any) -> str:
    """Return a value as JSON for people, on one safe line."""
    return safe(json.dumps(value, ensure_ascii=False))


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line of safe text; characters that the output cannot encode become escapes."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(text, **style) if style else text, err=err, nl=nl)


def say_json(value: Any) -> None:
    """Print a JSON document on one line of ASCII, so that it cannot hide or forge characters."""
    click.echo(json.dumps(value, ensure_ascii=True))


def at_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal. A closed standard stream is None."""
    return stream is not None and stream.isatty()


def terminal_width() -> int:
    """Return the number of columns to use."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, WIDTH_MIN), WIDTH_MAX)


def columns(text: str) -> int:
    """Return the display width of a safe text, in columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def pad(text: str, width: int) -> str:
    """Pad a text with spaces to at least `width` columns."""
    return text + " " * max(width - columns(text), 0)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield a stored text as safe lines, none wider than `width` columns."""
    for line in re.split(r"\r?\n", text):
        yield from _fill(safe(line.expandtabs(TAB)), width)


def _fill(line: str, width: int) -> Iterator[str]:
    filled, used = "", 0
    for token in re.findall(r" +|[^ ]+", line):
        size = columns(token)
        if filled and used + size > width:
            yield filled.rstrip(" ")
            filled, used = "", 0
            if token.isspace():
                continue
        while size > width:
            cut = _fitting(token, width)
            yield token[:cut]
            token = token[cut:]  # noqa: PLW2901 - the rest of the token
            size = columns(token)
        filled, used = filled + token, used + size
    yield filled.rstrip(" ")


def _fitting(token: str, width: int) -> int:
    if token[:width].isascii():
        return width
    used = 0
    for index, character in enumerate(token):
        used += _columns(character)
        if used > width:
            return max(index, 1)
    return len(token)


def first_line(text: str, width: int | None) -> str:
    """Return a stored text on one safe line; a cut line ends with the number of cut characters."""
    line = safe(re.sub(r"\r?\n", " ⏎ ", text.strip()).expandtabs(TAB))
    if width is None or columns(line) <= width:
        return line
    room = max(width - 12, 8)
    cut = _fitting(line, room)
    return f"{line[:cut].rstrip()} … +{len(line) - cut:,}"


def moment(time: datetime) -> str:
    """Format a time for people: UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact(time: datetime) -> str:
    """Format a time for programs: ISO 8601, UTC, microseconds."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(time: datetime, now: datetime | None = None) -> str:
    """Format a time relative to `now`, in the largest unit that fits."""
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    size = abs(seconds)
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if size >= unit:
            count = int(size // unit)
            span = f"{count:,} {name}{'s' * (count != 1)}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "now"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    if number == 1:
        return f"1 {noun}"
    nouns = (
        f"{noun[:-1]}ies" if noun.endswith("ry") else noun + ("es" if noun[-2:] == "ch" else "s")
    )
    return f"{number:,} {nouns}"


def sized(number: int) -> str:
    """Format a number of bytes for people, in powers of 1000."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - a kilobyte
            return f"{number:,} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
