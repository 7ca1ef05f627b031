"""Turn: from a user's input to the end of the agent's answer. Its twin is in `turn_async`."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from perdure.core import streaming, turn_context, turns
from perdure.core.effects import calls, catalogue, model_calls
from perdure.core.effects.calls import ActiveTurn, CallSequence
from perdure.core.effects.catalogue import ToolChanges
from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.messages import ANONYMOUS, Attribution, append_messages, make_attribution
from perdure.core.plans import Plan, TurnOwnership
from perdure.core.replay import guard
from perdure.core.streaming import AnswerRecorder
from perdure.core.turn_context import TurnContext
from perdure.errors import ApprovalPendingError, PerdureError, UsageError
from perdure.events import correlation_id
from perdure.formats.intake import IncomingMessage
from perdure.sync.handle import Handle
from perdure.sync.stream import Stream

FLUSH_EVERY = 0.5  # Seconds: what a crash may take of an answer, against a commit each.

NO_CHANGES = ToolChanges((), (), ())


class Turn:
    """From a user's input to the end of the agent's answer. Made by `session.turn`."""

    def __init__(
        self,
        handle: Handle,
        id: str | None,
        *,
        message: object | None = None,
        correlation_id: str = "",
        voice: Attribution = ANONYMOUS,
        begun: int = 0,
    ) -> None:
        self.id = id if id is not None else handle.replica.settings.new_id()
        self.correlation_id = correlation_id
        self._handle = handle
        self._message = message
        self._voice = voice
        self._begun = begun
        self._ownership: TurnOwnership | None = None
        self._ended = False
        self._correlation_before: str | None = None
        self._entered: TurnContext | None = None
        self._left = False
        self._ordinals = CallSequence()
        self._asked: list[PendingModelCall] = []
        self._streams: list[Stream] = []

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"at {self._begun}" if self._begun else "not begun"
        return f"<{type(self).__name__} {self.id!r} of {self._handle.replica.name!r}: {state}>"

    @property
    def start(self) -> int:
        """The position before the turn: branch there to have the turn again, differently."""
        if not self._begun:
            raise UsageError("the turn has not begun: enter it with `with`")
        return self._begun - 1

    @property
    def ended(self) -> bool:
        """Whether the turn is over; one that was entered by a known `id` may be so already."""
        return self._ended

    def __enter__(self) -> Self:
        if self.correlation_id and self._correlation_before is None:
            self._correlation_before = correlation_id.get()
            correlation_id.set(self.correlation_id)
        try:
            self._enter()
        except BaseException:
            self._let_go()
            raise
        self._left = False
        if self._ownership is not None:
            self._handle.own_turns[self.id] = ActiveTurn(self._ownership, self._ordinals)
        self._entered = turn_context.enter_turn(self._handle, self)
        return self

    def _enter(self) -> None:
        if self._handle.replay is None:
            guard.require_live("a live turn")
        is_new = not self._begun
        if is_new:
            plan = turns.begin_turn(
                self._handle.replica,
                self.id,
                self._message,
                correlation_id=self.correlation_id,
                voice=self._voice,
                live=self._handle.own_turns,
            )
            begun = self._write(plan, TurnOwnership(self.id, self.id))
            if begun > 0:
                self._ownership = TurnOwnership(self.id, self.id)
            self._begun = abs(begun)
        if self._ownership is None:
            self._resume(may_be_over=is_new)

    def _let_go(self) -> None:
        if self._correlation_before is not None:
            correlation_id.set(self._correlation_before)
            self._correlation_before = None

    def _resume(self, *, may_be_over: bool) -> None:
        """Take the turn over. One that was asked for by its id may have ended before that."""
        if (may_be_over or self._ended) and self.id not in self._handle.replica.state.turns:
            self._ended = True
            return
        plan, ownership = turns.continue_turn(self._handle.replica, self.id)
        self._handle.write(plan)
        self._ownership = ownership

    def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
        answers: PendingModelCall | None = None,
    ) -> int:
        """Append messages to the turn, as `session.append` does.

        They are the answer to what was asked with `turn.ask`, where `answers` says so.
        """
        voice, turn = make_attribution(author, recipient, channel, origin), self._owned()
        replica = self._handle.replica
        plan = append_messages(replica, messages, voice=voice, turn=turn, record_id=id)
        if answers is not None:
            plan = answers.answering(plan, turn, time.monotonic() - answers.since)
        return self._write(plan, turn)

    def stream(
        self,
        chunks: Iterable[Any],
        *,
        every: float = FLUSH_EVERY,
        author: str = "",
        answers: PendingModelCall | None = None,
    ) -> Stream:
        """Hand the chunks of a streamed answer on, and make them durable on the way.

        What came is stored at most every `every` seconds, and the whole message when the answer is
        over. A stream that breaks, or that nobody reads to its end, leaves what was said so far.
        """
        answering = AnswerRecorder(
            self._handle.replica, self._owned(), Attribution(author), answers
        )
        stream = Stream(self._handle, answering, chunks, every)
        self._streams.append(stream)
        return stream

    def offer(self, tools: Sequence[Any]) -> ToolChanges:
        """Record which tools the model is offered; return what changed since the last time."""
        turn = self._owned()
        before = self._handle.run(catalogue.latest_catalogue(self._handle.replica))
        self._write(catalogue.record_tools(self._handle.replica, tools, turn.turn), turn)
        return (
            catalogue.compare_catalogues(before, catalogue.tool_digests(tools))
            if before
            else NO_CHANGES
        )

    def ask(self, name: str, request: object) -> PendingModelCall:
        """Have the turn's next append say that a model is about to be asked, for adapters.

        Give what is returned as `answers` with the reply, or call its `failed`. The request is
        kept as its digest. It may be called before the turn is entered.
        """
        replica = self._handle.replica
        call = calls.adapter_model_call(replica, self.id, self._ordinals, name, request)
        return PendingModelCall(replica, call, self._asked, time.monotonic(), self._handle.replay)

    def _write(self, plan: Plan, turn: TurnOwnership) -> int:
        asked = [*self._asked]
        if not asked:
            return self._handle.write(plan)
        answer = self._handle.write(model_calls.with_model_calls(plan, turn, asked))
        self._asked[:] = [one for one in self._asked if one not in asked]
        return answer

    @property
    def partial(self) -> bool:
        """Whether an answer of this turn was cut, and none has come in its place."""
        partials = self._handle.replica.state.talk.partials.values()
        return any(partial.turn == self.id for partial in partials)

    def said(self) -> list[IncomingMessage]:
        """Return what a cut answer of this turn had said: messages, and what came with them."""
        partials = self._handle.replica.state.talk.cut.values()
        found: list[IncomingMessage] = []
        for partial in [one for one in partials if one.turn == self.id]:
            found += self._handle.run(streaming.read_partial_answer(self._handle.replica, partial))
        return found

    def complete(self) -> None:
        """End the turn as complete. Leaving `with` does this.

        A stream of it from which nobody has read is UsageError, and the turn stays open.
        """
        for stream in self._streams:
            stream.require_read()
        self._close_streams()
        turn = self._owned()
        self._write(turns.complete_turn(self._handle.replica, turn), turn)
        self._ended = True

    def fail(self, error: BaseException) -> None:
        """End the turn with an error. Leaving `with` by an exception does this."""
        self._close_streams()
        turn = self._owned()
        self._write(turns.fail_turn(self._handle.replica, turn, error), turn)
        self._ended = True

    def abandon(self, reason: str = "") -> None:
        """Give the turn up, here or as an interrupted one."""
        if not self._begun:
            raise UsageError("the turn has not begun: there is nothing to abandon")
        self._handle.write(turns.abandon_turn(self._handle.replica, self.id, reason))
        self._ended = True

    def leave(self) -> None:
        """Stop here and leave the turn open, as a process that dies does: it is interrupted.

        Entering it again, here or elsewhere, goes on with it. `with` ends nothing then.
        """
        self._owned()
        self._close_streams()
        self._left, self._ownership = True, None
        self._step_out()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._left:
            return
        if isinstance(error, ApprovalPendingError) and self._ownership and not self._ended:
            self.leave()  # It goes on when somebody has decided.
            return
        try:
            if error is None and not self._ended:
                self.complete()
            elif error is not None and not self._ended:
                self._record(error)
        finally:
            self._step_out()

    def _step_out(self) -> None:
        self._handle.own_turns.pop(self.id, None)
        self._ordinals = CallSequence()
        if self._entered is not None:
            turn_context.exit_turn(self._entered)
        self._let_go()

    def _close_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()

    def _record(self, error: BaseException) -> None:
        try:
            self.fail(error)
        except PerdureError as failure:
            # The body's own error goes on; that it could not be recorded must not hide it.
            error.add_note(f"perdure could not record that the turn failed: {failure}")

    def _owned(self) -> TurnOwnership:
        if self._ended:
            raise UsageError("the turn has ended: begin another with session.turn(...)")
        if self._ownership is None:
            raise UsageError("the turn is not open: enter it with `with` first")
        return self._ownership
