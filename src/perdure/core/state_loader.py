"""Compute the state of a session from the end of its history. Pure.

In: a session's name, and the entries that are read backward to the latest usable snapshot. Out: its
state, and notices of snapshots that were skipped. Nothing is published here.
"""

from collections.abc import Sequence

from perdure.core.plans import PendingEvent
from perdure.core.settings import Settings
from perdure.core.state.session_state import SessionState
from perdure.errors import ChainError, PayloadError
from perdure.journal import chain, codec, reader
from perdure.journal.chain import BatchAssembler, ChainTip, VerifiedEntry
from perdure.journal.compaction import Compacted
from perdure.journal.reader import History
from perdure.journal.records import Branched, Content, Snapshot
from perdure.journal.requests import Steps


class StateLoader:
    """Reads the end of one session's history and applies it."""

    def __init__(self, name: str, settings: Settings, notices: list[PendingEvent]) -> None:
        self._name = name
        self._settings = settings
        self._notices = notices

    def read_tail(
        self, past: History | None
    ) -> Steps[tuple[list[VerifiedEntry], SessionState | None]]:
        """Return the entries back to the latest usable snapshot, newest first, and its state.

        Without one, the state is that before the first entry of a compacted history, or None.
        """
        cipher, tenant = self._settings.cipher, self._settings.tenant
        backward = reader.BackwardReader(self._name, cipher, past, tenant=tenant)
        tail: list[VerifiedEntry] = []
        while not backward.ended:
            for linked in (yield from backward.page()):
                tail.append(linked)
                if linked.header.kind == Snapshot.kind:
                    base = self._restore(linked)
                    if base is not None:
                        return tail, base
        compactions = (linked for linked in tail if linked.header.kind == Compacted.kind)
        newest = next(compactions, None)
        return tail, None if newest is None else self._restore_base(newest)

    def base_of(self, past: History) -> Steps[SessionState | None]:
        """Return the state before the first record of a history that was compacted, else None."""
        if not past.compacted:
            return None
        return self._restore_base((yield from reader.read_entry(past, past.compacted)))

    def _restore_base(self, linked: VerifiedEntry) -> SessionState:
        name, position = self._name, linked.entry.position
        content = chain.decode_content(name, linked, self._settings.cipher)
        content = reader.require_kind(name, position, content, Compacted)
        return SessionState.before_compaction(content, name=name, position=position)

    def _restore(self, linked: VerifiedEntry) -> SessionState | None:
        """Return a snapshot's state, or None if it cannot be used; reading then continues."""
        name, position = self._name, linked.entry.position
        payload = chain.open_body(name, linked, self._settings.cipher)
        try:
            content = codec.decode(Snapshot.kind, payload, stream=name, position=position)
            content = reader.require_kind(name, position, content, Snapshot)
            return SessionState.restore(content, payload, name=name, position=position)
        except PayloadError as error:
            reason = error.reason
        fields: dict[str, object] = {"position": position, "reason": reason}
        self._notices.append(PendingEvent("snapshot_skipped", fields))
        return None

    def rebuild(
        self, tail: list[VerifiedEntry], base: SessionState | None
    ) -> tuple[SessionState, BatchAssembler]:
        """Apply a tail, given newest first, to the state of its snapshot or to an empty one."""
        state, batches = base or SessionState(), BatchAssembler(self._name)
        is_snapshot = base is not None and tail[-1].header.kind == Snapshot.kind
        for linked in reversed(tail[:-1] if is_snapshot else tail):
            if linked.header.kind == Branched.kind:
                # A branch may share its parent's history up to the middle of a batch.
                for item in batches.flush():
                    self.apply(state, item)
            for item in batches.add(linked):
                self.apply(state, item)
        return state, batches

    def state_at(self, past: History, tip: ChainTip) -> Steps[SessionState]:
        """Return the state at a position of a history, which may be within a batch."""
        tail, base = yield from self.read_tail(past.until(tip))
        if base is None:
            base = yield from self.base_of(past)
        state, batches = self.rebuild(tail, base)
        for linked in batches.flush():
            self.apply(state, linked)
        return state

    def apply(self, state: SessionState, linked: VerifiedEntry) -> Content:
        """Apply an entry to a state; return its content."""
        header, position = linked.header, linked.entry.position
        payload = chain.open_body(self._name, linked, self._settings.cipher)
        content = codec.decode(header.kind, payload, stream=self._name, position=position)
        try:
            state.apply(position, header.id, content, payload)
        except LookupError as error:
            reason = "it refers to a record that does not exist"
            raise ChainError(self._name, position, reason) from error
        return content

    def last_payload(
        self, history: History, position: int, tail: Sequence[VerifiedEntry] = ()
    ) -> Steps[bytes | None]:
        """Return the payload of the message at a position, which the tail may have; None for 0."""
        if not position:
            return None
        linked = next((item for item in tail if item.entry.position == position), None)
        if linked is None:
            linked = yield from reader.read_entry(history, position)
        return chain.open_body(self._name, linked, self._settings.cipher)
