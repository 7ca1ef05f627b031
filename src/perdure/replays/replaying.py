"""Replay: run an agent's code again, with its model and its tools served from the record.

Nothing is called and nothing is written. The agent gets a session in the recorded state, which
advances along the record as the agent does; the first difference ends the replay.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from perdure.errors import ReplayDivergenceError, UsageError
from perdure.plans import require_int
from perdure.records import KINDS, TurnBegun, TurnChange, TurnContinued
from perdure.replays import guard, recorded
from perdure.replays.diverging import Divergence, shown
from perdure.replays.guard import Guard
from perdure.replays.recorded import Step
from perdure.replays.replay_session import ReplaySession
from perdure.replays.walking import Stopped, Walk
from perdure.replica import Replica
from perdure.session import Session
from perdure.steps import Steps

if TYPE_CHECKING:
    from perdure.session_async import AsyncSession


class Replay(NamedTuple):
    """The result of a replay. `identical` says that the agent did what is recorded, to the byte.

    `outputs` are the messages of the replayed part, `returned` is the agent's return value and
    `error` the error it raised. `ended` says why the record ended before the agent did, if the
    agent is not at fault: everything up to there was identical. `refused` lists the network and
    process events that the agent attempted.
    """

    session: str
    start: int
    end: int
    identical: bool
    divergence: Divergence | None
    ended: str
    outputs: list[dict[str, Any]]
    returned: Any
    error: BaseException | None
    served: list[str]
    compared: int
    refused: tuple[str, ...]

    def check(self) -> "Replay":
        """Return this, or raise ReplayDivergenceError if the agent did not do what is recorded."""
        divergence = self.divergence
        if divergence is not None:
            position, path = divergence.position, divergence.path
            where = f"position {position}" if position else "the end of its record"
            where += f", {path}" if path else ""
            values = shown(divergence.recorded), shown(divergence.given)
            raise ReplayDivergenceError(self.session, where, *values)
        if not self.identical:
            attempted = ", ".join(self.refused)
            raise ReplayDivergenceError(self.session, f"position {self.end}", "", attempted)
        return self


@overload
def replay(
    session: Session,
    agent: Callable[[Session], Any],
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> Replay: ...
@overload
def replay(
    session: "AsyncSession",
    agent: "Callable[[AsyncSession], Awaitable[Any]]",
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> Awaitable[Replay]: ...
def replay(
    session: Any,
    agent: Callable[[Any], Any],
    *,
    start: int | str | None = None,
    end: int | str | None = None,
    ignore: Collection[str] = (),
    errors: Iterable[type[BaseException]] = (),
) -> Replay | Awaitable[Replay]:
    """Run an agent's code again on the record of a session, and compare. Nothing is written.

    `agent` is a function of a session: the same code that was recorded. Its models and tools are
    served from the record; network access and starting programs are refused. For an AsyncSession,
    pass an async function and await the result.

    `start` and `end` are positions, or ids of turns; the default is the whole session. Records of
    the kinds in `ignore` are not compared. Errors that tools raised are raised again as builtin
    types, or as the application's own types that are passed in `errors`.
    """
    if not callable(agent):
        raise UsageError(
            f"an agent must be a function of a session, not a {type(agent).__qualname__}"
        )
    unknown = {*ignore} - {*KINDS}
    if isinstance(ignore, str) or unknown:
        raise UsageError(f"no kind of record: {', '.join(sorted(unknown)) or ignore}")
    request = Asked(start, end, frozenset(ignore), _error_types(errors))
    if isinstance(session, Session):
        return _blocking(session, agent, request)
    if type(session).__name__ != "AsyncSession":
        raise UsageError(f"only a session can be replayed, not a {type(session).__qualname__}")
    from perdure.replays.replaying_async import awaiting  # Imported here: it loads asyncio.

    return awaiting(session, agent, request)


class Asked(NamedTuple):
    """The part of a session to replay, and the options."""

    start: int | str | None
    end: int | str | None
    ignore: frozenset[str]
    errors: tuple[type[BaseException], ...]


def _error_types(errors: Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    if isinstance(errors, type):
        raise UsageError(f"errors must be a list: errors=[{errors.__name__}]")
    types = tuple(errors)
    candidates: tuple[object, ...] = types
    for candidate in candidates:
        if not (isinstance(candidate, type) and issubclass(candidate, BaseException)):
            raise UsageError(f"errors must be exception types, and {candidate!r} is not one")
    return types


def _blocking(session: Session, agent: Callable[[Session], Any], request: Asked) -> Replay:
    import inspect

    if inspect.iscoroutinefunction(agent):
        raise UsageError("an async agent needs a session of perdure.open_async(...)")
    handle = session._handle  # noqa: SLF001 - the replay shares the session's driver
    replica, cursor = handle.run(prepared(handle.replica, request))
    replayed = ReplaySession.over(handle.driver, replica, cursor, request.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = agent(replayed)
        except Stopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - re-raised unless the agent raised it
            error = caught(raised)
    replayed.close()
    return result(cursor, guarding, returned, error)


def prepared(source: Replica, request: Asked) -> Steps[tuple[Replica, Walk]]:
    """Return a replica in the state where the replay begins, and the cursor that advances it."""
    steps = yield from recorded.read(source)
    newest = steps[-1].position if steps else 0
    start = _place(steps, request.start, 0, newest, ends=False)
    end = _place(steps, request.end, newest, newest, ends=True)
    if start > end:
        raise UsageError(f"a replay from {start} to {end} is empty")
    replica = Replica(source.name, source.settings)
    replica.view = source.view
    cursor = Walk(replica, steps, start, end, request.ignore)
    _require_between(replica, steps, start)
    return replica, cursor


def _place(steps: list[Step], bound: object, default: int, newest: int, *, ends: bool) -> int:
    """Return the position for `start` or `end` (`ends`): given as such, or as the id of a turn."""
    if bound is None:
        return default
    if isinstance(bound, str):
        begun = [step for step in steps if step.kind == TurnBegun.kind and step.id == bound]
        if not begun:
            raise UsageError(f"no turn {bound!r} begins in this session")
        if not ends:
            return begun[0].position - 1
        own = [step for step in steps if getattr(step.content, "turn", "") == bound]
        return own[-1].position if own else begun[0].position
    position = require_int(bound, "a position")
    if not 0 <= position <= newest:
        raise UsageError(f"a replay must be within positions 0 to {newest}, not {position}")
    return position


def _require_between(replica: Replica, steps: list[Step], start: int) -> None:
    """Raise UsageError if a replay begins inside a turn, except where the turn was taken over."""
    following = next((step for step in steps if step.position > start), None)
    content = following.content if following else None
    for turn, facts in replica.state.turns.items():
        later = [s for s in steps if s.position > start and isinstance(s.content, TurnChange)]
        if isinstance(content, TurnContinued) and content.turn == turn:
            continue
        if any(step.content.subject == turn for step in later):
            hint = f"begin before it, at {facts.position - 1}, or where it was taken over"
            raise UsageError(f"the turn {turn} is open at {start}: {hint}")


def caught(error: BaseException) -> BaseException:
    """Return an error of the agent; raise one meant for this process, such as KeyboardInterrupt."""
    if isinstance(error, Exception | SystemExit) or getattr(error, "recorded", False):
        return error
    raise error


def result(cursor: Walk, guarding: Guard, returned: Any, error: BaseException | None) -> Replay:
    """Return the result of a replay whose agent has ended."""
    cursor.finish()
    return Replay(
        session=cursor.name,
        start=cursor.start,
        end=cursor.position,
        identical=cursor.divergence is None and not guarding.refused,
        divergence=cursor.divergence,
        ended=cursor.stop_reason,
        outputs=cursor.outputs,
        returned=returned,
        error=error,
        served=cursor.served,
        compared=cursor.compared,
        refused=tuple(guarding.refused),
    )
