"""The output of `perdure chat`: formatted on a terminal, plain in a pipe, or JSON.

In a pipe and with JSON, answers go to standard output and everything else to standard error.
"""

import re
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len

from perdure.cli.rendering import message_parts
from perdure.cli.terminal import (
    TAB_WIDTH,
    echo,
    echo_json,
    first_line,
    plural,
    terminal_width,
    wrap_lines,
)
from perdure.journal.records import Message
from perdure.safe_text import safe

_WORDS = re.compile(r"\n| +|[^ \n]+")


class StreamPrinter:
    """Prints chunks of a text as they arrive; with a width, wraps at whole words."""

    def __init__(self, width: int | None) -> None:
        self._width = width
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
        tokens = _WORDS.findall(held.replace("\t", " " * TAB_WIDTH))
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
        for word in wrap_lines(
            part, width
        ):  # More than one only if the word is longer than a line.
            size = cell_len(word)
            if self._column and self._column + self._spaces + size > width:
                self._print("\n")
                self._column = self._spaces = 0
            self._print(" " * self._spaces + word)
            self._column += self._spaces + size
            self._spaces = 0

    def _print(self, text: str) -> None:
        if text:
            echo(text, nl=False)
            self._at_line_start = text.endswith("\n")


TEXT_MAX = 1200  # Characters of a stored text; about one screen.

PROMPT = "you> "


SLASH_HELP = """\
/branch NAME   continue in a branch; this session stays unchanged
/undo          continue in a branch from before the last turn
/summary [N]   summarize all but the last N turns (4); /summary undo reverts it
/tokens        show how many tokens are sent, and the limit
/drop          abandon an interrupted answer
/help          show this help
/quit          exit, as Ctrl-D does
To send a message that begins with a slash, type two: //like this."""


class ChatView:
    """Prints a conversation while it happens."""

    def __init__(self, *, is_terminal: bool, as_json: bool) -> None:
        self.is_terminal = is_terminal
        self._as_json = as_json
        self._width = terminal_width() - 1
        self._flow = StreamPrinter(None)

    def title(self, session: str, store: str, model: str, *, is_new: bool) -> None:
        """Print the session, the store and the model."""
        new = ", a new session" if is_new else ""
        self.notice(f"{safe(session)}{new}, in {safe(store)}; {safe(model)} answers.", style="bold")

    def notice(self, text: str, style: str = "dim") -> None:
        """Print a notice of the command itself, apart from the conversation."""
        for line in self._lines(text):
            echo(line, err=not self.is_terminal, style=style)

    def _lines(self, text: str) -> Iterator[str]:
        return wrap_lines(text, self._width) if self.is_terminal else map(safe, text.splitlines())

    def error(self, text: str) -> None:
        """Print an error; in a pipe, on one line."""
        text = first_line(text, None)
        for line in self._lines(text[:1].upper() + text[1:]):
            echo(line, err=True, style="red")

    def block(self, text: str) -> None:
        """Print a stored text, indented and cut after `TEXT_MAX` characters."""
        shown = text[:TEXT_MAX]
        for line in wrap_lines(shown, self._width - 2):
            echo(f"  {line}".rstrip(), err=not self.is_terminal)
        if len(shown) < len(text):
            self.notice(f"  … {plural(len(text) - len(shown), 'character')} more")

    def show_last(self, count: int, last: dict[str, Any] | None) -> None:
        """Print the length of a resumed conversation and its last message."""
        if last is None:
            self.notice(f"It has {plural(count, 'message')}.")
            return
        self.notice(
            f"It has {plural(count, 'message')}. The last message, from the {message_role(last)}:"
        )
        self.block("\n".join(message_parts(last)))

    def show_interrupted(self, count: int, prompt: str, answer: str) -> None:
        """Show an interrupted turn and the ways to continue."""
        messages = plural(count, "message")
        self.notice(f"It has {messages}. The last turn was interrupted. The user's message:")
        self.block(prompt or "(nothing)")
        if answer:
            self.notice("The partial answer of the assistant:")
            self.block(answer)
        else:
            self.notice("The assistant had not answered.")
        self.offer_retry()

    def offer_retry(self) -> None:
        """Print how to continue an open turn; only on a terminal, where the user can act."""
        if self.is_terminal:
            hint = "Enter asks the model again with the same context; /drop abandons the turn."
            self.notice(hint)

    def begin_answer(self, model: str) -> None:
        """Prepare for a new answer."""
        self._flow = StreamPrinter(self._width if self.is_terminal else None)
        self.blank_line()
        if self.is_terminal:
            echo(f"assistant ({safe(model)})", style="bold green")

    def write(self, text: str) -> None:
        """Print the next chunk of an answer."""
        if not self._as_json:
            self._flow.feed(text)

    def end_answer(self) -> None:
        """Finish the text of an answer, complete or not."""
        self._flow.end()

    def blank_line(self) -> None:
        """Print a blank line, on a terminal only."""
        if self.is_terminal:
            echo()

    def finish_answer(self, answer: dict[str, Any]) -> None:
        """Print the JSON object of an answer, or a blank line on a terminal."""
        if self._as_json:
            echo_json(answer)
        self.blank_line()


def message_role(message: dict[str, Any]) -> str:
    return safe(str(message.get("role") or "message"))


def message_text(content: Message | None) -> str:
    """Return the text of a message, as stored; empty for None."""
    return "" if content is None else "\n".join(filter(None, message_parts(content.message)))
