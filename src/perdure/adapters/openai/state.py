"""Values that a call carries, and the state that all wrapped clients of a session share."""

from collections.abc import Callable, MutableMapping, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from perdure.adapters.openai.exchanges import Exchange, Item, RecordedReply
from perdure.journal.records import Message

STATE_ATTRIBUTE = "_openai_adapter"  # Attribute of a session object that holds its clients' state.


class WrapOptions(NamedTuple):
    """The window that a model gets, and how its replies are recorded."""

    max_tokens: int | None
    max_messages: int | None
    perspective: str
    flush_every: float
    on_tools: Callable[[Any], object] | None


class CallRecord:
    """The record of a call: written once, with the first append made for the call."""

    def __init__(self, name: str, request: Any) -> None:
        self._name = name
        self._request = request
        self.model_call: Any = None

    def begin_in(self, turn: Any) -> Any:
        """Begin the model call with the next append of a turn, unless it has begun."""
        if self.model_call is None:
            self.model_call = turn.begin_model_call(self._name, self._request)
        return self.model_call


class ApiCall(NamedTuple):
    """An API call: its new inputs, and functions to send it or replay its reply."""

    format: str
    inputs: list[Item]
    tools: Sequence[Any]
    streaming: bool
    send: Callable[[list[Item]], Any]
    replay: Callable[[RecordedReply], Any]
    call_record: CallRecord


class CallSite(NamedTuple):
    """The site of a call: its turn, whether the adapter may end the turn, and a recorded reply."""

    turn: Any
    owns_turn: bool
    reply: RecordedReply | None = None


class ClientState:
    """State shared by all wrapped clients of one session object: the adapter's own turn."""

    def __init__(self) -> None:
        self.turn: Any = None
        self.broken: BaseException | None = None  # The error that broke a stream of that turn.
        self.trail: list[Exchange] = []  # Recorded exchanges not yet repeated.
        self.calls: list[str] = []
        self.stream: Any = None
        self.skipped_turns: set[str] = set()
        self.instructions: list[Item] | None = None
        # By run of a turn that the application opened: its exchanges not yet repeated.
        self.app_turns: MutableMapping[Any, list[Exchange]] = WeakKeyDictionary()
        # The messages of the session so far, for callers that pass the whole list.
        self.stored: list[Message] = []
        self.stored_until = 0
        self.busy = Lock()


def state_of(session: Any) -> ClientState:
    """Return the state of all wrapped clients of a session object.

    It is stored on the session, not in a weak table: an unread stream references both.
    """
    state: ClientState = vars(session).setdefault(STATE_ATTRIBUTE, ClientState())
    return state
