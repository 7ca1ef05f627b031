r"""The text of a stream's file, line by line: values come in, bytes go out, and back. Pure.

Every line is JSON in UTF-8, so `jq`, `less` and `grep` show a file, and there is no control
character in it but tab and newline:

    {"perdure":"stream","version":1,"synced":["= 000000000000901 000000000000194 5e0c42a1",
        "= 000000000000194 …"],"first":1,"name":"claim-4711","check":"…"}    (one line in the file)
    {"perdure":[1,0,[[271,64,"…","…"],[268,40,"…","…"]],["turn-open"],"…"]}
    HEADER <tab> BODY
    HEADER <tab> BODY
    {"perdure":[3,812,[[271,512,"…","…"]],[],"…"]}
    HEADER <tab> BODY

The first line names the stream and the position of its first entry. What stands in `synced`
is the only thing that is ever written over: `=` if the file's name is known to be durable (`~` if
not yet), how many bytes of the file are, where their last batch begins, and a checksum of these.
It is written after a sync and never before, so what it covers can be damaged but not torn. There
are two such marks, and the older one is written over, so that one is whole at any moment.

Then come batches, one for each append: a line of perdure's own, and a line for each entry. The
own line holds the position of the first entry; how many bytes the batch before it has, for
whoever reads backwards; for each entry the sizes of its header and body in the file and a digest
of each; the labels of the head; and a digest of this line, its offset and its stream, so that no
line is taken for one of another place.

An entry is a header and a body as they are. Bytes that are no plain text (control characters, no
UTF-8) and headers that look like a line of perdure's own stand in base64 between quotes; the own
line then says so after the digests: "b" (the body) or "hb" (both), and the body's real length.
Digests are the first 96 bits of SHA-256 in base64: they find damage; forgers are the chain's
business.
"""

import base64
import binascii
import hashlib
import itertools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

VERSION = 1
OWN = b'{"perdure":'
BATCH = OWN + b"["
OPENING = OWN + b'"stream","version":%d,"synced":["' % VERSION
MARK_SIZE = 42
# In the first sector of the file, which is written whole or not at all.
MARKS_AT = (len(OPENING), len(OPENING) + MARK_SIZE + len(b'","'))
CHECK_SIZE = 16

_CONTROLS = bytes([*range(32), 127])
_ANY_VERSION = OWN + b'"stream","version":'


class Mark(NamedTuple):
    """How far a file is known to be durable: its name, its first `end` bytes.

    Their last batch begins at `last`. Of the two marks the later one counts.
    """

    end: int
    placed: bool
    last: int


UNKNOWN = Mark(end=0, placed=False, last=0)


class Opening(NamedTuple):
    """The first line of a file, and its size."""

    name: str
    first: int
    mark: Mark
    spare: int
    """Where the next mark goes."""
    size: int


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """One entry of a batch: sizes as stored, digests of what is stored."""

    header: int
    body: int
    header_digest: str
    body_digest: str
    form: str = ""
    length: int = 0

    @property
    def body_length(self) -> int:
        """How many bytes the body had before it was made text."""
        return self.length if self.form else self.body

    @property
    def size(self) -> int:
        return self.header + self.body + 2


class Batch(NamedTuple):
    """The own line of a batch, and where the batch stands in the file."""

    at: int
    first: int
    back: int
    pieces: Sequence[Piece]
    starts: Sequence[int]
    """Where the lines of the entries begin."""
    labels: frozenset[str]
    end: int

    @property
    def last(self) -> int:
        """The position of the last entry."""
        return self.first + len(self.pieces) - 1

    @property
    def size(self) -> int:
        return self.end - self.at


class _Own(msgspec.Struct):
    perdure: tuple[int, int, list[Piece], list[str], str]


class _First(msgspec.Struct):
    synced: tuple[str, str]
    first: int
    name: str
    check: str


class _Version(msgspec.Struct):
    version: int


_own = msgspec.json.Decoder(_Own).decode
_first = msgspec.json.Decoder(_First).decode
_version = msgspec.json.Decoder(_Version).decode
_encode = msgspec.json.Encoder().encode


def stem(name: bytes) -> str:
    """Return what a stream is called in the file system: nothing of its name is left."""
    return hashlib.sha256(name).hexdigest()


def digest(data: bytes) -> str:
    """Return 96 bits of SHA-256 as text."""
    return binascii.b2a_base64(hashlib.sha256(data).digest()[:12], newline=False).decode()


def mark_text(mark: Mark, of: str) -> bytes:
    """Return what stands in `synced`; always of the same size."""
    text = b"%c %015d %015d " % (b"=" if mark.placed else b"~", mark.end, mark.last)
    return text + b"%08x" % zlib.crc32(of.encode() + text)


def opening(name: str, first: int, mark: Mark = UNKNOWN) -> bytes:
    """Return the first line of a file. Its size does not depend on the mark."""
    text = mark_text(mark, stem(name.encode()))
    return _opening(text, text, name, first)


def _opening(one: bytes, other: bytes, name: str, first: int) -> bytes:
    rest = b'"first":%d,"name":%b' % (first, _encode(name))
    check = digest(rest).encode()
    return b'%b%b","%b"],%b,"check":"%b"}\n' % (OPENING, one, other, rest, check)


def parse_opening(line: bytes) -> Opening | None:
    """Return what a first line says, None if it is damaged."""
    if not line.startswith(OPENING) or not line.endswith(b"}\n"):
        return None
    try:
        found = _first(line)
        name = found.name.encode()
    except (msgspec.MsgspecError, UnicodeError):
        return None
    one, other = (text.encode() for text in found.synced)
    if line != _opening(one, other, found.name, found.first):
        return None
    latest, spare = _latest((one, other), stem(name))
    if latest == UNKNOWN:
        return None
    return Opening(found.name, found.first, latest, spare, len(line))


def guessed_opening(start: bytes, name: str, batch: "Batch") -> Opening:
    """Return what a damaged first line must have said, given the first batch that is whole.

    Without a mark it says that the file ends there: what follows is beyond the mark.
    """
    marks = [start[at : at + MARK_SIZE] for at in MARKS_AT]
    latest, spare = _latest(marks, stem(name.encode()))
    if latest.end < batch.end:
        latest = Mark(end=batch.end, placed=True, last=batch.at)
    return Opening(name, batch.first, latest, spare, batch.at)


def _latest(texts: Sequence[bytes], of: str) -> tuple[Mark, int]:
    """Return the mark that counts, UNKNOWN if there is none, and where the next one goes."""
    marks = [_parse_mark(text, of) or UNKNOWN for text in texts]
    latest = max(marks)
    return latest, MARKS_AT[1 - marks.index(latest)]


def newer_version(line: bytes) -> int:
    """Return the version of a first line that was written by a later perdure, else 0."""
    try:
        found = _version(line).version if line.startswith(_ANY_VERSION) else 0
    except (msgspec.MsgspecError, UnicodeError):
        return 0
    return found if VERSION < found < 100 else 0  # noqa: PLR2004 - more is not a version.


def _parse_mark(text: bytes, of: str) -> Mark | None:
    parts = text.split(b" ")
    if (len(text), len(parts)) != (MARK_SIZE, 4) or not (parts[1] + parts[2]).isdigit():
        return None
    mark = Mark(int(parts[1]), parts[0] == b"=", int(parts[2]))
    return mark if mark_text(mark, of) == text else None


def entry_line(header: bytes, body: bytes) -> tuple[bytes, Piece]:
    """Return an entry as a line, and what its batch says about it."""
    form, length = "", 0
    if not _is_plain(body):
        form, length, body = "b", len(body), _quoted(body)
    if header.startswith(OWN) or not _is_plain(header):
        if not form:
            length, body = len(body), _quoted(body)
        form, header = "hb", _quoted(header)
    piece = Piece(len(header), len(body), digest(header), digest(body), form, length)
    return b"%b\t%b\n" % (header, body), piece


def plain_header(piece: Piece, stored: bytes) -> bytes | None:
    """Return a header as it was given, None if it is not the one that was stored."""
    if digest(stored) != piece.header_digest:
        return None
    return _unquoted(stored) if piece.form == "hb" else stored


def plain_body(piece: Piece, stored: bytes) -> bytes | None:
    """Return a body as it was given, None if it is not the one that was stored."""
    if digest(stored) != piece.body_digest:
        return None
    return _unquoted(stored) if piece.form else stored


def _is_plain(data: bytes) -> bool:
    if data.translate(None, _CONTROLS) != data:
        return False
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _quoted(data: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(data)


def _unquoted(stored: bytes) -> bytes | None:
    try:
        return base64.b64decode(stored[1:-1], validate=True)
    except binascii.Error:
        return None


def batch_line(
    of: str, *, at: int, back: int, first: int, pieces: Sequence[Piece], labels: Sequence[str]
) -> bytes:
    """Return the own line of a batch that will stand at an offset of a stream's file."""
    items = [
        (p.header, p.body, p.header_digest, p.body_digest)
        if not p.form
        else (p.header, p.body, p.header_digest, p.body_digest, p.form, p.length)
        for p in pieces
    ]
    text = OWN + _encode((first, back, items, labels))[:-1]
    return b'%b,"%b"]}\n' % (text, _place_digest(of, at, text))


def parse_batch(of: str, at: int, line: bytes) -> Batch | None:
    """Return what the own line of a batch says, None if it is damaged or of another place."""
    ending = b',"' + line[-CHECK_SIZE - 4 : -4] + b'"]}\n'
    if not line.startswith(BATCH) or not line.endswith(ending):
        return None
    text = line[: -len(ending)]
    if _place_digest(of, at, text) != ending[2 : 2 + CHECK_SIZE]:
        return None
    try:
        first, back, pieces, labels, _ = _own(line).perdure
    except (msgspec.MsgspecError, UnicodeError):
        return None
    *starts, end = itertools.accumulate((p.size for p in pieces), initial=at + len(line))
    return Batch(at, first, back, pieces, starts, frozenset(labels), end)


def _place_digest(of: str, at: int, text: bytes) -> bytes:
    return digest(b"%b %d %b" % (of.encode(), at, text)).encode()
