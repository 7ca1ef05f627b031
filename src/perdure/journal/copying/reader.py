"""Read streams for a copy, verified before anything is returned, and compare both stores. Pure.

Unlike `journal.reader`, which follows a session's history into its ancestors, this stays in one
stream, trusts no snapshot, and needs no key. In a comparison only the source's chain is verified:
the target's is valid if it is equal byte for byte.
"""

from collections import deque
from collections.abc import Callable

from perdure.backends.protocol import Entry, Head
from perdure.errors import ChainError
from perdure.journal import chain
from perdure.journal.chain import ChainTip, StreamIdentity, VerifiedEntry, VerifiedRecord
from perdure.journal.cipher import PLAIN, PlainCipher
from perdure.journal.compaction import Compacted
from perdure.journal.copying import requests
from perdure.journal.copying.plan import CopyRefused, read_one
from perdure.journal.copying.requests import CopyProgress, CopySteps, Side

PAGE = 256  # entries per read; a driver returns fewer if they are long


class ChainVerifier:
    """Verifies entries in order: against their headers, their stream and their predecessor.

    Without a tip, the first entry must be one that can begin a stream, or a later one must record
    the compaction that dropped what was before it.
    """

    def __init__(self, name: str, tip: ChainTip | None = None) -> None:
        self._name = name
        self._tip = tip
        self._stream = ""
        self._tenant = ""
        self._first: ChainTip | None = None
        """Set while the stream begins after a compaction whose record has not been read yet."""

    @property
    def position(self) -> int:
        """The position of the last accepted entry."""
        return self._tip.position if self._tip else 0

    def accept(self, entry: Entry) -> VerifiedEntry:
        """Return the verified entry, or raise ChainError or VersionError."""
        linked = chain.verify_entry(self._name, entry)
        header = linked.header
        if not self._stream and self._tip is None:
            self._begin(linked)
        if header.bound is not None:
            self._tenant = self._tenant or header.bound[0]
        self._stream = self._stream or header.stream
        identity = StreamIdentity(self._name, self._stream, self._tenant)
        chain.require_same_stream(identity, linked)
        if self._tip is not None:
            chain.require_follows(self._name, self._tip, linked)
        self._tip = linked.tip
        for record in linked.records:
            if record.kind == Compacted.kind and self._first is not None:
                self._first = self._missing_before(record, self._first)
        return linked

    def _missing_before(self, linked: VerifiedRecord, dropped: ChainTip) -> ChainTip | None:
        """Return None if a compaction explains why the stream begins later, else what is missing.

        It may allow to drop more than was dropped so far.
        """
        if linked.header.suite != PLAIN:
            return None  # Sealed: the header names the session, and opening it checks the rest.
        content = chain.decode_content(self._name, linked, PlainCipher())
        if not isinstance(content, Compacted) or content.first <= dropped.position:
            return dropped
        is_next = content.first == dropped.position + 1
        return dropped if is_next and content.digest != dropped.digest else None

    def _begin(self, first: VerifiedEntry) -> None:
        position, header = first.entry.position, first.header
        if not header.begins_stream:  # It may after a compaction, whose record is still to come.
            self._first = ChainTip(position - 1, header.previous)
        if position == 1 and header.previous:
            raise ChainError(self._name, 1, "it is the first entry, but links to an earlier one")

    def end(self, head: Head) -> None:
        """Raise ChainError unless the head points to the last accepted entry, and all are there."""
        if self._first is not None:
            raise ChainError(self._name, self._first.position, "it is missing")
        if self._tip != ChainTip(head.position, head.digest):
            reason = "it is not the entry that the head points to"
            raise ChainError(self._name, head.position, reason)


class StreamReader:
    """Reads a stream up to its head, one page of verified entries at a time."""

    def __init__(self, side: Side, head: Head, *, after: int, tip: ChainTip | None) -> None:
        self._side = side
        self._head = head
        self._after = after
        self._chain = ChainVerifier(head.stream, tip)

    @property
    def ended(self) -> bool:
        """Whether everything up to the head was read."""
        return self._after >= self._head.position

    def page(self) -> CopySteps[list[VerifiedEntry]]:
        """Return the next entries; the last page ends at the head."""
        name, limit = self._head.stream, min(self._head.position - self._after, PAGE)
        entries = yield from requests.read(self._side, name, after=self._after, limit=limit)
        # Writers may have appended since the head was read.
        entries = [entry for entry in entries if entry.position <= self._head.position]
        if not entries:
            raise ChainError(name, self._after + 1, "it is missing")
        linked = [self._chain.accept(entry) for entry in entries]
        self._after = self._chain.position
        if self.ended:
            self._chain.end(self._head)
        return linked


def compare_stream(head: Head, progress: Callable[[int], CopyProgress]) -> CopySteps[int]:
    """Compare a stream in both stores and count its records; on return it is equal in both.

    `progress` builds a report from the number of records compared, after each page.
    Raises CopyRefused if they differ, and DamagedError if the source is damaged.
    Entries that the source has dropped meanwhile are dropped in the target.
    """
    reader = StreamReader("source", head, after=0, tip=None)
    records = 0
    while not reader.ended:
        page = yield from reader.page()
        if not records:
            yield from _drop_leading(head.stream, page[0].entry.position)
        yield from _compare_page(head.stream, page)
        records += sum(linked.entry.records for linked in page)
        yield progress(records)
    return records


def _drop_leading(name: str, first: int) -> CopySteps[None]:
    target_first = yield from read_one("target", name)
    if target_first.position < first:
        yield from requests.drop(name, before=first)


def _compare_page(name: str, page: list[VerifiedEntry]) -> CopySteps[None]:
    expected = deque(linked.entry for linked in page)
    at = page[0].entry.position - 1
    while expected:
        entries = yield from requests.read("target", name, after=at, limit=len(expected))
        if not entries:
            raise CopyRefused("damaged", "it is missing in the target", at + 1)
        for entry in entries:
            source_entry = expected.popleft()
            if entry != source_entry:
                reason = "the target's entry differs from the source's"
                raise CopyRefused("damaged", reason, source_entry.position)
        at = entries[-1].last
