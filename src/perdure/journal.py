"""Number and link payloads into entries; check entries and open them. Pure: no I/O, no clock.

A header names its place (stream, position, batch, kind, id, time), the digest of the header
before it, and last the digest of its own body as stored. So a chain is checked without any key
and stays checkable when a body was erased, and what is hashed is exactly what is stored.

A batch is the entries of one append. Each header says how many are left, so a batch that a crash
cut short shows at the end of a stream; it was never acknowledged and counts as absent. The writer
that finds one puts a `recovered` record after it, which is a batch of its own.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from perdure import codec
from perdure.backend import Entry, digest_bytes, digest_of
from perdure.cipher import Cipher
from perdure.content import Content
from perdure.errors import ChainError, PayloadError, TornError, VersionError
from perdure.records import Branched, Deleted, Record, Recovered

FORMAT = 1
_SECOND = 1_000_000  # In microseconds.

# Entries of these kinds stand first in a stream, or will when what is before them was dropped.
_BINDING = frozenset({Branched.kind, Deleted.kind})

_encode = msgspec.json.Encoder().encode


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header before its last field, in the order in which it is stored, as a JSON array."""

    format: int
    suite: str
    tenant: str
    stream: str
    position: int
    previous: str
    left: int
    kind: str
    id: str
    time: str
    key: str
    session: str | None
    """The session's id, in the first header of a stream and in those that can become the first."""


class Header(Place, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A whole header, version 1."""

    body: str


_decode = msgspec.json.Decoder(Header).decode


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record that has no place yet."""

    id: str
    content: Content
    payload: bytes


class Tip(msgspec.Struct, frozen=True, gc=False):
    """The last entry of a chain: what the next one links to. No digest means: not to be checked."""

    position: int
    digest: str | None


EMPTY = Tip(0, "")


class Stream(NamedTuple):
    """What every header of a stream repeats, and what its first one binds."""

    session: str
    id: str
    tenant: str = ""


class Linked(NamedTuple):
    """An entry that was checked: its header, its digest, and its payload where it has a body."""

    entry: Entry
    header: Header
    digest: str
    place: bytes

    @property
    def tip(self) -> Tip:
        return Tip(self.entry.position, self.digest)


def link(
    stream: Stream, tip: Tip, drafts: Sequence[Draft], *, time: str, cipher: Cipher
) -> tuple[list[Entry], Tip]:
    """Return the entries of one batch that continue a chain at its tip, and the new tip."""
    entries: list[Entry] = []
    session, stream_id, tenant = stream
    suite, key_id, seal = cipher.suite, cipher.key_id, cipher.seal
    position, previous = tip.position, tip.digest or ""
    # A `recovered` record stands alone, so that it can not be taken for the end of a torn batch.
    recovered = drafts[0].content.kind == Recovered.kind  # It comes first, or not at all.
    size = len(drafts) - recovered
    for draft in drafts:
        position += 1
        kind, left = draft.content.kind, 0
        if kind != Recovered.kind:
            left = size = size - 1
        bound = session if position == 1 or kind in _BINDING else None
        # A tuple in the order of `Place`, which takes longer to make and is the same when encoded.
        place = (
            *(FORMAT, suite, tenant, stream_id, position, previous),
            *(left, kind, draft.id, time, key_id, bound),
        )
        prefix = _encode(place)[:-1]
        body = seal(draft.payload, prefix)
        header = b"".join((prefix, b',"', digest_bytes(body), b'"]'))
        previous = digest_bytes(header).decode()
        # As calling the class does, in half the time.
        entries.append(tuple.__new__(Entry, (position, header, body)))
    return entries, Tip(position, previous)


def digest(entry: Entry) -> str:
    """Return the digest of an entry: that of its header as stored."""
    return digest_of(entry.header)


def inspect(name: str, entry: Entry) -> Linked:
    """Parse an entry's header and check the entry against itself."""
    try:
        header = _decode(entry.header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(name, entry) from error
    if header.format != FORMAT:
        raise VersionError(f"{name!r} entry {entry.position}", str(header.format), str(FORMAT))
    if header.position != entry.position:
        raise ChainError(name, entry.position, f"its header says position {header.position}")
    if entry.body is not None and digest_of(entry.body) != header.body:
        raise ChainError(name, entry.position, "its body is not the one its header names")
    place = entry.header[: -len(',"') - len(header.body) - len('"]')]
    return Linked(entry, header, digest(entry), place)


def _unreadable(name: str, entry: Entry) -> Exception:
    try:
        found = msgspec.json.decode(entry.header)[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        found = FORMAT
    if isinstance(found, int) and FORMAT < found < 100:  # noqa: PLR2004 - more is not a version
        return VersionError(f"{name!r} entry {entry.position}", str(found), str(FORMAT))
    return ChainError(name, entry.position, "its header is not one")


def follows(name: str, older: Tip, newer: Linked) -> None:
    """Raise ChainError unless the newer entry stands right after the older one and links to it."""
    position = newer.entry.position
    if position != older.position + 1:
        missing = older.position + 1
        raise ChainError(name, missing, f"it is missing: {position} comes after {older.position}")
    if older.digest is not None and newer.header.previous != older.digest:
        raise ChainError(name, older.position, f"entry {position} links to another one")


def belongs(stream: Stream, linked: Linked) -> None:
    """Raise ChainError unless the entry was written for this stream."""
    header, position = linked.header, linked.entry.position
    if header.stream != stream.id or header.tenant != stream.tenant:
        raise ChainError(stream.session, position, "it belongs to another stream")
    if header.session is not None and header.session != stream.session:
        raise ChainError(stream.session, position, "it belongs to another session")


def open_body(name: str, linked: Linked, cipher: Cipher) -> bytes:
    """Return the payload of a checked entry."""
    position, body = linked.entry.position, linked.entry.body
    if body is None:
        raise ChainError(name, position, "its body is missing")
    if linked.header.suite != cipher.suite:
        raise VersionError(f"{name!r} entry {position}", linked.header.suite, cipher.suite)
    try:
        return cipher.open(body, linked.place)
    except ValueError as error:
        raise PayloadError(name, position, "its body does not open") from error


def decode(name: str, linked: Linked, cipher: Cipher) -> Content:
    """Return the content of a checked entry."""
    payload = open_body(name, linked, cipher)
    return codec.decode(linked.header.kind, payload, stream=name, position=linked.entry.position)


def record(name: str, linked: Linked, content: Content) -> Record:
    """Return a checked entry as the record that applications see."""
    header = linked.header
    try:
        time = datetime.fromisoformat(header.time)
    except ValueError as error:
        raise PayloadError(name, header.position, "its time does not parse") from error
    return Record(header.position, header.id, header.kind, time, content, linked.digest)


def timestamp(seconds: float) -> str:
    """Return a time in UTC as headers carry it."""
    whole, micro = divmod(round(seconds * _SECOND), _SECOND)
    return f"{_second(whole)}.{str(_SECOND + micro)[1:]}Z"  # `:06` takes three times as long.


@lru_cache(maxsize=8)  # Many records of one second: the calendar is the slow part.
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).isoformat()[:-6]


class Batches:
    """Groups checked entries, in order, into whole batches; tells torn ones apart."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[Linked] = []

    @property
    def torn(self) -> tuple[int, int] | None:
        """The first and last position of a batch that has not ended."""
        if not self._open:
            return None
        return self._open[0].entry.position, self._open[-1].entry.position

    def copy(self) -> "Batches":
        """Return one that goes its own way from here."""
        other = Batches(self._name)
        other._open = [*self._open]
        return other

    def add(self, linked: Linked) -> list[Linked]:
        """Return the entries that became whole with this one: none, or a batch."""
        header = linked.header
        if header.kind == Recovered.kind:
            self._open.clear()
            return [linked]
        if self._open and header.left != self._open[-1].header.left - 1:
            raise ChainError(self._name, header.position, "it does not continue its batch")
        self._open.append(linked)
        return self.flush() if header.left == 0 else []

    def flush(self) -> list[Linked]:
        """Return what is open as if it were whole: a shared past may end within a batch."""
        whole, self._open = self._open, []
        return whole


def torn_error(name: str, torn: tuple[int, int]) -> TornError:
    """Say that a batch was cut by a crash."""
    first, last = torn
    return TornError(name, first, f"a crash cut this batch after entry {last}; it was not stored")
