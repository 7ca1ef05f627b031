"""Drop the older part of a session, and keep all that the rest of it needs. Pure.

In: a loaded session, and how much of it to keep. Out: steps that find where to cut, a plan that
writes the compaction, and steps that drop what is before the cut.

The compaction is one append: the kept ids of callers as a new run of the index, the dropped ones,
the records that the state still refers to (`carried`), and the `compacted` record, with the state
before the cut. The parts of large bodies that are still cited are stored again before it, one by
one, because together they may not fit into one append. Only then entries are dropped. After a
crash in between, the session reads as compacted, and the next compaction drops the rest.

A cut is between two appends, where no turn is open, no call waits for its result and no answer is
unfinished. It is not inside a failed turn that was continued, and not after the last stored state
of a view. So all of these survive.

To edit: nothing may be dropped that a published state can lead to; `cited_positions` lists it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from perdure.core import dropped_ids, index, lifecycle
from perdure.core.plans import Plan, RecordBatch, strip_derived
from perdure.core.replica import Replica
from perdure.core.state.conversation import ConversationState
from perdure.core.state.session_state import STATE_VERSION, SessionState
from perdure.core.validation import require_int
from perdure.errors import UsageError
from perdure.journal import chain, codec, reader
from perdure.journal.chain import PendingRecord, VerifiedRecord
from perdure.journal.compaction import Carried, Compacted
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.large import positions_of
from perdure.journal.parts import Part
from perdure.journal.ranges import Positions, clip_ranges, contains, merge_ranges
from perdure.journal.reader import History
from perdure.journal.records import (
    EffectOutcome,
    IndexPage,
    Message,
    Snapshot,
    TurnContinued,
    ViewStored,
)
from perdure.journal.requests import Steps

Progress = Callable[[int, int], object]
"""Called with the position that was read, and the last one."""


class CompactResult(NamedTuple):
    """The result of a compaction; in a dry run, of one that would be made."""

    session: str
    complete_from: int
    """The first position that is kept."""
    records: int
    """The records that were dropped, 0 if there is nothing to drop."""
    messages: int
    """The messages among them that were part of the conversation."""
    carried: int
    """The records that were kept from before that position, because the session refers to them."""
    limited_by: str
    """Why more is kept than was asked for, or "".

    A view, an open turn, a message that stands before an older one, a branch's shared past.
    """
    unused_parts: int = 0
    """The parts of large bodies among the dropped records that no record ever cited."""


class CompactRequest(NamedTuple):
    """The part to keep: the newest messages, or everything from a position on."""

    keep: int | None = None
    before: int | None = None

    def checked(self) -> "CompactRequest":
        """Return the request, or raise UsageError that says what is wrong with it."""
        if (self.keep is None) == (self.before is None):
            raise UsageError("pass keep=, the number of messages, or before=, a position")
        for name, value in (("keep", self.keep), ("before", self.before)):
            if value is not None and require_int(value, name) < 0:
                raise UsageError(f"{name} must be 0 or more, not {value}")
        return self


class Cut(NamedTuple):
    """The place where a session is cut, and what has to outlast the records before it."""

    first: int
    """The first position that is kept; the present one if there is nothing to drop."""
    digest: str
    base: SessionState
    id_rows: list[bytes]
    settled: list[int]
    """The positions of the records of calls with callers' keys."""
    records: int
    messages: list[int]
    """The positions of the messages that are dropped."""
    limited_by: str
    parts: tuple[Positions, ...] = ()
    """The parts of large bodies before the cut that records after it cite."""
    unused_parts: int = 0
    surveyed: int = 0
    """The last position that was read to find the cut."""


class _Survey:
    """The facts that a compaction needs of the records that it may drop, added in order."""

    def __init__(self, base: SessionState | None, final: SessionState) -> None:
        self._state = base or SessionState()
        self._final = final
        self.messages: list[int] = []
        """The positions of messages that are part of the conversation."""
        self.rows: list[bytes] = []
        self.settled: list[int] = []
        self.safe: list[int] = []
        """The positions at which the history may begin."""
        self.spans: list[tuple[int, int]] = []
        """Failed turns that were continued: from their beginning to their continuation."""
        self.parts: list[int] = []
        self.cited: list[tuple[int, tuple[Positions, ...]]] = []
        """The positions of records that cite parts, and these."""

    def add(self, linked: VerifiedRecord, record: PendingRecord) -> None:
        """Add the next record."""
        position, record_id, state = linked.position, record.id, self._state
        content, payload = record.content, record.payload
        if isinstance(content, IndexPage | Snapshot) and self.safe[-1:] == [position]:
            self.safe.pop()  # The pages of a run and its snapshot stay together.
        state.apply(position, record_id, content, payload)
        if isinstance(content, Message) and not self._final.conversation.is_hidden(position):
            self.messages.append(position)
        key = dropped_ids.key_of(record_id, content)
        if key:
            stripped = strip_derived(record)
            self.rows.append(dropped_ids.encode_row(key, position, content, stripped))
        if isinstance(content, EffectOutcome) and content.intent:
            self.settled += _outcome_positions(position, content)
        if isinstance(content, TurnContinued) and content.ended:
            self.spans.append((content.begun, position))
        if content.parts:
            self.cited.append((position, content.parts))
        if isinstance(content, Part):
            self.parts.append(position)
            return  # The record that cites it may follow.
        talk = state.conversation
        if not (linked.remaining or state.turns or talk.calls or talk.partials):
            self.safe.append(position + 1)

    def parts_before(self, first: int) -> tuple[Positions, ...]:
        """Return the parts before a position that the records from there on cite."""
        later = (part for position, ranges in self.cited if position >= first for part in ranges)
        return clip_ranges(merge_ranges(later), first - 1)

    def unused_before(self, first: int) -> int:
        """Return how many parts before a position no record cites."""
        ranges = merge_ranges(part for _, ranges in self.cited for part in ranges)
        moved = {*self._final.carried.values()}  # They have the place of parts that are cited.
        return sum(
            part < first and part not in moved and not contains(ranges, part) for part in self.parts
        )


def find_cut(
    replica: Replica, request: CompactRequest, progress: Progress | None = None
) -> Steps[Cut]:
    """Read a session and return where to cut it. Damage in what would be dropped is raised."""
    request.checked()
    if progress is not None and not callable(progress):
        raise UsageError(f"progress must be a function, not {type(progress).__qualname__}")
    final, past, _ = replica.view
    base = yield from replica.loader.base_of(past)
    survey, name = _Survey(base, final), replica.name
    forward = ForwardReader(past)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            survey.add(linked, chain.decode_record(name, linked, past.cipher))
        if progress is not None and page:
            progress(page[-1].position, past.tip.position)
    wanted = _wanted(survey, past, request, final.conversation)
    view_limit = yield from _view_limit(past, final)
    limit = min(wanted, view_limit)
    first, last = _choose(survey, past, limit), final.last_message
    is_moved = last < first and survey.messages[-1:] >= [first]  # A replacement may come before.
    if is_moved:
        first = _choose(survey, past, last)
    limited_by = ""
    if first < wanted <= _own_first(past):
        limited_by = "the history that it shares"
    elif first < wanted:
        limited_by = "a view" if view_limit < wanted else "a turn, a call or an answer"
        limited_by = "a replacement" if is_moved else limited_by
    if first == past.first:
        return Cut(first, "", SessionState(), [], [], 0, [], limited_by)
    shared = yield from reader.read_record(past, first - 1)
    state = yield from replica.loader.state_at(past, shared.tip)
    rows = [row for row in survey.rows if int.from_bytes(row[8:16]) < first]
    rows += yield from dropped_ids.read_rows(past, final.dropped_ids)
    settled = [position for position in survey.settled if position < first]
    settled += yield from _carried_outcomes(past)
    return Cut(
        *(first, shared.digest, state, dropped_ids.newest_rows(rows), settled),
        records=first - max(past.first, _own_first(past)),
        messages=[position for position in survey.messages if position < first],
        limited_by=limited_by,
        parts=survey.parts_before(first),
        unused_parts=survey.unused_before(first),
        surveyed=past.tip.position,
    )


def needed_parts(replica: Replica, cut: Cut) -> Steps[list[int]]:
    """Return the parts of large bodies before a cut that the session will still need."""
    batch = replica.new_batch()
    carried = yield from _carried(batch, cut)
    return sorted({*positions_of(cut.parts), *_parts_of(carried, cut.first)})


def _parts_of(carried: Iterable[Carried], first: int) -> Iterator[int]:
    """Yield the parts before a position that carried records cite."""
    for record in carried:
        ranges = msgspec.convert(record.content.get("parts", ()), tuple[Positions, ...])
        yield from (part for part in positions_of(ranges) if part < first)


def _require_moved(
    batch: RecordBatch, cut: Cut, carried: Iterable[Carried], moved: Mapping[int, int]
) -> Steps[None]:
    """Raise ConflictError if a part would be lost that a record cites by now."""
    needed = {*_parts_of(carried, cut.first)}
    forward = ForwardReader(batch.past, after=cut.surveyed)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            content = chain.decode_content(batch.name, linked, batch.past.cipher)
            needed |= {part for part in positions_of(content.parts) if part < cut.first}
    if not needed <= moved.keys():
        raise batch.conflict("a record cites a body that the compaction would have dropped")


def _own_first(past: History) -> int:
    """Return the first position in the session's own stream: before it, a branch shares records."""
    return past.lineage[0].at + 1 if past.lineage else 1


def _carried_outcomes(past: History) -> Steps[list[int]]:
    """Return the positions of carried records of calls with callers' keys."""
    positions: list[int] = []
    for position in past.carried:
        content = yield from reader.read_content(past, position, check_tip=False)
        if isinstance(content, EffectOutcome) and content.intent:
            positions += _outcome_positions(position, content)
    return positions


def _outcome_positions(position: int, content: EffectOutcome) -> list[int]:
    """Return the positions of an outcome, its intent and the messages that have its result."""
    before = max(content.message_count, bool(content.shared_form))
    return [content.intent, *range(position - before, position + 1)]


def _wanted(
    survey: _Survey, past: History, request: CompactRequest, talk: ConversationState
) -> int:
    """Return the first position that the caller wants to keep."""
    if request.before is not None:
        return min(max(request.before, past.first), past.tip.position + 1)
    keep, messages = request.keep or 0, survey.messages
    if keep >= len(messages):
        return past.first
    if not keep:
        return past.tip.position + 1
    # A replacement stands where the replaced messages were: not all newer ones come later.
    return min(sorted(messages, key=lambda position: (talk.place_of(position), position))[-keep:])


def _view_limit(past: History, state: SessionState) -> Steps[int]:
    """Return the first position that a caller's view still needs, or one beyond the end."""
    limit = past.tip.position + 1
    for stored in state.views.values():
        content = yield from reader.read_kind(past, stored.position, ViewStored, check_tip=False)
        limit = min(limit, content.at + 1)
    return limit


def _choose(survey: _Survey, past: History, limit: int) -> int:
    """Return the last safe position up to a limit, or the present beginning if there is none."""
    safe = survey.safe[: bisect_right(survey.safe, limit)]
    for first in reversed(safe):
        in_turn = any(begun < first <= again for begun, again in survey.spans)
        if first > max(past.first, _own_first(past)) and not in_turn:
            return first
    return past.first


def plan_compaction(replica: Replica, cut: Cut, moved: Mapping[int, int]) -> Plan[int]:
    """Plan a compaction; the result is the number of records that it carries.

    `moved` are the parts of large bodies that were stored again, with their positions now.
    InUseError while branches or holds need the past.
    """
    token = replica.new_id

    def make(batch: RecordBatch) -> Steps[int]:
        yield from lifecycle.require_unused(batch)
        first, state = cut.first, batch.state
        if batch.past.first >= first:
            return 0  # Another process compacted it further.
        talk = state.conversation
        waiting = [turn.position for turn in state.turns.values()]
        waiting += [call.position for call in talk.calls.values()]
        if any(position < first for position in waiting):
            raise batch.conflict("a turn was continued that the compaction would have dropped")
        # Another process may have compacted less since the cut was found: its record counts those.
        left = [position for position in cut.messages if position >= batch.past.first]
        dropped = sum(not talk.is_hidden(position) for position in left)
        if state.last_message < first and state.messages > dropped:
            raise batch.conflict("the last message of the conversation would have been dropped")
        carried = yield from _carried(batch, cut)
        yield from _require_moved(batch, cut, carried, moved)
        rows = yield from index.rows_since(
            batch.past, batch.index_cache, state.index, state.recent_ids, first
        )
        pages = index.encode_run(rows, len(state.index)) if rows else []
        for content in (*pages, *dropped_ids.encode_pages(cut.id_rows), *carried):
            batch.add_content(token(), content)
        compacted = Compacted(
            first=first,
            digest=cut.digest,
            state_version=STATE_VERSION,
            facts=cut.base.facts(),
            recent=cut.base.recent_ids.to_dict(),
            carried=tuple(record.position for record in carried),
            messages=dropped,
            moved=_ranges_of(moved),
        )
        batch.add_content(token(), compacted)
        if not batch.state.last_message:
            batch.last_payload = b""
        return len(carried)

    return Plan("compact", "", make)


def _ranges_of(moved: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
    ranges: list[tuple[int, int, int]] = []
    for before, now in sorted(moved.items()):
        if ranges and (before, now) == tuple(sum(pair) for pair in _ends(ranges[-1])):
            ranges[-1] = (*ranges[-1][:2], ranges[-1][2] + 1)
        else:
            ranges.append((before, now, 1))
    return tuple(ranges)


def _ends(span: tuple[int, int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    before, now, count = span
    return (before, count), (now, count)


def _carried(batch: RecordBatch, cut: Cut) -> Steps[list[Carried]]:
    """Return the records before a cut that the state before it or the present one refers to."""
    cited = cut.base.cited_positions() | batch.state.cited_positions() | {*cut.settled}
    carried = []
    for position in sorted(cited):
        if position >= cut.first or batch.past.is_dropped(position):
            continue
        linked = yield from reader.read_record(batch.past, position, check_tip=False)
        record = chain.decode_record(batch.name, linked, batch.past.cipher)
        if linked.body is None:
            continue  # It was erased.
        kept = Carried(
            position=position,
            record_kind=linked.kind,
            id=record.id,
            time=linked.header.time,
            digest=linked.digest,
            content=codec.decode_tree(record.payload),
        )
        carried.append(kept)
    yield from reader.require_tip(batch.past)
    return carried


def try_compaction(replica: Replica, cut: Cut) -> Steps[int]:
    """Execute a compaction without writing it: the result or the error that it would have."""
    moved = {part: part for part in (yield from needed_parts(replica, cut))}
    return (yield from plan_compaction(replica, cut, moved).execute(replica.new_batch()))


def drop_compacted(replica: Replica, before: History) -> Steps[None]:
    """Drop what a compaction allows to drop, and release the keep in the parent of a branch.

    `before` is the history before the compaction. Without one, there is nothing to do.
    """
    if not replica.state.compacted:
        return
    yield from lifecycle.finish_drop(replica)
    if before.lineage and not replica.history.lineage:
        yield from lifecycle.release_in_parent(replica, before.lineage[0].name)


def result_of(replica: Replica, cut: Cut, carried: int) -> CompactResult:
    """Return the result of a compaction."""
    facts = (cut.first, cut.records, len(cut.messages), carried, cut.limited_by, cut.unused_parts)
    return CompactResult(replica.name, *facts)
