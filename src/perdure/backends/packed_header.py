"""Header ⇄ packed header: the same bytes in less than half the space, for stores with tables. Pure.

A header has exactly one form, so its fields can be stored apart from each other and put together
again. The stream's id and the position come from elsewhere in the store; digests and ids become
bytes, the time a number. A header that `unpack` would not restore byte by byte is not packed: one
that names its session, that has a key or a kind without a number, or that is in another form.

The bytes, with `n` records:

    0        n, from 1 to 255
    1        time: microseconds since 1970, big-endian, 7 bytes
    8        letters of base64, 6 bits each: n ids without their dot, 22 letters each; then the
             previous digest and those of the records without their `=`, 43 letters each; then zeros
             up to a multiple of 3 bytes
    …        n bytes: the numbers of the kinds
    …        the lengths in decimal, with commas between them

When editing: the numbers of kinds are stored. Add to the end of the list, and never change it.
"""

from binascii import Error, a2b_base64, b2a_base64
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

KINDS = (
    *("message", "message.chunk", "messages.retracted", "messages.replaced", "pinned"),
    *("summary", "summary.undone", "tools", "value", "note", "batch", "view", "part"),
    *("effect.intent", "effect.outcome", "approval.requested", "approval.decided"),
    *("turn.begun", "turn.continued", "turn.completed", "turn.failed", "turn.abandoned"),
    *("lease.taken", "lease.renewed", "lease.released", "labels", "fields", "index", "snapshot"),
    *("branched", "branch.kept", "branch.released", "copied", "omitted", "deleted", "erased"),
    *("carried", "compacted", "ids.dropped", "heads", "checkpoint"),
)
"""The kinds by their number, from 0 on."""

START = 8  # bytes before the ids

ID, DIGEST = 22, 43  # letters of base64

RECORDS_MAX = 255  # records of a packed header; one with more is rare, and stays as it is

_TIME = 7  # bytes; enough for 2,283 years of microseconds

_MICROSECONDS = 1_000_000

_STANDARD, _URLSAFE = bytes.maketrans(b"-_", b"+/"), bytes.maketrans(b"+/", b"-_")

_number_of = {kind: number for number, kind in enumerate(KINDS)}.__getitem__

_NAMES = [kind.encode() for kind in KINDS]


class _Header(msgspec.Struct, array_like=True, gc=False):
    format: int
    suite: str
    stream: str
    position: int
    previous: str
    time: str
    key: str
    bound: None
    records: list[tuple[str, str, int, str]]


_decode = msgspec.json.Decoder(_Header).decode


def pack(header: bytes, position: int, stream: str) -> bytes | None:
    """Return a packed header, or None if it has to be stored as it is.

    `stream` is the id of the stream, as `unpack` will get it.
    """
    try:
        fields = _decode(header)
        kinds, ids, lengths, digests = zip(*fields.records, strict=True)
        # All at once: an id is `.` and 22 letters, and a digest 43 letters and `=`.
        joined = "".join(ids).replace(".", "").encode().translate(_STANDARD)
        text = joined + (fields.previous + "".join(digests)).replace("=", "").encode()
        time = _seconds_of(fields.time[:19]) * _MICROSECONDS + int(fields.time[20:26])
        packed = b"%c%b%b%b%b" % (
            *(len(kinds), time.to_bytes(_TIME, "big"), a2b_base64(text + b"A" * (-len(text) % 4))),
            *(bytes(map(_number_of, kinds)), ",".join(map(str, lengths)).encode()),
        )
        # Nothing was checked until here: any difference shows now.
        last = position + len(kinds) - 1
        return packed if unpack(packed, last, stream.encode()) == header else None
    except (msgspec.DecodeError, Error, LookupError, OverflowError, RecursionError, ValueError):
        return None


def unpack(packed: bytes, last: int, stream: bytes) -> bytes:
    """Return the header of an entry that ends at a position; ValueError if it is no such header."""
    if len(packed) < START or not packed[0]:
        raise ValueError(len(packed))
    count = packed[0]
    first = count * ID  # the letter at which the digests begin
    end = first + (count + 1) * DIGEST
    kinds = START + -(-end // 4) * 3
    text = b2a_base64(packed[START:kinds], newline=False)
    ids = text.translate(_URLSAFE)
    lengths = packed[kinds + count :].split(b",")
    if len(lengths) != count or text[end:].strip(b"A"):
        raise ValueError(count)
    second, micro = divmod(int.from_bytes(packed[1:START], "big"), _MICROSECONDS)
    try:
        names = [_NAMES[number] for number in packed[kinds : kinds + count]]
    except IndexError as error:
        raise ValueError(count) from error
    previous, *digests = [text[at : at + DIGEST] for at in range(first, end, DIGEST)]
    records = [
        b'["%b",".%b",%b,"%b="]' % (name, ids[at : at + ID], length, digest)
        for name, at, length, digest in zip(
            names, range(0, first, ID), lengths, digests, strict=True
        )
    ]
    return b'[1,"plain","%b",%d,"%b=","%b.%06dZ","",null,[%b]]' % (
        *(stream, last - count + 1, previous, _format_second(second), micro),
        b",".join(records),
    )


@lru_cache(maxsize=8)  # many headers share a second, and the calendar is the slow part
def _seconds_of(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp())


@lru_cache(maxsize=256)
def _format_second(second: int) -> bytes:
    try:
        return datetime.fromtimestamp(second, UTC).isoformat()[:-6].encode()
    except (OverflowError, OSError) as error:
        raise ValueError(second) from error
