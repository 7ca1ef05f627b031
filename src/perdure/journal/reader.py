"""Read a session's history, backward from a known tip or forward to it, verifying every link. Pure.

A branch shares its parent's history, so a history can span several streams. Positions run through
all of them, so a position identifies the stream to read.

I/O is yielded as requests (see `requests`). Damage is raised, never skipped silently.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar

import msgspec

from perdure.backends.protocol import Append, Entry, Head
from perdure.errors import (
    ChainError,
    CompactedError,
    DamagedError,
    NotFoundError,
    PerdureError,
    VersionError,
)
from perdure.journal import chain, requests
from perdure.journal.chain import BatchAssembler, ChainTip, StreamIdentity, VerifiedEntry
from perdure.journal.cipher import Cipher, PlainCipher
from perdure.journal.compaction import Compacted
from perdure.journal.records import BatchDiscarded, Branched, Content, Deleted
from perdure.journal.requests import Read, Steps


class ParentStream(NamedTuple):
    """A stream whose records up to position `at` are part of this session's history."""

    name: str
    stream: str
    at: int


PAGE = 128  # entries; half a snapshot interval, so that opening takes two or three reads


OnDamage = Callable[[DamagedError], object]

ContentT = TypeVar("ContentT", bound=Content)


_PLAIN = PlainCipher()


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
    torn: tuple[int, int] | None = None
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
        return msgspec.structs.replace(self, tip=tip, torn=None)

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


def explain_missing(name: str, position: int) -> Steps[NoReturn]:
    """Raise for a missing entry: why its session no longer has it, else ChainError.

    NotFoundError if the session was deleted, CompactedError if it was compacted.
    """
    error = yield from _why_dropped(name, position)
    raise error or ChainError(name, position, "it is missing")


def _why_dropped(name: str, position: int) -> Steps[NotFoundError | None]:
    """Return the error if a deletion or a compaction has removed the entry at a position."""
    first = yield from requests.read(name, after=0, limit=1)
    if not first or first[0].position <= position:
        return None
    if chain.verify_entry(name, first[0]).header.kind == Deleted.kind:
        return NotFoundError(f"session {name!r}", "it was deleted while it was being read")
    compaction = yield from find_compaction(name)
    if compaction is not None and first[0].position <= compaction.first:
        return CompactedError(name, position, compaction.first)
    return None


class CompactionPlace(NamedTuple):
    """The newest compaction of a stream: its position, and the first one that it kept."""

    position: int
    first: int


def find_compaction(name: str) -> Steps[CompactionPlace | None]:
    """Return the newest compaction of a stream, or None.

    Reads backward from the end. Only errors and salvage need it: the state has it.
    """
    after = 0
    while entries := (yield from requests.read(name, after=after, limit=PAGE, reverse=True)):
        for entry in entries:
            linked = chain.verify_entry(name, entry)
            if linked.header.kind == Compacted.kind:
                content = chain.decode_content(name, linked, _PLAIN)
                content = require_kind(name, entry.position, content, Compacted)
                return CompactionPlace(entry.position, content.first)
        after = entries[-1].position
        if after == 1:
            break
    return None


def read_entry(history: History, position: int, *, check_tip: bool = True) -> Steps[VerifiedEntry]:
    """Read one entry; verify it against its own header and stream, and check the tip.

    A single entry does not link to the tip of its history, so it may be of another history that the
    store was put back to. A caller that reads several passes `check_tip=False` and checks it after
    them, by `require_tip` or by reading backward from it.
    """
    carrier = history.carried.get(position)
    if carrier is not None and position < history.begin:
        linked = yield from read_entry(history, carrier, check_tip=check_tip)
        return chain.unwrap(history.stream.session, linked, history.cipher)
    stream = history.segment(position).stream
    entries = yield from requests.read(stream.session, after=position - 1, limit=1)
    if not entries or entries[0].position != position:
        yield from explain_missing(stream.session, position)
    linked = chain.verify_entry(stream.session, entries[0])
    chain.require_same_stream(stream, linked)
    if position == history.tip.position:
        _require_digest(history, linked)
    elif check_tip:
        yield from require_tip(history)
    return linked


def is_discarded(history: History, linked: VerifiedEntry) -> Steps[bool]:
    """Return whether a crash truncated the batch of an entry: then it does not count as stored.

    Ask it of positions that a caller chose: no record refers to a discarded one.
    """
    left, position = linked.header.remaining, linked.entry.position
    if not left:
        return False
    name = history.segment(position).stream.session
    rest = yield from requests.read(name, after=position, limit=left)
    headers = [chain.verify_entry(name, entry).header for entry in rest]
    for expected, header in enumerate(headers, position + 1):
        if header.position != expected:
            yield from explain_missing(name, expected)
    return len(headers) < left or any(header.kind == BatchDiscarded.kind for header in headers)


def require_tip(history: History) -> Steps[None]:
    """Raise ChainError unless the store still has the last entry of a history."""
    tip = history.tip
    if not tip.position:
        return
    # The head is enough while no other process writes, and the last entry may be long.
    head = yield from requests.head(history.segment(tip.position).stream.session)
    if head is None or (head.position, head.digest) != (tip.position, tip.digest):
        yield from read_entry(history, tip.position)


def _require_digest(history: History, linked: VerifiedEntry) -> None:
    if history.tip.digest not in (None, linked.digest):
        name, reason = history.stream.session, "it is not the entry that was read before"
        raise ChainError(name, history.tip.position, reason)


def read_content(history: History, position: int, *, check_tip: bool = True) -> Steps[Content]:
    """Read the record at a position, of whatever kind it is."""
    linked = yield from read_entry(history, position, check_tip=check_tip)
    return chain.decode_content(history.stream.session, linked, history.cipher)


def read_kind(
    history: History, position: int, kind: type[ContentT], *, check_tip: bool = True
) -> Steps[ContentT]:
    """Read the record at a position; ChainError if it is of another kind."""
    content = yield from read_content(history, position, check_tip=check_tip)
    return require_kind(history.stream.session, position, content, kind)


def require_kind(name: str, position: int, content: Content, kind: type[ContentT]) -> ContentT:
    """Return a record that another one refers to; ChainError if it is of another kind."""
    if not isinstance(content, kind):
        raise ChainError(name, position, f"a record of kind {kind.kind!r} is expected here")
    return content


def verify_stored(append: Append) -> Steps[None]:
    """Raise DamagedError unless the store returns exactly the entries it acknowledged.

    It is no damage if another process deleted or compacted the session since, and dropped them.
    """
    name, first, last = append.stream, append.entries[0].position, append.entries[-1]
    entries = yield from requests.read(name, after=first - 1, limit=len(append.entries))
    stored = {entry.position: entry for entry in entries}
    wrong = [entry for entry in append.entries if stored.get(entry.position) != entry]
    if wrong:
        is_missing = not any(entry.position in stored for entry in wrong)
        if is_missing and (yield from _why_dropped(name, last.position)) is not None:
            return
        reason = "the entry read back differs from the one written"
        raise DamagedError(name, wrong[0].position, reason)
    head = yield from requests.head(name)
    end = ChainTip(head.position, head.digest) if head else ChainTip(0, "")
    written = ChainTip(last.position, chain.entry_digest(last))
    # A later position is fine: another writer may have appended since.
    if end != written and end.position <= written.position:
        raise DamagedError(name, last.position, "the head was not advanced to the written entry")


def require_head(name: str, head: Head | None, tail: Sequence[VerifiedEntry]) -> None:
    """Raise unless the tail that was read matches the head; this detects a truncated tail."""
    if head is None:
        if tail:
            raise DamagedError(name, 0, "it has entries and no head")
        return
    if not tail or tail[0].entry.position < head.position:
        raise ChainError(name, head.position, "the head points to it, but it is missing")
    for linked in tail:
        if linked.entry.position == head.position and linked.digest != head.digest:
            raise ChainError(name, head.position, "it is not the entry that the head points to")


class BackwardReader:
    """Reads from a tip back to the beginning, verifying each entry by its successor.

    Without a history it starts at the end of the stream and takes the stream's id from there.
    """

    def __init__(
        self, name: str, cipher: Cipher, history: History | None = None, *, tenant: str
    ) -> None:
        self._name = name
        self._cipher = cipher
        self._tenant = tenant
        self._stream = history.stream if history else None
        self._expected = history.tip if history else None
        self.ended = history is not None and history.tip.position == 0
        self._begin = history.begin if history is not None and history.compacted else 0
        """Where the history begins if it was compacted: without a history, its record says so."""
        if history is not None and history.tip.position:
            self._enter(history.segment(history.tip.position).stream)

    def _enter(self, stream: StreamIdentity) -> None:
        self._name, self._stream = stream.session, stream

    def page(self, limit: int = PAGE) -> Steps[list[VerifiedEntry]]:
        """Return the next entries, newest first; an empty list at the beginning of the history."""
        if self.ended:
            return []
        after = self._expected.position + 1 if self._expected else 0
        # As `requests.read`: every window and every opening reads through here.
        entries: Sequence[Entry] = yield Read(self._name, after, limit, reverse=True)
        if not entries:
            if self._expected is not None:
                yield from explain_missing(self._name, self._expected.position)
            self.ended = True
        page = []
        for entry in entries:
            page.append(self._check(entry))
            if self.ended:  # Entries that a compaction is about to drop may follow.
                break
        return page

    def _check(self, entry: Entry) -> VerifiedEntry:
        linked = chain.verify_entry(self._name, entry)
        header = linked.header
        if self._stream is None:
            self._stream = StreamIdentity(self._name, header.stream, self._tenant)
        chain.require_same_stream(self._stream, linked)
        if self._expected is not None and linked.tip != self._expected:
            raise _broken_link(self._name, self._expected, linked)
        self._expected = ChainTip(entry.position - 1, header.previous)
        if header.kind == Branched.kind:
            self._cross(linked)
        elif header.kind == Deleted.kind or entry.position == 1:
            self.ended = True
            _require_bound(self._name, linked)
        elif header.kind == Compacted.kind and not self._begin:
            content = chain.decode_content(self._name, linked, self._cipher)
            self._begin = require_kind(self._name, entry.position, content, Compacted).first
        if entry.position == self._begin:
            self.ended = True
        return linked

    def _cross(self, linked: VerifiedEntry) -> None:
        _require_bound(self._name, linked)
        parent = decode_parent(self._name, linked, self._cipher)
        self._enter(StreamIdentity(parent.parent, parent.stream, self._tenant))


def _broken_link(name: str, expected: ChainTip, linked: VerifiedEntry) -> ChainError:
    position = linked.entry.position
    if position != expected.position:
        return ChainError(name, expected.position, f"it is missing: found entry {position} instead")
    return ChainError(name, position, "it is not the entry that its successor links to")


def _require_bound(name: str, linked: VerifiedEntry) -> None:
    if linked.header.session is None:
        raise ChainError(name, linked.entry.position, "the first entry names no session")


def decode_parent(name: str, linked: VerifiedEntry, cipher: Cipher) -> Branched:
    """Return the first record of a branch; ChainError unless it follows its parent's history."""
    content = chain.decode_content(name, linked, cipher)
    if not isinstance(content, Branched) or not 0 < content.at == linked.entry.position - 1:
        raise ChainError(name, linked.entry.position, "it does not continue its parent's history")
    return content


def discarded_range(history: History, linked: VerifiedEntry) -> tuple[int, int]:
    """Return the positions of the torn batch that a `batch.discarded` record names."""
    name = history.stream.session
    content = chain.decode_content(name, linked, history.cipher)
    discarded = require_kind(name, linked.entry.position, content, BatchDiscarded)
    return discarded.first, discarded.last


class _QueuedEntry(NamedTuple):
    """An entry that `ForwardReader` has read but not yet returned: verified, or with its error."""

    position: int
    digest: str
    linked: VerifiedEntry | None
    error: PerdureError | None = None


class ForwardReader:
    """Reads from a position to the end of a history, in complete batches.

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
        self._at = start
        self._previous = ChainTip(start, "" if start == 0 else None)
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        self._waiting: list[_QueuedEntry] = []
        self._batches = BatchAssembler(history.stream.session)
        self._ready: list[VerifiedEntry] = []
        self.torn: list[tuple[int, int]] = []

    def page(self, limit: int = PAGE) -> Steps[list[VerifiedEntry] | None]:
        """Return the entries of the next complete batches (maybe none yet), or None at the end."""
        if self._segment is None:
            return None
        yield from self._fill(self._segment, limit)
        ended = self._segment is None
        while self._waiting and (ended or len(self._waiting) > 2):  # noqa: PLR2004 - see _is_confirmed
            self._deliver(self._waiting.pop(0))
        if ended:
            self._end_torn()
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
        if self._at == start:
            yield from self._skip_segment(segment)
        if self._at >= segment.high:
            self._segment = next(self._segments, None)

    def _require_not_compacted(self, name: str, position: int) -> Steps[None]:
        """Raise if another process has compacted the session since this view was read."""
        try:
            error = yield from _why_dropped(name, position)
        except DamagedError:
            if self._on_damage is None:
                raise
            return  # It is reported with the entry that is damaged.
        if isinstance(error, CompactedError):
            raise error

    def _read(self, segment: Segment, limit: int) -> Steps[Sequence[Entry]]:
        name, after = segment.stream.session, self._at
        try:
            return (yield from requests.read(name, after=after, limit=limit))
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
        if entry.position != self._at + 1:
            gap = ChainError(name, self._at + 1, f"it is missing, up to {entry.position}")
            self._queue_error(entry.position - 1, gap)
        digest = chain.entry_digest(entry)
        try:
            linked = chain.verify_entry(name, entry)
            chain.require_same_stream(segment.stream, linked)
            self._waiting.append(_QueuedEntry(entry.position, digest, linked))
        except (DamagedError, VersionError) as error:
            self._waiting.append(_QueuedEntry(entry.position, digest, None, error))
        self._at = entry.position

    def _queue_error(self, position: int, error: DamagedError) -> None:
        self._waiting.append(_QueuedEntry(position, "", None, error))
        self._at = position

    def _skip_segment(self, segment: Segment) -> Steps[None]:
        try:
            yield from explain_missing(segment.stream.session, self._at + 1)
        except ChainError as error:
            self._queue_error(self._at + 1, error)
            self._at = segment.high

    # Returning entries.

    def _deliver(self, item: _QueuedEntry) -> None:
        name = self._history.stream.session
        try:
            if item.linked is None or not self._is_confirmed(item):
                raise self._error(name, item)
            self._require_linked(name, item.linked)
            self._previous = item.linked.tip
            self._add_to_batch(item.linked)
        except DamagedError as error:
            if self._on_damage is None:
                raise
            self._on_damage(error)
            self._previous = ChainTip(item.position, None)
            self._ready += self._batches.flush()

    def _is_confirmed(self, item: _QueuedEntry) -> bool:
        """Whether the successor or the tip links to this entry, or the successor is altered.

        If the successor does not link here, it is itself the altered entry, unless its own
        successor confirms it.
        """
        if item.position == self._history.tip.position:
            return self._history.tip.digest in (None, item.digest)
        successor = self._successor(item.position)
        return (
            successor is None
            or self._successor_confirms(item)
            or not self._successor_confirms(successor)
        )

    def _successor_confirms(self, item: _QueuedEntry) -> bool:
        if item.position == self._history.tip.position:
            return self._history.tip.digest == item.digest
        successor = self._successor(item.position)
        if successor is None or successor.linked is None:
            return True
        return successor.linked.header.previous == item.digest

    def _successor(self, position: int) -> _QueuedEntry | None:
        return next((item for item in self._waiting if item.position == position + 1), None)

    def _error(self, name: str, item: _QueuedEntry) -> PerdureError:
        # A VersionError counts only for an unaltered entry: damage can produce any version number.
        if item.error is not None and (
            isinstance(item.error, DamagedError) or self._successor_confirms(item)
        ):
            return item.error
        return ChainError(name, item.position, "it is not the entry that its successor links to")

    def _require_linked(self, name: str, linked: VerifiedEntry) -> None:
        chain.require_follows(name, self._previous, linked)
        is_first = linked.entry.position == self._history.begin and not self._history.compacted
        if linked.entry.position == 1 or is_first:
            _require_bound(name, linked)

    def _add_to_batch(self, linked: VerifiedEntry) -> None:
        if linked.header.kind == BatchDiscarded.kind:
            self._end_torn()
        elif linked.header.kind == Branched.kind:  # Shared history may end within a batch.
            self._ready += self._batches.flush()
        self._ready += self._batches.add(linked)

    def _end_torn(self) -> None:
        torn = self._batches.torn
        if torn is not None:
            self._batches.flush()
            self.torn.append(torn)
            if self._on_damage is not None:
                self._on_damage(chain.torn_error(self._history.stream.session, torn))
