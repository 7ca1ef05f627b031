"""Chain records into entries; verify entries, and open and decode their records. Pure: no I/O.

An entry is what one append stores: a header, and the bodies of its records one after the other. The
header holds the shared fields once (stream, position of the first record, digest of the header
before, time, key, bound) and a list of the records: kind, id, length and digest of the body. A
chain is therefore verified without any key, and stays verifiable after a body was erased.

Positions count records: an entry covers a range of them. An erased body is overwritten with as many
spaces, so that the bodies beside it stay where they are.

When editing: header bytes are hashed as stored, so never re-encode a header that was read.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import msgspec

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Entry
from perdure.errors import ChainError, MissingKeyError, PayloadError, UsageError, VersionError
from perdure.journal import codec
from perdure.journal.cipher import PLAIN, SEALED, Cipher, Place, keyed
from perdure.journal.compaction import Compacted
from perdure.journal.ids import GENERATED_PREFIX, random_texts
from perdure.journal.parts import Part
from perdure.journal.records import (
    Branched,
    Content,
    Deleted,
    EmptiedContent,
    Record,
    Snapshot,
)

FORMAT = 1

ENTRY_MAX = 16 * 2**20  # bytes of the bodies of one entry; it is read into memory whole

RECORDS_MAX = 10_000  # records of one entry; their list in the header takes about 100 bytes each

BODY_MAX = ENTRY_MAX + 2**20  # bytes; a longer body of an entry is damage, and is not read

UNREAD = b""  # stands for the body of a part that was not read; a stored body has a byte at least

BODY_EXTRA = 256  # bytes; what a body adds to a payload at most: salt, seal and a caller's id

# A record of these kinds is the first of its entry: the stream begins there, or will once earlier
# entries are dropped.
FIRST_KINDS = frozenset({Branched.kind, Deleted.kind})

# An entry with a record of these kinds names the session and its tenant.
_BOUND_KINDS = FIRST_KINDS | {Compacted.kind, Snapshot.kind}


_MICROSECONDS = 1_000_000  # microseconds

_encode = msgspec.json.Encoder().encode


class RecordHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record in a header."""

    kind: str
    id: str
    length: int
    digest: str


class KeyedRecordHeader(RecordHeader, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record in a header, whose key is not that of the entry, or None if it is."""

    key: str | None = None


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header, version 1: a JSON array, with the fields in stored order."""

    format: int
    suite: str
    stream: str
    position: int
    """The position of the first record."""
    previous: str
    time: str
    key: str
    bound: tuple[str, ...] | None
    """The tenant and the session, in every entry that opening may rely on without those before it.

    That is the first one of a stream, and any with a snapshot or a deletion. In the first entry of
    a branch, the parent and its stream follow.
    """
    records: tuple[RecordHeader, ...]

    @property
    def kind(self) -> str:
        """The kind of the first record."""
        return self.records[0].kind

    @property
    def session(self) -> str | None:
        """The session, if the entry names it."""
        return self.bound[1] if self.bound else None

    @property
    def begins_stream(self) -> bool:
        """Whether a stream can begin with it. Others are first only after a compaction."""
        return not self.previous or self.kind in FIRST_KINDS


class _KeyedHeader(Header, frozen=True, array_like=True, forbid_unknown_fields=True):
    records: tuple[KeyedRecordHeader, ...]


_decode = msgspec.json.Decoder(Header).decode

_decode_keyed = msgspec.json.Decoder(_KeyedHeader).decode


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with its id, which may be the caller's, and its payload; it need not be stored."""

    id: str
    content: Content
    payload: bytes


class ChainTip(msgspec.Struct, frozen=True, gc=False):
    """The last record of a chain and the digest of its entry, to which the next entry links.

    A digest of None is not checked.
    """

    position: int
    digest: str | None


EMPTY_CHAIN = ChainTip(0, "")


class StreamIdentity(NamedTuple):
    """The identity of a stream: every header repeats its id, and some the session and tenant."""

    session: str
    id: str
    tenant: str = ""


class EntryFacts(NamedTuple):
    """An entry that matches its own header, with the header and its digest."""

    entry: Entry
    header: Header
    digest: str
    session: str
    """The session that the entry was read for."""


class VerifiedEntry(NamedTuple):
    """An entry that matches its own header, with the header, its digest and its records."""

    entry: Entry
    header: Header
    digest: str
    records: "Sequence[VerifiedRecord]"

    @property
    def tip(self) -> ChainTip:
        return ChainTip(self.entry.last, self.digest)


class VerifiedRecord:
    """One record of a verified entry. It is opened once; its body is None if it was erased."""

    __slots__ = ("_facts", "_opened", "body", "id", "kind", "position")

    def __init__(
        self, facts: EntryFacts, position: int, record: RecordHeader, body: bytes | None
    ) -> None:
        self._facts = facts
        self.position = position
        self.kind = record.kind
        self.id = record.id
        """The id that perdure gave it. A caller's id is in the body: see `decode_record`."""
        self.body = body
        self._opened: PendingRecord | None = None

    @property
    def entry(self) -> Entry:
        """Its entry."""
        return self._facts.entry

    @property
    def header(self) -> Header:
        """The header of its entry."""
        return self._facts.header

    @property
    def digest(self) -> str:
        """The digest of its entry."""
        return self._facts.digest

    @property
    def tip(self) -> ChainTip:
        """The end of a history that ends with this record."""
        return ChainTip(self.position, self._facts.digest)

    @property
    def key(self) -> str:
        """The id of the key that its body is sealed with, or ""."""
        record = self.header.records[self.position - self.entry.position]
        own = record.key if isinstance(record, KeyedRecordHeader) else None
        return self.header.key if own is None else own

    @property
    def size(self) -> int:
        """The length of its body in bytes."""
        return self.header.records[self.position - self.entry.position].length

    @property
    def remaining(self) -> int:
        """The number of records after it in the same entry."""
        return self.entry.last - self.position

    def place(self) -> Place:
        """Return what its body is bound to."""
        header = self.header
        shared = _encode(msgspec.structs.astuple(header)[:-1])[:-1]
        place = (shared, self.position, self.kind, self.id)
        return Place(*place, self._facts.session, header.stream, self.key)


def link_entry(
    stream: StreamIdentity,
    tip: ChainTip,
    drafts: Sequence[PendingRecord],
    *,
    time: str,
    cipher: Cipher,
    ids: Sequence[str] = (),
    kinds: Sequence[str] = (),
) -> tuple[Entry, ChainTip]:
    """Return the entry of one append, which extends a chain from its tip, and the new tip.

    `ids` and `kinds` are for the header: by default an id is new if a draft has the caller's.
    """
    first, previous = tip.position + 1, tip.digest or ""
    key = keyed(cipher).key_for(stream.id) if cipher.is_placed else ""
    # Through `map`, which runs no bytecode for each record: every append comes through here.
    kinds, own_ids = kinds or [*map(_kind_of, drafts)], [*map(_id_of, drafts)]
    if not all(kinds):
        raise ValueError("a record without a kind cannot be stored")
    given_ids: Sequence[str] = ()
    if {*map(_first_of, own_ids)} != {GENERATED_PREFIX}:
        own_ids, given_ids = _separate_ids(own_ids, ids)
    bound = None
    if not previous or not _BOUND_KINDS.isdisjoint(kinds):
        bound = _bound(stream, drafts[0].content)
    fields = (FORMAT, cipher.suite, stream.id, first, previous, time, key, bound)
    places = _places(fields, stream.session, kinds, own_ids) if cipher.is_placed else ()
    bodies = cipher.seal([*map(_payload_of, drafts)], given_ids, places)
    records = [*zip(kinds, own_ids, map(len, bodies), map(digest_of, bodies), strict=True)]
    header = _encode((*fields, records))
    joined = b"".join(bodies) if len(bodies) > 1 else bodies[0]
    # Same as calling the class, in half the time.
    entry = tuple.__new__(Entry, (first, header, joined, len(bodies)))
    return entry, ChainTip(tip.position + len(bodies), digest_of(header))


_kind_of, _id_of, _payload_of = attrgetter("content.kind"), attrgetter("id"), attrgetter("payload")

_first_of = itemgetter(0)


def _separate_ids(drafted: Sequence[str], own: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the ids for the header, and those of callers, or "", for the bodies."""
    is_own = [id[0] == GENERATED_PREFIX for id in drafted]
    new = own or [GENERATED_PREFIX + text for text in random_texts(len(drafted))]
    ids = zip(drafted, new, is_own, strict=True)
    return (
        [id if generated else drawn for id, drawn, generated in ids],
        ["" if generated else id for id, generated in zip(drafted, is_own, strict=True)],
    )


def _places(
    fields: tuple[int, str, str, int, str, str, str, tuple[str, ...] | None],
    session: str,
    kinds: Sequence[str],
    ids: Sequence[str],
) -> list[Place]:
    shared, stream, first, key = _encode(fields)[:-1], fields[2], fields[3], fields[6]
    records = enumerate(zip(kinds, ids, strict=True), first)
    return [
        Place(shared, position, kind, id, session, stream, key) for position, (kind, id) in records
    ]


def _bound(stream: StreamIdentity, first: Content) -> tuple[str, ...]:
    if isinstance(first, Branched):
        return stream.tenant, stream.session, first.parent, first.stream
    return stream.tenant, stream.session


def entry_digest(entry: Entry) -> str:
    """Return the digest of an entry, which is the digest of its header as stored."""
    return digest_of(entry.header)


def verify_entry(
    name: str,
    entry: Entry,
    on_damage: Callable[[ChainError], object] | None = None,
    *,
    digest: str | None = None,
) -> VerifiedEntry:
    """Parse an entry's header, and check its positions and its bodies against it.

    A body of None was left out by a read because it is longer than `BODY_MAX`, or is not needed: in
    an entry of nothing but parts of large bodies, it is then `UNREAD`. With `on_damage`,
    records whose body does not match the header are reported and left out, and the others returned.
    """
    header = parse_header(name, entry, digest)
    if entry.body is None and is_only_parts(header):
        return _unread_parts(name, entry, header)
    if entry.body is None:
        reason = f"its body is longer than {BODY_MAX} bytes, more than an entry may have"
        raise PayloadError(name, entry.position, reason)
    digest, body, start = digest_of(entry.header), entry.body, 0
    facts = EntryFacts(entry, header, digest, name)
    records: list[VerifiedRecord] = []
    position, is_single = entry.position, entry.records == 1
    for record in header.records:
        end = start + record.length
        part = body if is_single else body[start:end]
        start = end
        content: bytes | None = part
        if digest_of(part) != record.digest:
            if not _is_emptied(part, record):
                reason = "its body does not match the digest in its header"
                _report(ChainError(name, position, reason), on_damage)
                position += 1
                continue
            content = None
        records.append(VerifiedRecord(facts, position, record, content))
        position += 1
    if start != len(body) and len(records) == entry.records:  # Else the error is reported above.
        reason = "the length of its entry's bodies is not the one in its header"
        _report(ChainError(name, entry.last, reason), on_damage)
    return tuple.__new__(VerifiedEntry, (entry, header, digest, records))


def is_only_parts(header: Header) -> bool:
    """Whether an entry has nothing but parts of large bodies."""
    return all(record.kind == Part.kind for record in header.records)


def _unread_parts(name: str, entry: Entry, header: Header) -> VerifiedEntry:
    facts = EntryFacts(entry, header, digest_of(entry.header), name)
    numbered = enumerate(header.records, entry.position)
    records = [VerifiedRecord(facts, position, record, UNREAD) for position, record in numbered]
    return VerifiedEntry(entry, header, facts.digest, records)


def _is_emptied(body: bytes, record: RecordHeader) -> bool:
    return len(body) == record.length and not body.strip(b" ")


def _report(error: ChainError, on_damage: Callable[[ChainError], object] | None) -> None:
    if on_damage is None:
        raise error
    on_damage(error)


def parse_header(name: str, entry: Entry, digest: str | None = None) -> Header:
    """Return the header of an entry; ChainError if it is not in the form of one.

    VersionError if a newer perdure wrote it, and it has the digest that was given, if any.
    """
    try:
        header = decode_header(entry.header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _header_error(name, entry, digest) from error
    if header.format != FORMAT:
        raise _header_error(name, entry, digest)
    if header.position != entry.position:
        raise ChainError(name, entry.position, f"its header says position {header.position}")
    if len(header.records) != entry.records:
        reason = f"its header has {len(header.records)} records, not {entry.records}"
        raise ChainError(name, entry.position, reason)
    if _encode(_without_empty_keys(header)) != entry.header or not _is_well_formed(header):
        raise ChainError(name, entry.position, "its header is not in the form of a header")
    return header


def decode_header(data: bytes) -> Header:
    """Parse a header, and check nothing else."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        return _decode_keyed(data)  # Perhaps a record has a key of its own.


def _without_empty_keys(header: Header) -> object:
    """Return what encodes to the header in the one form that is allowed."""
    if not isinstance(header, _KeyedHeader):
        return header
    records = [item if item.key else msgspec.structs.astuple(item)[:4] for item in header.records]
    return (*msgspec.structs.astuple(header)[:-1], records)


def _is_well_formed(header: Header) -> bool:
    bound, records = header.bound, header.records
    for record in records:
        if record.length < 1 or (bound is None and record.kind in _BOUND_KINDS):
            return False
    is_whole = bound is None or len(bound) == (4 if records[0].kind == Branched.kind else 2)
    return is_whole and not any(record.kind in FIRST_KINDS for record in records[1:])


def _header_error(name: str, entry: Entry, digest: str | None) -> Exception:
    if digest not in (None, digest_of(entry.header)):  # Damage can produce any version number.
        return ChainError(name, entry.position, "it is not the entry that its successor links to")
    what = f"{name!r} entry {entry.position}"
    try:
        fields = msgspec.json.decode(entry.header)
        version = fields[0]
        if isinstance(version, int) and FORMAT < version < 100:  # noqa: PLR2004 - more is no version
            return VersionError(what, str(version), str(FORMAT))
        if _has_more_fields(fields) and _encode(fields) == entry.header:
            return VersionError(what, "a header with further fields", "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        pass
    return ChainError(name, entry.position, "its header does not parse")


def _has_more_fields(fields: list[Any]) -> bool:
    """Whether a header is one of this version, but for fields that a later one has added."""
    known = len(Header.__struct_fields__)
    records = [item[: len(KeyedRecordHeader.__struct_fields__)] for item in fields[known - 1]]
    shortened = [*fields[: known - 1], records]
    try:
        msgspec.convert(shortened, _KeyedHeader)
    except msgspec.ValidationError:
        return False
    return shortened != fields


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
    if header.stream != stream.id:
        raise ChainError(stream.session, position, "it belongs to another stream")
    if header.bound is None:
        return
    if header.bound[1] != stream.session:
        raise ChainError(stream.session, position, "it belongs to another session")
    if not is_same_tenant(header.bound[0], stream.tenant):
        raise ChainError(stream.session, position, "it belongs to another tenant")


def is_same_tenant(one: str, other: str) -> bool:
    """Whether a store of one tenant may hold streams of another: only if one of them has none.

    So sessions can be copied from a store without tenants to one with tenants, and back.
    """
    return one == other or not one or not other


def require_possible(name: str, linked: VerifiedRecord) -> None:
    """Raise ChainError if a header has a time, a key or an id that no writer makes."""
    header, reason = linked.header, ""
    try:
        moment = datetime.fromisoformat(header.time).isoformat(timespec="microseconds")
        if header.time != moment.removesuffix("+00:00") + "Z":
            reason = "its time is not in the form of headers"
    except ValueError:
        reason = "its time does not parse"
    if header.suite == PLAIN and (header.key or isinstance(header, _KeyedHeader)):
        reason = "it names a key, and its bodies are plain"
    if not all(record.id[:1] == GENERATED_PREFIX for record in header.records):
        reason = "its header has an id that is not perdure's own"
    if reason:
        raise ChainError(name, linked.entry.position, reason)


def open_body(name: str, linked: VerifiedRecord, cipher: Cipher) -> bytes:
    """Return the payload of a verified record; empty if it was erased."""
    return decode_record(name, linked, cipher).payload


def decode_content(name: str, linked: VerifiedRecord, cipher: Cipher) -> Content:
    """Return the content of a verified record; `EmptiedContent` if it was erased."""
    return decode_record(name, linked, cipher).content


def decode_record(name: str, linked: VerifiedRecord, cipher: Cipher) -> PendingRecord:
    """Return a verified record: its id, or the caller's; its content; and its payload."""
    opened = linked._opened  # noqa: SLF001 - the record caches it for this function
    if opened is None:
        opened = linked._opened = _decode_record(name, linked, cipher)  # noqa: SLF001
    return opened


def _decode_record(name: str, linked: VerifiedRecord, cipher: Cipher) -> PendingRecord:
    position, body, suite = linked.position, linked.body, linked.header.suite
    if body is None:
        return PendingRecord(linked.id, EmptiedContent(), b"")
    if linked.kind == Part.kind:
        return _decode_part(name, linked, body, cipher)
    if suite != cipher.suite:
        raise _suite_error(name, position, suite, cipher)
    try:
        payload, given = cipher.open(body, linked.place)
    except ValueError as error:
        raise PayloadError(name, position, "its body cannot be decrypted or unwrapped") from error
    content = codec.decode(linked.kind, payload, stream=name, position=position)
    if isinstance(content, Branched):
        bound = linked.header.bound or ()
        if (*bound[2:], position - 1) != (content.parent, content.stream, content.at):
            raise ChainError(name, position, "it does not continue its parent's history")
    return PendingRecord(given or linked.id, content, payload)


def _suite_error(name: str, position: int, suite: str, cipher: Cipher) -> Exception:
    if suite == PLAIN and cipher.suite == SEALED:
        reason = "it is not encrypted, and the store is: it was not written by a key's owner"
        return PayloadError(name, position, reason)
    if suite == SEALED and cipher.suite == PLAIN:
        where, hint = f"session {name!r}, record {position}", "open the store with keys="
        return MissingKeyError(
            where, "it is encrypted, and the store was opened without keys", hint
        )
    return VersionError(f"{name!r} entry {position}", f"a cipher suite {suite!r}", "")


def _decode_part(name: str, linked: VerifiedRecord, body: bytes, cipher: Cipher) -> PendingRecord:
    position, header = linked.position, linked.header
    content = Part(size=linked.size)
    if body is UNREAD:
        return PendingRecord(linked.id, content, b"")
    if header.suite != cipher.suite:
        raise _suite_error(name, position, header.suite, cipher)
    try:
        return PendingRecord(linked.id, content, cipher.open_bytes(body, linked.place))
    except ValueError as error:
        raise PayloadError(name, position, "its body cannot be decrypted or unwrapped") from error


def set_opened(linked: VerifiedRecord, record: PendingRecord) -> None:
    """Set what a verified record is decoded as: itself, with the bodies that it cites."""
    linked._opened = record  # noqa: SLF001 - as `decode_record`


def to_record(name: str, linked: VerifiedRecord, record: PendingRecord) -> Record:
    """Return a verified record, once decoded, in the form that applications see."""
    try:
        time = datetime.fromisoformat(linked.header.time)
    except ValueError as error:
        raise PayloadError(name, linked.position, "its time does not parse") from error
    return Record(linked.position, record.id, linked.kind, time, record.content, linked.digest)


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
    # `:06` is three times slower.
    return f"{_format_second(second)}.{str(_MICROSECONDS + micro)[1:]}Z"


@lru_cache(maxsize=8)  # many records share a second, and the calendar is the slow part
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:-6]
