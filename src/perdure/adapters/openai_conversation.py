"""A call of a model as part of a session: its turn, what the model is told, what is kept.

No I/O of its own and no colour: a call is a generator that yields what is to be done, and a face
(`openai_faces`) does it, blocking or awaiting.
"""

from collections.abc import Callable, Generator, Iterable, MutableMapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from perdure.adapters import openai_record as record
from perdure.adapters.openai_record import Exchange, Item, Reply
from perdure.errors import BudgetError, UsageError
from perdure.events import tell

T = TypeVar("T")
Steps = Generator[Callable[[], Any], Any, T]

TURN_MAX = (
    4096  # Records of an unfinished turn that are read to see whether a call goes on with it.
)
TAIL = 64  # Records at the end of a session that say how its last turn ended.


class Options(NamedTuple):
    """How much of the session a model is told, and how its answers are kept."""

    max_tokens: int | None
    max_messages: int | None
    perspective: str
    every: float
    on_tools: Callable[[Any], object] | None


class Request(NamedTuple):
    """A call of the API: what is new in it, and how it is made once the rest is known."""

    format: str
    given: list[Item]
    tools: Sequence[Any]
    streaming: bool
    send: Callable[[list[Item]], Any]
    replay: Callable[[Reply], Any]


class Place(NamedTuple):
    """Where a call belongs: its turn, whether the turn is ours to end, and a reply it has had."""

    turn: Any
    own: bool
    reply: Reply | None = None


class Conversation:
    """What the calls of one wrapped client, and of its copies, have in common."""

    def __init__(self, session: Any, face: Any, options: Options) -> None:
        self.session = session
        self.face = face
        self.options = options
        self._turn: Any = None
        self._trail: list[Exchange] = []  # What an unfinished turn had, and was not asked for yet.
        self._calls: list[str] = []
        self._stream: Any = None
        self._passed: set[str] = set()
        self._instructions: list[Item] | None = None
        self._entered: MutableMapping[Any, list[Exchange]] = WeakKeyDictionary()
        self._busy = Lock()

    def call(self, request: Request) -> Steps[Any]:
        """Carry a call out. On return what was said is durable, or on its way as a stream."""
        turn = self.session.current
        if turn is not None and turn is not self._turn:
            place = yield from self._inside(turn, request.given)
            return (yield from self._answered(place, request))
        if not self._busy.acquire(blocking=False):
            reason = f"another call in the session {self.session.id!r} is under way"
            raise UsageError(f"{reason}: wait for it, or make both inside a session.turn(...)")
        try:
            place = yield from self._placed(request.given)
            return (yield from self._answered(place, request))
        finally:
            self._busy.release()

    def _answered(self, place: Place, request: Request) -> Steps[Any]:
        turn, reply = place.turn, place.reply
        try:
            if reply is not None:
                record.require_format(reply, request.format)
                result = yield lambda: request.replay(reply)
                yield from self._settle(place, reply.messages)
                return result
            yield from self._offer(turn, request.tools)
            window = yield self._window(request.format)
            result = yield lambda: request.send(list(window))
            if request.streaming:
                stream = self.face.stream(self, place, result)
                self._stream = stream if place.own else self._stream
                return stream
            yield lambda: turn.append(result)
            yield from self._settle(place, _messages(result))
        except GeneratorExit:
            raise
        except BaseException as error:
            if place.own:
                yield from self._leave(error)
            raise
        return result

    def streamed(self, place: Place, recorded: Any) -> Steps[None]:
        """Take in that a stream is over, to its end or not."""
        self._stream = None if place.own else self._stream
        if place.own and (place.turn.partial or not recorded.said):
            yield from self._give_up("the stream ended before the answer did")
        else:
            yield from self._settle(place, [taken.message for taken in recorded.said])

    def broken(self, place: Place, error: BaseException) -> Steps[None]:
        """Take in that a stream broke."""
        if place.own:
            self._stream = None
            yield from self._leave(error)

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
            self._calls = record.calls_of(reply)
            if not self._calls:
                yield from self._leave(None)

    def _leave(self, error: BaseException | None) -> Steps[None]:
        turn, self._turn = self._turn, None
        self._trail, self._calls = [], []
        yield lambda: self.face.leave(turn, error)

    def _give_up(self, reason: str) -> Steps[None]:
        yield lambda: self._turn.abandon(reason)
        yield from self._leave(None)

    # Inside a turn of the application's own.

    def _inside(self, turn: Any, given: list[Item]) -> Steps[Place]:
        if turn not in self._entered:
            self._entered[turn] = yield from self._had(turn)
        trail = self._entered[turn]
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
        news = yield from self._news(given)
        if news:
            yield lambda: turn.append(*news)
        return Place(turn, own=False)

    def _had(self, turn: Any) -> Steps[list[Exchange]]:
        """Return what a turn held when it was entered: an earlier process may have got replies."""
        records = yield lambda: self.face.records(self.session, turn.start)
        had = record.before_entered(records, turn.id, ended=turn.ended)
        return record.exchanges(had)

    # Outside of any: a turn goes from the first message to the first reply without calls.

    def _placed(self, given: list[Item]) -> Steps[Place]:
        if self._stream is not None:
            stream = self._stream
            yield stream.supersede
        if self._turn is not None:
            place = yield from self._went_on(given)
            if place is not None:
                return place
            yield from self._give_up("another input came in the place of results")
        if not given:
            raise UsageError("nothing is new: give at least one message, or begin a turn with one")
        place = yield from self._continued(given)
        return place if place is not None else (yield from self._begun(given))

    def _went_on(self, given: list[Item]) -> Steps[Place | None]:
        """Take results for the calls of the turn that is open, or what it was given before."""
        if self._trail:
            found, *rest = self._trail
            if record.same_inputs(given, found.inputs, whole=True):
                self._trail = rest
                yield from self._note_differing(given, found)
                return Place(self._turn, own=True, reply=found.reply)
            self._calls, self._trail = record.calls_at_end(self._calls, self._trail), []
        results = record.results_of(given)
        if not results or not self._calls:
            return None
        record.require_all(results, self._calls)
        news = yield from self._news(given)
        yield lambda: self._turn.append(*news)
        return Place(self._turn, own=True)

    def _continued(self, given: list[Item]) -> Steps[Place | None]:
        """Go on with the turn that a process left unfinished, if this call is one of it."""
        interrupted = self.session.interrupted
        turn = interrupted[-1] if interrupted else None
        if turn is None or turn.id in self._passed:
            return None
        if self.session.position - turn.start > TURN_MAX:
            return None
        records = yield lambda: self.face.records(self.session, turn.start)
        messages = record.messages_of(records, turn.id)
        found = record.exchanges(messages or [])
        again = messages is not None and record.same_inputs(given, found[0].inputs, whole=True)
        calls = record.calls_at_end([], found)
        if messages is None or not (
            again or not messages or {*record.results_of(given)} & {*calls}
        ):
            self._passed.add(turn.id)
            return None
        yield lambda: self.face.enter(turn)
        self._turn, self._calls, self._trail = turn, calls, found if again else []
        place = yield from self._went_on(given)
        if place is None:
            news = yield from self._news(given)
            yield lambda: turn.append(*news)
            place = Place(turn, own=True)
        return place

    def _begun(self, given: list[Item]) -> Steps[Place]:
        again = yield from self._is_again(given)
        if not again:
            yield from self._require_news(given)
        news = yield from self._news(given)
        if again:
            news = [one for one in news if record.is_instruction(one)]
        alone = news[0] if len(news) == 1 else None
        turn = self.session.turn(alone)
        yield lambda: self.face.enter(turn)
        self._turn = turn
        if alone is None and news:
            try:
                yield lambda: turn.append(*news)
            except GeneratorExit:
                raise
            except BaseException as error:
                yield from self._leave(error)
                raise
        return Place(turn, own=True)

    def _is_again(self, given: list[Item]) -> Steps[bool]:
        """Whether a call repeats the one before, which failed: what it says stands already."""
        words = record.said(given)
        if not words or self.session.last != words[-1]:
            return False
        recent = yield lambda: self.session.messages(last=len(words))
        after = max(0, self.session.position - TAIL)
        records = yield lambda: self.face.records(self.session, after)
        return list(recent) == words and record.ends_failed(records)

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
        if self._instructions is None:
            standing = yield from self._standing()
            self._instructions = [one for one in standing if record.is_instruction(one)]
        known = self._instructions
        news = [one for one in given if not record.is_instruction(one) or one not in known]
        known += [one for one in news if record.is_instruction(one)]
        return news

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


def _messages(result: Any) -> list[Item]:
    """Return the messages of a reply, as far as they can hold calls."""
    choices = getattr(result, "choices", None)
    if choices is None:
        found = [one for one in getattr(result, "output", None) or () if one.type != "message"]
    else:
        found = [choice.message for choice in choices[:1]]
        found = [one for one in found if one.tool_calls or one.function_call]
    return [record.plain(one) for one in found]
