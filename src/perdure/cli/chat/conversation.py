"""A conversation with a model, stored in a session: turns, answers, interruptions.

A turn whose answer is stopped stays open, so that it can be resumed with the same context, by this
process or the next one. A new message from the user abandons it.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

from perdure.cli.chat.interrupts import InterruptGuard
from perdure.cli.chat.model import ChatModel, ChatModelError, Messages
from perdure.cli.chat.view import ChatView, message_text
from perdure.cli.terminal import plural
from perdure.errors import ContextWindowError
from perdure.formats import tokens
from perdure.formats.intake import field_of
from perdure.formats.parts import Loss
from perdure.formats.tokens import Counter
from perdure.formats.transcript import Transcript
from perdure.journal.records import Message, TurnBegun
from perdure.sync.session import Session
from perdure.sync.turn import Turn

LOOK_BACK = 64  # Records of the first read; most turns are shorter.

UNLIMITED_TOKENS = 10**12  # Tokens; more than any window holds, so that all messages are counted.


class ChatSession:
    """The current session, its model, and its open turn, if any."""

    def __init__(
        self,
        session: Session,
        model: ChatModel,
        view: ChatView,
        stop: InterruptGuard,
        *,
        budget: int | None,
        counter: Counter | None,
    ) -> None:
        self.session = session
        self.model = model
        self.view = view
        self.stop = stop
        self.budget = budget
        self.counter = counter or tokens.ESTIMATE
        self.failures = 0
        self.was_interrupted = False
        self._cut_reported = False
        self._reported_losses: set[Loss] = set()
        self.open_turn: Turn | None = None
        self.switch_to(session)

    def switch_to(self, session: Session) -> None:
        """Switch to a session; its newest turn is the open one if it was interrupted."""
        self.session = session
        last = self.last_turn() if session.interrupted else None
        self.open_turn = next(
            (turn for turn in session.interrupted if turn.branch_point == last), None
        )

    @property
    def is_answered(self) -> bool:
        """Whether the open turn has its whole answer and lacks only the record of its end."""
        if self.open_turn is None or self.open_turn.is_partial:
            return False
        _, last = self._last_message(self.open_turn)
        return (
            last is not None
            and last.message.get("role") == "assistant"
            and not last.message.get("tool_calls")
            and not last.interrupted
        )

    def show_open_turn(self) -> None:
        """Show the prompt of the open turn and its partial answer."""
        if self.open_turn is None or self.is_answered:
            return
        prompt = next((content for _, content in self._messages_of(self.open_turn)), None)
        self.view.show_interrupted(
            len(self.session), message_text(prompt), _partial_text(self.open_turn)
        )

    def _messages_of(self, turn: Turn) -> Iterator[tuple[int, Message]]:
        for record in self.session.records(after=turn.branch_point):
            content = record.content
            if isinstance(content, Message) and content.turn == turn.id:
                yield record.position, content

    def _last_message(self, turn: Turn) -> tuple[int | None, Message | None]:
        return max(self._messages_of(turn), default=(None, None), key=itemgetter(0))

    def send(self, text: str) -> None:
        """Send a user message and stream the answer."""
        self.close_open_turn("the user sent another message")
        self._answer(self.session.turn(text))

    def answer_pending(self) -> None:
        """Ask the model to answer the last user message, if it has no answer yet."""
        if self.open_turn is not None and not self.is_answered:
            self._answer(self.open_turn)
        elif self.open_turn is None and (self.session.last_message or {}).get("role") == "user":
            self._answer(self.session.turn())
        else:
            self.view.notice("Every message has an answer: type a new one.")
            self.view.blank_line()

    def close_open_turn(self, reason: str) -> bool:
        """End the open turn: completed if answered, else abandoned. False if there is none."""
        turn, answered = self.open_turn, self.is_answered
        self.open_turn = None
        if turn is None:
            return False
        if answered:
            with turn:
                pass
            return True
        turn.abandon(reason)
        with turn:  # Already ended; leaving the block only detaches the handle.
            pass
        return True

    def window(self, *, counts: bool = False) -> Transcript:
        """Return the messages to send. Tokens are counted with a budget or with `counts`."""
        max_tokens = self.budget or (UNLIMITED_TOKENS if counts else None)
        return self.session.messages(
            format="openai.chat", max_tokens=max_tokens, counter=self.counter
        )

    def last_turn(self) -> int | None:
        """Return the position before the newest turn, or None if there is no turn."""
        back = LOOK_BACK
        while True:
            after = max(self.session.position - back, 0)
            starts = [
                record.position
                for record in self.session.records(after=after)
                if isinstance(record.content, TurnBegun)
            ]
            if starts:
                return starts[-1] - 1
            if after == 0:
                return None
            back *= 4

    def report_error(self, text: str) -> None:
        """Print an error and count it, so that the exit code reports it to scripts."""
        self.failures += 1
        self.view.error(text)

    def _answer(self, turn: Turn) -> None:
        self.open_turn, self.was_interrupted = None, False
        with ExitStack() as open_turn:
            open_turn.enter_context(turn)
            try:
                self._stream(turn, self._prompt())
            except KeyboardInterrupt:
                self.open_turn, self.was_interrupted = turn, True
                open_turn.pop_all()  # Keeps the turn open: no end is recorded.
                self._report_interrupt(turn)
            except (ChatModelError, ContextWindowError) as error:
                if turn.is_partial:
                    self.open_turn = turn
                    open_turn.pop_all()  # As after Ctrl-C: the turn can be resumed.
                else:
                    turn.fail(error.__cause__ if isinstance(error.__cause__, Exception) else error)
                self._report_failure(turn, str(error))

    def _prompt(self) -> Messages:
        window = self.window()
        if window.truncated_before and not self._cut_reported:
            self._cut_reported = True
            self.view.notice(
                f"Messages before position {window.truncated_before} do not fit in "
                f"{self.budget:,} tokens and are not sent; they stay in the session."
            )
        for loss in dict.fromkeys(window.losses):
            if loss not in self._reported_losses:
                self._reported_losses.add(loss)
                self.view.notice(f"At position {loss.position}, {loss.what}.")
        return [*window]

    def _stream(self, turn: Turn, messages: Messages) -> None:
        self.view.begin_answer(self.model.name)
        reason, is_empty = None, True
        stream = turn.stream(self.model.ask(messages, self.stop))
        try:
            for chunk in stream:
                is_empty = False
                for choice in (field_of(chunk, "choices") or [])[:1]:
                    delta = field_of(choice, "delta")
                    self.view.write(field_of(delta, "content") or field_of(delta, "refusal") or "")
                    reason = field_of(choice, "finish_reason") or reason
        finally:
            self.view.end_answer()
        if is_empty:
            raise ChatModelError("The endpoint's reply is not a completion: check --base-url")
        if reason is None:
            raise ChatModelError(
                "The answer is incomplete: the stream ended without a finish reason."
            )
        if reason != "stop":
            self.view.notice(f"(The model stopped early: {reason}.)")
        turn.complete()
        self._report_answer(turn, finish_reason=reason)

    def _report_answer(self, turn: Turn, **fields: Any) -> None:
        position, last = self._last_message(turn)
        if last is not None and last.message.get("role") != "assistant":
            position = last = None
        self.view.finish_answer(
            {
                "session": self.session.id,
                "turn": turn.id,
                "position": position,
                "model": self.model.name,
                "content": message_text(last) if last is not None else None,
                "interrupted": last is not None and last.interrupted,
                "finish_reason": None,
                "error": None,
                **fields,
            }
        )

    def _report_interrupt(self, turn: Turn) -> None:
        text = _partial_text(turn)
        kept = f"{plural(len(text), 'character')} kept" if text else "no text was received"
        self.view.notice(f"(stopped; {kept})")
        self.view.offer_retry()
        self._report_answer(turn, content=text or None, interrupted=True)

    def _report_failure(self, turn: Turn, text: str) -> None:
        self.report_error(text)
        if self.open_turn is turn:
            self.view.notice("The turn stays open; its text so far is kept.")
            self.view.offer_retry()
            self._report_answer(
                turn, content=_partial_text(turn) or None, interrupted=True, error=text
            )
            return
        can_ask = self.view.is_terminal and (self.session.last_message or {}).get("role") == "user"
        hint = " Enter asks the model again." if can_ask else ""
        self.view.notice(f"The turn is recorded as failed.{hint}")
        self._report_answer(turn, error=text)


def _partial_text(turn: Turn) -> str:
    """Return the text of a turn's last answer, up to where it was cut."""
    texts = [str(part.message.get("content") or "") for part in turn.partial_messages()]
    return texts[-1] if texts else ""
