"""AsyncTurn: from a user's input to the end of the agent's answer."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, Self

from perdure.aio.batch import AsyncTurnBatch
from perdure.aio.handle import AsyncHandle
from perdure.aio.stream import AsyncStream
from perdure.core import streaming, turn_context, turn_records, turns
from perdure.core.batch import BatchPlans, JointPlan
from perdure.core.effects import catalogue, model_calls
from perdure.core.effects.calls import ActiveTurn, CallSequence, model_call
from perdure.core.effects.catalogue import ToolChanges
from perdure.core.effects.model_calls import PendingModelCall
from perdure.core.history import RecordFilter, RecordReader
from perdure.core.messages import ANONYMOUS, Attribution, append_messages, make_attribution
from perdure.core.plans import Plan, T, TurnOwnership
from perdure.core.streaming import FLUSH_EVERY, AnswerRecorder
from perdure.core.turn_context import TurnContext
from perdure.core.turn_records import TurnPlace
from perdure.core.validation import require_seconds
from perdure.errors import ApprovalPendingError, CompactedError, PerdureError, UsageError
from perdure.events import correlation_id
from perdure.formats.intake import IncomingMessage
from perdure.journal.records import Record

_ENDED_HINT = "turn.answer() has its answer; begin another with session.turn(...)"

NO_CHANGES = ToolChanges((), (), ())


class AsyncTurn:
    """From a user's input to the end of the agent's answer. Created by `session.turn`."""

    def __init__(
        self,
        handle: AsyncHandle,
        id: str | None,
        *,
        message: object | None = None,
        correlation_id: str = "",
        attribution: Attribution = ANONYMOUS,
        found: TurnPlace | None = None,
    ) -> None:
        self.id = id if id is not None else handle.replica.new_id()
        self.correlation_id = correlation_id
        self._handle = handle
        self._message = message
        self._voice = attribution
        self._begun = found.begun if found else 0
        self._outcome = found.outcome if found else ""
        self._ownership: TurnOwnership | None = None
        self._outer_correlation_id: str | None = None
        self._entered: TurnContext | None = None
        self._suspended = False
        self.active: ActiveTurn | None = None
        """The facts about this turn that its calls need. For tools."""
        self._ordinals = CallSequence()
        self._model_calls: list[PendingModelCall] = []
        self._streams: list[AsyncStream] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} of {self._handle.replica.name!r}: {self.state}>"

    @property
    def state(self) -> str:
        """The state of the turn, as far as this object knows it.

        `new`: it was not entered yet; `session.find_turn` knows earlier turns. `open`: it runs in
        this handle. `interrupted`: it has begun and not ended, and another handle runs it, or none.
        `completed`, `failed`, `abandoned`: it has ended. Only a failed turn can be continued.
        """
        if self._outcome:
            return self._outcome
        if not self._begun:
            return "new"
        return "open" if self.id in self._handle.active_turns else "interrupted"

    @property
    def branch_point(self) -> int:
        """The position before the turn: branch there to run the turn again, differently."""
        self._require_begun()
        return self._begun - 1

    @property
    def ended(self) -> bool:
        """Whether the turn has ended. One entered by an existing `id` may have ended before."""
        return bool(self._outcome)

    async def __aenter__(self) -> Self:
        if self.correlation_id and self._outer_correlation_id is None:
            self._outer_correlation_id = correlation_id.get()
            correlation_id.set(self.correlation_id)
        try:
            await self._enter()
        except BaseException:
            self._restore_correlation_id()
            raise
        self._suspended = False
        if self._ownership is not None:
            self.active = ActiveTurn(self._ownership, self._ordinals)
            self._handle.active_turns[self.id] = self.active
        else:
            ownerless = TurnOwnership(self.id, "")
            self.active = ActiveTurn(ownerless, self._ordinals, ended=self.state)
        self._entered = turn_context.enter_turn(self._handle, self)
        return self

    async def _enter(self) -> None:
        """Begin the turn, or continue it if it is interrupted or failed.

        A turn that is completed or abandoned stays ended.
        """
        if not self._begun:
            plan = turns.begin_turn(
                self._handle.replica,
                self.id,
                self._message,
                correlation_id=self.correlation_id,
                attribution=self._voice,
                live=self._handle.active_turns,
            )
            start = await self._write(plan, TurnOwnership(self.id, self.id))
            self._begun = start.position
            if start.found is None:
                self._ownership = TurnOwnership(self.id, self.id)
                return
            self._outcome = start.found.outcome
        if self._ownership is None and self._outcome in ("", "failed"):
            continuation, ownership = turns.continue_turn(self._handle.replica, self.id)
            await self._handle.write(continuation)
            self._outcome, self._ownership = "", ownership

    def _restore_correlation_id(self) -> None:
        if self._outer_correlation_id is not None:
            correlation_id.set(self._outer_correlation_id)
            self._outer_correlation_id = None

    async def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
        opaque: bool = False,
        reply_to: PendingModelCall | None = None,
    ) -> int:
        """Append messages to the turn, as `session.append` does.

        `reply_to` is the call begun with `turn.begin_model_call` that these messages reply to.
        """
        attribution, turn = make_attribution(author, recipient, channel, origin), self._owned()
        replica = self._handle.replica
        plan = append_messages(
            replica, messages, attribution=attribution, turn=turn, record_id=id, opaque=opaque
        )
        if reply_to is not None:
            plan = reply_to.answered_by(plan, turn, time.monotonic() - reply_to.started)
        return await self._write(plan, turn)

    def batch(self, *, id: str | None = None, expect: int | None = None) -> AsyncTurnBatch:
        """Return a batch of this turn for `async with`, as `session.batch` does.

        Its messages are part of the turn. After its `complete()`, the turn ends in the same commit.
        """
        turn = self._owned()

        async def write(plan: JointPlan) -> range:
            if batch.completes:
                await self._end_streams()
            positions = await self._write(plan, turn)
            if batch.completes:
                self._outcome, self._ownership = "completed", None
            return positions

        batch = AsyncTurnBatch(BatchPlans(self._handle.replica, id, expect), write, turn)
        return batch

    def stream(
        self,
        chunks: AsyncIterable[Any],
        *,
        flush_every: float = FLUSH_EVERY,
        author: str = "",
        reply_to: PendingModelCall | None = None,
    ) -> AsyncStream:
        """Pass on the chunks of a streamed answer, and store them meanwhile.

        Chunks are those of chat completions, events of responses or of Anthropic messages, or plain
        texts. New chunks are stored at most every `flush_every` seconds, and the whole message at
        the end. A stream that breaks, or that is not read to its end, leaves a partial answer.
        """
        replica, turn = self._handle.replica, self._owned()
        recorder = AnswerRecorder(replica, turn, Attribution(author), reply_to)
        seconds = require_seconds(flush_every, "flush_every")
        stream = AsyncStream(self._handle, recorder, chunks, seconds)
        self._streams.append(stream)
        return stream

    async def record_tools(self, tools: Sequence[Any]) -> ToolChanges:
        """Record the tools offered to the model; return the changes since the last record."""
        turn = self._owned()
        previous = await self._handle.run(catalogue.latest_catalogue(self._handle.replica))
        await self._write(catalogue.record_tools(self._handle.replica, tools, turn.turn), turn)
        if not previous:
            return NO_CHANGES
        return catalogue.compare_catalogues(previous, catalogue.tool_digests(tools))

    def begin_model_call(self, name: str, request: object) -> PendingModelCall:
        """Record with the turn's next append that a model call begins. For adapters.

        Pass the returned object as `reply_to` with the reply, or call its `failed`. Only a digest
        of the request is stored. This may be called before the turn is entered.
        """
        self._handle.replica.require_live("begin_model_call")
        replica, replay = self._handle.replica, self._handle.replay
        call = model_call(replica, self.id, self._ordinals, name, request)
        return PendingModelCall(replica, call, self._model_calls, time.monotonic(), replay)

    async def _write(self, plan: Plan[T], turn: TurnOwnership) -> T:
        """Write a plan, together with the model calls that began since the last write."""
        calls = [*self._model_calls]
        if not calls:
            return await self._handle.write(plan)
        result = await self._handle.write(model_calls.with_model_calls(plan, turn, calls))
        # In place, because the calls share this list. Others may have begun during the write.
        self._model_calls[:] = [call for call in self._model_calls if call not in calls]
        return result

    async def messages(self, *, opaque: bool = True) -> list[dict[str, Any]]:
        """Return the messages of this turn, in order, as appended; opaque ones too, or not."""
        self._require_begun()
        return await self._handle.run(
            turn_records.read_turn_messages(self._handle.replica, self.id, opaque=opaque)
        )

    async def records(self) -> AsyncIterator[Record]:
        """Yield the records of this turn, in order: its messages, calls, beginnings and ends."""
        self._require_begun()
        replica = self._handle.replica
        for past, span in await self._handle.run(turn_records.read_parts(replica, self.id)):
            reader = RecordReader(past, replica.settings, RecordFilter(span.first - 1))
            while (page := await self._handle.run(reader.page())) is not None:
                for record in page:
                    is_own = turn_records.is_record_of(self.id, record.id, record.content)
                    if is_own and record.position <= span.last:
                        yield record

    async def answer(self) -> dict[str, Any] | None:
        """Return the last message of the assistant in this turn that calls no tool, or None.

        An interrupted answer does not count. The answer of a completed turn never changes.
        """
        self._require_begun()
        return await self._handle.run(turn_records.read_answer(self._handle.replica, self.id))

    def _require_begun(self) -> None:
        if not self._begun:
            raise UsageError("the turn has not begun: enter it, or use session.find_turn(id)")
        past = self._handle.replica.history
        if past.is_dropped(self._begun):
            raise CompactedError(past.stream.session, self._begun, past.begin)

    @property
    def is_partial(self) -> bool:
        """Whether an answer of this turn was interrupted and not replaced since."""
        partials = self._handle.replica.state.conversation.partials.values()
        return any(partial.turn == self.id for partial in partials)

    async def partial_messages(self) -> list[IncomingMessage]:
        """Return the messages, with their metadata, of interrupted answers of this turn."""
        own_codec = self._handle.replica.settings.codec
        state, past, _ = self._handle.replica.view
        partials = state.conversation.interrupted.values()
        messages: list[IncomingMessage] = []
        for partial in [partial for partial in partials if partial.turn == self.id]:
            steps = streaming.read_partial_answer(past, own_codec, partial)
            messages += await self._handle.run(steps)
        return messages

    async def complete(self) -> None:
        """End the turn as complete. Leaving `async with` does this.

        UsageError if one of its streams was never read; the turn then stays open.
        """
        turn = self._owned()
        await self._end_streams()
        await self._write(turns.complete_turn(self._handle.replica, turn), turn)
        self._outcome, self._ownership = "completed", None

    async def fail(self, error: BaseException) -> None:
        """End the turn with an error. Leaving `async with` by an exception does this."""
        turn = self._owned()
        await self._close_streams()
        await self._write(turns.fail_turn(self._handle.replica, turn, error), turn)
        self._outcome, self._ownership = "failed", None

    async def abandon(self, reason: str = "") -> None:
        """Abandon the turn, whether it is running here or interrupted."""
        self._require_begun()
        await self._handle.write(turns.abandon_turn(self._handle.replica, self.id, reason))
        self._outcome, self._ownership = "abandoned", None

    async def suspend(self) -> None:
        """Stop here and leave the turn open, as a process that dies does: it is interrupted.

        Entering it again, here or elsewhere, continues it. `async with` then does not end it.
        """
        self._owned()
        await self._close_streams()
        self._suspended, self._ownership = True, None
        self._exit()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._suspended:
            return
        if isinstance(error, ApprovalPendingError) and self._ownership:
            await self.suspend()  # It can be continued after the decision.
            return
        try:
            if error is None and not self.ended:
                await self.complete()
            elif error is not None and not self.ended:
                await self._record_failure(error)
        finally:
            self._exit()

    def _exit(self) -> None:
        self._handle.active_turns.pop(self.id, None)
        self.active, self._ordinals = None, CallSequence()
        if self._entered is not None:
            turn_context.exit_turn(self._entered)
        self._restore_correlation_id()

    async def _end_streams(self) -> None:
        """Close the streams of a turn that completes; UsageError if one was never read."""
        for stream in self._streams:
            stream.require_read()
        await self._close_streams()

    async def _close_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.close()

    async def _record_failure(self, error: BaseException) -> None:
        try:
            await self.fail(error)
        except PerdureError as failure:
            # The body's error propagates; the failure to record it must not hide it.
            error.add_note(f"perdure could not record that the turn failed: {failure}")

    def _owned(self) -> TurnOwnership:
        """Return the ownership of a running turn; UsageError if it has ended or is not entered."""
        self._handle.replica.require_live("turn")
        if self._outcome:
            hint = "enter it again to continue it" if self._outcome == "failed" else _ENDED_HINT
            raise UsageError(f"the turn {self.id!r} has ended ({self._outcome}): {hint}")
        if self._ownership is None:
            raise UsageError("the turn is not open: enter it with `async with` first")
        return self._ownership
