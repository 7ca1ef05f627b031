"""Place a model call in a session: find its turn, send the window, record the reply.

It does no I/O of its own: a call is a generator that yields the actions to perform, and a runner
(`openai_faces`) performs them, blocking or awaiting. Rules for editing: yield every call of the
session or the SDK as a function of no arguments, and let `GeneratorExit` pass without yielding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.adapters import openai_record as record
from perdure.adapters.openai_record import Exchange, Item
from perdure.adapters.openai_state import Options, Place, Request, Steps, state_of
from perdure.errors import BudgetError, PerdureError, UsageError
from perdure.events import tell

TURN_MAX = 4096  # Records; longer unfinished turns are not read to decide whether a call resumes.
TAIL = 64  # Records at the end of a session, read to find how its last turn ended.


class Conversation:
    """The conversation shared by one wrapped client and its copies."""

    def __init__(self, session: Any, runner: Any, options: Options) -> None:
        self.session = session
        self.runner = runner
        self.options = options
        self._state = state_of(session)

    def call(self, request: Request) -> Steps[Any]:
        """Perform a call. On return the reply is durable, or being recorded as a stream."""
        turn = self.session.current
        if turn is not None and turn is not self._state.turn:
            site = yield from self._site_in_turn(turn, request)
            return (yield from self._reply(site, request))
        if not self._state.busy.acquire(blocking=False):
            reason = f"another call in session {self.session.id!r} is in progress"
            raise UsageError(f"{reason}: wait for it, or make both inside a session.turn(...)")
        try:
            site = yield from self._find_site(request)
            return (yield from self._reply(site, request))
        finally:
            self._state.busy.release()

    def _reply(self, site: Place, request: Request) -> Steps[Any]:
        """Return the recorded reply or call the model, and record the outcome."""
        turn, reply = site.turn, site.reply
        model_call = request.call_record.begin_in(turn)
        try:
            if reply is not None:
                model_call.withdraw()
                record.require_format(reply, request.format)
                result = yield lambda: request.replay(reply)
                yield from self._end_if_complete(site, reply.messages)
                return result
            yield from self._offer(turn, request.tools)
            window = yield self._window(request.format)
            recorded = model_call.recorded()
            if recorded is not None:
                result = yield lambda: request.replay(record.reply_of(recorded))
            else:
                result = yield lambda: request.send(list(window))
            if request.streaming:
                stream = self.runner.stream(self, site, result, model_call)
                self._state.stream = stream if site.owns_turn else self._state.stream
                return stream
            record.require_reply(result, request.format)
            yield lambda: turn.append(result, answers=model_call)
            yield from self._end_if_complete(site, record.messages_of_reply(result))
        except GeneratorExit:  # The runner closed the generator: it cannot yield any more.
            raise
        except BaseException as error:
            if not site.owns_turn and reply is None:
                model_call.failed(error)
            if site.owns_turn and turn.partial:
                yield from self._keep_open(error)
            elif site.owns_turn:
                yield from self._leave(error)
            raise
        return result

    def end_stream(self, site: Place, recorded: Any) -> Steps[None]:
        """Finish a stream that was read to its end or closed early."""
        self._state.stream = None if site.owns_turn else self._state.stream
        if site.owns_turn and (site.turn.partial or not recorded.said):
            yield from self._abandon("the stream ended before the answer did")
        else:
            yield from self._end_if_complete(site, [item.message for item in recorded.said])

    def stream_failed(self, site: Place, error: BaseException) -> Steps[None]:
        """Handle a broken stream: repeating the same call resumes its turn."""
        if site.owns_turn:
            self._state.stream = None
            yield from self._keep_open(error)

    def _keep_open(self, error: BaseException) -> Steps[None]:
        """Keep the turn of an interrupted answer open, unless this handle no longer owns it."""
        is_lost = isinstance(error, PerdureError) and not isinstance(error, UsageError)
        if is_lost or self._state.turn.ended:
            yield from self._leave(error)
        else:
            self._state.broken = error

    def _window(self, format: str) -> Callable[[], Any]:
        options = self.options
        return lambda: self.session.messages(
            format=format,
            max_tokens=options.max_tokens,
            max_messages=options.max_messages,
            perspective=options.perspective,
        )

    def _offer(self, turn: Any, tools: Sequence[Any]) -> Steps[None]:
        """Record the offered tools; log changes and report them to `on_tools`."""
        if not tools:
            return
        changes = yield lambda: turn.offer(tools)
        if changes:
            fields = {name: ",".join(names) for name, names in changes._asdict().items()}
            tell("tools", {"session": self.session.id, "turn": turn.id, **fields})
            if self.options.on_tools is not None:
                self.options.on_tools(changes)

    def _end_if_complete(self, site: Place, reply: Iterable[Item]) -> Steps[None]:
        """End the turn, unless its reply calls tools."""
        if site.owns_turn:
            self._state.calls = record.calls_of(reply)
            if not self._state.calls:
                yield from self._leave(None)

    def _leave(self, error: BaseException | None) -> Steps[None]:
        turn, self._state.turn = self._state.turn, None
        self._state.trail, self._state.calls, self._state.broken = [], [], None
        yield lambda: self.runner.leave(turn, error)

    def _abandon(self, reason: str) -> Steps[None]:
        yield lambda: self._state.turn.abandon(reason)
        yield from self._leave(None)

    # Inside a turn that the application opened.

    def _site_in_turn(self, turn: Any, request: Request) -> Steps[Place]:
        """Return the call's site in the application's turn, with its recorded reply if any."""
        inputs = request.inputs
        if turn not in self._state.app_turns:
            self._state.app_turns[turn] = yield from self._recorded_exchanges(turn)
        expected = self._state.app_turns[turn]
        if (
            expected
            and (expected[0].reply is not None or not turn.ended)
            and record.same_inputs(inputs, expected[0].inputs, whole=False)
        ):
            exchange = expected.pop(0)
            yield from self._note_changed_results(inputs, exchange)
            return Place(turn, owns_turn=False, reply=exchange.reply)
        expected.clear()
        if turn.ended:
            reason = f"the turn {turn.id!r} has ended, and this call was not part of it"
            raise UsageError(f"{reason}: start another with session.turn(...)")
        yield from self._append(turn, inputs, request)
        return Place(turn, owns_turn=False)

    def _recorded_exchanges(self, turn: Any) -> Steps[list[Exchange]]:
        """Return the exchanges a turn had when entered: another process may have got replies."""
        records = yield lambda: self.runner.records(self.session, turn.start)
        messages = record.before_entered(records, turn.id, ended=turn.ended)
        return record.exchanges(messages)

    # Outside any turn: the adapter's turn lasts from the first message to a reply without calls.

    def _find_site(self, request: Request) -> Steps[Place]:
        """Return the call's site: in a turn that it continues or resumes, or in a new one."""
        if self._state.stream is not None:
            stream = self._state.stream
            yield stream.supersede
        error = self._state.broken
        if error is not None:
            site = yield from self._resume_turn(self._state.turn, request)
            if site is not None:
                self._state.broken = None
                return site
            yield from self._leave(error)
        if self._state.turn is not None:
            site = yield from self._next_in_turn(request)
            if site is not None:
                return site
            yield from self._abandon("a new input came in place of tool results")
        if not request.inputs:
            raise UsageError("no new message: pass at least one, or start a turn with one")
        site = yield from self._resume_interrupted(request)
        return site if site is not None else (yield from self._start_turn(request))

    def _next_in_turn(self, request: Request) -> Steps[Place | None]:
        """Accept results for the open turn's calls, or a repetition of its recorded inputs."""
        inputs = request.inputs
        if self._state.trail:
            exchange, *rest = self._state.trail
            if record.same_inputs(inputs, exchange.inputs, whole=True):
                self._state.trail = rest
                yield from self._note_changed_results(inputs, exchange)
                if exchange.reply is None:
                    instructions = record.instructions(inputs)
                    yield from self._append(self._state.turn, instructions, request)
                return Place(self._state.turn, owns_turn=True, reply=exchange.reply)
            self._state.calls, self._state.trail = (
                record.calls_at_end(self._state.calls, self._state.trail),
                [],
            )
        results = record.results_of(inputs)
        if not results or not self._state.calls:
            return None
        record.require_all(results, self._state.calls)
        yield from self._append(self._state.turn, inputs, request)
        return Place(self._state.turn, owns_turn=True)

    def _resume_interrupted(self, request: Request) -> Steps[Place | None]:
        """Resume the turn that a process left unfinished, if this call belongs to it."""
        interrupted = self.session.interrupted
        turn = interrupted[-1] if interrupted else None
        if turn is None or turn.id in self._state.skipped_turns:
            return None
        site = yield from self._resume_turn(turn, request)
        if site is None:
            self._state.skipped_turns.add(turn.id)
        return site

    def _resume_turn(self, turn: Any, request: Request) -> Steps[Place | None]:
        """Resume an unfinished turn if a call repeats its first or last inputs or answers it."""
        inputs = request.inputs
        if self.session.position - turn.start > TURN_MAX:
            return None
        records = yield lambda: self.runner.records(self.session, turn.start)
        messages = record.messages_of(records, turn.id)
        if messages is None:
            return None
        exchanges = record.exchanges(messages)
        calls = record.calls_at_end([], exchanges)
        trail: list[Exchange] = []
        if record.same_inputs(inputs, exchanges[0].inputs, whole=True):
            trail = exchanges
        elif exchanges[-1].reply is None and record.same_inputs(
            inputs, exchanges[-1].inputs, whole=True
        ):
            trail = exchanges[-1:]
        elif messages and not {*record.results_of(inputs)} & {*calls}:
            return None
        if turn is not self._state.turn:
            yield lambda: self.runner.enter(turn)
        self._state.turn, self._state.calls, self._state.trail = turn, calls, trail
        site = yield from self._next_in_turn(request)
        if site is None:
            repeats = not messages and (yield from self._repeats_failed_call(inputs, turn.id))
            items = record.instructions(inputs) if repeats else inputs
            yield from self._append(turn, items, request)
            site = Place(turn, owns_turn=True)
        return site

    def _start_turn(self, request: Request) -> Steps[Place]:
        """Start a turn with the call's new messages, in one append if there is only one."""
        inputs = request.inputs
        repeats = yield from self._repeats_failed_call(inputs)
        if not repeats:
            yield from self._require_news(inputs)
        items = yield from self._new_items(inputs)
        if repeats:
            items = record.instructions(items)
        single = items[0] if len(items) == 1 else None
        turn = self.session.turn(single)
        if single is not None or not items:
            request.call_record.begin_in(turn)
        yield lambda: self.runner.enter(turn)
        self._state.turn = turn
        if single is None and items:
            request.call_record.begin_in(turn)
            try:
                yield lambda: turn.append(*items)
            except GeneratorExit:
                raise
            except BaseException as error:
                yield from self._leave(error)
                raise
        self._note_instructions(items)
        return Place(turn, owns_turn=True)

    def _repeats_failed_call(self, inputs: list[Item], turn: str = "") -> Steps[bool]:
        """Return whether a call repeats the failed one before it: its messages are stored."""
        messages = record.said(inputs)
        if not messages or self.session.last != messages[-1]:
            return False
        recent = yield lambda: self.session.messages(last=len(messages))
        after = max(0, self.session.position - TAIL)
        records = yield lambda: self.runner.records(self.session, after)
        return list(recent) == messages and record.ends_failed(records, turn)

    def _require_news(self, inputs: list[Item]) -> Steps[None]:
        """Refuse results of calls that are not open, and outputs that the session already has."""
        results = record.results_of(inputs)
        if any(call not in record.all_calls(inputs) for call in results):
            reason = f"results of calls that are not open: {', '.join(results)}"
            raise UsageError(f"{reason}: pass them in the call that follows the model's")
        if any(record.is_output(item) for item in inputs):
            recent = yield lambda: self.session.messages(last=TAIL)
            if record.repeated(inputs, recent):
                reason = (
                    "earlier replies of the model are in the session and are sent automatically"
                )
                raise UsageError(f"{reason}: pass only new messages")

    def _new_items(self, inputs: list[Item]) -> Steps[list[Item]]:
        """Return the inputs without instructions that are already in the session."""
        if not any(record.is_instruction(item) for item in inputs):
            return inputs
        if self._state.instructions is None:
            stored = yield from self._stored_messages()
            self._state.instructions = record.instructions(stored)
        instructions = self._state.instructions
        items = [
            item for item in inputs if not record.is_instruction(item) or item not in instructions
        ]
        return items

    def _append(self, turn: Any, inputs: list[Item], request: Request) -> Steps[None]:
        items = yield from self._new_items(inputs)
        if items:
            request.call_record.begin_in(turn)
            yield lambda: turn.append(*items)
            self._note_instructions(items)

    def _note_instructions(self, items: list[Item]) -> None:
        """Remember instructions as stored, once they are durable."""
        if self._state.instructions is not None:
            self._state.instructions += record.instructions(items)

    def _stored_messages(self) -> Steps[list[Item]]:
        """Return the session's messages, within the token limit if they fit."""
        limit = self.options.max_tokens
        try:
            if limit is not None:
                return list((yield lambda: self.session.messages(max_tokens=limit)))
        except BudgetError:
            pass  # The call itself will raise it, once its messages are durable.
        return list((yield self.session.messages))

    def _note_changed_results(self, inputs: list[Item], exchange: Exchange) -> Steps[None]:
        """Add a note if a repeated call has other results than the recorded ones."""
        calls = record.differing(inputs, exchange.inputs)
        if calls:
            text = "a tool returned a different result than the recorded one, which is used"
            yield lambda: self.session.note({"told": text, "calls": calls})
