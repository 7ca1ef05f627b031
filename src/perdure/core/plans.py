"""Writes as plans over a session's state: the records to add, and the records that conflict. Pure.

In: arguments that were checked and encoded already. Out: a `Plan[T]`, whose `make` adds records to
a `RecordBatch` and returns a T. No plan does I/O itself; one that has to read yields steps.

A plan is created once and may be executed several times. When another writer was first, the session
catches up and calls `invalidated_by` for each new record; a plan that is still valid is executed
again on the newer state, with the same record ids. To edit: `make` must therefore decide from the
batch alone and must not generate ids, and a new plan kind needs a row in `CONFLICT_RULES`.
"""

from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Generic, NamedTuple, TypeVar

import msgspec

from perdure.core.conflicts import _HISTORY_CHANGES, CONFLICT_RULES
from perdure.core.state.session_state import (
    KnownRecord,
    OpenTurn,
    SessionState,
    fingerprint,
    strip_token_count,
    turn_key,
)
from perdure.errors import ConflictError, DivergenceError
from perdure.journal import codec, reader
from perdure.journal.chain import PendingRecord
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.reader import ContentT, History
from perdure.journal.records import Content
from perdure.journal.requests import Steps

T = TypeVar("T")

_TURN_PLANS = frozenset(
    {"answer", "message", "message.chunk", "tools", "turn.begin", "turn.continue", "turn.end"}
)


class RecordBatch:
    """The records of one append while it is being built, applied to a draft of the state.

    `state` is a draft at the end of `past`; the batch changes it.
    """

    def __init__(self, name: str, state: SessionState, past: History) -> None:
        self.name = name
        self.state = state
        self.past = past
        self.tip = past.tip
        self.pending: list[PendingRecord] = []
        self.values: dict[str, bytes] = {}
        """The full values that this batch sets, by key."""
        self.last_payload: bytes | None = None
        """The payload of the newest message in this batch."""

    @property
    def position(self) -> int:
        """The position of the newest record, drafts included."""
        return self.tip.position + len(self.pending)

    def savepoint(self) -> "Savepoint":
        """Return what `rollback` needs to discard the records that are added from now on."""
        saved = Savepoint(self.state, len(self.pending), self.values, self.last_payload)
        self.state, self.values = self.state.draft(), {**self.values}
        return saved

    def rollback(self, saved: "Savepoint") -> None:
        """Discard the records that were added since a savepoint, and their effect on the state."""
        self.state, count, self.values, self.last_payload = saved
        del self.pending[count:]

    def add_all(self, drafts: Sequence[PendingRecord]) -> int:
        """Add records; later plans of the batch see their effect. Return the last position."""
        apply, position = self.state.apply, self.tip.position + len(self.pending)
        for draft in drafts:
            content, payload = draft.content, draft.payload
            position += 1
            self.pending.append(draft)
            apply(position, draft.id, content, payload)
            if content.kind == "message":
                self.last_payload = payload
        return position

    def add_content(self, record_id: str, content: Content) -> int:
        """Encode a record and add it, as `add_all` does; return its position."""
        payload = codec.encode(content)
        self.pending.append(PendingRecord(record_id, content, payload))
        position = self.tip.position + len(self.pending)
        self.state.apply(position, record_id, content, payload)
        if content.kind == "message":
            self.last_payload = payload
        return position

    def read(self, position: int, kind: type[ContentT]) -> Steps[ContentT]:
        """Return the record at a position, of this batch or stored; ChainError for another kind."""
        content = yield from self.read_any(position)
        return reader.require_kind(self.name, position, content, kind)

    def read_any(self, position: int) -> Steps[Content]:
        """Return the record at a position, of this batch or stored, whatever its kind."""
        if position <= self.tip.position:
            return (yield from reader.read_content(self.past, position))
        return self.pending[position - self.tip.position - 1].content

    def conflict(self, reason: str) -> ConflictError:
        """Return the error for a plan that does not fit the state of this batch."""
        return ConflictError(self.name, self.position, self.position, reason)

    def find_id(self, record_id: str) -> Steps[int]:
        """Return the position of the record that has a caller's id, or 0 if there is none."""
        yield from ()
        if turn_key(record_id) in self.state.ids:
            raise DivergenceError(self.name, record_id, "a turn", "a record")
        stored = self.state.ids.get(record_id)
        return 0 if stored is None else stored.position

    def find_stored(self, drafts: Sequence[PendingRecord]) -> KnownRecord | None:
        """Return where drafts are already stored under the caller's id, or None if they are not.

        The first draft has the caller's id, and a digest of all drafts if there are several. The
        same id with other content is a DivergenceError.
        """
        if not drafts or drafts[0].id.startswith(GENERATED_PREFIX):
            return None
        record_id = drafts[0].id
        new_fingerprint = fingerprint(strip_token_count(drafts[0].content, drafts[0].payload))
        if turn_key(record_id) in self.state.ids:
            raise DivergenceError(self.name, record_id, "a turn", "a record")
        stored = self.state.ids.get(record_id)
        if stored is not None and stored.fingerprint != new_fingerprint:
            caller_id = record_id.partition("\t")[0]  # A turn's input is "<turn id>\tinput".
            raise DivergenceError(self.name, caller_id, stored.fingerprint, new_fingerprint)
        return stored


class Savepoint(NamedTuple):
    """A `RecordBatch` at one moment, for `RecordBatch.rollback`."""

    state: SessionState
    pending: int
    values: dict[str, bytes]
    last_payload: bytes | None


class Plan(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A write: `make` adds its records to a batch and returns the result for the caller.

    `make` is a generator function if it has to read, and a plain function if not.
    """

    kind: str
    subject: str
    make: Callable[[RecordBatch], T | Steps[T]]

    def execute(self, batch: RecordBatch) -> Steps[T]:
        """Add the plan's records to a batch, whether `make` is a generator function or not."""
        result = self.make(batch)
        if type(result) is GeneratorType:
            result = yield from result
        return result  # type: ignore[return-value] # mypy does not narrow by `type(…) is`

    @property
    def turn(self) -> str:
        """The id of the turn that the plan writes to, or an empty string."""
        return self.subject if self.kind in _TURN_PLANS else ""

    @property
    def bypasses_lease(self) -> bool:
        """Whether the plan may be executed while another handle holds the lease."""
        return CONFLICT_RULES[self.kind].bypasses_lease

    def invalidated_by(self, content: Content) -> bool:
        """Return whether a record by another writer makes this plan invalid."""
        if content.kind in _HISTORY_CHANGES:
            return self.kind != "delete"
        rule = CONFLICT_RULES[self.kind]
        if content.kind in rule.any_subject:
            return True
        return content.kind in rule.same_subject and content.subject == self.subject


def add_unless_stored(drafts: Sequence[PendingRecord], batch: RecordBatch) -> int:
    """Add records unless they are already stored under their id; return the last position.

    As `partial(add_unless_stored, drafts)` it is the `make` of a plan for fixed records.
    """
    stored = batch.find_stored(drafts) if drafts[0].id[:1] != GENERATED_PREFIX else None
    return batch.add_all(drafts) if stored is None else stored.position + len(drafts) - 1


class PendingEvent(NamedTuple):
    """An event to log. The core does no I/O, so the handle emits it."""

    event: str
    fields: dict[str, object]


class TurnOwnership(NamedTuple):
    """A turn owned by one handle; invalid as soon as another handle takes the turn over."""

    turn: str
    owner: str


def require_open_turn(batch: RecordBatch, turn: str) -> OpenTurn:
    """Return a turn that has not ended; ConflictError if it has."""
    open_turn = batch.state.turns.get(turn)
    if open_turn is None:
        raise batch.conflict("the turn has ended")
    return open_turn


def require_turn_owner(batch: RecordBatch, turn: TurnOwnership) -> None:
    """Raise ConflictError unless the turn is open and still owned by this handle."""
    if require_open_turn(batch, turn.turn).owner != turn.owner:
        raise batch.conflict("another handle continued the turn")


def add_nothing(batch: RecordBatch) -> int:
    """Add nothing. Writing it waits for all plans queued before."""
    return batch.position


NO_OP = Plan("note", "", add_nothing)

# `Replica.write` catches up before these two kinds. REFRESH also counts the new records as seen by
# the caller; after REFRESH_SILENTLY, a later plan made without knowing them is still a conflict.
REFRESH_SILENTLY = Plan("catch-up", "", add_nothing)

REFRESH = Plan("refresh", "", add_nothing)
