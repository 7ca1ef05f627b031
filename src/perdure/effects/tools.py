"""What a durable tool is, apart from being called: its name, its policy, its arguments. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec

from perdure import entering, events
from perdure.approvals import approving
from perdure.approvals.approving import DENIED_ERROR, EXPIRED_ERROR
from perdure.conversations.intake import Taken
from perdure.effects import effecting
from perdure.effects.calls import INTERRUPTED_NOTICE
from perdure.effects.deeds import KEYED, MODEL
from perdure.effects.effecting import POLICIES, Called, Kind, Outcome, Policy, Verdict
from perdure.errors import (
    ApprovalDeniedError,
    EffectError,
    PerdureError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.plain import exported
from perdure.plans import require_str, require_text
from perdure.records import EffectSettled
from perdure.replica import Replica
from perdure.saying import Ownership


class Effect(NamedTuple):
    """A call while it is made, or when it is to be reconciled.

    `key` is the same for every attempt: hand it to services that take an idempotency key.
    """

    id: str
    tool: str
    key: str
    arguments: dict[str, Any]
    attempt: int = 1


class Done(NamedTuple):
    """What a reconcile function returns for a call that had taken effect: its result."""

    result: Any = None


class NotDone(NamedTuple):
    """What a reconcile function returns for a call that had not happened: it is made now."""


class ToolTimeoutError(TimeoutError):
    """A tool did not return in its time. It may still be at work, so its outcome is unknown."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the tool did not return within {self.seconds} s, and may still be at work"


NAME_BYTES_MAX = 512  # As of values: it is kept in fold snapshots.

_current: ContextVar[tuple[Effect, str] | None] = ContextVar("perdure_effect", default=None)


def current_effect() -> Effect:
    """Return the effect that the running tool belongs to; UsageError outside of one."""
    found = _current.get()
    if found is None:
        raise UsageError("there is no current effect: this runs outside of a durable tool")
    return found[0]


def current_identity() -> str:
    """Return the identity of the effect in which a call is made, or nothing."""
    found = _current.get()
    return found[1] if found is not None else ""


@contextmanager
def during(effect: Effect, identity: str) -> Iterator[None]:
    """Make an effect the current one."""
    token = _current.set((effect, identity))
    try:
        yield
    finally:
        _current.reset(token)


class Spec(NamedTuple):
    """A tool as it was declared."""

    function: Callable[..., Any]
    name: str
    policy: Policy
    version: str = ""
    actor: str = ""
    reconcile: Callable[[Effect], Any] | None = None
    timeout: float | None = None
    unstorable: str = "raise"
    called: Kind = "tool"
    digest_of: Callable[[dict[str, Any]], Any] | None = None
    approval: bool | Callable[[dict[str, Any]], Any] = False
    approval_ttl: float | None = None
    approval_wait: float | None = None

    @property
    def is_async(self) -> bool:
        import inspect  # Here, because it takes as long as the rest of perdure.

        return inspect.iscoroutinefunction(self.function)


def require_spec(spec: Spec) -> Spec:
    """Return a tool's declaration, with its name, or say what is wrong with it."""
    if not callable(spec.function):
        raise UsageError(f"a {spec.called} must be a function, not {type(spec.function).__name__}")
    if spec.policy not in POLICIES:
        raise UsageError(f"no effect {spec.policy!r}: choose one of {', '.join(POLICIES)}")
    if (spec.policy == "reconcile") != (spec.reconcile is not None):
        raise UsageError('effect="reconcile" and a reconcile function go together: give both')
    if spec.unstorable not in ("raise", "return"):
        raise UsageError('unstorable must be "raise" or "return"')
    name = spec.name or getattr(spec.function, "__name__", "")
    if not name:
        raise UsageError(f"a {spec.called} needs a name: give name=")
    require_text(name, f"a {spec.called}'s name", longest=NAME_BYTES_MAX)
    require_str(spec.version, "version")
    require_str(spec.actor, "actor")
    seconds: object = spec.timeout
    if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
        raise UsageError(f"a timeout must be a number of seconds above 0, not {spec.timeout!r}")
    approving.require_approval(spec.approval, spec.approval_ttl, spec.approval_wait)
    return spec._replace(name=name)


def bound(spec: Spec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, as they are recorded."""
    import inspect

    try:
        signature = inspect.signature(spec.function)
    except (TypeError, ValueError):
        return {"args": [*args], "kwargs": dict(kwargs)}
    try:
        found = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise UsageError(f"{spec.name}: {error}", "$.arguments") from error
    return {name: [*value] if isinstance(value, tuple) else value for name, value in found.items()}


class Given(NamedTuple):
    """What a call was given: by name, as it is recorded, and as the function takes it."""

    arguments: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Answer(Protocol):
    """Makes the message that answers a call with a text."""

    def __call__(self, text: str, *, failed: bool) -> dict[str, Any]: ...


class Telling:
    """Makes the message that tells the model of an outcome. `told` is the one that was stored."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.last: dict[str, Any] | None = None
        self.told: dict[str, Any] | None = None

    def say(self, text: str, *, failed: bool = True) -> Taken:
        """Return the message; it is not told before it is stored."""
        self.last = self._answer(text, failed=failed)
        return Taken(self.last, {})


class Ordinals:
    """Tells apart the calls of one run of a turn that are otherwise the same."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._back: dict[str, list[int]] = {}
        self.ended: dict[str, bool] = {}
        """Attempts that are over here and may have no outcome: whether they ran."""

    def identity(
        self, turn: str, parent: str, tool: str, digest: str, *, prefix: str = "direct:"
    ) -> str:
        """Return the identity of the next direct call of a tool with these arguments."""
        call = f"{turn}\t{parent}\t{tool}\t{digest}"
        if self._back.get(prefix + call):
            number = self._back[prefix + call].pop(0)
        else:
            number = self._seen[prefix + call] = self._seen.get(prefix + call, 0) + 1
        return prefix + sha256(f"{call}\t{number}".encode()).hexdigest()[:32]

    def give_back(self, call: Called, turn: str) -> None:
        """Let the next such call be this one, which was not made."""
        told = f"{turn}\t{call.parent}\t{call.tool}\t{call.digest}"
        prefix = MODEL if call.called == "model" else "direct:"
        key = prefix + told
        for number in range(1, self._seen.get(key, 0) + 1):
            if call.identity == prefix + sha256(f"{told}\t{number}".encode()).hexdigest()[:32]:
                self._back[key] = sorted({*self._back.get(key, ()), number})

    def unmade(self, call: Called, turn: str, attempt: str, error: BaseException) -> None:
        """Take in that a call was not made, and that its intent may be stored all the same."""
        if isinstance(error, UnavailableError) or not isinstance(error, PerdureError):
            self.ended[attempt] = False
            self.give_back(call, turn)


class Changed(NamedTuple):
    """A call that another version of its tool had begun. `ran` says that it was made again."""

    effect: str
    tool: str
    recorded: str
    now: str
    ran: bool


class Running(NamedTuple):
    """A turn that this handle goes on with, and the direct calls it has made so far."""

    ownership: Ownership
    ordinals: Ordinals


class Holder(Protocol):
    """A handle of either colour."""

    @property
    def own_turns(self) -> Mapping[str, Running]: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def changed(self) -> list[Changed]: ...


def report(handle: Holder, call: Called, verdict: Verdict) -> None:
    """Tell that a call was begun by another version: it counts before a call runs, not after."""
    if verdict.before is None:
        return
    ran = verdict.action == "run"
    found = Changed(verdict.effect, call.tool, verdict.before, call.version, ran=ran)
    handle.changed.append(found)
    where = {"session": handle.replica.name, **found._asdict()}
    events.tell("version", {**where, "outcome": "run again" if ran else verdict.action})


def running_turn(handle: Holder, tool: str) -> Running:
    """Return the turn that a call belongs to, or say that there is not one."""
    turns = handle.own_turns
    entered = entering.innermost(handle)
    if entered is not None:
        if entered.id not in turns:
            raise UsageError(f"{tool!r} is called in a turn that has ended: begin another")
        return turns[entered.id]
    if len(turns) == 1:  # A thread that the turn's own code has started.
        return next(iter(turns.values()))
    if not turns:
        raise UsageError(f"{tool!r} is called outside of a turn: use `with session.turn(...)`")
    raise UsageError(f"{tool!r} is called while several turns are open: keep one open at a time")


def asked_in(replica: Replica, turn: str, ordinals: Ordinals, name: str, request: object) -> Called:
    """Return a call of a model that an adapter makes in a turn."""
    require_text(name, "a model's name", longest=NAME_BYTES_MAX)
    _, digest = effecting.encoded(replica, exported({"request": request}))
    parent = current_identity()
    identity = ordinals.identity(turn, parent, name, digest, prefix=MODEL)
    return Called(identity, name, None, digest, "read_only", parent=parent, called="model")


def asked(replica: Replica, running: Running, spec: Spec, arguments: dict[str, Any]) -> Called:
    """Return a call of a model as it is about to be made: its digest, and not what it says."""
    request = arguments if spec.digest_of is None else spec.digest_of(arguments)
    _, digest = effecting.encoded(replica, exported({"request": request}))
    parent, turn = current_identity(), running.ownership.turn
    identity = running.ordinals.identity(turn, parent, spec.name, digest, prefix=MODEL)
    return Called(
        identity, spec.name, None, digest, spec.policy, spec.version, spec.actor, parent, "model"
    )


def issued(position: int, index: int) -> str:
    """Return the identity of a call that a model's message makes."""
    return f"issued:{position}:{index}"


def keyed(tool: str, key: str, turn: str = "") -> str:
    """Return the identity of a call under a key of the caller's own, in a turn or in any."""
    if turn:  # Forgotten with its turn, so that many of them cost the session nothing.
        return "within:" + sha256(f"{turn}\t{tool}\t{key}".encode()).hexdigest()[:32]
    return f"{KEYED}{tool}\t{key}"


def served(stream: str, tool: str, key: str, found: EffectSettled) -> Any:
    """Return what was recorded of a call, packed, or raise what it was."""
    if found.state == "unknown":
        raise UnknownOutcomeError(stream, tool, found.effect, key, found.reason)
    if found.error in (DENIED_ERROR, EXPIRED_ERROR):
        raise ApprovalDeniedError(stream, tool, found.error, found.reason)
    if found.error:
        raise EffectError(stream, tool, found.error, found.reason)
    return found.result


def failure(error: BaseException, duration: float, called: Kind = "tool") -> Outcome:
    """Return an outcome for a call that raised; a tool that was cut off may have run."""
    name, reason = type(error).__qualname__, _text_of(error)
    if called == "model":
        return Outcome("failed", error=name, reason=reason, duration=duration)
    if isinstance(error, ToolTimeoutError):
        return Outcome("unknown", reason=reason, duration=duration)
    if isinstance(error, Exception):
        return Outcome("failed", error=name, reason=reason, duration=duration)
    text = f"It was interrupted by {name} while it ran."
    return Outcome("unknown", reason=text, duration=duration)


def unstorable(error: UsageError, duration: float) -> Outcome:
    """Return an outcome for a call whose result can not be stored."""
    reason = f"It returned, and its result can not be stored: {error}"
    return Outcome("failed", error="UsageError", reason=reason, duration=duration)


def packed_found(replica: Replica, found: object) -> Any:
    """Return the packed result that a reconcile function found out, if it did."""
    if isinstance(found, Done):
        return replica.settings.codec.pack(found.result, root="$.result")
    if not isinstance(found, NotDone):
        given = type(found).__name__
        raise UsageError(f"a reconcile function must return Done(…) or NotDone(), not {given}")
    return None


def not_reconciled(error: BaseException) -> Outcome:
    """Return an outcome for a call that the user's function could not find out about."""
    reason = f"The reconcile function could not tell: {type(error).__qualname__}: {_text_of(error)}"
    return Outcome("unknown", reason=reason)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:2_000].encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - an error that can not tell itself must still be recorded
        return "(it has no text)"


def error_text(outcome: Outcome) -> str:
    """Return a failure as the model is told of it."""
    if outcome.state == "unknown":
        return f"{INTERRUPTED_NOTICE} ({outcome.reason})"
    return f"Error: {outcome.error}: {outcome.reason}"


def text_of(result: Any) -> str:
    """Return a result as the model is told of it."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError):
        return str(result)
