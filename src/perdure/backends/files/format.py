r"""The lines of a stream's file: encode values to bytes and parse them back. Pure.

Every line is JSON in UTF-8, so `jq`, `less` and `grep` show a file; the only control characters in
it are tab and newline:

    {"perdure":"stream","version":1,"synced":["= 000000000000901 000000000000194 5e0c42a1",
        "= 000000000000194 …"],"first":1,"name":"claim-4711","check":"…"}    (one line in the file)
    {"perdure":[1,0,[[2,371,104,"…","…"]],["turn-open"],0,"…"]}
    HEADER <tab> BODY
    {"perdure":[3,812,[[1,271,512,"…","…"]],[],3,"…"]}
    HEADER <tab> BODY

The first line (the file header) names the stream and the position of its first entry. Its field
`synced` is the only part of a file that is ever overwritten. It holds two durable marks: `=` if the
file's name is known to be durable (`~` if not yet), the number of durable bytes, the offset of
their last batch, and a checksum of these. A mark is written after a sync and never before it, so
the bytes it covers can be damaged but not torn. Each update overwrites the older mark, so one of
the two is whole at any moment.

Batches follow, one per append: a batch line, then one line per entry. The batch line holds the
position of the first entry; the size in bytes of the previous batch, for reading backwards; for
each entry the number of its records, the stored sizes of its header and body and a digest of each;
the labels of the head; the position of its snapshot, or 0; and a digest over this line, its offset
and its stream, so that a line copied from another place is not accepted.

An entry is its header and body unchanged. Bytes that are not plain text (control characters,
invalid UTF-8) and headers that look like a line of perdure's own are stored in base64 between
quotes. The batch line then says so after the digests: "b" (the body) or "hb" (both), and the body's
real length. Digests are the first 96 bits of SHA-256 in base64: they detect damage; forgery is
detected by the chain.

Editing: this is a stored format. A change needs a new VERSION and code that reads the old one.
"""

import base64
import binascii
import hashlib
import itertools
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

VERSION = 1

OWN_PREFIX = b'{"perdure":'

BATCH_PREFIX = OWN_PREFIX + b"["

FILE_HEADER_PREFIX = OWN_PREFIX + b'"stream","version":%d,"synced":["' % VERSION

MARK_SIZE = 42  # bytes; fixed, so that a mark can be overwritten in place

# Offsets in bytes. Both lie in the first sector of the file, which is written atomically.
MARK_OFFSETS = (len(FILE_HEADER_PREFIX), len(FILE_HEADER_PREFIX) + MARK_SIZE + len(b'","'))

CHECK_SIZE = 16  # characters of a digest: 96 bits in base64


_CONTROLS = bytes([*range(32), 127])

_ANY_VERSION = OWN_PREFIX + b'"stream","version":'


class DurableMark(NamedTuple):
    """A durable mark: how much of a file is known to be on stable storage.

    `end` is the number of durable bytes, `last` the offset of their last batch, and
    `name_is_durable` says whether the file's name is durable too. Of two marks the greater one
    counts.
    """

    end: int
    name_is_durable: bool
    last: int


NO_MARK = DurableMark(end=0, name_is_durable=False, last=0)


class FileHeader(NamedTuple):
    """The fields of a file's first line, and the size of that line in bytes."""

    name: str
    first: int
    mark: DurableMark
    spare: int
    """Offset at which the next mark is written: that of the older mark."""
    size: int


class EntryLayout(msgspec.Struct, array_like=True, frozen=True):
    """One entry of a batch: its records, the sizes of header and body as stored, their digests."""

    records: int
    header: int
    body: int
    header_digest: str
    body_digest: str
    form: str = ""
    length: int = 0

    @property
    def body_length(self) -> int:
        """Length of the body in bytes before it was encoded as text.

        At least what the stored bytes decode to, so that a wrong `length` cannot hide a long body.
        """
        return max(self.length, self.body // 4 * 3 - 4) if self.form else self.body

    @property
    def size(self) -> int:
        return self.header + self.body + 2


class StoredBatch(NamedTuple):
    """The fields of a batch line, and where the batch lies in the file.

    `at` and `end` are offsets; `first` is the position of the first entry; `previous_size` is the
    size in bytes of the batch before, 0 in the first one.
    """

    at: int
    first: int
    previous_size: int
    pieces: Sequence[EntryLayout]
    starts: Sequence[int]
    """Offsets at which the lines of the entries begin."""
    positions: Sequence[int]
    """The first position of each entry, and the one after the last entry."""
    labels: frozenset[str]
    snapshot: int
    end: int

    @property
    def last(self) -> int:
        """The last position of the last entry."""
        return self.positions[-1] - 1

    def covering(self, position: int) -> int:
        """Return the number of the entry that covers a position; 0 for one before the batch."""
        return max(bisect_right(self.positions, position) - 1, 0)

    @property
    def size(self) -> int:
        return self.end - self.at


class _BatchLine(msgspec.Struct):
    perdure: tuple[int, int, list[EntryLayout], list[str], int, str]


class _FileHeaderLine(msgspec.Struct):
    synced: tuple[str, str]
    first: int
    name: str
    check: str


class _VersionLine(msgspec.Struct):
    version: int


_decode_batch_line = msgspec.json.Decoder(_BatchLine).decode

_decode_file_header = msgspec.json.Decoder(_FileHeaderLine).decode

_decode_version = msgspec.json.Decoder(_VersionLine).decode

_encode = msgspec.json.Encoder().encode


def file_stem(name: bytes) -> str:
    """Return the file name of a stream without its suffix: a hash, so no part of its name shows."""
    return hashlib.sha256(name).hexdigest()


def short_digest(data: bytes) -> str:
    """Return the first 96 bits of SHA-256 as text."""
    return binascii.b2a_base64(hashlib.sha256(data).digest()[:12], newline=False).decode()


def encode_mark(mark: DurableMark, stem: str) -> bytes:
    """Encode a mark for `synced`; the result always has MARK_SIZE bytes."""
    text = b"%c %015d %015d " % (b"=" if mark.name_is_durable else b"~", mark.end, mark.last)
    return text + b"%08x" % zlib.crc32(stem.encode() + text)


def encode_file_header(name: str, first: int, mark: DurableMark = NO_MARK) -> bytes:
    """Encode the first line of a file. Its size does not depend on the mark."""
    text = encode_mark(mark, file_stem(name.encode()))
    return _format_file_header(text, text, name, first)


def _format_file_header(mark_0: bytes, mark_1: bytes, name: str, first: int) -> bytes:
    rest = b'"first":%d,"name":%b' % (first, _encode(name))
    check = short_digest(rest).encode()
    return b'%b%b","%b"],%b,"check":"%b"}\n' % (FILE_HEADER_PREFIX, mark_0, mark_1, rest, check)


def parse_file_header(line: bytes) -> FileHeader | None:
    """Parse a first line; return None if it is damaged."""
    if not line.startswith(FILE_HEADER_PREFIX) or not line.endswith(b"}\n"):
        return None
    try:
        fields = _decode_file_header(line)
        name = fields.name.encode()
    except (msgspec.MsgspecError, UnicodeError):
        return None
    mark_0, mark_1 = (text.encode() for text in fields.synced)
    if line != _format_file_header(mark_0, mark_1, fields.name, fields.first):
        return None
    latest, spare = _latest_mark((mark_0, mark_1), file_stem(name))
    if latest == NO_MARK:
        return None
    return FileHeader(fields.name, fields.first, latest, spare, len(line))


def reconstruct_file_header(start: bytes, name: str, batch: "StoredBatch") -> FileHeader:
    """Reconstruct a damaged first line from its marks and the first intact batch.

    Without a usable mark the file counts as durable up to the end of that batch; the rest is
    treated as an unsynced tail.
    """
    marks = [start[at : at + MARK_SIZE] for at in MARK_OFFSETS]
    latest, spare = _latest_mark(marks, file_stem(name.encode()))
    if latest.end < batch.end:
        latest = DurableMark(end=batch.end, name_is_durable=True, last=batch.at)
    return FileHeader(name, batch.first, latest, spare, batch.at)


def _latest_mark(texts: Sequence[bytes], stem: str) -> tuple[DurableMark, int]:
    """Return the latest mark, UNKNOWN if there is none, and the offset for the next one."""
    marks = [_parse_mark(text, stem) or NO_MARK for text in texts]
    latest = max(marks)
    return latest, MARK_OFFSETS[1 - marks.index(latest)]


def newer_version(line: bytes) -> int:
    """Return the version of a first line written by a later perdure, else 0."""
    try:
        version = _decode_version(line).version if line.startswith(_ANY_VERSION) else 0
    except (msgspec.MsgspecError, UnicodeError):
        return 0
    return version if VERSION < version < 100 else 0  # noqa: PLR2004 - a larger number is damage, not a version.


def _parse_mark(text: bytes, stem: str) -> DurableMark | None:
    parts = text.split(b" ")
    if (len(text), len(parts)) != (MARK_SIZE, 4) or not (parts[1] + parts[2]).isdigit():
        return None
    mark = DurableMark(int(parts[1]), parts[0] == b"=", int(parts[2]))
    return mark if encode_mark(mark, stem) == text else None


def encode_entry(header: bytes, body: bytes, records: int = 1) -> tuple[bytes, EntryLayout]:
    """Encode an entry as a line; return it and the entry's sizes and digests."""
    form, length = "", 0
    if not _is_plain(body):
        form, length, body = "b", len(body), _quote(body)
    if header.startswith(OWN_PREFIX) or not _is_plain(header):
        if not form:
            length, body = len(body), _quote(body)
        form, header = "hb", _quote(header)
    digests = short_digest(header), short_digest(body)
    piece = EntryLayout(records, len(header), len(body), *digests, form, length)
    return b"%b\t%b\n" % (header, body), piece


def decode_header(piece: EntryLayout, stored: bytes) -> bytes | None:
    """Return a header as it was appended, None if the stored bytes were altered."""
    return _decode(stored, piece.header_digest, quoted=piece.form == "hb")


def decode_body(piece: EntryLayout, stored: bytes) -> bytes | None:
    """Return a body as it was appended, None if the stored bytes were altered."""
    return _decode(stored, piece.body_digest, quoted=bool(piece.form))


def _is_plain(data: bytes) -> bool:
    if data.translate(None, _CONTROLS) != data:
        return False
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _quote(data: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(data)


def _decode(stored: bytes, digest: str, *, quoted: bool) -> bytes | None:
    if short_digest(stored) != digest:
        return None
    try:
        return base64.b64decode(stored[1:-1], validate=True) if quoted else stored
    except binascii.Error:
        return None


def encode_batch_line(
    stem: str,
    *,
    at: int,
    previous_size: int,
    first: int,
    pieces: Sequence[EntryLayout],
    labels: Sequence[str],
    snapshot: int,
) -> bytes:
    """Encode the batch line for a given offset of a stream's file."""
    items = [
        (p.records, p.header, p.body, p.header_digest, p.body_digest)
        if not p.form
        else (p.records, p.header, p.body, p.header_digest, p.body_digest, p.form, p.length)
        for p in pieces
    ]
    text = OWN_PREFIX + _encode((first, previous_size, items, labels, snapshot))[:-1]
    return b'%b,"%b"]}\n' % (text, _batch_digest(stem, at, text))


def parse_batch(stem: str, at: int, line: bytes) -> StoredBatch | None:
    """Parse a batch line; return None if it is damaged or belongs to another place."""
    ending = b',"' + line[-CHECK_SIZE - 4 : -4] + b'"]}\n'
    if not line.startswith(BATCH_PREFIX) or not line.endswith(ending):
        return None
    text = line[: -len(ending)]
    if _batch_digest(stem, at, text) != ending[2 : 2 + CHECK_SIZE]:
        return None
    try:
        first, previous_size, pieces, labels, snapshot, _ = _decode_batch_line(line).perdure
    except (msgspec.MsgspecError, UnicodeError):
        return None
    *starts, end = itertools.accumulate((p.size for p in pieces), initial=at + len(line))
    positions = [*itertools.accumulate((p.records for p in pieces), initial=first)]
    if any(piece.records < 1 for piece in pieces) or not 0 <= snapshot < positions[-1]:
        return None
    facts = (frozenset(labels), snapshot)
    return StoredBatch(at, first, previous_size, pieces, starts, positions, *facts, end)


def _batch_digest(stem: str, at: int, text: bytes) -> bytes:
    """Bind a line to its stream and offset, so that a copy elsewhere does not verify."""
    return short_digest(b"%b %d %b" % (stem.encode(), at, text)).encode()
