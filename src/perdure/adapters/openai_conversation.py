"""A call of a model as part of a session: its turn, what the model is told, what is kept.

No I/O of its own and no colour: a call is a generator that yields what is to be done, and a face
(`openai_faces`) does it, blocking or awaiting.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.adapters import openai_record as record
from perdure.adapters.openai_record import Exchange, Item
from perdure.adapters.openai_state import Options, Place, Request, Steps, state_of
from perdure.errors import BudgetError, PerdureError, UsageError
from perdure.events import tell

# Records of an unfinished turn that are read to see whether a call goes on with it.
TURN_MAX = 4096
TAIL = 64  # Records at the end of a session that say how its last turn ended.


class Conversation:
    """What the calls of one wrapped client, and of its copies, have in common."""

    def __init__(self, session: Any, face: Any, options: Options) -> None:
        self.session = session
        self.face = face
        self.options = options
        self._state = state_of(session)

    def call(self, request: Request) -> Steps[Any]:
        """Carry a call out. On return what was said is durable, or on its way as a stream."""
        turn = self.session.current
        if turn is not None and turn is not self._state.turn:
            place = yield from self._inside(turn, request)
            return (yield from self._answered(place, request))
        if not self._state.busy.acquire(blocking=False):
            reason = f"another call in the session {self.session.id!r} is under way"
            raise UsageError(f"{reason}: wait for it, or make both inside a session.turn(...)")
        try:
            place = yield from self._placed(request)
            return (yield from self._answered(place, request))
        finally:
            self._state.busy.release()

    def _answered(self, place: Place, request: Request) -> Steps[Any]:
        turn, reply = place.turn, place.reply
        asked = request.ask.in_(turn)
        try:
            if reply is not None:
                asked.withdraw()
                record.require_format(reply, request.format)
                result = yield lambda: request.replay(reply)
                yield from self._settle(place, reply.messages)
                return result
            yield from self._offer(turn, request.tools)
            window = yield self._window(request.format)
            had = asked.recorded()
            if had is not None:
                result = yield lambda: request.replay(record.reply_of(had))
            else:
                result = yield lambda: request.send(list(window))
            if request.streaming:
                stream = self.face.stream(self, place, result, asked)
                self._state.stream = stream if place.own else self._state.stream
                return stream
            record.require_reply(result, request.format)
            yield lambda: turn.append(result, answers=asked)
            yield from self._settle(place, record.messages_of_reply(result))
        except GeneratorExit:
            raise
        except BaseException as error:
            if not place.own and reply is None:
                asked.failed(error)
            if place.own and turn.partial:
                yield from self._broke(error)
            elif place.own:
                yield from self._leave(error)
            raise
        return result

    def streamed(self, place: Place, recorded: Any) -> Steps[None]:
        """Take in that a stream is over, to its end or not."""
        self._state.stream = None if place.own else self._state.stream
        if place.own and (place.turn.partial or not recorded.said):
            yield from self._give_up("the stream ended before the answer did")
        else:
            yield from self._settle(place, [taken.message for taken in recorded.said])

    def broken(self, place: Place, error: BaseException) -> Steps[None]:
        """Take in that a stream broke: the same call made again goes on with its turn."""
        if place.own:
            self._state.stream = None
            yield from self._broke(error)

    def _broke(self, error: BaseException) -> Steps[None]:
        """Keep the turn of a cut answer open, unless it is no longer this handle's."""
        is_lost = isinstance(error, PerdureError) and not isinstance(error, UsageError)
        if is_lost or self._state.turn.ended:
            yield from self._leave(error)
        else:
            self._state.broken = error

    def _window(self, format: str) -> Callable[[], Any]:
        asked = self.options
        return lambda: self.session.messages(
            format=format,
            max_tokens=asked.max_tokens,
            max_messages=asked.max_messages,
            perspective=asked.perspective,
        )

    def _offer(self, turn: Any, tools: Sequence[Any]) -> Steps[None]:
        if not tools:
            return
        changes = yield lambda: turn.offer(tools)
        if changes:
            fields = {name: ",".join(names) for name, names in changes._asdict().items()}
            tell("tools", {"session": self.session.id, "turn": turn.id, **fields})
            if self.options.on_tools is not None:
                self.options.on_tools(changes)

    def _settle(self, place: Place, reply: Iterable[Item]) -> Steps[None]:
        """End the turn, unless its reply wants results of tools."""
        if place.own:
            self._state.calls = record.calls_of(reply)
            if not self._state.calls:
                yield from self._leave(None)

    def _leave(self, error: BaseException | None) -> Steps[None]:
        turn, self._state.turn = self._state.turn, None
        self._state.trail, self._state.calls, self._state.broken = [], [], None
        yield lambda: self.face.leave(turn, error)

    def _give_up(self, reason: str) -> Steps[None]:
        yield lambda: self._state.turn.abandon(reason)
        yield from self._leave(None)

    # Inside a turn of the application's own.

    def _inside(self, turn: Any, request: Request) -> Steps[Place]:
        given = request.given
        if turn not in self._state.entered:
            self._state.entered[turn] = yield from self._had(turn)
        trail = self._state.entered[turn]
        if (
            trail
            and (trail[0].reply is not None or not turn.ended)
            and record.same_inputs(given, trail[0].inputs, whole=False)
        ):
            found = trail.pop(0)
            yield from self._note_differing(given, found)
            return Place(turn, own=False, reply=found.reply)
        trail.clear()
        if turn.ended:
            reason = f"the turn {turn.id!r} has ended, and this call was not part of it"
            raise UsageError(f"{reason}: begin another with session.turn(...)")
        yield from self._append(turn, given, request)
        return Place(turn, own=False)

    def _had(self, turn: Any) -> Steps[list[Exchange]]:
        """Return what a turn held when it was entered: an earlier process may have got replies."""
        records = yield lambda: self.face.records(self.session, turn.start)
        had = record.before_entered(records, turn.id, ended=turn.ended)
        return record.exchanges(had)

    # Outside of any: a turn goes from the first message to the first reply without calls.

    def _placed(self, request: Request) -> Steps[Place]:
        if self._state.stream is not None:
            stream = self._state.stream
            yield stream.supersede
        error = self._state.broken
        if error is not None:
            place = yield from self._taken_up(self._state.turn, request)
            if place is not None:
                self._state.broken = None
                return place
            yield from self._leave(error)
        if self._state.turn is not None:
            place = yield from self._went_on(request)
            if place is not None:
                return place
            yield from self._give_up("another input came in the place of results")
        if not request.given:
            raise UsageError("nothing is new: give at least one message, or begin a turn with one")
        place = yield from self._continued(request)
        return place if place is not None else (yield from self._begun(request))

    def _went_on(self, request: Request) -> Steps[Place | None]:
        """Take results for the calls of the turn that is open, or what it was given before."""
        given = request.given
        if self._state.trail:
            found, *rest = self._state.trail
            if record.same_inputs(given, found.inputs, whole=True):
                self._state.trail = rest
                yield from self._note_differing(given, found)
                if found.reply is None:
                    news = record.instructions(given)
                    yield from self._append(self._state.turn, news, request)
                return Place(self._state.turn, own=True, reply=found.reply)
            self._state.calls, self._state.trail = (
                record.calls_at_end(self._state.calls, self._state.trail),
                [],
            )
        results = record.results_of(given)
        if not results or not self._state.calls:
            return None
        record.require_all(results, self._state.calls)
        yield from self._append(self._state.turn, given, request)
        return Place(self._state.turn, own=True)

    def _continued(self, request: Request) -> Steps[Place | None]:
        """Go on with the turn that a process left unfinished, if this call is one of it."""
        interrupted = self.session.interrupted
        turn = interrupted[-1] if interrupted else None
        if turn is None or turn.id in self._state.passed:
            return None
        place = yield from self._taken_up(turn, request)
        if place is None:
            self._state.passed.add(turn.id)
        return place

    def _taken_up(self, turn: Any, request: Request) -> Steps[Place | None]:
        """Go on with an unfinished turn if a call repeats its first or its last, or follows it."""
        given = request.given
        if self.session.position - turn.start > TURN_MAX:
            return None
        records = yield lambda: self.face.records(self.session, turn.start)
        messages = record.messages_of(records, turn.id)
        if messages is None:
            return None
        found = record.exchanges(messages)
        calls = record.calls_at_end([], found)
        trail: list[Exchange] = []
        if record.same_inputs(given, found[0].inputs, whole=True):
            trail = found
        elif found[-1].reply is None and record.same_inputs(given, found[-1].inputs, whole=True):
            trail = found[-1:]
        elif messages and not {*record.results_of(given)} & {*calls}:
            return None
        if turn is not self._state.turn:
            yield lambda: self.face.enter(turn)
        self._state.turn, self._state.calls, self._state.trail = turn, calls, trail
        place = yield from self._went_on(request)
        if place is None:
            again = not messages and (yield from self._is_again(given, turn.id))
            news = record.instructions(given) if again else given
            yield from self._append(turn, news, request)
            place = Place(turn, own=True)
        return place

    def _begun(self, request: Request) -> Steps[Place]:
        given = request.given
        again = yield from self._is_again(given)
        if not again:
            yield from self._require_news(given)
        news = yield from self._news(given)
        if again:
            news = record.instructions(news)
        alone = news[0] if len(news) == 1 else None
        turn = self.session.turn(alone)
        if alone is not None or not news:
            request.ask.in_(turn)
        yield lambda: self.face.enter(turn)
        self._state.turn = turn
        if alone is None and news:
            request.ask.in_(turn)
            try:
                yield lambda: turn.append(*news)
            except GeneratorExit:
                raise
            except BaseException as error:
                yield from self._leave(error)
                raise
        self._note_instructions(news)
        return Place(turn, own=True)

    def _is_again(self, given: list[Item], turn: str = "") -> Steps[bool]:
        """Whether a call repeats the one before a turn, which failed: what it says stands."""
        words = record.said(given)
        if not words or self.session.last != words[-1]:
            return False
        recent = yield lambda: self.session.messages(last=len(words))
        after = max(0, self.session.position - TAIL)
        records = yield lambda: self.face.records(self.session, after)
        return list(recent) == words and record.ends_failed(records, turn)

    def _require_news(self, given: list[Item]) -> Steps[None]:
        results = record.results_of(given)
        if any(call not in record.all_calls(given) for call in results):
            reason = f"results of calls that are not open: {', '.join(results)}"
            raise UsageError(f"{reason}: give them in the call that follows the model's")
        if any(record.is_output(one) for one in given):
            recent = yield lambda: self.session.messages(last=TAIL)
            if record.repeated(given, recent):
                reason = "what the model said before stands in the session and is sent by itself"
                raise UsageError(f"{reason}: give only what is new")

    def _news(self, given: list[Item]) -> Steps[list[Item]]:
        """Return what is given without the instructions that stand in the session already."""
        if not any(record.is_instruction(one) for one in given):
            return given
        if self._state.instructions is None:
            standing = yield from self._standing()
            self._state.instructions = record.instructions(standing)
        known = self._state.instructions
        news = [one for one in given if not record.is_instruction(one) or one not in known]
        return news

    def _append(self, turn: Any, given: list[Item], request: Request) -> Steps[None]:
        news = yield from self._news(given)
        if news:
            request.ask.in_(turn)
            yield lambda: turn.append(*news)
            self._note_instructions(news)

    def _note_instructions(self, news: list[Item]) -> None:
        """Take instructions for standing, once they are durable."""
        if self._state.instructions is not None:
            self._state.instructions += record.instructions(news)

    def _standing(self) -> Steps[list[Item]]:
        limit = self.options.max_tokens
        try:
            if limit is not None:
                return list((yield lambda: self.session.messages(max_tokens=limit)))
        except BudgetError:
            pass  # The call itself will say so, once what is said is durable.
        return list((yield self.session.messages))

    def _note_differing(self, given: list[Item], found: Exchange) -> Steps[None]:
        calls = record.differing(given, found.inputs)
        if calls:
            told = "a tool gave another result than the recorded one, which stands"
            yield lambda: self.session.note({"told": told, "calls": calls})
