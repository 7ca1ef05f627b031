"""Check a whole session: chain, bodies, references, snapshots, index, summaries, head. Pure.

In: a loaded replica. Out: steps that return a `VerifyResult`, or raise the first damage found.
"""

import functools
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_type_hints

from perdure.backends.protocol import HALF_COPIED
from perdure.core import dropped_ids, index
from perdure.core.replica import Replica
from perdure.core.state.session_state import STATE_VERSION, SessionState
from perdure.core.state_loader import require_labels
from perdure.errors import ChainError, DamagedError, PerdureError
from perdure.formats.bodies import Citation
from perdure.journal import chain, reader, requests
from perdure.journal.chain import VerifiedRecord
from perdure.journal.compaction import Compacted, DroppedIds
from perdure.journal.erasures import NOTHING_ERASED, Erasures
from perdure.journal.forward_reader import ForwardReader
from perdure.journal.large import check_body, citations_of, positions_of
from perdure.journal.parts import Part
from perdure.journal.ranges import Positions, contains
from perdure.journal.reader import History
from perdure.journal.records import Content, IndexPage, Message, Snapshot, Summary
from perdure.journal.requests import Steps


class VerifyResult(NamedTuple):
    """The result of `verify`, which checks every record of a session's history, shared or own."""

    session: str
    records: int
    position: int
    digest: str
    snapshots: int
    half_copied: bool = False
    """Whether its head is labeled as an unfinished copy: later records are still missing."""
    complete_from: int = 1
    """The first position: later than 1 if the session was compacted or created again."""


class StoreVerifyResult(NamedTuple):
    """The result of `store.verify`, which checks a store and every session that it lists."""

    store: str
    sessions: int
    """Sessions that were checked, deleted ones too."""
    records: int
    problems: tuple[PerdureError, ...]
    """Damage of the store or of a session, which it names; a VersionError for a newer session."""
    compared: bool
    """Whether the store compared itself with its lists: without it, sessions may be missing."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_session(replica: Replica) -> Steps[VerifyResult]:
    """Read the whole history, check it, and recompute everything derived from it."""
    state, past, _ = replica.view
    name, forward = replica.name, ForwardReader(past)
    base = yield from replica.loader.base_of(past)
    recomputed = base or SessionState()
    index_runs, messages = _IndexRuns(name, past.erasures or NOTHING_ERASED), array("q")
    records = snapshots = newest = 0
    bodies = _BodyChecks(past)
    while (page := (yield from forward.page())) is not None:
        for linked in page:
            if linked.position == linked.entry.position:
                chain.require_possible(name, linked)
            content = chain.decode_content(name, linked, past.cipher)
            if isinstance(content, Message):
                messages.append(linked.position)
            elif isinstance(content, Snapshot):
                index_runs.end()
                snapshots += _require_snapshot(name, linked, content, recomputed)
            elif isinstance(content, Compacted):
                index_runs.end_compaction(linked.position, content)
                yield from _require_cut(past, linked, content)
            else:
                _require_content(past, linked.position, content, index_runs, recomputed)
            _require_earlier(name, linked.position, content)
            replica.loader.apply(recomputed, linked)
            newest = linked.position if linked.kind == Snapshot.kind else newest
            if content.parts or isinstance(content, Part):
                yield from bodies.check(linked.position, content)
        records += len(page)
    index_runs.end()
    _require_count(name, messages, recomputed)
    yield from bodies.end()
    if (recomputed.facts(), recomputed.recent_ids) != (state.facts(), state.recent_ids):
        raise DamagedError(name, 0, "its state does not match its records")
    half_copied = yield from _require_head(replica, past, recomputed, newest)
    position, digest = past.tip.position, past.tip.digest or ""
    return VerifyResult(*(name, records, position, digest, snapshots, half_copied, past.first))


def _require_content(
    past: History, position: int, content: Content, runs: "_IndexRuns", state: SessionState
) -> None:
    """Raise unless what a record says of records before it is true."""
    name = past.stream.session
    if isinstance(content, IndexPage):
        runs.check(position, content, state)
    elif isinstance(content, DroppedIds):
        dropped_ids.decode_rows(name, position, content)
    elif isinstance(content, Summary):
        _require_summary_range(name, past, position, content)


def _require_count(name: str, messages: Iterable[int], state: SessionState) -> None:
    """Raise unless the session has as many messages as its records count."""
    shown = sum(not state.conversation.is_hidden(position) for position in messages)
    if shown != state.messages and not state.deleted:
        reason = f"it has {shown} messages, but its records count {state.messages}"
        raise DamagedError(name, 0, reason)


@functools.cache
def _position_fields(kind: type[Content]) -> tuple[str, ...]:
    """Return the fields of a kind that hold positions of earlier records."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name in kind.__struct_fields__ if "is_position" in repr(hints[name]))


def _positions_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _positions_in(item)


def _require_earlier(name: str, position: int, content: Content) -> None:
    """Raise DamagedError if a record refers to one that does not come before it."""
    end = position + isinstance(content, Compacted)  # It may itself be the first that is kept.
    for field in _position_fields(type(content)):
        value = getattr(content, field)
        if value and max(_positions_in(value), default=0) >= end:
            reason = f"its field {field!r} refers to a record that does not come before it"
            raise DamagedError(name, position, reason)


class _BodyChecks:
    """Checks the parts of large bodies, each once."""

    def __init__(self, past: History) -> None:
        self._past = past
        self._parts: set[int] = set()
        self._cited: set[int] = set()
        self._checked: set[tuple[str, tuple[Positions, ...]]] = set()

    def check(self, position: int, content: Content) -> Steps[None]:
        """Raise unless a record cites parts before it that are its bodies."""
        if isinstance(content, Part):
            self._parts.add(position)
            return
        name, past = self._past.stream.session, self._past
        for part in positions_of(content.parts):
            if part not in self._parts and part not in past.carried:
                reason = f"the record at {position} cites it as a part, which it is not"
                raise ChainError(name, part, reason)
            self._cited.add(part)
        for citation in citations_of(content):
            key = citation.digest, citation.parts
            if key not in self._checked and not self._is_erased(citation):
                yield from check_body(past, citation)
                self._checked.add(key)

    def _is_erased(self, citation: Citation) -> bool:
        ranges = (self._past.erasures or NOTHING_ERASED).ranges
        return any(contains(ranges, position) for position in positions_of(citation.parts))

    def end(self) -> Steps[None]:
        """Read the parts that no record cites."""
        for position in sorted(self._parts - self._cited):
            yield from reader.read_record(self._past, position, check_tip=False)


def _require_cut(past: History, linked: VerifiedRecord, content: Compacted) -> Steps[None]:
    """Raise unless the first entry that a compaction kept links to the last one that it dropped."""
    if linked.position != past.compacted:
        return  # A later compaction dropped the place of this one.
    first = linked
    if not linked.entry.position <= content.first <= linked.position:
        first = yield from reader.read_record(past, content.first)
    if first.header.previous != content.digest:
        reason = f"a compaction that dropped another entry than the one before {content.first}"
        raise ChainError(past.stream.session, linked.position, reason)


def _require_snapshot(
    name: str, linked: VerifiedRecord, content: Snapshot, state: SessionState
) -> int:
    """Raise unless a snapshot matches the state; return 1, or 0 for another version."""
    if content.state_version != STATE_VERSION:
        return 0
    if content.facts != state.facts():
        reason = "a state snapshot that does not match the records before it"
        raise DamagedError(name, linked.position, reason)
    return 1


_WRONG_RUN = "an index run that does not match the records before it"


class _IndexRuns:
    """The rows of the index, checked run by run; 16 bytes of memory per id."""

    def __init__(self, name: str, erasures: Erasures) -> None:
        self._name = name
        self._erasures = erasures
        self._rows: dict[int, list[bytes]] = {}
        """The rows of each run, by the position of its first page."""
        self._run: list[bytes] = []
        self._pages = 0
        self._dropped = 0
        """The highest position of the ids that the newest run lacks."""
        self._run_at = 0

    def check(self, position: int, content: IndexPage, state: SessionState) -> None:
        """Raise unless a page is the next one, and its run, once complete, is what it should be."""
        if content.page == 0:  # A branch may begin between the pages of a run, which then restarts.
            self._run, self._pages = [], 0
        rows = index.split_rows(index.decode_rows(self._name, position, content))
        in_place = all(
            index.page_of(int.from_bytes(row[:8]), content.bits) == content.page for row in rows
        )
        if content.page != self._pages or not in_place:
            raise DamagedError(self._name, position, "an index page with rows of another page")
        self._pages += 1
        self._run += rows
        is_last = self._pages == 1 << content.bits
        if is_last != (content.size > 0):
            raise DamagedError(self._name, position, _WRONG_RUN)
        if is_last:
            self._compare(position, content, state)
            self._rows[position - content.page] = self._run

    def _compare(self, position: int, content: IndexPage, state: SessionState) -> None:
        expected = self._expected(content, state)
        if expected is None:
            return
        run, expected = self._present(self._run), self._present(expected)
        missing = {*expected}.difference(run)
        kept = [row for row in expected if row not in missing]
        if run != kept or content.size != len(self._run):
            raise DamagedError(self._name, position, _WRONG_RUN)
        # Only a compaction leaves ids out: those that it dropped.
        self._dropped = max((int.from_bytes(row[8:]) for row in missing), default=0)
        self._run_at = position

    def end_compaction(self, position: int, content: Compacted) -> None:
        """Raise if the run of a compaction lacks ids that it did not drop."""
        if self._dropped >= content.first:
            raise DamagedError(self._name, position, _WRONG_RUN)
        self._dropped = 0

    def end(self) -> None:
        """Raise if a run lacked ids, and no compaction followed it."""
        if self._dropped:
            raise DamagedError(self._name, self._run_at, _WRONG_RUN)

    def _expected(self, content: IndexPage, state: SessionState) -> list[bytes] | None:
        """Return the rows of the ids since the last run, and of the runs that are replaced.

        None if one of those was compacted, so that its rows are not known.
        """
        rows = [index.encode_row(*item) for item in state.recent_ids.items()]
        for run in state.index[len(state.index) - content.merged :]:
            if run.first not in self._rows:
                return None
            rows += self._rows.pop(run.first)
        return sorted(rows)

    def _present(self, rows: list[bytes]) -> list[bytes]:
        """Return rows without those of erased records, whose ids are not known any more."""
        ranges = self._erasures.ranges
        if not ranges:
            return rows
        return [row for row in rows if not contains(ranges, int.from_bytes(row[8:]))]


def _require_summary_range(name: str, past: History, position: int, content: Summary) -> None:
    """Raise unless a summary replaces messages before it."""
    begin = 0 if past.compacted else past.begin
    if not begin < content.first <= content.last < position:
        reason = f"a summary of {content.first} to {content.last}, which it does not follow"
        raise DamagedError(name, position, reason)


def _require_head(replica: Replica, past: History, state: SessionState, newest: int) -> Steps[bool]:
    """Raise unless the head matches history and state; return whether it is an unfinished copy.

    `newest` is the position of the newest snapshot, even if it was erased.
    """
    position = past.tip.position
    head = yield from requests.head(replica.name)
    current = 0 if head is None else head.position
    if current < position:
        raise ChainError(replica.name, position, "the head is behind the entries that were read")
    if head is None or current != position:  # Another writer was faster.
        return False
    if head.digest != past.tip.digest:
        raise DamagedError(replica.name, position, "its head is not that of its newest record")
    require_labels(head, state, replica.settings)
    # Without one, opening reads more and computes the same.
    if head.snapshot not in (state.snapshot, newest, 0) and HALF_COPIED not in head.labels:
        raise DamagedError(
            replica.name, head.snapshot, "its head names another snapshot than the newest"
        )
    for label in head.labels:
        heads = yield from requests.heads(prefix=replica.name, labels=[label], limit=1)
        if not heads or heads[0].stream != replica.name:
            raise DamagedError(replica.name, 0, f"listing by its label {label!r} does not find it")
    return HALF_COPIED in head.labels
