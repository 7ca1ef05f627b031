"""Several records in one append: the plans of a `session.batch`, executed all or none. Pure.

In: plans, each with the bytes that identify its content. Out: one `JointPlan`, whose result is the
range of positions that it stored.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.validation import require_int, require_record_id
from perdure.errors import ConflictError, DivergenceError, PerdureError, UsageError
from perdure.journal import codec
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

    def __iter__(self) -> Iterator[Plan[Any]]:
        return iter(self._plans)

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
        position = yield from batch.find_id(batch_id)
        if not position:
            return None
        content = yield from batch.read_any(position)
        if not isinstance(content, BatchStored):
            raise DivergenceError(batch.name, batch_id, f"a {content.kind} record", "a batch")
        if content.digest != self._digest.hexdigest():
            raise DivergenceError(batch.name, batch_id, content.digest, self._digest.hexdigest())
        return range(position - content.count, position + 1)
