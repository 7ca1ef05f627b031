"""A caller's own state, computed from a session's records and stored now and then. Pure.

In: a function over records. Out: steps that read the records since the newest stored state, and the
plan that stores a newer one. What perdure writes for itself (snapshots, index pages, views) is not
passed to the function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.core.history import RecordFilter, RecordReader
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.core.validation import NAME_BYTES_MAX, require_int, require_text
from perdure.errors import CompactedError, UsageError
from perdure.journal import reader
from perdure.journal.kinds import KINDS
from perdure.journal.reader import History
from perdure.journal.records import Record, ViewStored
from perdure.journal.requests import Steps

_KINDS = frozenset({*KINDS} - {"carried", "compacted", "ids.dropped", "index", "snapshot", "view"})


class ViewRequest(NamedTuple):
    """A view: its name and version, how it is computed, and after how many records it is stored."""

    name: str
    fold: Callable[[Any, Record], Any]
    initial: object
    version: int
    every: int

    def checked(self) -> "ViewRequest":
        """Return the request, or raise UsageError that says what is wrong with it."""
        require_text(self.name, "the name of a view", longest=NAME_BYTES_MAX)
        if not callable(self.fold):
            raise UsageError("fold must be a function of a state and a record")
        if require_int(self.version, "version") < 1 or require_int(self.every, "every") < 1:
            raise UsageError("version and every must be 1 or more")
        return self


class ViewState(NamedTuple):
    """The state of a view after the record at a position, of the history after `rollbacks`."""

    position: int
    data: Any
    rollbacks: int


def load_view(replica: Replica, request: ViewRequest) -> Steps[ViewState]:
    """Return the newest stored state of a view, or its initial state."""
    rollbacks = replica.rollbacks
    state, past, _ = replica.view
    stored = state.views.get(request.name)
    own = replica.settings.codec
    if stored is None or stored.version != request.version:
        # Copied, so that a function that changes its argument never changes the caller's object.
        return ViewState(0, own.unpack(own.pack(request.initial), stream=replica.name), rollbacks)
    content = yield from reader.read_kind(past, stored.position, ViewStored)
    data = own.unpack(content.data, stream=replica.name, position=stored.position)
    if past.compacted and content.at < past.begin - 1:
        raise CompactedError(replica.name, content.at + 1, past.begin)
    return ViewState(content.at, data, rollbacks)


def newer_records(past: History, settings: Settings, position: int) -> RecordReader:
    """Return a reader of the records after a position that views are computed from."""
    return RecordReader(past, settings, RecordFilter(position, _KINDS))


def is_due(replica: Replica, request: ViewRequest, position: int) -> bool:
    """Whether so many records came since a view was stored that it should be stored again."""
    stored = replica.state.views.get(request.name)
    since = stored.position if stored is not None and stored.version == request.version else 0
    return position - since >= request.every


def store_view(replica: Replica, request: ViewRequest, state: ViewState) -> Plan[int]:
    """Plan to store the state of a view; UsageError if it cannot be stored."""
    data = replica.settings.codec.pack(state.data)
    content = ViewStored(name=request.name, version=request.version, at=state.position, data=data)
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> int:
        if replica.rollbacks != state.rollbacks:
            raise batch.conflict("the store's history was replaced since the view was computed")
        return batch.add_content(record_id, content)

    return Plan("view", request.name, make)
