"""Read a session's history, backward from a known tip or forward to it, verifying every link. Pure.

A branch shares its parent's history, so a history can span several streams. Positions run through
all of them, so a position identifies the stream to read.

I/O is yielded as requests (see `requests`). Damage is raised, never skipped silently.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from perdure.backends.protocol import Append, Entry
from perdure.errors import (
    ChainError,
    CompactedError,
    DamagedError,
    ErasedError,
    NotFoundError,
    PerdureError,
    VersionError,
)
from perdure.journal import chain, key_store, requests
from perdure.journal.chain import ChainTip, StreamIdentity, VerifiedEntry, VerifiedRecord
from perdure.journal.cipher import Cipher, keyed
from perdure.journal.compaction import Compacted
from perdure.journal.dropped import explain_missing, unwrap, why_dropped
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.pages import complete_page, read_page
from perdure.journal.records import (
    Branched,
    Content,
    Deleted,
    EmptiedContent,
    Erased,
    Snapshot,
)
from perdure.journal.requests import PAGE_BODY_MAX, Read, Steps


class ParentStream(NamedTuple):
    """A stream whose records up to position `at` are part of this session's history."""

    name: str
    stream: str
    at: int


PAGE = 128  # records, about, or entries; half a snapshot interval, so that opening takes few reads

FIRST_PAGE = 8  # entries; how many records an entry has is not known before the first page


OnDamage = Callable[[DamagedError], object]

ContentT = TypeVar("ContentT", bound=Content)


class Segment(NamedTuple):
    """The part of a history stored in one stream: positions after `low`, up to `high`."""

    stream: StreamIdentity
    low: int
    high: int


class History(msgspec.Struct, frozen=True, gc=False):
    """The streams that hold a session's entries up to a tip, and the cipher that opens them."""

    stream: StreamIdentity
    tip: ChainTip
    cipher: Cipher
    lineage: tuple[ParentStream, ...] = ()
    begin: int = 0
    erasures: Erasures | None = NOTHING_ERASED
    """None if they are not known: that of a session which could not be opened."""
    compacted: int = 0
    """The position of the record of the newest compaction, or 0."""
    carried: Mapping[int, int] = {}
    """By the position of a dropped record: that of the `carried` record that has it."""

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        segments = []
        stream, high = self.stream, self.tip.position
        for name, stream_id, at in self.lineage:
            if high > at:
                segments.append(Segment(stream, at, high))
            stream, high = StreamIdentity(name, stream_id, self.stream.tenant), min(at, high)
        segments.append(Segment(stream, max(self.begin - 1, 0), high))
        return segments[::-1]

    def until(self, tip: ChainTip) -> "History":
        """The same history, ending at an earlier tip."""
        return msgspec.structs.replace(self, tip=tip)

    @property
    def first(self) -> int:
        """The first position that can be read in order."""
        return max(self.begin, 1)

    def is_dropped(self, position: int) -> bool:
        """Whether a compaction dropped the record at a position, and no other record carries it."""
        return 0 < position < self.begin and bool(self.compacted) and position not in self.carried

    def segment(self, position: int) -> Segment:
        """The segment that holds a position.

        CompactedError if a compaction dropped it, ChainError if the history has no such position.
        """
        if self.is_dropped(position):
            raise CompactedError(self.stream.session, position, self.begin)
        for segment in self.segments:
            if segment.low < position <= segment.high:
                return segment
        raise ChainError(self.stream.session, position, "its history has no such position")


def read_record(
    history: History, position: int, *, check_tip: bool = True
) -> Steps[VerifiedRecord]:
    """Read the record at a position; verify its entry against its header, and check the tip.

    A single entry does not link to the tip of its history, so it may be of another history that the
    store was put back to. A caller that reads several passes `check_tip=False` and checks it after
    them, by `require_tip` or by reading backward from it.
    """
    carrier = history.carried.get(position)
    if carrier is not None and position < history.begin:
        carried = yield from read_record(history, carrier, check_tip=check_tip)
        return unwrap(history.stream.session, carried, history.cipher)
    stream = history.segment(position).stream
    # Backward: the entry that holds a position is the last one that does not begin after it.
    entries = yield from requests.read(stream.session, after=position + 1, limit=1, reverse=True)
    if not entries or not entries[0].position <= position <= entries[0].last:
        yield from explain_missing(stream.session, position, history.cipher)
    linked = chain.verify_entry(stream.session, entries[0])
    chain.require_same_stream(stream, linked)
    record = linked.records[position - linked.entry.position]
    if history.cipher.is_placed:
        yield from key_store.load_keys(history.cipher, linked.header)
    require_body(stream.session, record, history.erasures, history.cipher)
    if position == history.tip.position:
        _require_digest(history, record)
    elif check_tip:
        yield from require_tip(history)
    return record


def require_body(
    name: str, record: VerifiedRecord, erasures: Erasures | None, cipher: Cipher
) -> None:
    """Raise if a body was emptied, or its key destroyed, and no `erased` record names it.

    A record whose key was destroyed has no body from here on.
    """
    is_destroyed = cipher.is_placed and keyed(cipher).is_destroyed(record.header.stream, record.key)
    if record.body is not None and not is_destroyed:
        return
    if erasures and not erasures.cover(record.position, record.key):
        if is_destroyed:
            raise ErasedError(name, record.position, record.key)
        reason = "its body was overwritten, and no record says that it was erased"
        raise ChainError(name, record.position, reason)
    record.body = None


def require_tip(history: History) -> Steps[None]:
    """Raise ChainError unless the store still has the last entry of a history."""
    tip = history.tip
    if not tip.position:
        return
    # The head is enough while no other process writes, and the last entry may be long.
    head = yield from requests.head(history.segment(tip.position).stream.session)
    if head is None or (head.position, head.digest) != (tip.position, tip.digest):
        yield from read_record(history, tip.position)


def _require_digest(history: History, linked: VerifiedRecord) -> None:
    if history.tip.digest not in (None, linked.digest):
        name, reason = history.stream.session, "it is not the entry that was read before"
        raise ChainError(name, history.tip.position, reason)


def read_content(history: History, position: int, *, check_tip: bool = True) -> Steps[Content]:
    """Read the record at a position, of whatever kind it is."""
    linked = yield from read_record(history, position, check_tip=check_tip)
    return chain.decode_content(history.stream.session, linked, history.cipher)


def read_kind(
    history: History, position: int, kind: type[ContentT], *, check_tip: bool = True
) -> Steps[ContentT]:
    """Read the record at a position; ChainError if it is of another kind."""
    content = yield from read_content(history, position, check_tip=check_tip)
    return require_kind(history.stream.session, position, content, kind)


def require_kind(name: str, position: int, content: Content, kind: type[ContentT]) -> ContentT:
    """Return a record that another one refers to; ChainError if it is of another kind.

    NotFoundError if it was erased.
    """
    if isinstance(content, EmptiedContent):
        raise NotFoundError(f"the record at {position} in session {name!r}", "it was erased")
    if not isinstance(content, kind):
        raise ChainError(name, position, f"a record of kind {kind.kind!r} is expected here")
    return content


def verify_stored(append: Append, cipher: Cipher) -> Steps[None]:
    """Raise DamagedError unless the store returns exactly the entries it acknowledged.

    It is no damage if another process deleted or compacted the session since, and dropped them.
    """
    name, first, last = append.stream, append.entries[0].position, append.entries[-1]
    end_position = last.last
    entries = yield from requests.read(name, after=first - 1, limit=len(append.entries))
    stored = {entry.position: entry for entry in entries}
    wrong = [entry for entry in append.entries if stored.get(entry.position) != entry]
    if wrong:
        is_missing = not any(entry.position in stored for entry in wrong)
        if is_missing and (yield from why_dropped(name, end_position, cipher)) is not None:
            return
        reason = "the entry read back differs from the one written"
        raise DamagedError(name, wrong[0].position, reason)
    head = yield from requests.head(name)
    end = ChainTip(head.position, head.digest) if head else ChainTip(0, "")
    written = ChainTip(end_position, chain.entry_digest(last))
    # A later position is fine: another writer may have appended since.
    if end != written and end.position <= written.position:
        raise DamagedError(name, end_position, "the head was not advanced to the written entry")


def require_next(stream: StreamIdentity, tip: ChainTip, linked: VerifiedEntry) -> StreamIdentity:
    """Raise unless an entry follows the tip; return the stream, with its id filled in."""
    if not stream.id:
        stream = stream._replace(id=linked.header.stream)
    chain.require_same_stream(stream, linked)
    # Two kinds of entry need not link to the known tip: the first one of a stream, and a deletion,
    # after which everything before it may have been dropped. Compactions and snapshots name the
    # session too, also where nothing is left before them.
    header = linked.header
    begins = not tip.position and header.begins_stream
    begins = begins and header.kind not in (Compacted.kind, Snapshot.kind)
    dropped = header.kind == Deleted.kind and linked.entry.position > tip.position
    if not begins and not dropped:
        chain.require_follows(stream.session, tip, linked)
    return stream


_body_of = attrgetter("body")


class BackwardReader:
    """Reads from a tip back to the beginning, verifying each entry by its successor.

    Without a history it starts at the end of the stream and takes the stream's id from there.
    It returns records. An emptied body is damage, unless an `erased` record after it names it.
    """

    def __init__(
        self,
        name: str,
        cipher: Cipher,
        history: History | None = None,
        *,
        tenant: str,
        entries: Sequence[Entry] = (),
    ) -> None:
        self._read_before = entries
        """The first page, if the caller has read it."""
        self._name = name
        self._cipher = cipher
        self._is_sealed = cipher.is_placed
        self._tenant = tenant
        self._stream = history.stream if history else None
        self._expected = history.tip if history else None
        self._erasures = (history and history.erasures) or NOTHING_ERASED
        self._entries_read = self._records_read = 0
        self.ended = history is not None and history.tip.position == 0
        self._begin = history.begin if history is not None and history.compacted else 0
        """Where the history begins if it was compacted: without a history, its record says so."""
        if history is not None and history.tip.position:
            self._enter(history.segment(history.tip.position).stream)

    def _enter(self, stream: StreamIdentity) -> None:
        self._name, self._stream = stream.session, stream

    def page(self, limit: int = PAGE) -> Steps[list[VerifiedRecord]]:
        """Return the records of the next entries, newest first; none at the beginning.

        About `limit` records, given how many the entries so far have had.
        """
        if self.ended:
            return []
        after = self._expected.position + 1 if self._expected else 0
        size = min(limit, FIRST_PAGE)
        if self._entries_read:
            size = max(limit * self._entries_read // self._records_read, 1)
        entries, self._read_before = self._read_before, ()
        if not entries:
            # As `requests.read`: every window and every opening reads through here.
            entries = yield Read(self._name, after, size, reverse=True, max_body=PAGE_BODY_MAX)
        if None in map(_body_of, entries):
            entries = yield from complete_page(self._name, entries)
        if not entries:
            if self._expected is not None:
                yield from explain_missing(self._name, self._expected.position, self._cipher)
            self.ended = True
        records: list[VerifiedRecord] = []
        for entry in entries:
            expected = self._expected.digest if self._expected else None
            linked = chain.verify_entry(self._name, entry, digest=expected)
            if self._is_sealed:
                yield from key_store.load_keys(self._cipher, linked.header)
            records += self._check(linked)
            if self.ended:  # Entries that a compaction is about to drop may follow.
                break
        self._entries_read += len(entries)
        self._records_read += len(records)
        return records

    def _check(self, linked: VerifiedEntry) -> list[VerifiedRecord]:
        """Return the records of an entry, newest first, without those after the tip."""
        entry, header, expected = linked.entry, linked.header, self._expected
        if self._stream is None:
            self._stream = StreamIdentity(self._name, header.stream, self._tenant)
        chain.require_same_stream(self._stream, linked)
        records = [*reversed(linked.records)]
        if expected is not None:
            if not entry.position <= expected.position <= entry.last or (
                linked.digest != expected.digest and expected.digest is not None
            ):
                raise _broken_link(self._name, expected, linked)
            if entry.last > expected.position:  # A branch may begin within an entry.
                records = records[entry.last - expected.position :]
        self._expected = ChainTip(entry.position - 1, header.previous)
        self._note(records)
        if header.kind == Branched.kind:
            self._cross(linked)
        elif header.kind == Deleted.kind or entry.position == 1:
            self.ended = True
            _require_bound(self._name, linked)
        if entry.position == self._begin:
            self.ended = True
        return records

    def _note(self, records: Sequence[VerifiedRecord]) -> None:
        """Note where a compacted history begins, and which bodies were erased.

        Every emptied body must be named by an `erased` record, which comes after it.
        """
        for record in records:
            if record.body is None or self._is_sealed:
                require_body(self._name, record, self._erasures, self._cipher)
            if record.body is None:
                continue
            if record.kind == Erased.kind:
                content = chain.decode_content(self._name, record, self._cipher)
                self._erasures = self._erasures.add(content)
            elif record.kind == Compacted.kind and not self._begin:
                content = chain.decode_content(self._name, record, self._cipher)
                self._begin = require_kind(self._name, record.position, content, Compacted).first

    def _cross(self, linked: VerifiedEntry) -> None:
        _require_bound(self._name, linked)
        parent = parent_of(self._name, linked)
        self._enter(StreamIdentity(parent.name, parent.stream, self._tenant))


def _broken_link(name: str, expected: ChainTip, linked: VerifiedEntry) -> ChainError:
    first, last = linked.entry.position, linked.entry.last
    if not first <= expected.position <= last:
        return ChainError(name, expected.position, f"it is missing: found entry {last} instead")
    return ChainError(name, expected.position, "it is not the entry that its successor links to")


def _require_bound(name: str, linked: VerifiedEntry) -> None:
    if linked.header.bound is None:
        raise ChainError(name, linked.entry.position, "the first entry names no session")


def parent_of(name: str, linked: VerifiedEntry) -> ParentStream:
    """Return what a branch shares, given its first entry; ChainError if it shares nothing.

    The header says it, so that no key is needed.
    """
    bound, at = linked.header.bound, linked.entry.position - 1
    if linked.header.kind != Branched.kind or bound is None or at < 1:
        raise ChainError(name, at + 1, "it does not continue its parent's history")
    return ParentStream(bound[2], bound[3], at)


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
            _require_bound(name, linked)
