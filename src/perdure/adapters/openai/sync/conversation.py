# Generated from aio/conversation.py by scripts/generate_sync.py: do not edit.
"""Place a model call in a session: find its turn, send the window, record the reply.

Rules for editing: `GeneratorExit` means that the call is being torn down; let it pass, and do no
more work.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure import Session
from perdure.adapters.openai.exchanges import (
    Exchange,
    Item,
    RecordedReply,
    all_calls,
    answered_calls,
    changed_results,
    ends_with_failure,
    is_instruction,
    is_output,
    is_said,
    load_reply,
    messages_at_entry,
    only_instructions,
    open_calls_after,
    repeats_output,
    reply_messages,
    require_format,
    require_matching_results,
    require_reply,
    same_inputs,
    split_exchanges,
    split_known,
    stored_results,
    turn_messages,
    unanswered_calls,
    without_instructions,
)
from perdure.adapters.openai.state import ApiCall, CallSite, WrapOptions, state_of
from perdure.adapters.openai.sync.streams import RecordedStream
from perdure.errors import ContextWindowError, PerdureError, UsageError
from perdure.events import emit
from perdure.formats.tool_calls import answers
from perdure.journal.records import Message, Record

# Records; longer unfinished turns are not read to decide whether a call resumes.
TURN_RECORDS_MAX = 4096

RECENT_RECORDS = 64  # Records at the end of a session, read to find how its last turn ended.


class Conversation:
    """The conversation shared by one wrapped client and its copies."""

    def __init__(self, session: Session, options: WrapOptions) -> None:
        self.session = session
        self.options = options
        self._state = state_of(session)

    def call(self, prepare: Callable[[], ApiCall]) -> Any:
        """Perform a call. On return the reply is durable, or being recorded as a stream.

        `prepare` runs in here, so that a client raises its errors where the call is made.
        """
        request = prepare()
        turn = self.session.current_turn
        if turn is not None and turn is not self._state.turn:
            site = self._site_in_turn(turn, request)
            return self._reply(site, request)
        if not self._state.busy.acquire(blocking=False):
            reason = f"another call in session {self.session.id!r} is in progress"
            raise UsageError(f"{reason}: wait for it, or make both inside a session.turn(...)")
        try:
            inputs, reply = self._compare_list(request.inputs)
            if reply is not None:
                require_format(reply, request.format)
                return request.replay(reply)
            request = request._replace(inputs=inputs)
            site = self._find_site(request)
            return self._reply(site, request)
        finally:
            self._state.busy.release()

    def _reply(self, site: CallSite, request: ApiCall) -> Any:
        """Return the recorded reply or call the model, and record the outcome."""
        turn, reply = site.turn, site.reply
        model_call = request.call_record.begin_in(turn)
        try:
            if reply is not None:
                model_call.withdraw()
                require_format(reply, request.format)
                result = request.replay(reply)
                self._end_if_complete(site, reply.messages)
                return result
            self._offer(turn, request.tools)
            window = self._window(request.format)
            recorded = model_call.recorded()
            if recorded is not None:
                result = request.replay(load_reply(recorded))
            else:
                result = request.send(list(window))
            if request.streaming:
                stream = RecordedStream(self, site, result, model_call)
                self._state.stream = stream if site.owns_turn else self._state.stream
                return stream
            require_reply(result, request.format)
            turn.append(result, reply_to=model_call)
            self._end_if_complete(site, reply_messages(result))
        except GeneratorExit:  # The call is being torn down: do no more work.
            raise
        except BaseException as error:
            if not site.owns_turn and reply is None:
                model_call.failed(error)
            if site.owns_turn and turn.is_partial:
                self._keep_open(error)
            elif site.owns_turn:
                self._leave(error)
            raise
        return result

    def end_stream(self, site: CallSite, recorded: Any) -> None:
        """Finish a stream that was read to its end or closed early."""
        self._state.stream = None if site.owns_turn else self._state.stream
        if site.owns_turn and (site.turn.is_partial or not recorded.messages):
            self._abandon("the stream ended before the answer did")
        else:
            self._end_if_complete(site, [item.message for item in recorded.messages])

    def stream_failed(self, site: CallSite, error: BaseException) -> None:
        """Handle a broken stream: repeating the same call resumes its turn."""
        if site.owns_turn:
            self._state.stream = None
            self._keep_open(error)

    def _keep_open(self, error: BaseException) -> None:
        """Keep the turn of an interrupted answer open, unless this handle no longer owns it."""
        is_lost = isinstance(error, PerdureError) and not isinstance(error, UsageError)
        if is_lost or self._state.turn.ended:
            self._leave(error)
        else:
            self._state.broken = error

    def _window(self, format: str) -> Sequence[Any]:
        options = self.options
        return self.session.messages(
            format=format,
            max_tokens=options.max_tokens,
            max_messages=options.max_messages,
            perspective=options.perspective,
        )

    def _offer(self, turn: Any, tools: Sequence[Any]) -> None:
        """Record the offered tools; log changes and report them to `on_tools`."""
        if not tools:
            return
        changes = turn.record_tools(tools)
        if changes:
            fields = {name: ",".join(names) for name, names in changes._asdict().items()}
            emit("tools", {"session": self.session.id, "turn": turn.id, **fields})
            if self.options.on_tools is not None:
                self.options.on_tools(changes)

    def _end_if_complete(self, site: CallSite, reply: Iterable[Item]) -> None:
        """End the turn, unless its reply calls tools."""
        if site.owns_turn:
            self._state.calls = unanswered_calls(reply)
            if not self._state.calls:
                self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        turn, self._state.turn = self._state.turn, None
        self._state.trail, self._state.calls, self._state.broken = [], [], None
        turn.__exit__(type(error) if error else None, error, None)

    def _abandon(self, reason: str) -> None:
        self._state.turn.abandon(reason)
        self._leave(None)

    # A caller may pass the whole list each time, with earlier messages and replies.

    def _compare_list(self, inputs: list[Item]) -> tuple[list[Item], RecordedReply | None]:
        """Return the new messages of a list, and the recorded reply if the session has one.

        A program that lost its newest messages passes a list that the session has a reply to.
        """
        if not any(is_output(item) for item in inputs):
            return inputs, None
        stored = self._state.stored
        for record in self.session.records(after=self._state.stored_until):
            if isinstance(record.content, Message) and is_said(record.content):
                stored.append(record.content)
            self._state.stored_until = record.position
        split = split_known(inputs, [content.message for content in stored])
        if split is None:
            return inputs, None
        new, before = split
        exchange = split_exchanges(stored[before:])[0]
        if self._state.turn is not None or not same_inputs(new, exchange.inputs, whole=True):
            return new, None
        return new, exchange.reply

    # Inside a turn that the application opened.

    def _site_in_turn(self, turn: Any, request: ApiCall) -> CallSite:
        """Return the call's site in the application's turn, with its recorded reply if any."""
        inputs = self._new_in_turn(turn, request.inputs)
        run = turn.active.sequence  # Another one each time that the turn is entered.
        if run not in self._state.app_turns:
            self._state.app_turns[run] = self._recorded_exchanges(turn)
        expected = self._state.app_turns[run]
        if (
            expected
            and (expected[0].reply is not None or not turn.ended)
            and same_inputs(inputs, expected[0].inputs, whole=False)
        ):
            exchange = expected.pop(0)
            self._note_changed_results(inputs, exchange)
            return CallSite(turn, owns_turn=False, reply=exchange.reply)
        expected.clear()
        if turn.ended:
            reason = f"the turn {turn.id!r} has ended, and this call was not part of it"
            raise UsageError(f"{reason}: start another with session.turn(...)")
        inputs = self._without_stored_results(inputs, self._stored_results(turn))
        self._append(turn, inputs, request)
        return CallSite(turn, owns_turn=False)

    def _new_in_turn(self, turn: Any, inputs: list[Item]) -> list[Item]:
        """Return the messages of a list that come after the replies it has."""
        if not any(is_output(item) for item in inputs):
            return inputs
        split = split_known(inputs, without_instructions(turn.messages()))
        return split[0] if split else (self._compare_list(inputs))[0]

    def _recorded_exchanges(self, turn: Any) -> list[Exchange]:
        """Return the exchanges a turn had when entered: another process may have got replies."""
        records = list(turn.records())
        messages = messages_at_entry(records, turn.id, ended=turn.ended)
        return split_exchanges(messages)

    # Outside any turn: the adapter's turn lasts from the first message to a reply without calls.

    def _find_site(self, request: ApiCall) -> CallSite:
        """Return the call's site: in a turn that it continues or resumes, or in a new one."""
        if self._state.stream is not None:
            self._state.stream.supersede()
        error = self._state.broken
        if error is not None:
            site = self._resume_turn(self._state.turn, request)
            if site is not None:
                self._state.broken = None
                return site
            self._leave(error)
        if self._state.turn is not None:
            site = self._next_in_turn(request)
            if site is not None:
                return site
            if request.inputs:
                self._abandon("a new input came in place of tool results")
        if not request.inputs:
            raise UsageError("no new message: pass at least one, or start a turn with one")
        site = self._resume_interrupted(request)
        return site if site is not None else self._start_turn(request)

    def _next_in_turn(self, request: ApiCall) -> CallSite | None:
        """Accept results for the open turn's calls, or a repetition of its recorded inputs."""
        inputs = request.inputs
        if self._state.trail:
            exchange, *rest = self._state.trail
            # Without inputs, the call relies on results that `run_tool_calls` stored.
            if same_inputs(inputs, exchange.inputs, whole=bool(inputs)):
                self._state.trail = rest
                self._note_changed_results(inputs, exchange)
                if exchange.reply is None:
                    instructions = only_instructions(inputs)
                    self._append(self._state.turn, instructions, request)
                return CallSite(self._state.turn, owns_turn=True, reply=exchange.reply)
            self._state.calls, self._state.trail = (
                open_calls_after(self._state.calls, self._state.trail),
                [],
            )
        if not self._state.calls:
            return None
        stored = self._stored_results(self._state.turn)
        calls = [call for call in self._state.calls if call not in stored]
        new = self._without_stored_results(inputs, stored)
        results = answered_calls(new)
        if new and calls and not results:
            return None
        require_matching_results(results, calls)
        self._append(self._state.turn, new, request)
        return CallSite(self._state.turn, owns_turn=True)

    def _stored_results(self, turn: Any) -> dict[str, Item]:
        """Return the results of the turn's calls that are stored, as by `run_tool_calls`."""
        last = self.session.last_message
        if last is None or is_output(last):  # The usual case, without a read.
            return {}
        return stored_results(turn.messages())

    def _without_stored_results(self, inputs: list[Item], stored: dict[str, Item]) -> list[Item]:
        """Return the inputs without results that are stored; note those that differ."""
        repeated = [item for item in inputs if (ids := answers(item)) and {*ids} <= stored.keys()]
        recorded = [stored[answers(item)[0]] for item in repeated]
        self._note_changed_results(repeated, Exchange(recorded, None))
        return [item for item in inputs if item not in repeated]

    def _resume_interrupted(self, request: ApiCall) -> CallSite | None:
        """Resume the turn that a process left unfinished, if this call belongs to it."""
        interrupted = self.session.interrupted
        turn = interrupted[-1] if interrupted else None
        if turn is None or turn.id in self._state.skipped_turns:
            return None
        site = self._resume_turn(turn, request)
        if site is None:
            self._state.skipped_turns.add(turn.id)
        return site

    def _resume_turn(self, turn: Any, request: ApiCall) -> CallSite | None:
        """Resume an unfinished turn if a call repeats its first or last inputs or answers it."""
        inputs = request.inputs
        if self.session.position - turn.branch_point > TURN_RECORDS_MAX:
            return None
        records = self._records(turn.branch_point)
        messages = turn_messages(records, turn.id)
        if messages is None:
            return None
        exchanges = split_exchanges(messages)
        calls = open_calls_after([], exchanges)
        trail: list[Exchange] = []
        if same_inputs(inputs, exchanges[0].inputs, whole=True):
            trail = exchanges
        elif exchanges[-1].reply is None and same_inputs(inputs, exchanges[-1].inputs, whole=True):
            trail = exchanges[-1:]
        elif messages and not {*answered_calls(inputs)} & {*calls}:
            return None
        if turn is not self._state.turn:
            turn.__enter__()
        self._state.turn, self._state.calls, self._state.trail = turn, calls, trail
        site = self._next_in_turn(request)
        if site is None:
            repeats = not messages and self._repeats_failed_call(inputs, turn.id)
            items = only_instructions(inputs) if repeats else inputs
            self._append(turn, items, request)
            site = CallSite(turn, owns_turn=True)
        return site

    def _start_turn(self, request: ApiCall) -> CallSite:
        """Start a turn with the call's new messages, in one append if there is only one."""
        inputs = request.inputs
        repeats = self._repeats_failed_call(inputs)
        if not repeats:
            self._require_news(inputs)
        items = self._new_items(inputs)
        if repeats:
            items = only_instructions(items)
        single = items[0] if len(items) == 1 else None
        turn = self.session.turn(single)
        if single is not None or not items:
            request.call_record.begin_in(turn)
        turn.__enter__()
        self._state.turn = turn
        if single is None and items:
            request.call_record.begin_in(turn)
            try:
                turn.append(*items)
            except GeneratorExit:
                raise
            except BaseException as error:
                self._leave(error)
                raise
        self._note_instructions(items)
        return CallSite(turn, owns_turn=True)

    def _repeats_failed_call(self, inputs: list[Item], turn: str = "") -> bool:
        """Return whether a call repeats the failed one before it: its messages are stored."""
        messages = without_instructions(inputs)
        if not messages or self.session.last_message != messages[-1]:
            return False
        recent = self.session.messages(last=len(messages))
        after = max(0, self.session.position - RECENT_RECORDS)
        records = self._records(after)
        return list(recent) == messages and ends_with_failure(records, turn)

    def _require_news(self, inputs: list[Item]) -> None:
        """Refuse results of calls that are not open, and outputs that the session already has."""
        results = answered_calls(inputs)
        if any(call not in all_calls(inputs) for call in results):
            reason = f"results of calls that are not open: {', '.join(results)}"
            raise UsageError(f"{reason}: pass them in the call that follows the model's")
        if any(is_output(item) for item in inputs):
            recent = self.session.messages(last=RECENT_RECORDS)
            if repeats_output(inputs, recent):
                reason = (
                    "earlier replies of the model are in the session and are sent automatically"
                )
                raise UsageError(f"{reason}: pass only new messages")

    def _new_items(self, inputs: list[Item]) -> list[Item]:
        """Return the inputs without instructions that are already in the session."""
        if not any(is_instruction(item) for item in inputs):
            return inputs
        if self._state.instructions is None:
            stored = self._stored_messages()
            self._state.instructions = only_instructions(stored)
        instructions = self._state.instructions
        return [item for item in inputs if not is_instruction(item) or item not in instructions]

    def _append(self, turn: Any, inputs: list[Item], request: ApiCall) -> None:
        items = self._new_items(inputs)
        if items:
            request.call_record.begin_in(turn)
            turn.append(*items)
            self._note_instructions(items)

    def _note_instructions(self, items: list[Item]) -> None:
        """Remember instructions as stored, once they are durable."""
        if self._state.instructions is not None:
            self._state.instructions += only_instructions(items)

    def _stored_messages(self) -> list[Item]:
        """Return the session's messages, within the token limit if they fit."""
        limit = self.options.max_tokens
        try:
            if limit is not None:
                return list(self.session.messages(max_tokens=limit))
        except ContextWindowError:
            pass  # The call itself will raise it, once its messages are durable.
        return list(self.session.messages())

    def _note_changed_results(self, inputs: list[Item], exchange: Exchange) -> None:
        """Add a note if a repeated call has other results than the recorded ones."""
        calls = changed_results(inputs, exchange.inputs)
        if calls:
            text = "a tool returned a different result than the recorded one, which is used"
            self.session.note({"text": text, "calls": calls})

    def _records(self, after: int) -> list[Record]:
        return list(self.session.records(after=after))
