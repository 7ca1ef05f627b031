"""Several records in one append: the plans of a `session.batch`, executed all or none. Pure.

In: the calls of a caller, as plans. Out: one `JointPlan`, whose result is the range of positions
that it stored.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from perdure.backends.protocol import Append
from perdure.core import annotations
from perdure.core.dropped_ids import DroppedRecord
from perdure.core.fields import change_fields
from perdure.core.messages import append_parsed, make_attribution, parse_all
from perdure.core.plans import Plan, RecordBatch, TurnOwnership
from perdure.core.replica import Replica
from perdure.core.state.fields import FieldValue
from perdure.core.validation import require_int, require_record_id
from perdure.core.values import delete_value, set_value
from perdure.errors import (
    ConflictError,
    DivergenceError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from perdure.journal import codec, requests
from perdure.journal.records import BatchStored, Content
from perdure.journal.requests import Steps


class JointPlan(Plan[range], frozen=True, gc=False):
    """Several plans as one: records that invalidate one of them invalidate all."""

    parts: tuple[Plan[Any], ...] = ()

    @property
    def turn(self) -> str:
        """The turn that one of the parts writes to, or an empty string."""
        return next((part.turn for part in self.parts if part.turn), "")

    @property
    def bypasses_lease(self) -> bool:
        """Whether every part may be executed while another handle holds the lease."""
        return all(part.bypasses_lease for part in self.parts)

    def invalidated_by(self, content: Content) -> bool:
        """Return whether a record by another writer makes one of the parts invalid."""
        return any(part.invalidated_by(content) for part in self.parts)


class BatchPlans:
    """The plans of one batch, in the order of their calls."""

    def __init__(self, replica: Replica, batch_id: str | None, expect: int | None) -> None:
        self.replica = replica
        self._id = None if batch_id is None else require_record_id(batch_id)
        self._expect = None if expect is None else require_int(expect, "expect")
        self._plans: list[Plan[Any]] = []
        self._digest = sha256()

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan[Any], call: str, *arguments: object) -> None:
        """Add a plan. Its call and arguments identify it when the batch is repeated."""
        if self._id is not None:
            tree = codec.encode_tree(self.replica.settings.codec.pack([call, *arguments]))
            self._digest.update(b"%d:%b" % (len(tree), tree))
        self._plans.append(plan)

    def join(self) -> JointPlan:
        """Return one plan for all: it adds every record or none."""

        def make(batch: RecordBatch) -> Steps[range]:
            saved = batch.savepoint()
            try:
                return (yield from self._execute(batch))
            except PerdureError:
                batch.rollback(saved)
                raise

        return JointPlan("batch", "", make, tuple(self._plans))

    def _execute(self, batch: RecordBatch) -> Steps[range]:
        if self._id is not None:
            stored = yield from self._find_stored(batch, self._id)
            if stored is not None:
                return stored
        first, start = batch.position + 1, len(batch.pending)
        if self._expect is not None and self._expect != first - 1:
            reason = f"the session was expected to be at {self._expect}"
            raise ConflictError(batch.name, self._expect, first - 1, reason)
        for plan in self._plans:
            yield from plan.execute(batch)
        if sum(len(draft.payload) for draft in batch.pending[start:]) > codec.PAYLOAD_MAX:
            limit = f"{codec.PAYLOAD_MAX} bytes"
            raise UsageError(f"the records of a batch exceed {limit} together: split it")
        if self._id is not None:
            count = batch.position - first + 1
            batch.add_content(self._id, BatchStored(count=count, digest=self._digest.hexdigest()))
        return range(first, batch.position + 1)

    def _find_stored(self, batch: RecordBatch, batch_id: str) -> Steps[range | None]:
        """Return the positions of the batch if it is stored under its id already."""
        found = yield from batch.find(batch_id)
        if found is None:
            return None
        position, content = found.position, found.record.content
        if isinstance(content, DroppedRecord):
            count = content.require_batch(batch.name, batch_id, self._digest.hexdigest())
            return range(position - count, position + 1)
        if not isinstance(content, BatchStored):
            raise DivergenceError(batch.name, batch_id, f"a {content.kind} record", "a batch")
        if content.digest != self._digest.hexdigest():
            raise DivergenceError(batch.name, batch_id, content.digest, self._digest.hexdigest())
        return range(position - content.count, position + 1)


class BatchWriter:
    """Collects the records of one session for a batch. Nothing is written before its block ends."""

    def __init__(self, plans: BatchPlans, turn: TurnOwnership | None = None) -> None:
        self._plans = plans
        self._turn = turn
        self._open: bool | None = None
        self._positions = range(0)

    def __repr__(self) -> str:
        state = "open" if self._open else "not entered" if self._open is None else "ended"
        return f"<{type(self).__name__} of {self._plans.replica.name!r}: {state}>"

    @property
    def positions(self) -> range:
        """The positions of the records, once the block has ended; empty before, or without any."""
        return self._positions

    def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
        opaque: bool = False,
    ) -> None:
        """Append messages, as `session.append` does, or as `turn.append` in the batch of a turn."""
        attribution = make_attribution(author, recipient, channel, origin)
        parsed = parse_all(messages, opaque=opaque)
        plan = append_parsed(
            self._plans.replica,
            parsed,
            attribution=attribution,
            turn=self._turn,
            record_id=id,
            opaque=opaque,
        )
        self._add(plan, "append", [[*item] for item in parsed], [*attribution], id, opaque)

    def set(self, key: str, value: object) -> None:
        """Store a value as the newest version of a key."""
        self._add(set_value(self._plans.replica, key, value), "set", key, value)

    def delete(self, key: str) -> None:
        """Delete a value; NotFoundError when the block ends if it does not exist."""
        self._add(delete_value(self._plans.replica, key), "delete", key)

    def note(
        self,
        data: object,
        *,
        topic: str = "",
        expect: int | None = None,
        author: str = "",
        id: str | None = None,
    ) -> None:
        """Append a note that is not part of the conversation, as `session.note` does."""
        plan = annotations.add_note(
            self._plans.replica, data, author=author, record_id=id, topic=topic, expect=expect
        )
        self._add(plan, "note", data, author, id, topic)

    def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Add or remove labels, by which `store.sessions` finds the session."""
        plan = annotations.change_labels(self._plans.replica, add, remove)
        self._add(plan, "label", [*add], [*remove])

    def describe(self, /, **fields: FieldValue | None) -> None:
        """Set fields, by which `store.sessions` finds and sorts sessions; None removes one."""
        self._add(change_fields(self._plans.replica, fields), "describe", fields)

    def pin(self, position: int) -> None:
        """Pin the message at a position: every window includes it."""
        self._add(annotations.pin_message(self._plans.replica, position, on=True), "pin", position)

    def unpin(self, position: int) -> None:
        """Unpin a message, so that windows may cut it again."""
        plan = annotations.pin_message(self._plans.replica, position, on=False)
        self._add(plan, "unpin", position)

    def open(self) -> None:
        """Accept calls from now on."""
        self._plans.replica.require_live("batch")
        self._open = True

    def end(self, positions: range) -> None:
        """Accept no more calls: the records have these positions now."""
        self._plans.replica.require_live("batch")
        self._open, self._positions = False, positions

    def _add(self, plan: Plan[Any], call: str, *arguments: object) -> None:
        self._require_open()
        self._plans.add(plan, call, *arguments)

    def _require_open(self) -> None:
        self._plans.replica.require_live("batch")
        if self._open is None:
            raise UsageError("the batch is not open: enter it with `with` or `async with`")
        if not self._open:
            raise UsageError("the batch has ended: begin another with session.batch()")


def commit_together(parts: Sequence[BatchPlans]) -> Steps[list[range]]:
    """Store the plans of several sessions, all or none; return the positions in each.

    Each replica was loaded for this batch only: it is not updated.
    """
    positions: list[range] = []
    appends: list[Append] = []
    for part in parts:
        stored, append = yield from part.replica.prepare(part.join())
        positions.append(stored)
        if append is not None:
            appends.append(append)
    if not appends:
        return positions
    try:
        outcome = yield from requests.commit_together(appends)
    except UnavailableError as error:
        check = "This batch may still be stored: repeat it only with the same ids"
        raise UnavailableError(error.backend, error.reason, f"{error.hint}. {check}") from error
    if (
        outcome.status != "stored"
    ):  # Refused: the store was put back since the replicas were loaded.
        at = appends[0].entries[0].position - 1
        reason = "another writer was first in one of the sessions of the batch"
        raise ConflictError(appends[0].stream, at, at, reason)
    return positions
