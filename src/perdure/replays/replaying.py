"""Replay: run an agent's code again, with its model and its tools served from the record.

Nothing is called and nothing is written. The agent gets a session that is where the recorded one
was, and moves along the record as the agent does; the first thing that is not as recorded ends it.
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
    """What came of a replay. `identical` says that the agent did what is recorded, to the byte.

    `outputs` are the messages of the part that was replayed, `returned` is what the agent returned
    and `error` what it raised. `ended` says why the record stopped before the agent did, where the
    agent is not to blame: what there was of it was the same. `refused` are the events of the
    network and of other programs that the agent tried.
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
        """Raise ReplayDivergenceError unless the agent did what is recorded; else return this."""
        found = self.divergence
        if found is not None:
            where = f"position {found.position}" if found.position else "the end of its record"
            where += f", {found.path}" if found.path else ""
            values = shown(found.recorded), shown(found.given)
            raise ReplayDivergenceError(self.session, where, *values)
        if not self.identical:
            tried = ", ".join(self.refused)
            raise ReplayDivergenceError(self.session, f"position {self.end}", "", tried)
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

    `agent` is a function that takes a session: the very code that was run. Its models and tools are
    served from the record, and the network and other programs are refused. An AsyncSession takes an
    async function, and gives an awaitable.

    `start` and `end` are positions, or ids of turns; the whole session is the default. Kinds of
    record in `ignore` are not compared. Errors that tools had raised come back as Python's own, or
    as those types of the application that are given in `errors`.
    """
    if not callable(agent):
        raise UsageError(f"an agent is a function of a session, not a {type(agent).__qualname__}")
    unknown = {*ignore} - {*KINDS}
    if isinstance(ignore, str) or unknown:
        raise UsageError(f"no kind of record: {', '.join(sorted(unknown)) or ignore}")
    asked = Asked(start, end, frozenset(ignore), _error_types(errors))
    if isinstance(session, Session):
        return _blocking(session, agent, asked)
    if type(session).__name__ != "AsyncSession":
        raise UsageError(f"a session is replayed, not a {type(session).__qualname__}")
    from perdure.replays.replaying_async import awaiting  # It brings asyncio along.

    return awaiting(session, agent, asked)


class Asked(NamedTuple):
    """What is to be replayed, and how."""

    start: int | str | None
    end: int | str | None
    ignore: frozenset[str]
    errors: tuple[type[BaseException], ...]


def _error_types(given: Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    if isinstance(given, type):
        raise UsageError(f"errors are given in a list: errors=[{given.__name__}]")
    found = tuple(given)
    kinds: tuple[object, ...] = found
    for one in kinds:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise UsageError(f"errors are types of errors, and {one!r} is not one")
    return found


def _blocking(session: Session, agent: Callable[[Session], Any], asked: Asked) -> Replay:
    import inspect

    if inspect.iscoroutinefunction(agent):
        raise UsageError("an async agent needs a session of perdure.open_async(...)")
    handle = session._handle  # noqa: SLF001 - the other face of the same session
    replica, walk = handle.run(prepared(handle.replica, asked))
    face = ReplaySession.over(handle.driver, replica, walk, asked.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = agent(face)
        except Stopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - what is not the agent's is raised again
            error = caught(raised)
    face.close()
    return result(walk, guarding, returned, error)


def prepared(source: Replica, asked: Asked) -> Steps[tuple[Replica, Walk]]:
    """Return a replica that is where the replay begins, and the walk that moves it on."""
    steps = yield from recorded.read(source)
    newest = steps[-1].position if steps else 0
    start = _place(steps, asked.start, 0, newest, ends=False)
    end = _place(steps, asked.end, newest, newest, ends=True)
    if start > end:
        raise UsageError(f"a replay from {start} to {end} has nothing in it")
    replica = Replica(source.name, source.settings)
    replica.view = source.view
    walk = Walk(replica, steps, start, end, asked.ignore)
    _require_between(replica, steps, start)
    return replica, walk


def _place(steps: list[Step], given: object, default: int, newest: int, *, ends: bool) -> int:
    if given is None:
        return default
    if isinstance(given, str):
        begun = [step for step in steps if step.kind == TurnBegun.kind and step.id == given]
        if not begun:
            raise UsageError(f"no turn {given!r} begins in this session")
        if not ends:
            return begun[0].position - 1
        of = [step for step in steps if getattr(step.content, "turn", "") == given]
        return of[-1].position if of else begun[0].position
    position = require_int(given, "a position")
    if not 0 <= position <= newest:
        raise UsageError(f"a replay is of positions 0 to {newest}, not {position}")
    return position


def _require_between(replica: Replica, steps: list[Step], start: int) -> None:
    """Refuse to begin within a turn, but for where somebody took it over."""
    following = next((step for step in steps if step.position > start), None)
    content = following.content if following else None
    for turn, facts in replica.fold.turns.items():
        later = [s for s in steps if s.position > start and isinstance(s.content, TurnChange)]
        if isinstance(content, TurnContinued) and content.turn == turn:
            continue
        if any(step.content.subject == turn for step in later):
            hint = f"begin before it, at {facts.position - 1}, or where somebody took it over"
            raise UsageError(f"the turn {turn} is under way at {start}: {hint}")


def caught(error: BaseException) -> BaseException:
    """Return what an agent raised; what was meant for this process is raised again."""
    if isinstance(error, Exception | SystemExit) or getattr(error, "recorded", False):
        return error
    raise error


def result(walk: Walk, guarding: Guard, returned: Any, error: BaseException | None) -> Replay:
    """Return what came of a replay whose agent has ended."""
    walk.finish()
    return Replay(
        session=walk.name,
        start=walk.start,
        end=walk.position,
        identical=walk.divergence is None and not guarding.refused,
        divergence=walk.divergence,
        ended=walk.ended,
        outputs=walk.outputs,
        returned=returned,
        error=error,
        served=walk.served,
        compared=walk.compared,
        refused=tuple(guarding.refused),
    )
