# Generated from aio/session_reader.py by scripts/generate_sync.py: do not edit.
"""SessionReader: what a session holds: its place, its records, its notes, views and checks.

The methods that change something are in `perdure.sync.session`.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from perdure.core import history, leases, verify
from perdure.core.leases import LeaseHolder
from perdure.core.replica import Replica
from perdure.core.state.fields import decode_fields, labels_of
from perdure.core.validation import require_int, require_timeout
from perdure.core.verify import VerifyResult
from perdure.core.view import ViewRequest
from perdure.journal.reader import OnDamage
from perdure.journal.records import Record
from perdure.sync.handle import Handle
from perdure.sync.view import View
from perdure.sync.watch import watch_records


class SessionReader:
    """The reading half of a session: everything here is of the view that the object has."""

    _handle: Handle
    _replica: Replica

    @property
    def id(self) -> str:
        """The session's id, as passed to the store."""
        return self._replica.name

    @property
    def position(self) -> int:
        """The position of the newest record in this view, 0 in a new session."""
        return self._replica.tip.position

    @property
    def complete_from(self) -> int:
        """The first position whose record is there: 1, unless the session was compacted.

        `records`, `messages` and `notes` begin there; reading an earlier position raises
        CompactedError. It is also later in a session that was created again after a deletion.
        """
        return self._replica.history.first

    @property
    def last_message(self) -> dict[str, Any] | None:
        """The newest message in this view, or None."""
        return history.read_last_message(self._replica)

    @property
    def labels(self) -> frozenset[str]:
        """The session's labels: the caller's own, and those that perdure sets for its state."""
        state = self._replica.state
        return state.head_labels - labels_of(state.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that `describe` gave the session, by name. The dict is a copy."""
        return decode_fields(self.id, self._replica.state.fields)

    @property
    def lease_holder(self) -> LeaseHolder | None:
        """The holder of the session's lease in this view, or None; the lease may have expired."""
        return leases.lease_holder(self._replica)

    def __len__(self) -> int:
        """The number of messages in this view."""
        return self._replica.state.messages

    def __bool__(self) -> bool:
        """A session is true, even without messages."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {len(self)} messages, at {self.position}>"

    def record(self, position: int) -> Record:
        """Return the record at a position; NotFoundError if there is none in this view."""
        past, settings = self._replica.history, self._replica.settings
        return self._handle.run(history.read_record(past, settings, position), past)

    def find(self, id: str) -> Record:
        """Return the record that has a caller's id, or the beginning of the turn that has it.

        NotFoundError if no record in this view has it, however long ago it was.
        """
        return self._handle.run(history.find_record(self._replica, id))

    def records(
        self,
        *,
        after: int = 0,
        kinds: Collection[str] = (),
        limit: int | None = None,
        reverse: bool = False,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Record]:
        """Yield the records in this view after a position, and verify the chain.

        All of them, or those of some `kinds`, at most `limit`; the newest first with `reverse`.
        Damage is raised; if `on_damage` is given, it is called with each error instead, and reading
        continues with the next readable record. It cannot be combined with `reverse`.
        """
        past, chosen = self._replica.history, history.RecordFilter(after, kinds, limit)
        records = history.record_reader(self._replica, chosen, reverse=reverse, on_damage=on_damage)
        while (page := self._handle.run(records.page(), past)) is not None:
            yield from page

    def notes(self, topic: str, *, limit: int | None = None) -> Iterator[Record]:
        """Yield the notes of a topic in this view, the newest first; each costs one read."""
        past, position = self._replica.history, self._replica.state.topics.get(topic, 0)
        while position and limit != 0 and not past.is_dropped(position):
            steps = history.read_record(past, self._replica.settings, position)
            record = self._handle.run(steps)
            yield record
            position = history.previous_note(record)
            limit = None if limit is None else limit - 1

    def view(
        self,
        fold: Callable[[Any, Record], Any],
        *,
        name: str,
        initial: object = None,
        version: int = 1,
        every: int = 256,
    ) -> View:
        """Return a state of the caller's own, computed from the records in this view.

        `fold(state, record)` returns the state after a record, beginning with `initial`. The state
        is stored every so many records, so that opening reads only those since. Another `version`
        ignores what was stored by earlier ones.
        """
        view = View(self._handle, ViewRequest(name, fold, initial, version, every).checked())
        view.refresh()
        return view

    def watch(self, *, after: int | None = None, timeout: float | None = None) -> Iterator[Record]:
        """Yield new records as they are appended, and add them to the view.

        They come from any handle or process, this one included. They start after this view, or
        after the position `after`, so a caller that resumes watching misses nothing. Watching ends
        when no record arrives for `timeout` seconds (None waits forever), when the session or the
        store is closed, and after the record that deletes the session.
        """
        at = self._replica.tip.position if after is None else require_int(after, "after")
        return watch_records(self._handle, at, require_timeout(timeout))

    def verify(self) -> VerifyResult:
        """Read and check the whole history: chain, bodies, snapshots, labels. Raise if damaged."""
        with self._handle.span("verify") as span:
            result = self._handle.run(verify.verify_session(self._replica))
            span.fields.update(records=result.records, position=result.position)
        return result
