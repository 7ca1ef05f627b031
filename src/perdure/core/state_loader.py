"""Compute the state of a session from the end of its history. Pure.

In: a session's name, and the records that are read backward to the latest usable snapshot. Out: its
state, and notices of snapshots that were skipped. Nothing is published here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.backends.protocol import HALF_COPIED, UNFINISHED, Entry, Head
from perdure.core.plans import PendingEvent
from perdure.core.settings import Settings
from perdure.core.state.session_state import SessionState
from perdure.errors import ChainError, DamagedError, NotFoundError, PayloadError, VersionError
from perdure.journal import chain, reader, requests
from perdure.journal.chain import ChainTip, PendingRecord, StreamIdentity, VerifiedRecord
from perdure.journal.cipher import Cipher
from perdure.journal.compaction import Compacted
from perdure.journal.reader import PAGE, BackwardReader, History, ReadTail
from perdure.journal.records import Message, MessagesReplaced, MessagesRetracted, Snapshot
from perdure.journal.requests import Steps

LOADS_MAX = 5  # each read an end of the session that another process had changed meanwhile

PAGE_RECORDS = 32  # records per read beyond the first; a branch may have to look in its parent

_RETRACTIONS = frozenset({MessagesRetracted.kind, MessagesReplaced.kind})


def history_of(
    stream: StreamIdentity, tip: ChainTip, cipher: Cipher, state: SessionState
) -> History:
    """Return the history that ends with a state."""
    kept = (state.lineage, state.begin, state.erasures, state.compacted, state.carried)
    return History(stream, tip, cipher, *kept)


def newest_payload(record: PendingRecord, state: SessionState, last: bytes | None) -> bytes | None:
    """Return the payload of the newest message after a record; empty if it must be looked up."""
    if record.content.kind == Message.kind:
        return record.payload
    if record.content.kind in _RETRACTIONS:
        return b""
    return last if state.last_message else None


def _require_head(name: str, head: Head | None, tail: Sequence[VerifiedRecord]) -> None:
    """Raise unless the tail that was read matches the head; this detects a truncated tail."""
    if head is None:
        if tail:
            raise DamagedError(name, 0, "it has entries and no head")
        return
    if not tail or tail[0].position < head.position:
        raise ChainError(name, head.position, "the head points to it, but it is missing")
    for linked in tail:
        if linked.position == head.position and (linked.digest != head.digest or linked.remaining):
            raise ChainError(name, head.position, "it is not the entry that the head points to")


def require_labels(head: Head, state: SessionState, settings: Settings) -> None:
    """Raise DamagedError unless a head has the labels of the state, or those of a copy under way.

    The labels are in no chain; with others, listings would not find the session, or under another.
    """
    expected = settings.head_labels(state.head_labels)
    if head.labels not in (expected, {HALF_COPIED}, UNFINISHED):
        reason = "the labels of its head do not match its records"
        raise DamagedError(head.stream, 0, reason)


def _require_snapshot(head: Head, entries: Sequence[Entry]) -> None:
    """Raise ChainError unless entries, newest first, end with the snapshot that the head names."""
    if not head.snapshot:
        return
    name, position = head.stream, head.snapshot
    oldest = entries[-1] if entries else None
    if oldest is None or not oldest.position <= position <= oldest.last:
        raise ChainError(name, position, "the head names a snapshot here, but it is missing")
    try:
        kinds = [record.kind for record in chain.parse_header(name, oldest).records]
    except VersionError:
        return  # Or it is altered: the reader knows, which compares it with its successor.
    if kinds[position - oldest.position] != Snapshot.kind:
        reason = "the head names a snapshot here, but it is another record"
        raise ChainError(name, position, reason)


def _require_newest(head: Head | None, entries: Sequence[Entry]) -> None:
    """Raise ChainError if the last entry is not the one that the head points to."""
    if head is None or not entries or entries[0].last != head.position:
        return
    if chain.entry_digest(entries[0]) != head.digest:
        reason = "it is not the entry that the head points to"
        raise ChainError(head.stream, head.position, reason)


class _Tail(NamedTuple):
    """The records back to a snapshot, newest first; its state; and all records that were read."""

    records: list[VerifiedRecord]
    base: SessionState | None
    read: list[VerifiedRecord]


class LoadedTail(NamedTuple):
    """The end of a session: its head, its newest records, newest first, its state and history."""

    head: Head | None
    records: list[VerifiedRecord]
    state: SessionState
    history: History

    @property
    def is_unfinished(self) -> bool:
        """Whether it is a copy that is not whole yet."""
        return self.head is not None and self.head.labels >= UNFINISHED


class StateLoader:
    """Reads the end of one session's history and applies it."""

    def __init__(self, name: str, settings: Settings, notices: list[PendingEvent]) -> None:
        self._name = name
        self._settings = settings
        self._notices = notices

    def load(self) -> Steps[LoadedTail | None]:
        """Return the head, the records since the snapshot that it names, and the state.

        None without a stream.
        """
        tries = LOADS_MAX
        while True:
            head, entries = yield from requests.tail(self._name, limit=PAGE)
            try:
                return (yield from self._load(head, entries))
            except (DamagedError, NotFoundError):
                # Perhaps another process compacted or deleted the session between two reads.
                tries -= 1
                if not tries or (yield from requests.head(self._name)) == head:
                    raise
            except VersionError:
                _require_newest(head, entries)  # Damage can produce any version number.
                raise

    def _load(self, head: Head | None, entries: Sequence[Entry]) -> Steps[LoadedTail | None]:
        if head is None and not entries:
            return None
        if head is not None:
            _require_snapshot(head, entries)
        cipher, tenant = self._settings.cipher, self._settings.tenant
        backward = BackwardReader(self._name, cipher, tenant=tenant, entries=entries)
        tail = yield from self._read_tail(backward)
        _require_head(self._name, head, tail.records)
        state = self._rebuild(tail)
        if head is not None and head.position == tail.records[0].position:  # Else it is older.
            require_labels(head, state, self._settings)
        newest = tail.records[0]
        stream = StreamIdentity(self._name, newest.header.stream, tenant)
        past = history_of(stream, newest.tip, cipher, state)
        past = msgspec.structs.replace(past, tail=ReadTail(tail.read, backward))
        return LoadedTail(head, tail.records, state, past)

    def _read_tail(self, backward: BackwardReader) -> Steps[_Tail]:
        """Return the records back to the latest usable snapshot, newest first, and its state.

        Without one, the state is that before the first record of a compacted history, or None.
        """
        tail: list[VerifiedRecord] = []
        read: list[VerifiedRecord] = []
        while not backward.ended:
            page = yield from backward.page(PAGE_RECORDS)
            read += page
            for linked in page:
                tail.append(linked)
                if linked.kind == Snapshot.kind and linked.body is not None:
                    base = self._restore(linked)
                    if base is not None:
                        return _Tail(tail, base, read)
        compactions = (linked for linked in tail if linked.kind == Compacted.kind)
        newest = next(compactions, None)
        return _Tail(tail, None if newest is None else self._restore_base(newest), read)

    def base_of(self, past: History) -> Steps[SessionState | None]:
        """Return the state before the first record of a history that was compacted, else None."""
        if not past.compacted:
            return None
        return self._restore_base((yield from reader.read_record(past, past.compacted)))

    def _restore_base(self, linked: VerifiedRecord) -> SessionState:
        name, position = self._name, linked.position
        content = chain.decode_content(name, linked, self._settings.cipher)
        content = reader.require_kind(name, position, content, Compacted)
        return SessionState.before_compaction(content, name=name, position=position)

    def _restore(self, linked: VerifiedRecord) -> SessionState | None:
        """Return a snapshot's state, or None if it cannot be used; reading then continues."""
        name, position = self._name, linked.position
        try:
            record = chain.decode_record(name, linked, self._settings.cipher)
            content, payload = record.content, record.payload
            content = reader.require_kind(name, position, content, Snapshot)
            return SessionState.restore(content, payload, name=name, position=position)
        except PayloadError as error:
            reason = error.reason
        fields: dict[str, object] = {"position": position, "reason": reason}
        self._notices.append(PendingEvent("snapshot_skipped", fields))
        return None

    def _rebuild(self, tail: _Tail) -> SessionState:
        """Apply a tail to the state of its snapshot, or to an empty one."""
        records, base, _ = tail
        state = base or SessionState()
        is_snapshot = base is not None and records[-1].kind == Snapshot.kind
        for linked in reversed(records[:-1] if is_snapshot else records):
            self.apply(state, linked)
        return state

    def state_at(self, past: History, tip: ChainTip) -> Steps[SessionState]:
        """Return the state at a position of a history, which may be within an entry."""
        tail = yield from self._read_tail(reader.read_backward(past.until(tip)))
        if tail.base is None:
            tail = tail._replace(base=(yield from self.base_of(past)))
        return self._rebuild(tail)

    def apply(self, state: SessionState, linked: VerifiedRecord) -> PendingRecord:
        """Apply a record to a state, and return it. An erased one has no effect."""
        record = chain.decode_record(self._name, linked, self._settings.cipher)
        try:
            state.apply(linked.position, record.id, record.content, record.payload)
        except LookupError as error:
            reason = "it refers to a record that does not exist"
            raise ChainError(self._name, linked.position, reason) from error
        return record

    def last_payload(
        self, history: History, position: int, tail: Sequence[VerifiedRecord] = ()
    ) -> Steps[bytes | None]:
        """Return the payload of the message at a position, which the tail may have; None for 0."""
        if not position:
            return None
        linked = next((item for item in tail if item.position == position), None)
        if linked is None:
            linked = yield from reader.read_record(history, position)
        return chain.open_body(self._name, linked, self._settings.cipher)
