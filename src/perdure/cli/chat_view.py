"""The output of `perdure chat`: formatted on a terminal, plain in a pipe, or JSON.

In a pipe and with JSON, answers go to standard output and everything else to standard error.
"""

from collections.abc import Iterator
from typing import Any

from perdure.cli.chat_flow import Flow
from perdure.cli.rendering import message_parts
from perdure.cli.text import counted, first_line, safe, say, say_json, terminal_width, wrapped
from perdure.records import Message

SHOWN = 1200  # Characters of a stored text; about one screen.
PROMPT = "you> "

HELP = """\
/branch NAME   continue in a branch; this session stays unchanged
/undo          continue in a branch from before the last turn
/summary [N]   summarize all but the last N turns (4); /summary undo reverts it
/tokens        show how many tokens are sent, and the limit
/drop          abandon an interrupted answer
/help          show this help
/quit          exit, as Ctrl-D does
To send a message that begins with a slash, type two: //like this."""


class View:
    """Prints a conversation while it happens."""

    def __init__(self, *, is_terminal: bool, as_json: bool) -> None:
        self.is_terminal = is_terminal
        self._as_json = as_json
        self._width = terminal_width() - 1
        self._flow = Flow(None)

    def title(self, session: str, store: str, model: str, *, is_new: bool) -> None:
        """Print the session, the store and the model."""
        new = ", a new session" if is_new else ""
        self.notice(f"{safe(session)}{new}, in {safe(store)}; {safe(model)} answers.", bold=True)

    def notice(self, text: str, **style: Any) -> None:
        """Print a notice of the command itself, apart from the conversation."""
        for line in self._lines(text):
            say(line, err=not self.is_terminal, **(style or {"dim": True}))

    def _lines(self, text: str) -> Iterator[str]:
        return wrapped(text, self._width) if self.is_terminal else map(safe, text.splitlines())

    def error(self, text: str) -> None:
        """Print an error; in a pipe, on one line."""
        text = first_line(text, None)
        for line in self._lines(text[:1].upper() + text[1:]):
            say(line, err=True, fg="red")

    def block(self, text: str) -> None:
        """Print a stored text, indented and cut after `SHOWN` characters."""
        shown = text[:SHOWN]
        for line in wrapped(shown, self._width - 2):
            say(f"  {line}".rstrip(), err=not self.is_terminal)
        if len(shown) < len(text):
            self.notice(f"  … {counted(len(text) - len(shown), 'character')} more")

    def show_last(self, count: int, last: dict[str, Any] | None) -> None:
        """Print the length of a resumed conversation and its last message."""
        if last is None:
            self.notice(f"It has {counted(count, 'message')}.")
            return
        self.notice(
            f"It has {counted(count, 'message')}. The last message, from the {role_of(last)}:"
        )
        self.block("\n".join(message_parts(last)))

    def show_interrupted(self, count: int, prompt: str, answer: str) -> None:
        """Show an interrupted turn and the ways to continue."""
        messages = counted(count, "message")
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
        self._flow = Flow(self._width if self.is_terminal else None)
        self.blank_line()
        if self.is_terminal:
            say(f"assistant ({safe(model)})", fg="green", bold=True)

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
            say()

    def finish_answer(self, answer: dict[str, Any]) -> None:
        """Print the JSON object of an answer, or a blank line on a terminal."""
        if self._as_json:
            say_json(answer)
        self.blank_line()


def role_of(message: dict[str, Any]) -> str:
    return safe(str(message.get("role") or "message"))


def text_of(content: Message | None) -> str:
    """Return the text of a message, as stored; empty for None."""
    return "" if content is None else "\n".join(filter(None, message_parts(content.message)))
