"""Read a session's history forward, from a position to its end, verifying every link. Pure.

I/O is yielded as requests (see `requests`). Damage is raised, or reported to a callback and then
skipped.
"""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.backends.protocol import Entry
from perdure.errors import ChainError, CompactedError, DamagedError, PerdureError, VersionError
from perdure.journal import chain, key_store, requests
from perdure.journal.chain import ChainTip, VerifiedEntry, VerifiedRecord
from perdure.journal.dropped import explain_missing, why_dropped
from perdure.journal.pages import read_page
from perdure.journal.reader import (
    PAGE,
    History,
    OnDamage,
    Segment,
    require_body,
    require_bound,
)
from perdure.journal.requests import Steps


class _QueuedEntry(NamedTuple):
    """An entry that `ForwardReader` has read but not yet returned: verified, or with its error."""

    first: int
    last: int
    """Its last position that belongs to the history."""
    digest: str
    linked: VerifiedEntry | None
    error: PerdureError | None = None
    damage: Sequence[ChainError] = ()
    """The errors of records whose body does not match the header."""


class ForwardReader:
    """Reads from a position to the end of a history, entry by entry.

    An entry is returned only after its successor, or the tip, confirms its digest, because an
    altered header can still parse. Damage is raised, or reported to `on_damage` and skipped.
    """

    def __init__(
        self, history: History, *, after: int = 0, on_damage: OnDamage | None = None
    ) -> None:
        segments = [segment for segment in history.segments if segment.high > after]
        start = max(after, segments[0].low) if segments else after
        self._history = history
        self._on_damage = on_damage
        self._after = self._at = start
        # None: the first entry may begin before `after`, and what it links to is not known.
        self._previous = ChainTip(0, "") if start == 0 else None
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        self._waiting: list[_QueuedEntry] = []
        self._ready: list[VerifiedRecord] = []

    def page(self, limit: int = PAGE) -> Steps[list[VerifiedRecord] | None]:
        """Return the records of the next entries (maybe none yet), or None at the end."""
        if self._segment is None:
            return None
        yield from self._fill(self._segment, limit)
        ended = self._segment is None
        while self._waiting and (ended or len(self._waiting) > 2):  # noqa: PLR2004 - see _is_confirmed
            self._deliver(self._waiting.pop(0))
        ready, self._ready = self._ready, []
        return ready

    # Reading entries.

    def _fill(self, segment: Segment, limit: int) -> Steps[None]:
        start = self._at
        limit = min(limit, segment.high - self._at)
        entries = yield from self._read(segment, limit)
        if entries and entries[0].position > start + 1:
            yield from self._require_not_compacted(segment.stream.session, start + 1)
        for entry in entries:
            if entry.position <= segment.high:
                self._queue(segment, entry)
                linked = self._waiting[-1].linked
                if self._history.cipher.is_placed and linked is not None:
                    yield from key_store.load_keys(self._history.cipher, linked.header)
        if self._at == start:
            yield from self._skip_segment(segment)
        if self._at >= segment.high:
            self._segment = next(self._segments, None)

    def _require_not_compacted(self, name: str, position: int) -> Steps[None]:
        """Raise if another process has compacted the session since this view was read."""
        try:
            error = yield from why_dropped(name, position, self._history.cipher)
        except DamagedError:
            if self._on_damage is None:
                raise
            return  # It is reported with the entry that is damaged.
        if isinstance(error, CompactedError):
            raise error

    def _read(self, segment: Segment, limit: int) -> Steps[Sequence[Entry]]:
        name, after = segment.stream.session, self._at
        try:
            return (yield from read_page(name, after=after, limit=limit))
        except DamagedError:
            if self._on_damage is None:
                raise
        # The store cannot read that page: read single entries, to skip only the damaged ones.
        try:
            return (yield from requests.read(name, after=after, limit=1))
        except DamagedError as error:
            self._queue_error(after + 1, error)
            return ()

    def _queue(self, segment: Segment, entry: Entry) -> None:
        name = segment.stream.session
        if entry.position > self._at + 1:
            gap = ChainError(name, self._at + 1, f"it is missing, up to {entry.position}")
            self._queue_error(entry.position - 1, gap)
        first, last = max(entry.position, self._at + 1), min(entry.last, segment.high)
        digest, damage = chain.entry_digest(entry), list[ChainError]()
        try:
            if self._at > self._after and entry.position <= self._at:
                raise ChainError(name, first, "its entry overlaps the one before it")
            linked = chain.verify_entry(name, entry, damage.append)
            chain.require_same_stream(segment.stream, linked)
            self._waiting.append(_QueuedEntry(first, last, digest, linked, damage=damage))
        except (DamagedError, VersionError) as error:
            self._waiting.append(_QueuedEntry(first, last, digest, None, error))
        self._at = last

    def _queue_error(self, position: int, error: DamagedError) -> None:
        self._waiting.append(_QueuedEntry(self._at + 1, position, "", None, error))
        self._at = position

    def _skip_segment(self, segment: Segment) -> Steps[None]:
        try:
            cipher = self._history.cipher
            yield from explain_missing(segment.stream.session, self._at + 1, cipher)
        except ChainError as error:
            self._queue_error(self._at + 1, error)
            self._at = segment.high

    # Returning records.

    def _deliver(self, item: _QueuedEntry) -> None:
        name = self._history.stream.session
        try:
            if item.linked is None or not self._is_confirmed(item):
                raise self._error(name, item)
            self._require_linked(name, item.linked)
            self._previous = ChainTip(item.last, item.digest)
        except DamagedError as error:
            self._report(error)
            self._previous = ChainTip(item.last, None)
            if item.digest:  # All records of an entry are lost with it. A gap is one error.
                for position in range(item.first + 1, item.last + 1):
                    self._report(ChainError(name, position, error.reason))
            return
        for damage in item.damage:
            if self._after < damage.position <= item.last:
                self._report(damage)
        for record in item.linked.records:
            if self._after < record.position <= item.last:
                self._add(name, record)

    def _add(self, name: str, record: VerifiedRecord) -> None:
        try:
            require_body(name, record, self._history.erasures, self._history.cipher)
            self._ready.append(record)
        except DamagedError as error:
            self._report(error)

    def _report(self, error: DamagedError) -> None:
        if self._on_damage is None:
            raise error
        self._on_damage(error)

    def _is_confirmed(self, item: _QueuedEntry) -> bool:
        """Whether the successor or the tip links to this entry, or the successor is altered.

        If the successor does not link here, it is itself the altered entry, unless its own
        successor confirms it.
        """
        if item.last == self._history.tip.position:
            return self._history.tip.digest in (None, item.digest)
        successor = self._successor(item)
        return (
            successor is None
            or self._successor_confirms(item)
            or not self._successor_confirms(successor)
        )

    def _successor_confirms(self, item: _QueuedEntry) -> bool:
        if item.last == self._history.tip.position:
            return self._history.tip.digest == item.digest
        successor = self._successor(item)
        if successor is None or successor.linked is None:
            return True
        return successor.linked.header.previous == item.digest

    def _successor(self, item: _QueuedEntry) -> _QueuedEntry | None:
        return next((other for other in self._waiting if other.first == item.last + 1), None)

    def _error(self, name: str, item: _QueuedEntry) -> PerdureError:
        # A VersionError counts only for an unaltered entry: damage can produce any version number.
        if item.error is not None and (
            isinstance(item.error, DamagedError) or self._successor_confirms(item)
        ):
            return item.error
        return ChainError(name, item.first, "it is not the entry that its successor links to")

    def _require_linked(self, name: str, linked: VerifiedEntry) -> None:
        if self._previous is not None:
            chain.require_follows(name, self._previous, linked)
        is_first = linked.entry.position == self._history.begin and not self._history.compacted
        if linked.entry.position == 1 or is_first:
            require_bound(name, linked)
