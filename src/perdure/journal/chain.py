"""Chain payloads into entries; verify entries and decode them. Pure: no I/O, no clock.

A header holds the entry's location (stream, position, batch, kind, id, time), the digest of the
previous header and, last, the digest of its own body as stored. A chain is therefore verified
without any key, stays verifiable after a body was erased, and the hashed bytes are the stored ones.

A batch is the entries of one append. Each header counts the entries that remain in its batch, so a
batch truncated by a crash is detected at the end of a stream; it was never acknowledged and counts
as absent. The next writer appends a `batch.discarded` record after it, a batch of its own.

When editing: header bytes are hashed as stored, so never re-encode a header that was read.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import BuiltinFunctionType
from typing import NamedTuple

import msgspec

from perdure.backends.digests import digest_bytes, digest_of
from perdure.backends.protocol import Entry, Head
from perdure.errors import ChainError, IncompleteBatchError, PayloadError, UsageError, VersionError
from perdure.journal import codec
from perdure.journal.cipher import Cipher
from perdure.journal.compaction import Carried, Compacted
from perdure.journal.records import (
    BatchDiscarded,
    Branched,
    Content,
    Deleted,
    Record,
)

FORMAT = 1

BODY_MAX = codec.PAYLOAD_MAX + 1024  # bytes; the longest payload, and what a cipher adds to it

_MICROSECONDS = 1_000_000  # microseconds


# Entries of these kinds begin a stream, begin it once earlier entries are dropped, or say where it
# begins.
_BOUND_KINDS = frozenset({Branched.kind, Compacted.kind, Deleted.kind})


_encode = msgspec.json.Encoder().encode


class HeaderPrefix(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header without its last field; a JSON array, with the fields in stored order."""

    format: int
    suite: str
    tenant: str
    stream: str
    position: int
    previous: str
    remaining: int
    """Entries of the same batch that come after this one."""
    kind: str
    id: str
    time: str
    key: str
    session: str | None
    """The session's id, in the first header of a stream and in any that can become the first."""


class Header(HeaderPrefix, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A complete header, version 1."""

    body: str


_decode = msgspec.json.Decoder(Header).decode


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that has no position yet."""

    id: str
    content: Content
    payload: bytes


class ChainTip(msgspec.Struct, frozen=True, gc=False):
    """The last entry of a chain, to which the next one links. A digest of None is not checked."""

    position: int
    digest: str | None


EMPTY_CHAIN = ChainTip(0, "")


class StreamIdentity(NamedTuple):
    """The identity of a stream: every header repeats id and tenant, the first also the session."""

    session: str
    id: str
    tenant: str = ""


class VerifiedEntry(NamedTuple):
    """An entry that matches its own header, with the header, its digest and its prefix bytes."""

    entry: Entry
    header: Header
    digest: str
    prefix: bytes
    """The stored header up to the digest of the body; a sealed body is bound to it."""

    @property
    def tip(self) -> ChainTip:
        return ChainTip(self.entry.position, self.digest)


def link_entries(
    stream: StreamIdentity,
    tip: ChainTip,
    drafts: Sequence[PendingRecord],
    *,
    time: str,
    cipher: Cipher,
) -> tuple[list[Entry], ChainTip]:
    """Return the entries of one batch that extend a chain from its tip, and the new tip."""
    entries: list[Entry] = []
    session, stream_id, tenant = stream
    suite, key_id, seal = cipher.suite, cipher.key_id, cipher.seal
    position, previous = tip.position, tip.digest or ""
    # A `batch.discarded` record is a batch of its own, else it would pass for the torn one's end.
    has_recovered = drafts[0].content.kind == BatchDiscarded.kind  # It comes first, or not at all.
    size = len(drafts) - has_recovered
    for draft in drafts:
        position += 1
        kind, remaining = draft.content.kind, 0
        if kind != BatchDiscarded.kind:
            remaining = size = size - 1
        bound = session if not previous or kind in _BOUND_KINDS else None
        # A tuple in the order of `HeaderPrefix`: it encodes to the same bytes and is built faster.
        fields = (
            *(FORMAT, suite, tenant, stream_id, position, previous),
            *(remaining, kind, draft.id, time, key_id, bound),
        )
        prefix = _encode(fields)[:-1]
        body = seal(draft.payload, prefix)
        header = b"".join((prefix, b',"', digest_bytes(body), b'"]'))
        previous = digest_bytes(header).decode()
        # Same as calling the class, in half the time.
        entries.append(tuple.__new__(Entry, (position, header, body)))
    return entries, ChainTip(position, previous)


def entry_digest(entry: Entry) -> str:
    """Return the digest of an entry, which is the digest of its header as stored."""
    return digest_of(entry.header)


def verify_entry(name: str, entry: Entry) -> VerifiedEntry:
    """Parse an entry's header and check its position and its body against it.

    A body of None was left out by a read because it is longer than `BODY_MAX`.
    """
    try:
        header = _decode(entry.header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _header_error(name, entry) from error
    if header.format != FORMAT:
        raise VersionError(f"{name!r} entry {entry.position}", str(header.format), str(FORMAT))
    if header.position != entry.position:
        raise ChainError(name, entry.position, f"its header says position {header.position}")
    if entry.body is None:
        reason = f"its body is longer than {BODY_MAX} bytes, more than a record may have"
        raise PayloadError(name, entry.position, reason)
    if digest_of(entry.body) != header.body:
        raise ChainError(name, entry.position, "its body does not match the digest in its header")
    prefix = entry.header[: -len(',"') - len(header.body) - len('"]')]
    return VerifiedEntry(entry, header, digest_of(entry.header), prefix)


def session_of(header: bytes) -> str | None:
    """Return the session that a header names: the first one of a stream does; None if it does not.

    For salvage: nothing is verified.
    """
    try:
        return _decode(header).session
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def time_of(head: Head) -> datetime | None:
    """Return when the last entry of a listed stream was written; None if it cannot be read.

    None and no error: a listing does not end at a damaged entry, which reading the stream reports.
    """
    if digest_of(head.header) != head.digest:
        return None
    try:
        return datetime.fromisoformat(_decode(head.header).time)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _header_error(name: str, entry: Entry) -> Exception:
    try:
        version = msgspec.json.decode(entry.header)[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        version = FORMAT
    if isinstance(version, int) and FORMAT < version < 100:  # noqa: PLR2004 - more is not a version
        return VersionError(f"{name!r} entry {entry.position}", str(version), str(FORMAT))
    return ChainError(name, entry.position, "its header does not parse")


def require_follows(name: str, older: ChainTip, newer: VerifiedEntry) -> None:
    """Raise ChainError unless the newer entry directly follows the older one and links to it."""
    position = newer.entry.position
    if position != older.position + 1:
        missing = older.position + 1
        raise ChainError(
            name, missing, f"it is missing: {older.position} is followed by {position}"
        )
    if older.digest is not None and newer.header.previous != older.digest:
        raise ChainError(name, older.position, f"entry {position} links to a different entry")


def require_same_stream(stream: StreamIdentity, linked: VerifiedEntry) -> None:
    """Raise ChainError unless the entry was written for this stream."""
    header, position = linked.header, linked.entry.position
    if header.stream != stream.id or header.tenant != stream.tenant:
        raise ChainError(stream.session, position, "it belongs to another stream")
    if header.session is not None and header.session != stream.session:
        raise ChainError(stream.session, position, "it belongs to another session")


def unwrap(name: str, linked: VerifiedEntry, cipher: Cipher) -> VerifiedEntry:
    """Return the entry that a `carried` record keeps, as if it were still at its own position.

    Its header is made anew, with its own id, time and digest; the carrier's was verified.
    """
    content = decode_content(name, linked, cipher)
    if not isinstance(content, Carried):
        raise ChainError(name, linked.entry.position, "a record of kind 'carried' is expected here")
    outer = linked.header
    fields = (
        *(FORMAT, cipher.suite, outer.tenant, outer.stream, content.position, ""),
        *(0, content.record, content.id, content.time, cipher.key_id, None),
    )
    prefix = _encode(fields)[:-1]
    body = cipher.seal(codec.encode_tree(content.content), prefix)
    header = b"".join((prefix, b',"', digest_bytes(body), b'"]'))
    entry = Entry(content.position, header, body)
    return verify_entry(name, entry)._replace(digest=content.digest)


def open_body(name: str, linked: VerifiedEntry, cipher: Cipher) -> bytes:
    """Return the payload of a verified entry."""
    position, body = linked.entry.position, linked.entry.body
    if linked.header.suite != cipher.suite:
        raise VersionError(f"{name!r} entry {position}", linked.header.suite, cipher.suite)
    try:
        return cipher.open(body or b"", linked.prefix)
    except ValueError as error:
        raise PayloadError(name, position, "its body cannot be decrypted or unwrapped") from error


def decode_content(name: str, linked: VerifiedEntry, cipher: Cipher) -> Content:
    """Return the content of a verified entry."""
    payload = open_body(name, linked, cipher)
    return codec.decode(linked.header.kind, payload, stream=name, position=linked.entry.position)


def to_record(name: str, linked: VerifiedEntry, content: Content) -> Record:
    """Return a verified entry as the record that applications see."""
    header = linked.header
    try:
        time = datetime.fromisoformat(header.time)
    except ValueError as error:
        raise PayloadError(name, header.position, "its time does not parse") from error
    return Record(header.position, header.id, header.kind, time, content, linked.digest)


def now(clock: Callable[[], float]) -> str:
    """Return the time by a clock, as headers store it; UsageError if the clock returns none."""
    try:
        return timestamp(clock())
    except Exception as error:
        if isinstance(clock, BuiltinFunctionType):
            raise  # `time.time` never fails: a signal handler raised this, for its own caller.
        raise UsageError(f"clock= must return seconds since the epoch: {error!r}") from error


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since the epoch, as headers store it: UTC with microseconds."""
    second, micro = divmod(round(seconds * _MICROSECONDS), _MICROSECONDS)
    return (
        f"{_format_second(second)}.{str(_MICROSECONDS + micro)[1:]}Z"  # `:06` is three times slower
    )


@lru_cache(maxsize=8)  # many records share a second, and the calendar is the slow part
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6]


class BatchAssembler:
    """Groups verified entries, in order, into complete batches and detects torn ones."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[VerifiedEntry] = []

    @property
    def torn(self) -> tuple[int, int] | None:
        """The first and last position of the batch that is still incomplete, if any."""
        if not self._open:
            return None
        return self._open[0].entry.position, self._open[-1].entry.position

    def copy(self) -> "BatchAssembler":
        """Return an independent copy."""
        copied = BatchAssembler(self._name)
        copied._open = [*self._open]
        return copied

    def add(self, linked: VerifiedEntry) -> list[VerifiedEntry]:
        """Return the batch that this entry completes, or nothing."""
        header = linked.header
        if header.kind == BatchDiscarded.kind:
            self._open.clear()
            return [linked]
        if self._open and header.remaining != self._open[-1].header.remaining - 1:
            raise ChainError(self._name, header.position, "it does not continue its batch")
        self._open.append(linked)
        return self.flush() if header.remaining == 0 else []

    def flush(self) -> list[VerifiedEntry]:
        """Return the open batch as if it were complete: shared history may end within a batch."""
        batch, self._open = self._open, []
        return batch


def torn_error(name: str, torn: tuple[int, int]) -> IncompleteBatchError:
    """Return the error for a batch that a crash truncated."""
    first, last = torn
    return IncompleteBatchError(
        name, first, f"a crash truncated this batch after entry {last}; it counts as not stored"
    )
