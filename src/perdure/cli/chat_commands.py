"""What begins with a slash in `perdure chat`."""

import re
from collections.abc import Callable
from contextlib import ExitStack

from perdure.cli.chat_model import explained
from perdure.cli.chat_talk import Talk
from perdure.cli.chat_view import HELP, text_of
from perdure.cli.stores import Opened, head_of
from perdure.cli.text import counted, first_line, safe
from perdure.cli.untold import untold
from perdure.conversations.summarising import KEEP_TURNS
from perdure.errors import ConflictError, NotFoundError, SummaryError, UnsupportedError, UsageError
from perdure.records import Message, Summary, SummaryUndone

COMMAND = re.compile(r"/([A-Za-z]*)(?:\s+(.*))?", re.DOTALL)
UNDONE = re.compile(r"-undo-\d+$")


class Commands:
    """Carries commands out on a conversation. One that can not be carried out says why."""

    def __init__(self, source: Opened, talk: Talk) -> None:
        self._source = source
        self._talk = talk
        self._view = talk.view
        self._known: dict[str, Callable[[str], None]] = {
            "branch": self._branch,
            "undo": self._undo,
            "summary": self._summary,
            "tokens": self._tokens,
            "drop": self._drop,
            "help": self._help,
        }

    def run(self, line: str) -> bool:
        """Carry out a line if it is a command; say whether it was one."""
        match = COMMAND.fullmatch(line.strip())
        if match is None:
            return False
        name, argument = match[1].lower(), (match[2] or "").strip()
        command = self._known.get(name)
        if command is None:
            known = ", ".join(f"/{name}" for name in (*self._known, "quit"))
            self._talk.trouble(f"There is no command /{name}. There are {known}.")
        else:
            self._run(command, argument)
        self._view.space()
        return True

    def _run(self, command: Callable[[str], None], argument: str) -> None:
        try:
            command(argument)
        except (UsageError, NotFoundError, ConflictError, UnsupportedError) as error:
            self._talk.trouble(str(error))

    def _branch(self, name: str) -> None:
        talk = self._talk
        if not name:
            raise UsageError("a branch needs a name: /branch NAME")
        left = talk.session.id
        talk.move(talk.session.branch(name))
        self._view.notice(f"You are in the branch {safe(name)} now; {safe(left)} stays as it is.")
        if talk.open is not None and not talk.answered:
            self._view.offer()

    def _undo(self, _: str) -> None:
        talk = self._talk
        start = talk.last_turn()
        if start is None:
            raise UsageError("there is no turn to undo")
        contents = (record.content for record in talk.session.records(after=start))
        undone = next((one for one in contents if isinstance(one, Message)), None)
        left, name = talk.session.id, self._free_name(UNDONE.sub("", talk.session.id))
        branch = talk.session.branch(name, at=start)
        talk.leave_open("undone by the user")
        talk.move(branch)
        self._view.notice(
            f"Back before {first_line(text_of(undone), 50)!r}, in the branch {safe(name)}.\n"
            f"Nothing is erased: {safe(left)} still has that turn."
        )

    def _free_name(self, base: str) -> str:
        number = 1
        while head_of(self._source.backend, f"{base}-undo-{number}") is not None:
            number += 1
        return f"{base}-undo-{number}"

    def _summary(self, argument: str) -> None:
        session = self._talk.session
        if argument == "undo":
            session.undo_summary()
        elif argument and not argument.isdecimal():
            raise UsageError("give /summary, /summary N to keep the newest N turns, /summary undo")
        else:
            self._sum_up(int(argument) if argument else KEEP_TURNS)
        self._show_summary()

    def _sum_up(self, keep: int) -> None:
        talk = self._talk
        with ExitStack() as quiet:
            quiet.enter_context(untold("unsummarised"))  # A refusal is told in words, below.
            # In the background, so that Ctrl-C ends the waiting and never cuts a write.
            future = talk.session.summarise_in_background(
                **talk.model.summariser(), keep_turns=keep, counter=talk.counter
            )
            until_the_end = quiet.pop_all()
            future.add_done_callback(lambda _: until_the_end.close())
        try:
            with talk.stop.waiting():
                future.result()
        except KeyboardInterrupt:
            self._view.notice("The summary is not waited for; it is made in the background.")
        except SummaryError as error:
            cause = error.__cause__
            why = f" ({explained(cause)})" if isinstance(cause, Exception) else ""
            stays = f"; the newest {counted(keep, 'turn')} stay as they are"
            talk.trouble(f"No summary was made: {error.reason}{why or stays}.")

    def _show_summary(self) -> None:
        found: list[tuple[int, Summary]] = []
        for record in self._talk.session.records():
            if isinstance(record.content, Summary):
                found.append((record.position, record.content))
            elif isinstance(record.content, SummaryUndone):
                found = [one for one in found if one[0] != record.content.summary]
        if not found:
            self._view.notice("No summary is in force: the model is sent the messages themselves.")
            return
        _, summary = found[-1]
        self._view.notice(f"In force for positions {summary.first} to {summary.last}:")
        self._view.block(summary.text)

    def _tokens(self, _: str) -> None:
        talk = self._talk
        window = talk.window(counts=True)
        count = counted(len(window), "message")
        how = f"counted by {safe(talk.counter.name)}"
        self._view.notice(f"{window.tokens:,} tokens in {count} ({how})")
        if talk.budget is None:
            self._view.notice("There is no limit: --max-tokens sets one.")
        else:
            left = talk.budget - (window.tokens or 0)
            self._view.notice(f"of {talk.budget:,} (--max-tokens); {left:,} are left.")
        if window.cut:
            self._view.notice(f"What is before position {window.cut} is not sent.")

    def _drop(self, _: str) -> None:
        talk = self._talk
        if talk.answered or not talk.leave_open("dropped by the user"):
            raise UsageError("there is no interrupted answer to drop")
        self._view.notice(
            "The turn is given up. What was said stays, marked as interrupted; /undo goes back "
            "before it."
        )

    def _help(self, _: str) -> None:
        self._view.notice(HELP)
