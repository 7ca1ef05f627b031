"""The part of a session to replay, and the result of a replay. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from perdure.core.replay import record
from perdure.core.replay.cursor import ReplayCursor
from perdure.core.replay.divergence import Divergence, one_line
from perdure.core.replay.guard import Guard
from perdure.core.replay.record import RecordedStep
from perdure.core.replica import Replica
from perdure.core.validation import require_int
from perdure.errors import ReplayDivergenceError, UsageError
from perdure.journal.records import TurnBegun, TurnChange, TurnContinued
from perdure.journal.requests import Steps


class Replay(NamedTuple):
    """The result of a replay. `identical` says that the agent did what is recorded, to the byte.

    `outputs` are the messages of the replayed part, `returned` is the agent's return value and
    `error` the error it raised. `ended` says why the record ended before the agent did, if the
    agent is not at fault: everything up to there was identical. `refused` lists the blocked
    attempts to use live sessions and stores, the network or other processes.
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
            values = one_line(divergence.recorded), one_line(divergence.given)
            raise ReplayDivergenceError(self.session, where, *values)
        if not self.identical:
            attempted = ", ".join(self.refused)
            raise ReplayDivergenceError(self.session, f"position {self.end}", "", attempted)
        return self


class ReplayRequest(NamedTuple):
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


def prepare_replay(source: Replica, request: ReplayRequest) -> Steps[tuple[Replica, ReplayCursor]]:
    """Return a replica in the state where the replay begins, and the cursor that advances it."""
    steps = yield from record.read_steps(source)
    newest = steps[-1].position if steps else 0
    start = _resolve_bound(steps, request.start, 0, newest, ends=False)
    end = _resolve_bound(steps, request.end, newest, newest, ends=True)
    if start > end:
        raise UsageError(f"a replay from {start} to {end} is empty")
    replica = Replica(source.name, source.settings)
    replica.view, replica.is_replayed = source.view, True
    base = yield from source.loader.base_of(source.history)
    cursor = ReplayCursor(replica, steps, start, end, request.ignore, base)
    _require_turn_boundary(replica, steps, start)
    return replica, cursor


def _resolve_bound(
    steps: list[RecordedStep], bound: object, default: int, newest: int, *, ends: bool
) -> int:
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


def _require_turn_boundary(replica: Replica, steps: list[RecordedStep], start: int) -> None:
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


def require_agent_error(error: BaseException) -> BaseException:
    """Return an error of the agent; raise one meant for this process, such as KeyboardInterrupt."""
    if isinstance(error, Exception | SystemExit) or getattr(error, "recorded", False):
        return error
    raise error


def replay_outcome(
    cursor: ReplayCursor, guarding: Guard, returned: Any, error: BaseException | None
) -> Replay:
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
