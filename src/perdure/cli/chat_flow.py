"""Text that arrives in pieces, on a terminal or in a pipe. Nothing unsafe gets through."""

import re
from typing import Any

from perdure.cli.text import TAB, columns, safe, say, wrapped

_TOKENS = re.compile(r"\n| +|[^ \n]+")


class Flow:
    """Prints pieces of a text as they come; with a width, it is filled by whole words."""

    def __init__(self, width: int | None, **style: Any) -> None:
        self._width = width
        self._style = style
        self._held = ""
        self._gap = 0
        self._used = 0
        self._fresh = True  # Whether nothing stands on the line yet.

    def feed(self, text: str) -> None:
        """Print what is whole; the last word may still grow."""
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
            whole = len(word) // self._width * self._width  # So much of it fills lines by itself.
            tokens += [word[:whole]] if whole else []
            self._held = word[whole:]
        for token in tokens:
            self._put(token, self._width)

    def end(self) -> None:
        """Print what was held back, and end the line."""
        held, self._held = self._held, ""
        if held and self._width is None:
            self._print(safe(held))
        elif held and self._width is not None:
            self._put(held, self._width)
        if not self._fresh:
            self._print("\n")
        self._used = self._gap = 0

    def _put(self, part: str, width: int) -> None:
        if part == "\n":
            self._print("\n")
            self._used = self._gap = 0
            return
        if part[0] == " ":
            self._gap += len(part)
            return
        for word in wrapped(part, width):  # Several only if it is too long for a line.
            size = columns(word)
            if self._used and self._used + self._gap + size > width:
                self._print("\n")
                self._used = self._gap = 0
            self._print(" " * self._gap + word)
            self._used += self._gap + size
            self._gap = 0

    def _print(self, text: str) -> None:
        if text:
            say(text, nl=False, **self._style)
            self._fresh = text.endswith("\n")
