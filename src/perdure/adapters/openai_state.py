"""What a call of a wrapped client is, and what the calls in one session have in common."""

from collections.abc import Callable, Generator, MutableMapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from perdure.adapters.openai_record import Exchange, Item, Reply

T = TypeVar("T")
Steps = Generator[Callable[[], Any], Any, T]

STATE = "_openai_adapter"  # Where a session object has the state of its wrapped clients.


class Options(NamedTuple):
    """How much of the session a model is told, and how its answers are kept."""

    max_tokens: int | None
    max_messages: int | None
    perspective: str
    every: float
    on_tools: Callable[[Any], object] | None


class Ask:
    """What a call is recorded as: said once, with the first append that is made for it."""

    def __init__(self, name: str, request: Any) -> None:
        self._name = name
        self._request = request
        self.asked: Any = None

    def in_(self, turn: Any) -> Any:
        """Have it said with the next append of a turn, unless that was done."""
        if self.asked is None:
            self.asked = turn.ask(self._name, self._request)
        return self.asked


class Request(NamedTuple):
    """A call of the API: what is new in it, and how it is made once the rest is known."""

    format: str
    given: list[Item]
    tools: Sequence[Any]
    streaming: bool
    send: Callable[[list[Item]], Any]
    replay: Callable[[Reply], Any]
    ask: Ask


class Place(NamedTuple):
    """Where a call belongs: its turn, whether the turn is ours to end, and a reply it has had."""

    turn: Any
    own: bool
    reply: Reply | None = None


class State:
    """What all wrapped clients of one session object have in common: the turn that is theirs."""

    def __init__(self) -> None:
        self.turn: Any = None
        self.broken: BaseException | None = None  # What ended a stream of that turn too early.
        self.trail: list[Exchange] = []  # What an unfinished turn had, and was not asked for yet.
        self.calls: list[str] = []
        self.stream: Any = None
        self.passed: set[str] = set()
        self.instructions: list[Item] | None = None
        self.entered: MutableMapping[Any, list[Exchange]] = WeakKeyDictionary()
        self.busy = Lock()


def state_of(session: Any) -> State:
    """Return the state of all wrapped clients of a session object.

    It is kept with the session, not in a table of sessions: a stream that nobody read holds both.
    """
    found: State = vars(session).setdefault(STATE, State())
    return found
