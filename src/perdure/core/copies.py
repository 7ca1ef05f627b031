"""Copy a session within its store, without a tie between the two. Pure: steps over replicas.

In: a loaded session, and the id of the copy. Out: the copy, loaded. The copy is a stream of its own
with a chain of its own. Records refer to each other by position, so every record keeps its
position, its id and its time. A lease, a keep and the beginning of a branch concern the source
alone: the copy has an `omitted` record in their place. A snapshot is computed anew.

The copy is written page by page under the labels `UNFINISHED`, which hide it: it is in no listing,
and it cannot be opened. The last append ends it with a `copied` record, and with the labels of its
own. After a crash in between, the same call continues after the last page.

To edit: every entry of the source becomes one entry of the copy, with the same positions.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from perdure.backends.protocol import UNFINISHED, Append, Entry
from perdure.core import lifecycle, turns
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.state.persistent_map import PersistentMap
from perdure.core.state.session_state import STATE_VERSION, SessionState
from perdure.core.validation import require_session_id
from perdure.errors import PerdureError, UsageError
from perdure.journal import chain, codec, reader, requests
from perdure.journal.chain import UNREAD, ChainTip, PendingRecord, VerifiedRecord
from perdure.journal.compaction import Compacted
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.records import (
    Branched,
    BranchKept,
    BranchReleased,
    Content,
    Copied,
    EmptiedContent,
    LeaseChange,
    Omitted,
    Snapshot,
)
from perdure.journal.requests import Steps

APPEND_BYTES = 8 * 2**20  # bytes; about what one append of a copy has

ABANDONED_REASON = "it was open in the session that this one was copied from"


def copy_session(source: Replica, name: object) -> Steps[Replica]:
    """Copy the history of a view to a new session; UsageError if that id is taken."""
    target = Replica(require_session_id(name), source.settings)
    if not source.exists:  # No history to copy: the copy is a new session.
        yield from lifecycle.require_free(target.name, is_copy=True)
        return target
    copy = _SessionCopy(source, target)
    while not (yield from copy.write()):
        pass  # Another process continued the same copy: continue after what it wrote.
    (answer,) = yield from target.write([copy.plan_end()])
    if isinstance(answer, PerdureError):
        raise answer
    target.unfinished = False
    return target


class _SessionCopy:
    """The copy of one session, while it is written."""

    def __init__(self, source: Replica, target: Replica) -> None:
        self._target = target
        self._settings = source.settings
        self._past = source.history
        self._last = self._past.tip.position
        self._entries: list[Entry] = []

    def write(self) -> Steps[bool]:
        """Write the pages that are missing; False if another process wrote one of them first."""
        yield from lifecycle.require_free(self._target.name, is_copy=True)
        yield from self._target.load()
        tip, stream = self._target.tip, self._target.history.stream
        if tip.position:
            yield from self._require_same_source(tip.position)
        else:
            stream = stream._replace(id=self._settings.token())
            tip = ChainTip(self._past.first - 1, "")
        yield from self._target.settings.require_key(stream.id)
        self._state, self._stream, self._tip = self._target.state.draft(), stream, tip
        if self._past.compacted:
            yield from self._begin_compacted()
        self._stored = tip.digest or ""
        forward = ForwardReader(self._past, after=tip.position)
        while (page := (yield from forward.page())) is not None:
            for _, records in groupby(page, key=lambda record: record.entry.position):
                self._add((yield from self._with_parts([*records])))
                is_full = sum(entry.size for entry in self._entries) > APPEND_BYTES
                if is_full and not self._past.compacted and not (yield from self._store()):
                    return False
            # What was compacted cannot be loaded before its `compacted` record: one append.
            if not self._past.compacted and not (yield from self._store()):
                return False
        if not (yield from self._store()):
            return False
        yield from self._target.load()
        newest = yield from reader.read_record(self._past, self._last)
        self._digest = newest.digest
        return self._target.tip.position == self._last

    def _with_parts(self, records: list[VerifiedRecord]) -> Steps[list[VerifiedRecord]]:
        """Return the records of an entry with the parts of large bodies that pages leave out."""
        if records[0].body is not UNREAD:
            return records
        whole = []
        for linked in records:
            whole.append((yield from reader.read_record(self._past, linked.position)))  # noqa: PERF401
        return whole

    def _begin_compacted(self) -> Steps[None]:
        """Begin with the state before the first record that a compaction of the source kept."""
        compacted = yield from reader.read_kind(self._past, self._past.compacted, Compacted)
        self._state = self._detached(compacted)

    def _detached(self, compacted: Compacted) -> SessionState:
        """Return the state before a compaction, without what concerns the source alone."""
        name, position = self._past.stream.session, self._past.compacted
        state = SessionState.before_compaction(compacted, name=name, position=position)
        state.lineage, state.kept_branches, state.lease = (), PersistentMap(), None
        return state

    def _require_same_source(self, position: int) -> Steps[None]:
        """Raise UsageError unless an unfinished copy is one of this session."""
        name = self._target.name
        copied = yield from reader.read_record(self._target.history, position)
        # The copy of a compacted session is one append: a part of one was begun before that.
        is_part = self._past.first <= position < self._last and not self._past.compacted
        if is_part or position == self._last:
            source = yield from reader.read_record(self._past, position)
            if (source.id, source.header.time) == (copied.id, copied.header.time):
                return
        reason = f"session {name!r} is an unfinished copy of another session or another view of it"
        raise UsageError(f"{reason}: choose another id, or call store.delete({name!r})")

    def _add(self, records: Sequence[VerifiedRecord]) -> None:
        """Add the records of the next entry of the source."""
        first = self._tip.position + 1
        drafts, kinds = [], []
        for position, linked in enumerate(records, first):
            record = chain.decode_record(self._past.stream.session, linked, self._past.cipher)
            content, payload = self._convert(record.content), record.payload
            if content is not record.content:
                payload = codec.encode(content)
            drafts.append(PendingRecord(record.id, content, payload))
            kinds.append(linked.kind if content is record.content else content.kind)
            self._state.apply(position, record.id, content, payload)
        time, ids = records[0].header.time, [linked.id for linked in records]
        cipher = self._target.settings.cipher
        entry, self._tip = chain.link_entry(
            self._stream, self._tip, drafts, time=time, cipher=cipher, ids=ids, kinds=kinds
        )
        self._entries.append(entry)

    def _convert(self, content: Content) -> Content:
        """Return the record that a copy has in the place of one of its source."""
        if isinstance(content, LeaseChange | BranchKept | BranchReleased | Branched):
            return Omitted(record_kind=content.kind)
        if isinstance(content, EmptiedContent):
            return Omitted()
        if isinstance(content, Snapshot):
            if self._state.recent_ids:  # No pages of the index before it: an older snapshot.
                return Omitted(record_kind=content.kind)
            return Snapshot(state_version=STATE_VERSION, facts=self._state.facts())
        if isinstance(content, Compacted):
            facts = self._detached(content).facts()
            return msgspec.structs.replace(
                content, digest="", state_version=STATE_VERSION, facts=facts
            )
        return content

    def _store(self) -> Steps[bool]:
        """Store what was added; False if another process wrote it first."""
        entries, self._entries = self._entries, []
        if not entries:
            return True
        snapshot = self._state.snapshot
        append = Append(self._target.name, entries, UNFINISHED, self._stored, snapshot)
        outcome = yield from requests.commit(append)
        self._stored = self._tip.digest or ""
        return outcome.status == "stored"

    def plan_end(self) -> Plan[int]:
        """Plan the last append, which makes the copy a session; open turns are abandoned."""
        target, record_id = self._target, self._target.new_id()
        open_turns = [*target.state.turns]
        abandon = [turns.abandon_turn(target, turn, ABANDONED_REASON) for turn in open_turns]
        session, stream, _ = self._past.stream
        content = Copied(session=session, stream=stream, position=self._last, digest=self._digest)

        def make(batch: RecordBatch) -> Steps[int]:
            if batch.position != self._last:
                raise UsageError(f"session {target.name!r} exists: choose another id")
            for plan in abandon:
                yield from plan.execute(batch)
            return batch.add_content(record_id, content)

        return Plan("copy", "", make)
