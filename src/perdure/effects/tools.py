"""Durable tools, apart from running them: declaration, arguments, identity, results. Pure.

A call's identity decides whether it was made before. It is one of four: `issued:` (a call in a
model's message, by its position), `direct:` and `model:` (by turn, tool, arguments and ordinal),
`key:` or `within:` (a caller's own key). Identities are stored: their form must not change.
"""

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
    """A call while it runs, or while it is reconciled.

    `key` is the same for every attempt: pass it to services that accept an idempotency key.
    """

    id: str
    tool: str
    key: str
    arguments: dict[str, Any]
    attempt: int = 1


class Done(NamedTuple):
    """Returned by a reconcile function for a call that took effect: its result."""

    result: Any = None


class NotDone(NamedTuple):
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
    return current[1] if current is not None else ""


@contextmanager
def during(effect: Effect, identity: str) -> Iterator[None]:
    """Make an effect the current one."""
    token = _current.set((effect, identity))
    try:
        yield
    finally:
        _current.reset(token)


class Spec(NamedTuple):
    """The declaration of a tool or a model."""

    function: Callable[..., Any]
    name: str
    policy: Policy
    version: str = ""
    actor: str = ""
    reconcile: Callable[[Effect], Any] | None = None
    timeout: float | None = None
    unstorable: str = "raise"
    kind: Kind = "tool"
    digest_of: Callable[[dict[str, Any]], Any] | None = None
    approval: bool | Callable[[dict[str, Any]], Any] = False
    approval_ttl: float | None = None
    approval_wait: float | None = None

    @property
    def is_async(self) -> bool:
        import inspect  # Imported here: it takes as long to load as the rest of perdure.

        return inspect.iscoroutinefunction(self.function)


def require_spec(spec: Spec) -> Spec:
    """Return a tool's declaration with its name filled in, or raise UsageError."""
    if not callable(spec.function):
        raise UsageError(f"a {spec.kind} must be a function, not {type(spec.function).__name__}")
    if spec.policy not in POLICIES:
        raise UsageError(f"no effect {spec.policy!r}: choose one of {', '.join(POLICIES)}")
    if (spec.policy == "reconcile") != (spec.reconcile is not None):
        raise UsageError('effect="reconcile" and a reconcile function go together: give both')
    if spec.unstorable not in ("raise", "return"):
        raise UsageError('unstorable must be "raise" or "return"')
    name = spec.name or getattr(spec.function, "__name__", "")
    if not name:
        raise UsageError(f"a {spec.kind} needs a name: give name=")
    require_text(name, f"a {spec.kind}'s name", longest=NAME_BYTES_MAX)
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
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise UsageError(f"{spec.name}: {error}", "$.arguments") from error
    return {
        name: [*value] if isinstance(value, tuple) else value for name, value in arguments.items()
    }


class Given(NamedTuple):
    """The arguments of a call: by name, as recorded, and as they are passed to the function."""

    arguments: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Answer(Protocol):
    """Formats a text as the message that answers a call."""

    def __call__(self, text: str, *, failed: bool) -> dict[str, Any]: ...


class Telling:
    """Builds the result message of one call for the model.

    `latest` is the last one built; `stored` is the one that was stored.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.latest: dict[str, Any] | None = None
        self.stored: dict[str, Any] | None = None

    def build(self, text: str, *, failed: bool = True) -> Taken:
        """Return the message. The caller stores it, and then sets `stored`."""
        self.latest = self._answer(text, failed=failed)
        return Taken(self.latest, {})


class Ordinals:
    """Numbers the otherwise identical calls of one run of a turn, to give each its own identity."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._reusable: dict[str, list[int]] = {}
        self.ended_attempts: dict[str, bool] = {}
        """Attempts that are over in this process and may have no outcome: whether the tool ran."""

    def identity(
        self, turn: str, parent: str, tool: str, digest: str, *, prefix: str = "direct:"
    ) -> str:
        """Return the identity of the next direct call of a tool with these arguments."""
        call = f"{turn}\t{parent}\t{tool}\t{digest}"
        if self._reusable.get(prefix + call):
            number = self._reusable[prefix + call].pop(0)
        else:
            number = self._count[prefix + call] = self._count.get(prefix + call, 0) + 1
        return prefix + sha256(f"{call}\t{number}".encode()).hexdigest()[:32]

    def reuse(self, call: Called, turn: str) -> None:
        """Give the next identical call this call's identity, because this one was not made."""
        described = f"{turn}\t{call.parent}\t{call.tool}\t{call.digest}"
        prefix = MODEL if call.kind == "model" else "direct:"
        key = prefix + described
        for number in range(1, self._count.get(key, 0) + 1):
            if call.identity == prefix + sha256(f"{described}\t{number}".encode()).hexdigest()[:32]:
                self._reusable[key] = sorted({*self._reusable.get(key, ()), number})

    def intent_failed(self, call: Called, turn: str, attempt: str, error: BaseException) -> None:
        """Note that a call was not made because its intent failed, which may yet be stored."""
        if isinstance(error, UnavailableError) or not isinstance(error, PerdureError):
            self.ended_attempts[attempt] = False
            self.reuse(call, turn)


class Changed(NamedTuple):
    """A call that another version of its tool had begun. `ran` says that it was made again."""

    effect: str
    tool: str
    recorded: str
    now: str
    ran: bool


class Running(NamedTuple):
    """A turn that this handle runs, and the sequence of its direct calls so far."""

    ownership: Ownership
    sequence: Ordinals


class Holder(Protocol):
    """A sync or async handle."""

    @property
    def own_turns(self) -> Mapping[str, Running]: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def changed(self) -> list[Changed]: ...


def report(handle: Holder, call: Called, decision: Verdict) -> None:
    """Report a call that another version began. Call it before the tool runs, not after."""
    if decision.begun_version is None:
        return
    ran = decision.action == "run"
    mismatch = Changed(decision.effect, call.tool, decision.begun_version, call.version, ran=ran)
    handle.changed.append(mismatch)
    where = {"session": handle.replica.name, **mismatch._asdict()}
    events.tell("version", {**where, "outcome": "run again" if ran else decision.action})


def running_turn(handle: Holder, tool: str) -> Running:
    """Return the turn that a call belongs to, or raise UsageError if there is none."""
    turns = handle.own_turns
    entered = entering.innermost(handle)
    if entered is not None:
        if entered.id not in turns:
            raise UsageError(f"{tool!r} is called in a turn that has ended: begin another")
        return turns[entered.id]
    if len(turns) == 1:  # Called from a thread that the turn's code has started.
        return next(iter(turns.values()))
    if not turns:
        raise UsageError(f"{tool!r} is called outside of a turn: use `with session.turn(...)`")
    raise UsageError(f"{tool!r} is called while several turns are open: keep one open at a time")


def asked_in(replica: Replica, turn: str, sequence: Ordinals, name: str, request: object) -> Called:
    """Return a model call that an adapter makes in a turn."""
    require_text(name, "a model's name", longest=NAME_BYTES_MAX)
    _, digest = effecting.encoded(replica, exported({"request": request}))
    parent = current_identity()
    identity = sequence.identity(turn, parent, name, digest, prefix=MODEL)
    return Called(identity, name, None, digest, "read_only", parent=parent, kind="model")


def asked(replica: Replica, running: Running, spec: Spec, arguments: dict[str, Any]) -> Called:
    """Return a model call that is about to be made, with the request's digest, not the request."""
    request = arguments if spec.digest_of is None else spec.digest_of(arguments)
    _, digest = effecting.encoded(replica, exported({"request": request}))
    parent, turn = current_identity(), running.ownership.turn
    identity = running.sequence.identity(turn, parent, spec.name, digest, prefix=MODEL)
    return Called(
        identity, spec.name, None, digest, spec.policy, spec.version, spec.actor, parent, "model"
    )


def issued(position: int, index: int) -> str:
    """Return the identity of a call in a model's message."""
    return f"issued:{position}:{index}"


def keyed(tool: str, key: str, turn: str = "") -> str:
    """Return the identity of a call with a caller's own key, unique in a turn or in the session."""
    if turn:  # Dropped from the state when the turn ends, so that many keys cost nothing.
        return "within:" + sha256(f"{turn}\t{tool}\t{key}".encode()).hexdigest()[:32]
    return f"{KEYED}{tool}\t{key}"


def served(stream: str, tool: str, key: str, outcome: EffectSettled) -> Any:
    """Return the packed result of a recorded outcome, or raise its error."""
    if outcome.state == "unknown":
        raise UnknownOutcomeError(stream, tool, outcome.effect, key, outcome.reason)
    if outcome.error in (DENIED_ERROR, EXPIRED_ERROR):
        raise ApprovalDeniedError(stream, tool, outcome.error, outcome.reason)
    if outcome.error:
        raise EffectError(stream, tool, outcome.error, outcome.reason)
    return outcome.result


def failure(error: BaseException, duration: float, kind: Kind = "tool") -> Outcome:
    """Return the outcome of a call that raised; an interrupted tool may have taken effect."""
    name, reason = type(error).__qualname__, _text_of(error)
    if kind == "model":
        return Outcome("failed", error=name, reason=reason, duration=duration)
    if isinstance(error, ToolTimeoutError):
        return Outcome("unknown", reason=reason, duration=duration)
    if isinstance(error, Exception):
        return Outcome("failed", error=name, reason=reason, duration=duration)
    # A replay recognizes this text (`serving._CUT`).
    text = f"It was interrupted by {name} while it ran."
    return Outcome("unknown", reason=text, duration=duration)


def unstorable(error: UsageError, duration: float) -> Outcome:
    """Return the outcome of a call whose result cannot be stored."""
    # A replay recognizes this text (`serving._UNSTORABLE`).
    reason = f"It returned, and its result cannot be stored: {error}"
    return Outcome("failed", error="UsageError", reason=reason, duration=duration)


def packed_found(replica: Replica, returned: object) -> Any:
    """Return the packed result of a reconcile function's Done, or None for NotDone."""
    if isinstance(returned, Done):
        return replica.settings.codec.pack(returned.result, root="$.result")
    if not isinstance(returned, NotDone):
        kind = type(returned).__name__
        raise UsageError(f"a reconcile function must return Done(…) or NotDone(), not {kind}")
    return None


def not_reconciled(error: BaseException) -> Outcome:
    """Return the outcome of a call whose reconcile function failed."""
    reason = f"The reconcile function failed: {type(error).__qualname__}: {_text_of(error)}"
    return Outcome("unknown", reason=reason)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:2_000].encode("utf-8", "replace").decode()
    except Exception:  # noqa: BLE001 - an error whose __str__ fails must still be recorded
        return "(it has no text)"


def error_text(outcome: Outcome) -> str:
    """Return a failure as text for the model."""
    if outcome.state == "unknown":
        return f"{INTERRUPTED_NOTICE} ({outcome.reason})"
    return f"Error: {outcome.error}: {outcome.reason}"


def text_of(result: Any) -> str:
    """Return a result as text for the model."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError):
        return str(result)
