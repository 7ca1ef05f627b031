"""Durable tools, apart from running them: declaration, arguments, identity, results. Pure.

A call's identity decides whether it was made before. It is one of four: `issued:` (a call in a
model's message, by its position), `direct:` and `model:` (by turn, tool, arguments and ordinal),
`key:` or `within:` (a caller's own key). Identities are stored: their form must not change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from perdure import events
from perdure.backends.digests import digest_of
from perdure.core import turn_context
from perdure.core.plans import TurnOwnership
from perdure.core.replay.guard import Guard
from perdure.core.replica import Replica
from perdure.core.state.effects import (
    KEYED_IN_TURN_PREFIX,
    KEYED_PREFIX,
    MODEL_PREFIX,
    EffectsState,
    EffectState,
)
from perdure.core.validation import require_str, require_text, require_timeout
from perdure.errors import PerdureError, UnavailableError, UsageError
from perdure.formats.intake import IncomingMessage, to_plain
from perdure.journal import codec
from perdure.journal.chain import PendingRecord
from perdure.journal.records import EffectOutcome

if TYPE_CHECKING:
    from inspect import Signature

Decision = Literal["approved", "denied"]

MessageBuilder = Callable[[str], IncomingMessage]


TTL_MAX = 100 * 366 * 86_400.0  # seconds; a century: later dates overflow in some calendars

DENIED_ERROR, EXPIRED_ERROR = "ApprovalDenied", "ApprovalExpired"


def require_approval_options(need: object, ttl: object, wait: object) -> None:
    """Raise UsageError unless a tool's approval options are valid.

    An approval can be given and used for `ttl` seconds; a caller waits for it for `wait` seconds.
    """
    if not isinstance(need, bool) and not callable(need):
        kind = type(need).__name__
        raise UsageError(f"approval must be True, False or a function of the arguments, not {kind}")
    require_timeout(wait, "approval_wait")
    if ttl is None:
        return
    if need is False:
        raise UsageError("approval_ttl is for tools that need an approval: give approval=")
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= TTL_MAX:
        most = f"{TTL_MAX:.0f}"
        raise UsageError(f"approval_ttl must be seconds above 0 and at most {most}, not {ttl!r}")


SharedForm = Literal["", "text", "json"]

Kind = Literal["tool", "model"]

Policy = Literal["read_only", "idempotent", "reconcile", "unsafe"]

# From the most lenient to the strictest: the index decides which of two policies applies.
POLICIES: tuple[Policy, ...] = ("read_only", "idempotent", "reconcile", "unsafe")

OutcomeState = Literal["succeeded", "failed", "unknown", "reconciled"]

P = ParamSpec("P")

R_co = TypeVar("R_co", covariant=True)


class CallRequest(NamedTuple):
    """A call before it is made. `arguments` are packed; `digest` is the digest of the arguments."""

    identity: str
    tool: str
    arguments: Any
    digest: str
    policy: Policy
    version: str = ""
    actor: str = ""
    parent: str = ""
    kind: Kind = "tool"
    approval: bool = False
    """Whether the call needs an approval, given within `approval_ttl` seconds of the request."""
    approval_ttl: float | None = None


class CallOutcome(NamedTuple):
    """The outcome of a call. `result` is packed; `reason` says what went wrong, for people."""

    state: OutcomeState
    result: Any = None
    error: str = ""
    reason: str = ""
    duration: float = 0.0
    message_count: int = 0
    shared_form: SharedForm = ""
    unstored: str = ""
    """The type of a result that could not be stored; `result` is then its text."""


class CallDecision(NamedTuple):
    """The decision about a call: `run`, `serve`, `reconcile`, `unknown`, `wait` or `refused`.

    `serve` returns the recorded outcome, `wait` waits for an approval, and a `refused` call has its
    outcome already.
    """

    action: Literal["run", "serve", "reconcile", "unknown", "wait", "refused"]
    effect: str = ""
    key: str = ""
    outcome: EffectOutcome | None = None
    """The recorded outcome, for `serve` and `refused`."""
    position: int = 0
    """The position of the recorded outcome, for `serve`."""
    begun_version: str | None = None
    """The tool's version that began the call, if it differs from the current one."""
    approval: str = ""
    wait_after: int = 0
    """The position up to which there is no decision, for `wait`."""
    intent: PendingRecord | None = None
    """The intent, if it is to be recorded together with the outcome."""


def encode_arguments(replica: Replica, arguments: Any) -> tuple[Any, str]:
    """Return packed arguments and their digest: copies, which the tool cannot change."""
    packed = replica.settings.codec.pack(arguments, root="$.arguments")
    return packed, digest_of(codec.encode_tree(packed))


class Effect(NamedTuple):
    """A call while it runs, or while it is reconciled.

    `key` is the same for every attempt: pass it to services that accept an idempotency key.
    """

    id: str
    tool: str
    key: str
    arguments: dict[str, Any]
    attempt: int = 1


class Happened(NamedTuple):
    """Returned by a reconcile function for a call that took effect: its result."""

    result: Any = None


class DidNotHappen(NamedTuple):
    """Returned by a reconcile function for a call that did not happen: it is made now."""


class ToolTimeoutError(TimeoutError):
    """A tool did not return in time. It may still be running, so its outcome is unknown."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the tool did not return within {self.seconds} s, and may still be running"


NAME_BYTES_MAX = 512  # bytes, as for the keys of values; names are stored in state snapshots


_current: ContextVar[tuple[Effect, str] | None] = ContextVar("perdure_effect", default=None)


def current_effect() -> Effect:
    """Return the effect of the running tool; UsageError outside of a durable tool."""
    current = _current.get()
    if current is None:
        raise UsageError("there is no current effect: this runs outside of a durable tool")
    return current[0]


def current_identity() -> str:
    """Return the identity of the running effect, the parent of calls made now, or ""."""
    current = _current.get()
    return "" if current is None else current[1]


@contextmanager
def effect_context(effect: Effect, identity: str) -> Iterator[None]:
    """Make an effect the current one."""
    token = _current.set((effect, identity))
    try:
        yield
    finally:
        _current.reset(token)


def require_returned(called: tuple[Any, BaseException | None] | None, timeout: float | None) -> Any:
    """Return the result of a function, or raise its error; None as `called` means a timeout."""
    if called is None:
        raise ToolTimeoutError(timeout or 0.0)
    result, error = called
    if error is not None:
        raise error
    return result


class ToolSpec(NamedTuple):
    """The declaration of a tool or a model."""

    function: Callable[..., Any]
    name: str
    policy: Policy
    version: str = ""
    actor: str = ""
    reconcile: Callable[[Effect], Any] | None = None
    timeout: float | None = None
    kind: Kind = "tool"
    digest_of: Callable[[dict[str, Any]], Any] | None = None
    approval: bool | Callable[[dict[str, Any]], Any] = False
    approval_ttl: float | None = None
    approval_wait: float | None = None

    def request(self, identity: str, arguments: Any, digest: str, parent: str = "") -> CallRequest:
        """Return a call of this tool with packed arguments."""
        declared = self.policy, self.version, self.actor
        return CallRequest(identity, self.name, arguments, digest, *declared, parent)

    @property
    def is_async(self) -> bool:
        import inspect  # Imported here: it takes as long to load as the rest of perdure.

        return inspect.iscoroutinefunction(self.function)


def require_spec(spec: ToolSpec) -> ToolSpec:
    """Return a tool's declaration with its name filled in, or raise UsageError."""
    if not callable(spec.function):
        raise UsageError(f"a {spec.kind} must be a function, not {type(spec.function).__name__}")
    if spec.policy not in POLICIES:
        raise UsageError(f"no effect {spec.policy!r}: choose one of {', '.join(POLICIES)}")
    if (spec.policy == "reconcile") != (spec.reconcile is not None):
        raise UsageError('effect="reconcile" and a reconcile function go together: give both')
    name = spec.name or getattr(spec.function, "__name__", "")
    if not name:
        raise UsageError(f"a {spec.kind} needs a name: give name=")
    require_text(name, f"a {spec.kind}'s name", longest=NAME_BYTES_MAX)
    require_str(spec.version, "version")
    require_str(spec.actor, "actor")
    seconds: object = spec.timeout
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise UsageError(f"a timeout must be a number of seconds above 0, not {spec.timeout!r}")
    require_approval_options(spec.approval, spec.approval_ttl, spec.approval_wait)
    return spec._replace(name=name)


class CallArguments(NamedTuple):
    """The arguments of a call: by name, as recorded, and as they are passed to the function.

    They are copies. What other threads or tasks do to the caller's objects does not reach the
    function: it gets what was recorded and approved.
    """

    arguments: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class BoundArguments(NamedTuple):
    """The caller's arguments, and for each parameter the slot that its value was passed in.

    A slot is a position, a keyword, a tuple of positions (`*args`) or a dict of keywords
    (`**kwargs`).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    slots: dict[str, Any]

    def by_name(self) -> dict[str, Any]:
        """Return the arguments by parameter, as they are recorded: tuples as lists."""
        arguments: dict[str, Any] = {}
        for name, slot in self.slots.items():
            if isinstance(slot, tuple):
                arguments[name] = [self.args[position] for position in slot]
            elif isinstance(slot, dict):
                arguments[name] = {keyword: self.kwargs[keyword] for keyword in slot}
            else:
                value = self.args[slot] if isinstance(slot, int) else self.kwargs[slot]
                arguments[name] = [*value] if isinstance(value, tuple) else value
        return arguments

    def replaced_by(self, arguments: dict[str, Any]) -> CallArguments:
        """Return other arguments by parameter, passed in the same slots."""
        args, kwargs = [*self.args], {**self.kwargs}
        for name, slot in self.slots.items():
            value = arguments[name]
            if isinstance(slot, tuple):
                for position, item in zip(slot, value, strict=True):
                    args[position] = item
            elif isinstance(slot, dict):
                kwargs.update(value)
            elif isinstance(slot, int):
                args[slot] = _like(args[slot], value)
            else:
                kwargs[slot] = _like(kwargs[slot], value)
        return CallArguments(arguments, tuple(args), kwargs)


def _like(original: Any, value: Any) -> Any:
    """Return a recorded value in the class of the original, if that was a tuple."""
    return tuple.__new__(type(original), value) if isinstance(original, tuple) else value


def bind_arguments(
    spec: ToolSpec, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> BoundArguments:
    """Return the arguments of a call with the parameters that they are for, or raise UsageError."""
    positions, keywords = tuple(range(len(args))), {keyword: keyword for keyword in kwargs}
    signature = _signature_of(spec.function)
    slots: dict[str, Any] = {"args": positions, "kwargs": keywords}
    if signature is not None:
        try:
            slots = signature.bind(*positions, **keywords).arguments
        except TypeError as error:
            raise UsageError(f"{spec.name}: {error}", "$.arguments") from error
    return BoundArguments(tuple(args), dict(kwargs), slots)


_signatures: "WeakKeyDictionary[Callable[..., Any], Signature]" = WeakKeyDictionary()


def _signature_of(function: Callable[..., Any]) -> "Signature | None":
    """Return the signature of a function; None if it has none.

    A function is inspected once: that takes 9 µs each time, a tenth of perdure's part of a step.
    """
    if type(function) is not FunctionType:  # Other objects may define when they are equal.
        return _inspect_signature(function)
    signature = _signatures.get(function)
    if signature is None:
        signature = _inspect_signature(function)
        if signature is not None:
            _signatures[function] = signature
    return signature


def _inspect_signature(function: Callable[..., Any]) -> "Signature | None":
    import inspect

    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def copy_arguments(replica: Replica, bound: BoundArguments) -> tuple[Any, str, CallArguments]:
    """Return packed arguments, their digest, and what to call the function with.

    The function gets arguments that are rebuilt from the packed ones, not the caller's objects:
    these may change before it is called, and others would then have been recorded and approved.
    """
    packer = replica.settings.codec
    packed = packer.pack(bound.by_name(), root="$.arguments")
    arguments = packer.unpack(packed, stream=replica.name)
    digest = digest_of(codec.encode_tree(packed))
    return packed, digest, bound.replaced_by(arguments)


class ResultFormatter(Protocol):
    """Formats a text as the message that answers a call."""

    def __call__(self, text: str, *, failed: bool) -> dict[str, Any]: ...


class ResultMessage:
    """Builds the result message of one call for the model.

    `latest` is the last one built; `stored` is the one that was stored.
    """

    def __init__(self, answer: ResultFormatter) -> None:
        self._answer = answer
        self.latest: dict[str, Any] | None = None
        self.stored: dict[str, Any] | None = None

    def build(self, text: str, *, failed: bool = True) -> IncomingMessage:
        """Return the message. The caller stores it, and then sets `stored`."""
        self.latest = self._answer(text, failed=failed)
        return IncomingMessage(self.latest, {})


class CallSequence:
    """Numbers the otherwise identical calls of one run of a turn, to give each its own identity."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._reusable: dict[str, list[int]] = {}
        self.ended_attempts: dict[str, bool] = {}
        """Attempts that are over in this process and may have no outcome: whether the tool ran."""
        self.recorded: EffectsState | None = None
        """The effects of a turn that has ended: its calls are served from them, and none runs."""

    def identity(
        self, turn: str, parent: str, tool: str, digest: str, *, prefix: str = "direct:"
    ) -> str:
        """Return the identity of the next direct call of a tool with these arguments."""
        described = f"{turn}\t{parent}\t{tool}\t{digest}"
        key = prefix + described
        if self._reusable.get(key):
            number = self._reusable[key].pop(0)
        else:
            number = self._count[key] = self._count.get(key, 0) + 1
        return prefix + _short_digest(f"{described}\t{number}")

    def model_identity(
        self, turn: str, parent: str, model: str, digest: str, effects: Mapping[str, EffectState]
    ) -> str:
        """Return the identity of the next call of a model with this request.

        A call that failed in an earlier run of the turn is skipped if that run repeated it: the
        answer to the repeated call is the one that was used.
        """
        identity = self.identity(turn, parent, model, digest, prefix=MODEL_PREFIX)
        described = f"{turn}\t{parent}\t{model}\t{digest}"
        while identity in effects and effects[identity].state == "failed":
            following = self._count[MODEL_PREFIX + described] + 1
            repeated = MODEL_PREFIX + _short_digest(f"{described}\t{following}")
            if repeated not in effects:
                break
            self._count[MODEL_PREFIX + described], identity = following, repeated
        return identity

    def reuse(self, call: CallRequest, turn: str) -> None:
        """Give the next identical call this call's identity, because this one was not made."""
        described = f"{turn}\t{call.parent}\t{call.tool}\t{call.digest}"
        prefix = MODEL_PREFIX if call.kind == "model" else "direct:"
        key = prefix + described
        for number in range(1, self._count.get(key, 0) + 1):
            if call.identity == prefix + _short_digest(f"{described}\t{number}"):
                self._reusable[key] = sorted({*self._reusable.get(key, ()), number})

    def intent_failed(
        self, call: CallRequest, turn: str, attempt: str, error: BaseException
    ) -> None:
        """Note that a call was not made because its intent failed, which may yet be stored."""
        if isinstance(error, UnavailableError) or not isinstance(error, PerdureError):
            self.ended_attempts[attempt] = False
            self.reuse(call, turn)


class VersionMismatch(NamedTuple):
    """A call that another version of its tool had begun. `ran` says that it was made again."""

    effect: str
    tool: str
    recorded: str
    now: str
    ran: bool


class ActiveTurn(NamedTuple):
    """A turn that this handle runs, and the sequence of its direct calls so far.

    Code may run again in a turn that has `ended`: "completed", for example. It owns nothing then.
    """

    ownership: TurnOwnership
    sequence: CallSequence
    ended: str = ""


class HandleLike(Protocol):
    """A sync or async handle."""

    @property
    def active_turns(self) -> Mapping[str, ActiveTurn]: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def version_mismatches(self) -> list[VersionMismatch]: ...


def report_version_mismatch(handle: HandleLike, call: CallRequest, decision: CallDecision) -> None:
    """Report a call that another version began. Call it before the tool runs, not after."""
    if decision.begun_version is None:
        return
    ran, begun = decision.action == "run", decision.begun_version
    mismatch = VersionMismatch(decision.effect, call.tool, begun, call.version, ran=ran)
    handle.version_mismatches.append(mismatch)
    where = {"session": handle.replica.name, **mismatch._asdict()}
    events.emit("version", {**where, "outcome": "run again" if ran else decision.action})


def report_unstored(
    handle: HandleLike, call: CallRequest, effect: str, outcome: CallOutcome
) -> None:
    """Report a result that could not be stored: a repeated call will not get it."""
    if outcome.unstored:
        which = {"session": handle.replica.name, "tool": call.tool, "effect": effect}
        events.emit("unstored", {**which, "type": outcome.unstored, "outcome": outcome.state})


def active_turn(handle: HandleLike, tool: str) -> ActiveTurn:
    """Return the turn that a call belongs to, or raise UsageError if there is none.

    ReplayBlockedError if a replayed agent calls a tool of a live session.
    """
    if Guard.used:
        handle.replica.require_live(f"call of {tool!r}")
    turns = handle.active_turns
    entered = turn_context.current_turn(handle)
    if entered is not None:
        if entered.id in turns:
            return turns[entered.id]
        if entered.active is not None and entered.active.ended:
            active: ActiveTurn = entered.active
            return active
        raise UsageError(f"{tool!r} is called in a turn that has ended: begin another")
    if len(turns) == 1:  # Called from a thread that the turn's code has started.
        return next(iter(turns.values()))
    if not turns:
        raise UsageError(f"{tool!r} is called outside of a turn: use `with session.turn(...)`")
    raise UsageError(f"{tool!r} is called while several turns are open: keep one open at a time")


def model_call(
    replica: Replica, turn: str, sequence: CallSequence, name: str, request: object
) -> CallRequest:
    """Return a model call that is about to be made, with the request's digest, not the request."""
    require_text(name, "a model's name", longest=NAME_BYTES_MAX)
    _, digest = encode_arguments(replica, to_plain({"request": request}))
    parent = current_identity()
    effects = sequence.recorded or replica.state.effects
    identity = sequence.model_identity(turn, parent, name, digest, effects.by_identity)
    return CallRequest(identity, name, None, digest, "read_only", parent=parent, kind="model")


def issued_call_id(position: int, index: int) -> str:
    """Return the identity of a call in a model's message."""
    return f"issued:{position}:{index}"


def keyed_call_id(tool: str, key: str, turn: str = "") -> str:
    """Return the identity of a call with a caller's own key, unique in a turn or in the session."""
    if turn:  # Dropped from the state when the turn ends, so that many keys cost nothing.
        return KEYED_IN_TURN_PREFIX + _short_digest(f"{turn}\t{tool}\t{key}")
    return f"{KEYED_PREFIX}{tool}\t{key}"


def _short_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
