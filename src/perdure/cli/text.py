"""Text for a terminal, or for a pipe. What comes out of a store is never trusted here.

Stored text can hold escape sequences that rewrite the screen and invisible characters that turn
the direction of reading. `safe` shows such characters as escapes; nothing reaches a terminal
without it. Colours are `click.style`s around safe text, which `click.echo` takes off for a pipe.
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

WIDTH_MIN, WIDTH_MAX = 40, 120  # Narrower, words fall apart; wider, the eye gets lost.
TAB = 4

# Controls, directions of reading, line separators, invisible marks, surrogates, non-characters.
# The joiners U+200C and U+200D stay: words of some languages, and emoji, need them.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)


def safe(text: str) -> str:
    """Return a text in one line in which every character is one that can be seen."""
    return UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def compact(value: Any) -> str:
    """Return JSON for people, in one safe line."""
    return safe(json.dumps(value, ensure_ascii=False))


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a line of safe text; what the output can not encode is shown as an escape."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    click.echo(click.style(text, **style) if style else text, err=err, nl=nl)


def say_json(value: Any) -> None:
    """Print a JSON document in one line of ASCII, so that no reader of it can be misled."""
    click.echo(json.dumps(value, ensure_ascii=True))


def at_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; a stream that was closed is None."""
    return stream is not None and stream.isatty()


def terminal_width() -> int:
    """Return how many columns to use."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, WIDTH_MIN), WIDTH_MAX)


def columns(text: str) -> int:
    """Return how many columns a safe text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def pad(text: str, width: int) -> str:
    """Return a text that takes at least so many columns."""
    return text + " " * max(width - columns(text), 0)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a stored text, made safe, none wider than `width`."""
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
            token = token[cut:]  # noqa: PLW2901 - what is left of it.
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
    """Return a stored text in one safe line; where it is cut, it says how much is missing."""
    line = safe(re.sub(r"\r?\n", " ⏎ ", text.strip()).expandtabs(TAB))
    if width is None or columns(line) <= width:
        return line
    room = max(width - 12, 8)
    cut = _fitting(line, room)
    return f"{line[:cut].rstrip()} … +{len(line) - cut:,}"


def moment(time: datetime) -> str:
    """Return a time for people, in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact(time: datetime) -> str:
    """Return a time for programs."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ago(time: datetime, now: datetime | None = None) -> str:
    """Return how long ago something was, in the unit that fits."""
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    size = abs(seconds)
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if size >= unit:
            count = int(size // unit)
            span = f"{count:,} {name}{'s' * (count != 1)}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "now"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun."""
    if number == 1:
        return f"1 {noun}"
    plural = (
        f"{noun[:-1]}ies" if noun.endswith("ry") else noun + ("es" if noun[-2:] == "ch" else "s")
    )
    return f"{number:,} {plural}"


def sized(number: int) -> str:
    """Return a number of bytes for people."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - what a kilo is.
            return f"{number:,} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
