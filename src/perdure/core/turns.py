"""Plans that begin, continue and end turns. Pure.

In: arguments of public methods. Out: a `Plan`. Arguments are checked and encoded at once, so a
value that cannot be stored is refused before anything is written, and an object changed after the
call does not change the record.

To edit: generate record ids outside `make`, because a plan may be executed more than once.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.core import streaming, turn_records
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
from perdure.core.turn_records import TurnPlace
from perdure.core.validation import NAME_BYTES_MAX, require_str
from perdure.errors import DivergenceError, NotFoundError, UsageError
from perdure.journal.chain import PendingRecord
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.records import (
    TurnAbandoned,
    TurnBegun,
    TurnCompleted,
    TurnContinued,
    TurnEnd,
    TurnFailed,
)
from perdure.journal.requests import Steps


class TurnStart(NamedTuple):
    """The start of a turn: its position, and where it was found if it had begun before."""

    position: int
    found: TurnPlace | None = None


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
        found = None
        if not turn_id.startswith(GENERATED_PREFIX):
            found = yield from turn_records.find_turn(batch, turn_id)
        if found is not None:
            yield from _require_same_input(batch, found.begun, drafts)
            return TurnStart(found.begun, found)
        if batch.state.conversation.partials:
            partials = batch.state.conversation.partials.values()
            turns = {partial.turn for partial in partials} - {*live}
            yield from streaming.add_interrupted_answers(replica, batch, turns=turns)
        if batch.state.conversation.calls:
            yield from streaming.close_calls(replica, batch, live=live)
        split = batch.split(drafts)  # The input directly follows the beginning.
        position = batch.add_content(turn_id, TurnBegun(correlation_id=correlation_id))
        batch.add_all(split)
        return TurnStart(position)

    return Plan("turn.begin", turn_id, make)


def _require_same_input(
    batch: RecordBatch, begun: int, drafts: Sequence[PendingRecord]
) -> Steps[None]:
    """Raise DivergenceError unless a turn began with this input, or none is given now."""
    if not drafts:
        return
    stored = (yield from batch.read_record(begun + 1)) if begun < batch.position else None
    if stored is None or stored.id != drafts[0].id:
        turn = drafts[0].id.removesuffix(INPUT_SUFFIX)
        raise DivergenceError(batch.name, turn, "a turn without an input", "an input")
    batch.require_same(stored, drafts[0])


def continue_turn(replica: Replica, turn: str) -> tuple[Plan[int], TurnOwnership]:
    """Plan to continue a turn that is open or failed; also return the ownership that this gives.

    ConflictError if it is completed or abandoned.
    """
    owner = replica.new_id()

    def make(batch: RecordBatch) -> Steps[int]:
        place = yield from turn_records.find_turn(batch, turn)
        content = TurnContinued(turn=turn)
        if place is not None and isinstance(place.ended_by, TurnFailed):
            content = yield from turn_records.continuation(batch, place)
        else:
            require_open_turn(batch, turn)
        return batch.add_content(owner, content)

    return Plan("turn.continue", turn, make), TurnOwnership(turn, owner)


def require_turn(replica: Replica, turn: str) -> Steps[tuple[TurnPlace, str]]:
    """Return where a turn is, and its correlation id; NotFoundError if there is none."""
    batch = replica.new_batch()
    try:
        place = yield from turn_records.find_turn(batch, turn)
    except DivergenceError:  # It is the id of another record.
        place = None
    if place is None:
        hint = "session.turn(message, id=...) begins one; session.refresh() loads new records"
        raise NotFoundError(f"turn {turn!r} in session {replica.name!r}", hint)
    begun = yield from batch.read(place.begun, TurnBegun)
    return place, begun.correlation_id


def require_answer(
    session: str, turn: str, state: str, answer: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the answer of a turn that its function has run; UsageError if there is none."""
    if state == "abandoned":
        hint = "an abandoned turn is not continued: choose another id"
        raise UsageError(f"the turn {turn!r} of session {session!r} was abandoned: {hint}")
    if answer is None:
        hint = "have the function append a whole message of the assistant"
        raise UsageError(f"the turn {turn!r} of session {session!r} has no answer: {hint}")
    return answer


def complete_turn(replica: Replica, turn: TurnOwnership) -> Plan[int]:
    """Plan to end a turn as complete."""
    return _end_turn(replica, turn, TurnCompleted(turn=turn.turn))


def fail_turn(replica: Replica, turn: TurnOwnership, error: BaseException) -> Plan[int]:
    """Plan to end a turn with an error; its type and text are stored."""
    name, reason = type(error).__qualname__, exception_text(error)
    return _end_turn(replica, turn, TurnFailed(turn=turn.turn, error=name, reason=reason))


def _end_turn(replica: Replica, turn: TurnOwnership, content: TurnEnd) -> Plan[int]:
    """Plan to end a turn; an abandoned one may be owned by any handle."""
    record_id = replica.new_id()
    failed = content if isinstance(content, TurnFailed) else None

    def make(batch: RecordBatch) -> Steps[int]:
        open_turn = require_open_turn(batch, turn.turn)
        if not isinstance(content, TurnAbandoned):
            require_turn_owner(batch, turn)
        if failed is None:  # A failed turn may be continued, and then gets another answer.
            yield from streaming.add_interrupted_answers(replica, batch, turns=[turn.turn])
        error, reason = (failed.error, failed.reason) if failed else ("", "")
        plans.mark_unknown(replica, batch, turn.turn, error, reason)
        begun, reopened = open_turn.position, open_turn.reopened
        return batch.add_content(
            record_id, msgspec.structs.replace(content, begun=begun, reopened=reopened)
        )

    return Plan("turn.end", turn.turn, make)


def abandon_turn(replica: Replica, turn: str, reason: str) -> Plan[int]:
    """Plan to abandon a turn, whichever handle owns it."""
    content = TurnAbandoned(turn=turn, reason=require_str(reason, "reason"))
    return _end_turn(replica, TurnOwnership(turn, ""), content)
