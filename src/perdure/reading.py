"""Read a session's past, backwards from a known end or forwards to it, checking every link. Pure.

A branch shares its parent's past, so a past can lie in several streams; positions count on through
them, so a position says in which one to look.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from perdure import journal, steps
from perdure.backend import Append, Entry, Head
from perdure.cipher import Cipher
from perdure.content import Content
from perdure.errors import ChainError, DamagedError, NotFoundError, PerdureError, VersionError
from perdure.fold import Ancestor
from perdure.journal import Batches, Linked, Stream, Tip
from perdure.records import Branched, Deleted, Recovered
from perdure.steps import Steps

PAGE = 128  # Half a snapshot interval: opening takes two or three reads.

OnDamage = Callable[[DamagedError], object]


class Segment(NamedTuple):
    """The part of a past that lies in one stream: positions after `low`, up to `high`."""

    stream: Stream
    low: int
    high: int


class Past(msgspec.Struct, frozen=True, gc=False):
    """Where everything up to a tip is to be found, and how to open it."""

    stream: Stream
    tip: Tip
    cipher: Cipher
    lineage: tuple[Ancestor, ...] = ()
    begin: int = 0
    torn: tuple[int, int] | None = None

    @property
    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        found = []
        stream, high = self.stream, self.tip.position
        for name, stream_id, at in self.lineage:
            if high > at:
                found.append(Segment(stream, at, high))
            stream, high = Stream(name, stream_id, self.stream.tenant), min(at, high)
        found.append(Segment(stream, max(self.begin - 1, 0), high))
        return found[::-1]

    def until(self, tip: Tip) -> "Past":
        """The part of it that ends at a tip."""
        return msgspec.structs.replace(self, tip=tip, torn=None)

    def segment(self, position: int) -> Segment:
        """The segment that holds a position."""
        return next(found for found in self.segments if found.low < position <= found.high)


def missing(name: str, position: int) -> Steps[NoReturn]:
    """Say why an entry is not there: its session was deleted meanwhile, or it is damage."""
    first = yield from steps.read(name, after=0, limit=1)
    begins_later = bool(first) and first[0].position > position
    if begins_later and journal.inspect(name, first[0]).header.kind == Deleted.kind:
        raise NotFoundError(f"session {name!r}", "it was deleted while it was being read")
    raise ChainError(name, position, "it is missing")


def entry_at(past: Past, position: int) -> Steps[Linked]:
    """Read one entry and check it against itself and its stream."""
    stream = past.segment(position).stream
    found = yield from steps.read(stream.session, after=position - 1, limit=1)
    if not found or found[0].position != position:
        yield from missing(stream.session, position)
    linked = journal.inspect(stream.session, found[0])
    journal.belongs(stream, linked)
    return linked


def content_at(past: Past, position: int) -> Steps[Content]:
    linked = yield from entry_at(past, position)
    return journal.decode(past.stream.session, linked, past.cipher)


def read_back(append: Append) -> Steps[None]:
    """Raise DamagedError unless the store gives back exactly what it said that it stored."""
    name, first, last = append.stream, append.entries[0].position, append.entries[-1]
    found = yield from steps.read(name, after=first - 1, limit=len(append.entries))
    if list(found) != list(append.entries):
        wrong = [given.position for given in append.entries if given not in found]
        raise DamagedError(name, wrong[0], "what was read back is not what was written")
    head = yield from steps.head(name)
    reached = Tip(head.position, head.digest) if head else Tip(0, "")
    written = Tip(last.position, journal.digest(last))
    if reached != written and reached.position <= written.position:
        raise DamagedError(name, last.position, "the head was not moved to what was written")


def require_head(name: str, head: Head | None, tail: Sequence[Linked]) -> None:
    """Raise unless what was read agrees with the head: a tail that was cut off shows here."""
    if head is None or not tail:
        if head is not None:
            raise ChainError(name, head.position, "the head names it, but it is missing")
        if tail:
            raise DamagedError(name, 0, "it has entries, but no head")
        return
    if tail[0].entry.position < head.position:
        raise ChainError(name, head.position, "the head names it, but it is missing")
    for linked in tail:
        if linked.entry.position == head.position and linked.digest != head.digest:
            raise ChainError(name, head.position, "it is not the entry that the head names")


class Backward:
    """Reads from an end to the beginning, each entry checked by the one after it.

    Without a tip it begins wherever the stream ends, and takes the stream's id from there.
    """

    def __init__(self, name: str, cipher: Cipher, past: Past | None = None, *, tenant: str) -> None:
        self._name = name
        self._cipher = cipher
        self._tenant = tenant
        self._stream = past.stream if past else None
        self._expected = past.tip if past else None
        self.ended = past is not None and past.tip.position == 0
        if past is not None and past.tip.position:
            self._enter(past.segment(past.tip.position).stream)

    def _enter(self, stream: Stream) -> None:
        self._name, self._stream = stream.session, stream

    def page(self, limit: int = PAGE) -> Steps[list[Linked]]:
        """Return the next entries, newest first; none at the beginning of the past."""
        if self.ended:
            return []
        after = self._expected.position + 1 if self._expected else 0
        entries = yield from steps.read(self._name, after=after, limit=limit, reverse=True)
        if not entries:
            if self._expected is not None:
                yield from missing(self._name, self._expected.position)
            self.ended = True
        return [self._check(entry) for entry in entries]

    def _check(self, entry: Entry) -> Linked:
        linked = journal.inspect(self._name, entry)
        header = linked.header
        if self._stream is None:
            self._stream = Stream(self._name, header.stream, self._tenant)
        journal.belongs(self._stream, linked)
        if self._expected is not None and linked.tip != self._expected:
            raise _broken(self._name, self._expected, linked)
        self._expected = Tip(entry.position - 1, header.previous)
        if header.kind == Branched.kind:
            self._cross(linked)
        elif header.kind == Deleted.kind or entry.position == 1:
            self.ended = True
            _require_bound(self._name, linked)
        return linked

    def _cross(self, linked: Linked) -> None:
        _require_bound(self._name, linked)
        parent = _branched(self._name, linked, self._cipher)
        self._enter(Stream(parent.parent, parent.stream, self._tenant))


def _broken(name: str, expected: Tip, linked: Linked) -> ChainError:
    position = linked.entry.position
    if position != expected.position:
        return ChainError(name, expected.position, f"it is missing: {position} stands there")
    return ChainError(name, position, "it is not the entry that the next one links to")


def _require_bound(name: str, linked: Linked) -> None:
    if linked.header.session is None:
        raise ChainError(name, linked.entry.position, "the first entry names no session")


def _branched(name: str, linked: Linked, cipher: Cipher) -> Branched:
    content = journal.decode(name, linked, cipher)
    if not isinstance(content, Branched) or content.at != linked.entry.position - 1:
        raise ChainError(name, linked.entry.position, "it does not continue its parent's past")
    return content


def newest_first(past: Past, *, kinds: frozenset[str], count: int | None) -> Steps[list[Linked]]:
    """Return the newest entries of some kinds, at most `count`, newest first.

    Entries of torn batches are left out: a torn tail by its range, earlier ones by the record
    that found them.
    """
    found: list[Linked] = []
    backward = Backward(past.stream.session, past.cipher, past, tenant=past.stream.tenant)
    torn = past.torn or (0, 0)
    wanted = PAGE if count is None else min(PAGE, 2 * count + 2)
    while not backward.ended and (count is None or len(found) < count):
        page = yield from backward.page(wanted)
        wanted = min(PAGE, 2 * wanted)  # Where few of them are of these kinds, it is soon passed.
        for linked in page:
            if linked.header.kind == Recovered.kind:
                content = journal.decode(past.stream.session, linked, past.cipher)
                torn = (content.first, content.last) if isinstance(content, Recovered) else torn
            if linked.header.kind in kinds and not torn[0] <= linked.entry.position <= torn[1]:
                found.append(linked)
    return found if count is None else found[:count]


class _Item(NamedTuple):
    """An entry on its way through `Forward`: checked against itself, or what is wrong with it."""

    position: int
    digest: str
    linked: Linked | None
    error: PerdureError | None = None


class Forward:
    """Reads from a position up to the end of a past, whole batches at a time.

    An entry is given out only when the one after it, or the tip, vouches for it: a header can be
    altered so that it still parses. Damage is raised, or reported to `on_damage` and stepped over.
    """

    def __init__(self, past: Past, *, after: int = 0, on_damage: OnDamage | None = None) -> None:
        segments = [found for found in past.segments if found.high > after]
        start = max(after, segments[0].low) if segments else after
        self._past = past
        self._on_damage = on_damage
        self._at = start
        self._before = Tip(start, "" if start == 0 else None)
        self._segments = iter(segments)
        self._segment = next(self._segments, None)
        self._waiting: list[_Item] = []
        self._batches = Batches(past.stream.session)
        self._ready: list[Linked] = []
        self.torn: list[tuple[int, int]] = []

    def page(self, limit: int = PAGE) -> Steps[list[Linked] | None]:
        """Return the next whole entries (there may be none yet), or None at the end."""
        if self._segment is None:
            return None
        yield from self._fill(self._segment, limit)
        ended = self._segment is None
        while self._waiting and (ended or len(self._waiting) > 2):  # noqa: PLR2004 - see _verdict
            self._settle(self._waiting.pop(0))
        if ended:
            self._end_torn()
        ready, self._ready = self._ready, []
        return ready

    # Taking entries in.

    def _fill(self, segment: Segment, limit: int) -> Steps[None]:
        before = self._at
        room = min(limit, segment.high - self._at)
        for entry in (yield from self._read(segment, room)):
            if entry.position <= segment.high:
                self._take(segment, entry)
        if self._at == before:
            yield from self._lost(segment)
        if self._at >= segment.high:
            self._segment = next(self._segments, None)

    def _read(self, segment: Segment, limit: int) -> Steps[Sequence[Entry]]:
        name, after = segment.stream.session, self._at
        try:
            return (yield from steps.read(name, after=after, limit=limit))
        except DamagedError:
            if self._on_damage is None:
                raise
        # The store can not read that page: go one by one, to lose no more than is damaged.
        try:
            return (yield from steps.read(name, after=after, limit=1))
        except DamagedError as error:
            self._miss(after + 1, error)
            return ()

    def _take(self, segment: Segment, entry: Entry) -> None:
        name = segment.stream.session
        if entry.position != self._at + 1:
            missing_from = ChainError(name, self._at + 1, f"it is missing, up to {entry.position}")
            self._miss(entry.position - 1, missing_from)
        digest = journal.digest(entry)
        try:
            linked = journal.inspect(name, entry)
            journal.belongs(segment.stream, linked)
            self._waiting.append(_Item(entry.position, digest, linked))
        except (DamagedError, VersionError) as error:
            self._waiting.append(_Item(entry.position, digest, None, error))
        self._at = entry.position

    def _miss(self, position: int, error: DamagedError) -> None:
        self._waiting.append(_Item(position, "", None, error))
        self._at = position

    def _lost(self, segment: Segment) -> Steps[None]:
        try:
            yield from missing(segment.stream.session, self._at + 1)
        except ChainError as error:
            self._miss(self._at + 1, error)
            self._at = segment.high

    # Giving entries out.

    def _settle(self, item: _Item) -> None:
        name = self._past.stream.session
        try:
            if item.linked is None or not self._vouched(item):
                raise self._verdict(name, item)
            self._link(name, item.linked)
            self._before = item.linked.tip
            self._batch(item.linked)
        except DamagedError as error:
            if self._on_damage is None:
                raise
            self._on_damage(error)
            self._before = Tip(item.position, None)
            self._ready += self._batches.flush()

    def _vouched(self, item: _Item) -> bool:
        """Whether the next entry, or the tip, names this one; or the next one is the altered one.

        If the next entry does not link here, it is the next one that is altered unless its own
        successor vouches for it.
        """
        if item.position == self._past.tip.position:
            return self._past.tip.digest in (None, item.digest)
        following = self._after(item.position)
        if following is None or following.linked is None:
            return True
        if following.linked.header.previous == item.digest:
            return True
        return not self._named_by_successor(following)

    def _named_by_successor(self, item: _Item) -> bool:
        if item.position == self._past.tip.position:
            return self._past.tip.digest == item.digest
        following = self._after(item.position)
        if following is None or following.linked is None:
            return True
        return following.linked.header.previous == item.digest

    def _after(self, position: int) -> _Item | None:
        found = (item for item in self._waiting if item.position == position + 1)
        return next(found, None)

    def _verdict(self, name: str, item: _Item) -> PerdureError:
        if item.error is not None and (
            isinstance(item.error, DamagedError) or self._named_by_successor(item)
        ):
            return item.error
        return ChainError(name, item.position, "it is not the entry that the next one links to")

    def _link(self, name: str, linked: Linked) -> None:
        journal.follows(name, self._before, linked)
        if linked.entry.position in (1, self._past.begin):
            _require_bound(name, linked)

    def _batch(self, linked: Linked) -> None:
        if linked.header.kind == Recovered.kind:
            self._end_torn()
        elif linked.header.kind == Branched.kind:  # A shared past may end within a batch.
            self._ready += self._batches.flush()
        self._ready += self._batches.add(linked)

    def _end_torn(self) -> None:
        torn = self._batches.torn
        if torn is not None:
            self._batches.flush()
            self.torn.append(torn)
            if self._on_damage is not None:
                self._on_damage(journal.torn_error(self._past.stream.session, torn))
