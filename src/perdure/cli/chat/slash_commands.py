"""The slash commands of `perdure chat`."""

import re
from collections.abc import Callable
from contextlib import ExitStack

from perdure.cli.chat.conversation import ChatSession
from perdure.cli.chat.model import explain_error
from perdure.cli.chat.view import SLASH_HELP, message_text
from perdure.cli.stores import OpenStore
from perdure.cli.terminal import first_line, muted_event, plural
from perdure.core.summaries import KEEP_TURNS
from perdure.errors import ConflictError, NotFoundError, SummaryError, UnsupportedError, UsageError
from perdure.journal.records import Message, Summary, SummaryUndone
from perdure.safe_text import safe
from perdure.sync.verify import find_head

COMMAND_PATTERN = re.compile(r"/([A-Za-z]*)(?:\s+(.*))?", re.DOTALL)

UNDO_SUFFIX = re.compile(r"-undo-\d+$")


class SlashCommands:
    """Runs slash commands on a conversation. A command that fails reports the reason."""

    def __init__(self, source: OpenStore, talk: ChatSession) -> None:
        self._source = source
        self._talk = talk
        self._view = talk.view
        self._commands: dict[str, Callable[[str], None]] = {
            "branch": self._branch,
            "undo": self._undo,
            "summary": self._summary,
            "tokens": self._tokens,
            "drop": self._drop,
            "help": self._help,
        }

    def run(self, line: str) -> bool:
        """Run a line if it is a command; return whether it was one."""
        match = COMMAND_PATTERN.fullmatch(line.strip())
        if match is None:
            return False
        name, argument = match[1].lower(), (match[2] or "").strip()
        command = self._commands.get(name)
        if command is None:
            names = ", ".join(f"/{name}" for name in (*self._commands, "quit"))
            self._talk.report_error(f"There is no command /{name}. Commands: {names}.")
        else:
            self._run(command, argument)
        self._view.blank_line()
        return True

    def _run(self, command: Callable[[str], None], argument: str) -> None:
        try:
            command(argument)
        except (UsageError, NotFoundError, ConflictError, UnsupportedError) as error:
            self._talk.report_error(str(error))

    def _branch(self, name: str) -> None:
        talk = self._talk
        if not name:
            raise UsageError("a branch needs a name: /branch NAME")
        parent = talk.session.id
        talk.switch_to(talk.session.branch(name))
        self._view.notice(f"You are now in the branch {safe(name)}; {safe(parent)} is unchanged.")
        if talk.open_turn is not None and not talk.is_answered:
            self._view.offer_retry()

    def _undo(self, _: str) -> None:
        talk = self._talk
        start = talk.last_turn()
        if start is None:
            raise UsageError("there is no turn to undo")
        contents = (record.content for record in talk.session.records(after=start))
        undone = next((item for item in contents if isinstance(item, Message)), None)
        parent, name = talk.session.id, self._free_name(UNDO_SUFFIX.sub("", talk.session.id))
        branch = talk.session.branch(name, at=start)
        talk.close_open_turn("undone by the user")
        talk.switch_to(branch)
        self._view.notice(
            f"Back before {first_line(message_text(undone), 50)!r}, in the branch {safe(name)}.\n"
            f"Nothing is erased: {safe(parent)} still has that turn."
        )

    def _free_name(self, base: str) -> str:
        number = 1
        while find_head(self._source.backend, f"{base}-undo-{number}") is not None:
            number += 1
        return f"{base}-undo-{number}"

    def _summary(self, argument: str) -> None:
        session = self._talk.session
        if argument == "undo":
            session.undo_summary()
        elif argument and not argument.isdecimal():
            raise UsageError(
                "use /summary, /summary N to keep the newest N turns, or /summary undo"
            )
        else:
            self._summarize(int(argument) if argument else KEEP_TURNS)
        self._show_summary()

    def _summarize(self, keep: int) -> None:
        talk = self._talk
        with ExitStack() as quiet:
            quiet.enter_context(muted_event("summary_failed"))  # Reported below.
            # In the background, so that Ctrl-C ends the waiting and never cuts a write.
            future = talk.session.summarize_in_background(
                **talk.model.summarizer(), keep_turns=keep, counter=talk.counter
            )
            muted_until_done = quiet.pop_all()
            future.add_done_callback(lambda _: muted_until_done.close())
        try:
            with talk.stop.interruptible():
                future.result()
        except KeyboardInterrupt:
            self._view.notice("Not waiting for the summary; it continues in the background.")
        except SummaryError as error:
            cause = error.__cause__
            detail = f" ({explain_error(cause)})" if isinstance(cause, Exception) else ""
            unchanged = f"; the newest {plural(keep, 'turn')} are never summarized"
            talk.report_error(f"No summary was made: {error.reason}{detail or unchanged}.")

    def _show_summary(self) -> None:
        active: list[tuple[int, Summary]] = []
        for record in self._talk.session.records():
            if isinstance(record.content, Summary):
                active.append((record.position, record.content))
            elif isinstance(record.content, SummaryUndone):
                active = [item for item in active if item[0] != record.content.summary]
        if not active:
            self._view.notice("There is no active summary: the model gets the messages themselves.")
            return
        _, summary = active[-1]
        self._view.notice(f"Active summary of positions {summary.first} to {summary.last}:")
        self._view.block(summary.text)

    def _tokens(self, _: str) -> None:
        talk = self._talk
        window = talk.window(counts=True)
        count = plural(len(window), "message")
        counter = f"counted by {safe(talk.counter.name)}"
        self._view.notice(f"{window.tokens:,} tokens in {count} ({counter})")
        if talk.budget is None:
            self._view.notice("There is no limit: --max-tokens sets one.")
        else:
            remaining = talk.budget - (window.tokens or 0)
            self._view.notice(f"of {talk.budget:,} (--max-tokens); {remaining:,} remain.")
        if window.truncated_before:
            self._view.notice(f"Messages before position {window.truncated_before} are not sent.")

    def _drop(self, _: str) -> None:
        talk = self._talk
        if talk.is_answered or not talk.close_open_turn("dropped by the user"):
            raise UsageError("there is no interrupted answer to drop")
        self._view.notice(
            "The turn is abandoned. Its text stays, marked as interrupted; /undo goes back "
            "before it."
        )

    def _help(self, _: str) -> None:
        self._view.notice(SLASH_HELP)
