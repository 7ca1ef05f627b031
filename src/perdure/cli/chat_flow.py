"""Print streamed text on a terminal or in a pipe. Unsafe characters never get through."""

import re
from typing import Any

from perdure.cli.text import TAB, columns, safe, say, wrapped

_TOKENS = re.compile(r"\n| +|[^ \n]+")


class Flow:
    """Prints chunks of a text as they arrive; with a width, wraps at whole words."""

    def __init__(self, width: int | None, **style: Any) -> None:
        self._width = width
        self._style = style
        self._held = ""
        self._spaces = 0
        self._column = 0
        self._at_line_start = True  # Whether the current line is still empty.

    def feed(self, text: str) -> None:
        """Print complete words; hold back the last one, since the next chunk may extend it."""
        held = (self._held + text).replace("\r\n", "\n")
        if self._width is None:
            keep = held.endswith("\r")
            self._held = "\r" * keep
            self._print(re.sub(r"[^\n\t]+", lambda part: safe(part[0]), held[: len(held) - keep]))
            return
        tokens = _TOKENS.findall(held.replace("\t", " " * TAB))
        self._held = ""
        if tokens and tokens[-1][0] not in " \n":
            word = tokens.pop()
            whole = len(word) // self._width * self._width  # The part that fills whole lines.
            tokens += [word[:whole]] if whole else []
            self._held = word[whole:]
        for token in tokens:
            self._put(token, self._width)

    def end(self) -> None:
        """Print the held text and end the line."""
        held, self._held = self._held, ""
        if held and self._width is None:
            self._print(safe(held))
        elif held and self._width is not None:
            self._put(held, self._width)
        if not self._at_line_start:
            self._print("\n")
        self._column = self._spaces = 0

    def _put(self, part: str, width: int) -> None:
        if part == "\n":
            self._print("\n")
            self._column = self._spaces = 0
            return
        if part[0] == " ":
            self._spaces += len(part)
            return
        for word in wrapped(part, width):  # More than one only if the word is longer than a line.
            size = columns(word)
            if self._column and self._column + self._spaces + size > width:
                self._print("\n")
                self._column = self._spaces = 0
            self._print(" " * self._spaces + word)
            self._column += self._spaces + size
            self._spaces = 0

    def _print(self, text: str) -> None:
        if text:
            say(text, nl=False, **self._style)
            self._at_line_start = text.endswith("\n")
