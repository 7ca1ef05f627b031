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
)
from perdure.journal import chain, key_store, requests
from perdure.journal.chain import ChainTip, StreamIdentity, VerifiedEntry, VerifiedRecord
from perdure.journal.cipher import Cipher, keyed
from perdure.journal.compaction import Compacted
from perdure.journal.dropped import explain_missing, unwrap, why_dropped
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.pages import complete_page
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
    tail: "ReadTail | None" = None
    """The records that opening has read, for the first reader from the end."""

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
        return msgspec.structs.replace(self, tip=tip, tail=None)

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
        self._again: tuple[History, Sequence[VerifiedRecord]] | None = None
        """The records to return once more, and the history that they end."""
        self._is_at_start = False
        """Whether there is nothing before what was read."""
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

    def start_again(self, history: History, records: Sequence[VerifiedRecord]) -> None:
        """Return the records that were read once more, and then those before them."""
        self._again, self._erasures = (history, records), history.erasures or NOTHING_ERASED
        self._begin = history.begin if history.compacted else 0
        self.ended = False

    def _repeat(
        self, history: History, records: Sequence[VerifiedRecord]
    ) -> Steps[list[VerifiedRecord]]:
        self._again = None
        yield from require_tip(history)  # The store may have been put back since.
        self.ended = self._is_at_start
        return [*records]

    def _read(self, limit: int) -> Steps[Sequence[Entry]]:
        after = self._expected.position + 1 if self._expected else 0
        size = min(limit, FIRST_PAGE)
        if self._entries_read:
            size = max(limit * self._entries_read // self._records_read, 1)
        entries, self._read_before = self._read_before, ()
        if not entries:
            # As `requests.read`: every window and every opening reads through here.
            entries = yield Read(self._name, after, size, reverse=True, max_body=PAGE_BODY_MAX)
        if None in map(_body_of, entries):
            return (yield from complete_page(self._name, entries))
        return entries

    def page(self, limit: int = PAGE) -> Steps[list[VerifiedRecord]]:
        """Return the records of the next entries, newest first; none at the beginning.

        About `limit` records, given how many the entries so far have had.
        """
        if self._again is not None:
            return (yield from self._repeat(*self._again))
        if self.ended:
            return []
        entries = yield from self._read(limit)
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
        self._is_at_start = self.ended
        return records

    def _check(self, linked: VerifiedEntry) -> list[VerifiedRecord]:
        """Return the records of an entry, newest first, without those after the tip."""
        entry, header, expected = linked.entry, linked.header, self._expected
        if self._stream is None:
            self._stream = StreamIdentity(self._name, header.stream, self._tenant)
        chain.require_same_stream(self._stream, linked)
        records = [*reversed(linked.records)]
        if expected is not None:
            last = entry.position + len(records) - 1
            if not entry.position <= expected.position <= last or (
                linked.digest != expected.digest and expected.digest is not None
            ):
                raise _broken_link(self._name, expected, linked)
            if last > expected.position:  # A branch may begin within an entry.
                records = records[last - expected.position :]
        self._expected = ChainTip(entry.position - 1, header.previous)
        self._note(records)
        if header.kind == Branched.kind:
            self._cross(linked)
        elif header.kind == Deleted.kind or entry.position == 1:
            self.ended = True
            require_bound(self._name, linked)
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
        require_bound(self._name, linked)
        parent = parent_of(self._name, linked)
        self._enter(StreamIdentity(parent.name, parent.stream, self._tenant))


class ReadTail:
    """The records that opening has read, newest first, and the reader that has read them.

    The first reader of the history takes them, so that they are not read twice. They are not kept
    any longer: a process may have many sessions open.
    """

    def __init__(self, records: Sequence[VerifiedRecord], backward: BackwardReader) -> None:
        self._taken = [(records, backward)]

    def take(self, history: History) -> BackwardReader | None:
        """Return a reader that begins with the records; None if another one has them."""
        try:
            records, backward = self._taken.pop()
        except IndexError:
            return None
        backward.start_again(history, records)
        return backward


def read_backward(history: History) -> BackwardReader:
    """Return a reader from the end of a history to its beginning."""
    known = history.tail.take(history) if history.tail is not None else None
    if known is not None:
        return known
    stream = history.stream
    return BackwardReader(stream.session, history.cipher, history, tenant=stream.tenant)


def _broken_link(name: str, expected: ChainTip, linked: VerifiedEntry) -> ChainError:
    first, last = linked.entry.position, linked.entry.last
    if not first <= expected.position <= last:
        return ChainError(name, expected.position, f"it is missing: found entry {last} instead")
    return ChainError(name, expected.position, "it is not the entry that its successor links to")


def require_bound(name: str, linked: VerifiedEntry) -> None:
    """Raise ChainError if the first entry of a stream does not name its session."""
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
