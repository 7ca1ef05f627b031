"""A write that is linked and ready to be sent, and the short way to one for the usual plan. Pure.

In: a replica, and a plan or a batch of executed plans. Out: the bytes to send, with the state that
they lead to.

Most writes are one plan that needs nothing but its commit. `prepare_usual` executes and links it in
one call, and `PlanSteps` sends it without a generator: an append of three messages takes 4 of 41 µs
less than through `Replica.write`. Nothing is decided here: what is not usual, or is not stored, is
left to `Replica.write`.
"""

from collections.abc import Generator, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.backends.protocol import Append, Entry
from perdure.core.bodies import UnreadBodies
from perdure.core.plans import CATCH_UP_KINDS, Plan, RecordBatch, split_entries
from perdure.errors import PerdureError, UsageError
from perdure.journal import chain
from perdure.journal.chain import ChainTip, PendingRecord, StreamIdentity
from perdure.journal.cipher import keyed
from perdure.journal.requests import Commit, Request, Steps

if TYPE_CHECKING:
    from perdure.core.replica import Replica


class PendingWrite(msgspec.Struct, frozen=True, gc=False):
    """A write that may have been sent: the append, and the state if it is stored."""

    append: Append
    batch: RecordBatch
    stream: StreamIdentity
    tip: ChainTip
    answer: Any = None
    """The result of the plan, if `prepare_usual` made it."""


def prepare_usual(replica: "Replica", plan: Plan[Any]) -> PendingWrite | None:
    """Execute and link a plan that needs only its commit; None if it needs `Replica.write`.

    Usual is a plan without an error that adds records and reads none, in a session that has no
    lease, no write in doubt and no records that the caller has not seen, and no snapshot is due.
    An encrypted session has a key already.
    """
    state = replica.view.state
    if (
        replica.doubt is not None
        or replica.deleted
        or replica.replaced is not None
        or state.lease is not None
        or replica.held_lease is not None
        or replica.unseen.contents
        or replica.settings.verify_writes
        or plan.kind in CATCH_UP_KINDS
        or (replica.settings.cipher.is_placed and not _has_key(replica))
    ):
        return None
    batch = replica.new_batch()
    try:
        answer = plan.make(batch)
        if type(answer) is GeneratorType:
            next(answer)
            return None  # It has to read.
    except StopIteration as end:
        answer = end.value
    except (PerdureError, UnreadBodies):
        return None
    batch.end_data()
    if not batch.pending or batch.is_too_large or batch.state.snapshot_due:
        return None
    entries = split_entries(batch) if batch.new_bodies else [batch.pending]
    return _link(replica, batch, entries, answer)


def _has_key(replica: "Replica") -> bool:
    """Whether an encrypted session has a key for what is written, so that none must be stored."""
    return bool(keyed(replica.settings.cipher).key_for(replica.history.stream.id))


def write_steps(replica: "Replica", plans: Sequence[Plan[Any]]) -> Steps[list[Any]]:
    """Return the steps that write plans: see `Replica.write`."""
    return PlanSteps(replica, plans[0]) if len(plans) == 1 else replica.write(plans)


class PlanSteps(Generator[Request, Any, list[Any]]):
    """The steps that write one plan.

    The write is in doubt from the moment it is sent: an interrupt may end the steps at any line.
    """

    __slots__ = ("_plan", "_replica", "_steps", "_write")

    def __init__(self, replica: "Replica", plan: Plan[Any]) -> None:
        self._replica = replica
        self._plan = plan
        self._write: PendingWrite | None = None
        """The usual write that was sent, until its outcome is known."""
        self._steps: Steps[list[Any]] | None = None
        """What an unusual write has become."""

    def send(self, reply: Any, /) -> Request:
        """Return the next request, or raise StopIteration with the result, as generators do."""
        replica, write = self._replica, self._write
        if self._steps is not None:
            return self._steps.send(reply)
        if write is None:  # The first call.
            write = prepare_usual(replica, self._plan)
            if write is not None:
                self._write = replica.doubt = write
                return Commit(write.append)
            self._steps = replica.write([self._plan])
        elif reply.status == "stored":
            replica.accept(write)
            self._write = None
            raise StopIteration([write.answer])
        else:
            self._write = replica.doubt = None
            self._steps = replica.write([self._plan], conflict=True)
        return next(self._steps)

    def throw(self, error: Any, /, *rest: Any) -> Request:
        """Fail the request that was returned last."""
        if self._steps is not None:
            return self._steps.throw(error, *rest)
        if self._write is not None:
            # Until `fail` has decided, it stays in doubt: another interrupt may come.
            failure = self._replica.fail(self._write, error)
            if isinstance(error, UsageError):
                self._replica.doubt = None
            self._write = None
            if failure is not error:
                raise failure from error
        raise error


def link(replica: "Replica", batch: RecordBatch, stream_id: str = "") -> PendingWrite:
    """Number and link a batch, ready to be sent. `stream_id` is for a stream that has none yet."""
    return _link(replica, batch, split_entries(batch), None, stream_id)


def _link(
    replica: "Replica",
    batch: RecordBatch,
    parts: Sequence[Sequence[PendingRecord]],
    answer: Any,
    stream_id: str = "",
) -> PendingWrite:
    settings, stream, labels = replica.settings, batch.past.stream, batch.state.head_labels
    if not stream.id:
        stream = stream._replace(id=stream_id or settings.token())
    time, cipher = chain.now(settings.clock), settings.cipher
    if cipher.is_placed:
        labels = settings.head_labels(labels)
    tip = batch.tip
    entries: list[Entry] = []
    for drafts in parts:
        entry, tip = chain.link_entry(stream, tip, drafts, time=time, cipher=cipher)
        entries.append(entry)
    # Takes half the time of calling the class.
    facts = (replica.name, entries, labels, batch.tip.digest or "", batch.state.snapshot)
    append = tuple.__new__(Append, facts)
    return PendingWrite(append, batch, stream, tip, answer)
