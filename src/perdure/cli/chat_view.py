"""What `perdure chat` prints: for people on a terminal, plainly in a pipe, or as JSON.

In a pipe and with JSON, answers go to standard output and everything else to standard error.
"""

from collections.abc import Iterator
from typing import Any

from perdure.cli.chat_flow import Flow
from perdure.cli.rendering import message_parts
from perdure.cli.text import counted, first_line, safe, say, say_json, terminal_width, wrapped
from perdure.records import Message

SHOWN = 1200  # Characters of what was last said: a screen, not a book.
PROMPT = "you> "

HELP = """\
/branch NAME   go on in a branch; this session stays as it is
/undo          go on from before the last turn, in a branch
/summary [N]   sum up all but the newest N turns (4); /summary undo takes it back
/tokens        what the model is sent, and what it may be sent
/drop          give up an answer that was interrupted
/help          this
/quit          leave; Ctrl-D too
A message that begins with a slash is written with two: //like this."""


class View:
    """Prints a conversation as it goes on."""

    def __init__(self, *, is_terminal: bool, as_json: bool) -> None:
        self.is_terminal = is_terminal
        self._as_json = as_json
        self._width = terminal_width() - 1
        self._flow = Flow(None)

    def title(self, session: str, store: str, model: str, *, is_new: bool) -> None:
        """Say where the conversation is kept, and who answers."""
        new = ", a new session" if is_new else ""
        self.notice(f"{safe(session)}{new}, in {safe(store)}; {safe(model)} answers.", bold=True)

    def notice(self, text: str, **style: Any) -> None:
        """Print a remark of the command's own."""
        for line in self._lines(text):
            say(line, err=not self.is_terminal, **(style or {"dim": True}))

    def _lines(self, text: str) -> Iterator[str]:
        return wrapped(text, self._width) if self.is_terminal else map(safe, text.splitlines())

    def trouble(self, text: str) -> None:
        """Print what went wrong; in a pipe it is one line."""
        text = first_line(text, None)
        for line in self._lines(text[:1].upper() + text[1:]):
            say(line, err=True, fg="red")

    def block(self, text: str) -> None:
        """Print a stored text, indented; its end is cut where it is long."""
        shown = text[:SHOWN]
        for line in wrapped(shown, self._width - 2):
            say(f"  {line}".rstrip(), err=not self.is_terminal)
        if len(shown) < len(text):
            self.notice(f"  … {counted(len(text) - len(shown), 'character')} more")

    def last(self, count: int, last: dict[str, Any] | None) -> None:
        """Say how long a resumed conversation is, and what was said last."""
        if last is None:
            self.notice(f"It holds {counted(count, 'message')}.")
            return
        self.notice(f"It holds {counted(count, 'message')}. Last, the {role_of(last)} said:")
        self.block("\n".join(message_parts(last)))

    def interrupted(self, count: int, asked: str, said: str) -> None:
        """Show a turn without an end, and say what can be done about it."""
        held = counted(count, "message")
        self.notice(f"It holds {held}. The last turn was interrupted. The user had said:")
        self.block(asked or "(nothing)")
        if said:
            self.notice("The assistant had said so far:")
            self.block(said)
        else:
            self.notice("Nothing had been answered.")
        self.offer()

    def offer(self) -> None:
        """Say what can be done about an open turn; in a pipe, nobody is there to do it."""
        if self.is_terminal:
            told = "Enter asks the model again with the same context; /drop gives the turn up."
            self.notice(told)

    def begin(self, model: str) -> None:
        """Make ready for an answer."""
        self._flow = Flow(self._width if self.is_terminal else None)
        self.space()
        if self.is_terminal:
            say(f"assistant ({safe(model)})", fg="green", bold=True)

    def said(self, text: str) -> None:
        """Print the next piece of an answer."""
        if not self._as_json:
            self._flow.feed(text)

    def end(self) -> None:
        """End an answer, whole or not."""
        self._flow.end()

    def space(self) -> None:
        """Leave a line free between what belongs together, on a terminal."""
        if self.is_terminal:
            say()

    def answered(self, told: dict[str, Any]) -> None:
        """Print an answer for programs, or the space between answers for people."""
        if self._as_json:
            say_json(told)
        self.space()


def role_of(message: dict[str, Any]) -> str:
    return safe(str(message.get("role") or "message"))


def text_of(content: Message | None) -> str:
    """Return what a message says, as it was stored."""
    return "" if content is None else "\n".join(filter(None, message_parts(content.message)))
