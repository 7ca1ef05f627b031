"""A conversation with a model, kept in a session: turns, answers, interruptions.

A turn whose answer is stopped stays open, so that it can be gone on with, here or in the next
process, with the context that it had. Whoever says something else gives it up.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

from perdure import tokens
from perdure.cli.chat_model import Messages, Model, ModelError
from perdure.cli.chat_stop import Stop
from perdure.cli.chat_view import View, text_of
from perdure.cli.text import counted
from perdure.errors import BudgetError
from perdure.formats.parts import Loss
from perdure.plain import field_of
from perdure.records import Message, TurnBegun
from perdure.session import Session
from perdure.tokens import Counter
from perdure.transcript import Transcript
from perdure.turn import Turn

LOOK_BACK = 64  # Records; most turns are shorter.
EVERYTHING = 10**12  # Tokens: more than any window holds, so that all are counted.


class Talk:
    """One conversation after another: a session, who answers, and what is left open."""

    def __init__(
        self,
        session: Session,
        model: Model,
        view: View,
        stop: Stop,
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
        self.stopped = False
        self._cut_told = False
        self._losses_told: set[Loss] = set()
        self.open: Turn | None = None
        self.move(session)

    def move(self, session: Session) -> None:
        """Go on in a session; its newest turn is the open one, if it was interrupted."""
        self.session = session
        last = self.last_turn() if session.interrupted else None
        self.open = next((turn for turn in session.interrupted if turn.start == last), None)

    @property
    def answered(self) -> bool:
        """Whether the open turn has its whole answer, and only its end is missing."""
        if self.open is None or self.open.partial:
            return False
        _, last = self._last_of(self.open)
        return (
            last is not None
            and last.message.get("role") == "assistant"
            and not last.message.get("tool_calls")
            and not last.interrupted
        )

    def show_open(self) -> None:
        """Show what the open turn is about, and how far it came."""
        if self.open is None or self.answered:
            return
        asked = next((content for _, content in self._messages_of(self.open)), None)
        self.view.interrupted(len(self.session), text_of(asked), _so_far(self.open))

    def _messages_of(self, turn: Turn) -> Iterator[tuple[int, Message]]:
        for record in self.session.records(after=turn.start):
            content = record.content
            if isinstance(content, Message) and content.turn == turn.id:
                yield record.position, content

    def _last_of(self, turn: Turn) -> tuple[int | None, Message | None]:
        return max(self._messages_of(turn), default=(None, None), key=itemgetter(0))

    def say(self, text: str) -> None:
        """Say something, and let the model answer."""
        self.leave_open("the user went on")
        self._answer(self.session.turn(text))

    def go_on(self) -> None:
        """Let the model answer what has no answer, if there is such a thing."""
        if self.open is not None and not self.answered:
            self._answer(self.open)
        elif self.open is None and (self.session.last or {}).get("role") == "user":
            self._answer(self.session.turn())
        else:
            self.view.notice("Nothing is without an answer: say something.")
            self.view.space()

    def leave_open(self, reason: str) -> bool:
        """End the open turn: it is complete if it was answered, else abandoned."""
        turn, answered = self.open, self.answered
        self.open = None
        if turn is None:
            return False
        if answered:
            with turn:
                pass
            return True
        turn.abandon(reason)
        with turn:  # It has ended; the handle lets it go.
            pass
        return True

    def window(self, *, counts: bool = False) -> Transcript:
        """Return what the model is sent; its tokens are counted if there is a budget, or asked."""
        most = self.budget or (EVERYTHING if counts else None)
        return self.session.messages(format="openai.chat", max_tokens=most, counter=self.counter)

    def last_turn(self) -> int | None:
        """Return the position before the newest turn, or None if there is no turn."""
        back = LOOK_BACK
        while True:
            after = max(self.session.position - back, 0)
            begun = [
                record.position
                for record in self.session.records(after=after)
                if isinstance(record.content, TurnBegun)
            ]
            if begun:
                return begun[-1] - 1
            if after == 0:
                return None
            back *= 4

    def trouble(self, text: str) -> None:
        """Say what went wrong; a script learns from the exit code that something did."""
        self.failures += 1
        self.view.trouble(text)

    def _answer(self, turn: Turn) -> None:
        self.open, self.stopped = None, False
        with ExitStack() as leaving:
            leaving.enter_context(turn)
            try:
                self._stream(turn, self._prompt())
            except KeyboardInterrupt:
                self.open, self.stopped = turn, True
                leaving.pop_all()  # It stays open: nothing is written of its end.
                self._stopped(turn)
            except (ModelError, BudgetError) as error:
                if turn.partial:
                    self.open = turn
                    leaving.pop_all()  # As when it was stopped: it can be gone on with.
                else:
                    turn.fail(error.__cause__ if isinstance(error.__cause__, Exception) else error)
                self._failed(turn, str(error))

    def _prompt(self) -> Messages:
        window = self.window()
        if window.cut and not self._cut_told:
            self._cut_told = True
            self.view.notice(
                f"What is before position {window.cut} does not fit in {self.budget:,} tokens and "
                "is not sent; it stays in the session."
            )
        for loss in dict.fromkeys(window.losses):
            if loss not in self._losses_told:
                self._losses_told.add(loss)
                self.view.notice(f"At position {loss.position}, {loss.what}.")
        return [*window]

    def _stream(self, turn: Turn, messages: Messages) -> None:
        self.view.begin(self.model.name)
        reason, is_empty = None, True
        stream = turn.stream(self.model.ask(messages, self.stop))
        try:
            for chunk in stream:
                is_empty = False
                for choice in (field_of(chunk, "choices") or [])[:1]:
                    delta = field_of(choice, "delta")
                    self.view.said(field_of(delta, "content") or field_of(delta, "refusal") or "")
                    reason = field_of(choice, "finish_reason") or reason
        finally:
            self.view.end()
        if is_empty:
            raise ModelError("The endpoint's reply is no completion: check --base-url")
        if reason is None:
            raise ModelError("The answer broke off: the model did not say that it is over.")
        if reason != "stop":
            self.view.notice(f"(The model stopped for another reason: {reason}.)")
        turn.complete()
        self._tell(turn, finish_reason=reason)

    def _tell(self, turn: Turn, **more: Any) -> None:
        position, last = self._last_of(turn)
        if last is not None and last.message.get("role") != "assistant":
            position = last = None
        self.view.answered(
            {
                "session": self.session.id,
                "turn": turn.id,
                "position": position,
                "model": self.model.name,
                "content": text_of(last) if last is not None else None,
                "interrupted": last is not None and last.interrupted,
                "finish_reason": None,
                "error": None,
                **more,
            }
        )

    def _stopped(self, turn: Turn) -> None:
        said = _so_far(turn)
        kept = f"{counted(len(said), 'character')} of it are kept" if said else "nothing was said"
        self.view.notice(f"(stopped; {kept})")
        self.view.offer()
        self._tell(turn, content=said or None, interrupted=True)

    def _failed(self, turn: Turn, text: str) -> None:
        self.trouble(text)
        if self.open is turn:
            self.view.notice("The turn stays open; what was said is kept.")
            self.view.offer()
            self._tell(turn, content=_so_far(turn) or None, interrupted=True, error=text)
            return
        can_ask = self.view.is_terminal and (self.session.last or {}).get("role") == "user"
        hint = " Enter asks the model again." if can_ask else ""
        self.view.notice(f"The turn is recorded as failed.{hint}")
        self._tell(turn, error=text)


def _so_far(turn: Turn) -> str:
    """Return what the last answer of a turn had said when it was cut."""
    said = [str(taken.message.get("content") or "") for taken in turn.said()]
    return said[-1] if said else ""
