"""Plans that begin, continue and end turns. Pure.

In: arguments of public methods. Out: a `Plan`. Arguments are checked and encoded at once, so a
value that cannot be stored is refused before anything is written, and an object changed after the
call does not change the record.

To edit: generate record ids outside `make`, because a plan may be executed more than once.
"""

from collections.abc import Collection
from typing import NamedTuple

from perdure.core import streaming
from perdure.core.effects import plans
from perdure.core.effects.results import exception_text
from perdure.core.messages import (
    ANONYMOUS,
    Attribution,
    encode_messages,
    parse_messages,
    with_caller_id,
)
from perdure.core.plans import (
    Plan,
    RecordBatch,
    TurnOwnership,
    require_open_turn,
    require_turn_owner,
)
from perdure.core.replica import Replica
from perdure.core.state.session_state import INPUT_SUFFIX
from perdure.core.validation import NAME_BYTES_MAX, require_str
from perdure.errors import DivergenceError, UsageError
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.records import (
    TurnAbandoned,
    TurnBegun,
    TurnChange,
    TurnCompleted,
    TurnContinued,
    TurnFailed,
)
from perdure.journal.requests import Steps


class TurnStart(NamedTuple):
    """The start of a turn: its position, and whether it had begun before, under a caller's id."""

    position: int
    resumed: bool


def begin_turn(
    replica: Replica,
    turn_id: str,
    message: object | None,
    *,
    correlation_id: str,
    attribution: Attribution = ANONYMOUS,
    live: Collection[str] = (),
) -> Plan[TurnStart]:
    """Plan a turn with the input that opened it, in one append.

    Partial answers and open calls of earlier turns are closed first, except those of `live` turns.
    """
    if len(require_str(correlation_id, "correlation_id").encode()) > NAME_BYTES_MAX:
        raise UsageError(f"a correlation_id must be at most {NAME_BYTES_MAX} bytes of UTF-8")
    drafts = []
    if message is not None:
        drafts = encode_messages(replica, parse_messages(message), attribution, turn_id, None)
        if not turn_id.startswith(GENERATED_PREFIX):
            drafts[0] = with_caller_id(drafts, turn_id + INPUT_SUFFIX)

    def make(batch: RecordBatch) -> Steps[TurnStart]:
        begun_at = yield from _find_start(batch, turn_id)
        if begun_at:
            if drafts and begun_at < batch.position:
                stored = yield from batch.read_record(begun_at + 1)
                if stored.id == drafts[0].id:
                    batch.require_same(stored, drafts[0])
            return TurnStart(begun_at, resumed=True)
        if batch.state.conversation.partials:
            partials = batch.state.conversation.partials.values()
            turns = {partial.turn for partial in partials} - {*live}
            yield from streaming.add_interrupted_answers(replica, batch, turns=turns)
        if batch.state.conversation.calls:
            yield from streaming.close_calls(replica, batch, live=live)
        position = batch.add_content(turn_id, TurnBegun(correlation_id=correlation_id))
        batch.add_all(drafts)
        return TurnStart(position, resumed=False)

    return Plan("turn.begin", turn_id, make)


def _find_start(batch: RecordBatch, turn: str) -> Steps[int]:
    """Return the start of a turn that is open, or that began under a caller's id; otherwise 0."""
    if turn in batch.state.turns:
        return batch.state.turns[turn].position
    if turn.startswith(GENERATED_PREFIX) or not batch.may_know(turn):
        return 0
    found = yield from batch.find(turn)
    if found is None:
        return 0
    if found.record.content.kind != TurnBegun.kind:
        raise DivergenceError(batch.name, turn, "a record", "a turn")
    return found.position


def continue_turn(replica: Replica, turn: str) -> tuple[Plan[int], TurnOwnership]:
    """Plan to take over an interrupted turn; also return the ownership that this gives."""
    owner = replica.new_id()

    def make(batch: RecordBatch) -> int:
        require_open_turn(batch, turn)
        return batch.add_content(owner, TurnContinued(turn=turn))

    return Plan("turn.continue", turn, make), TurnOwnership(turn, owner)


def complete_turn(replica: Replica, turn: TurnOwnership) -> Plan[int]:
    """Plan to end a turn as complete."""
    return _end_turn(replica, turn, TurnCompleted(turn=turn.turn))


def fail_turn(replica: Replica, turn: TurnOwnership, error: BaseException) -> Plan[int]:
    """Plan to end a turn with an error; its type and text are stored."""
    name, reason = type(error).__qualname__, exception_text(error)
    return _end_turn(replica, turn, TurnFailed(turn=turn.turn, error=name, reason=reason))


def _end_turn(replica: Replica, turn: TurnOwnership, content: TurnChange) -> Plan[int]:
    """Plan to end a turn; an abandoned one may be owned by any handle."""
    record_id = replica.new_id()
    failed = content if isinstance(content, TurnFailed) else TurnFailed(turn="", error="")

    def make(batch: RecordBatch) -> Steps[int]:
        if isinstance(content, TurnAbandoned):
            require_open_turn(batch, turn.turn)
        else:
            require_turn_owner(batch, turn)
        yield from streaming.add_interrupted_answers(replica, batch, turns=[turn.turn])
        plans.mark_unknown(replica, batch, turn.turn, failed.error, failed.reason)
        return batch.add_content(record_id, content)

    return Plan("turn.end", turn.turn, make)


def abandon_turn(replica: Replica, turn: str, reason: str) -> Plan[int]:
    """Plan to abandon a turn, whichever handle owns it."""
    content = TurnAbandoned(turn=turn, reason=require_str(reason, "reason"))
    return _end_turn(replica, TurnOwnership(turn, ""), content)
