"""How streams are stored in Redis or Valkey: names of keys, heads, entries and indexes. Pure.

A store is divided into buckets; a stream belongs to one of them, by its name. All keys of a bucket
have the same hash tag, `{…}`, so that they are in one slot of a cluster, and one script sees a
stream together with the indexes that list it. On a single server there is one bucket. The keys of a
bucket, behind `prefix:{prefix/tenant/bucket}:`, are:

- `h`: a hash of heads, by stream: `position:digest:snapshot:labels`, the labels in MessagePack;
- `e:` and the name of a stream: its entries, as a Redis stream. The id of an entry is its first and
  its last position, its fields are `h` (the header) and `b` (the body);
- `n`: a sorted set of the names of streams that are not deleted;
- `r`: the same streams by their last append, in microseconds; `d`: the deleted ones;
- `x`: a sorted set of label and name, for each label. A label with a field sorts by its value;
- `w`: the streams that are watched, each with the time until when;
- `b`: empty; written so that replicas confirm the writes before it;
- `s`: only in the first bucket: the layout of the store and the number of its buckets.

To edit: a change needs a new `LAYOUT`, and code that reads the old one.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from perdure.backends.digests import digest_of
from perdure.backends.protocol import Append, Entry, Head
from perdure.backends.redis.address import RedisAddress
from perdure.backends.redis.scripts import READ, Script
from perdure.errors import DamagedError

LAYOUT = 1

CLUSTER_BUCKETS = 16  # of a store in a cluster: as many nodes share its work

SLOTS = 16_384  # of a cluster; fixed by its protocol

PAGE_BYTES = 2**21  # bytes of entries read at a time; a server does nothing else meanwhile

PAGE_ENTRIES = 512  # entries read at a time

MAX_NAME = b"\xff"  # above every text: UTF-8 does not have this byte


class ServerCall(NamedTuple):
    """A command for the server that has a bucket, or a script if `script` is given."""

    bucket: int
    script: Script | None
    arguments: tuple[Any, ...]
    streams: tuple[str, ...] = ()
    """The streams whose entries it uses."""

    @property
    def writes(self) -> bool:
        """Whether replicas have to confirm it."""
        return self.script is not None and self.script.writes


class StoreLayout:
    """The keys of one store."""

    def __init__(self, address: RedisAddress, buckets: int) -> None:
        self.buckets = buckets
        tag = f"{address.prefix}/{quote(address.tenant, safe='')}"
        self._bases = [
            f"{address.prefix}:{{{tag}/{bucket}}}:".encode() for bucket in range(buckets)
        ]
        self.heads = [base + b"h" for base in self._bases]
        self.slots = [slot_of(f"{tag}/{bucket}".encode()) for bucket in range(buckets)]
        self.channel = f"{address.prefix}:{tag}".encode()

    def bucket(self, stream: str) -> int:
        """Return the bucket of a stream. Never change how: a stream must be found again."""
        if self.buckets == 1:
            return 0
        return int.from_bytes(sha256(stream.encode()).digest()[:4], "big") % self.buckets

    def entries_key(self, bucket: int, stream: bytes) -> bytes:
        """Return the key of the entries of a stream."""
        return self._bases[bucket] + b"e:" + stream

    def store_key(self) -> bytes:
        """Return the key with the layout of the store."""
        return self._bases[0] + b"s"

    def stream_call(self, stream: str, script: Script, *arguments: Any) -> ServerCall:
        """Return a call of a script about one stream, whose name is its first argument."""
        return ServerCall(self.bucket(stream), script, (stream, *arguments), (stream,))

    def key(self, bucket: int, letter: str) -> bytes:
        """Return the key of a bucket with a letter."""
        return self._bases[bucket] + letter.encode()

    def command(self, call: ServerCall, *, whole: bool) -> tuple[Any, ...]:
        """Return a call as a command; `whole` sends the text of its script, not its digest."""
        script = call.script
        if script is None:
            return call.arguments
        name = ("EVAL" if whole else "EVALSHA") + ("" if script.writes else "_RO")
        keys = [self.key(call.bucket, letter) for letter in script.keys if letter != "e"]
        keys += [self.entries_key(call.bucket, stream.encode()) for stream in call.streams]
        text = script.text if whole else script.digest
        return (name, text, len(keys), *keys, *call.arguments)


def slot_of(tag: bytes) -> int:
    """Return the slot of the keys with a hash tag, as every cluster computes it (CRC16)."""
    crc = 0
    for byte in tag:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


def append_arguments(append: Append) -> list[Any]:
    """Return the arguments of one append for the script `APPEND`."""
    entries = append.entries
    last = entries[-1]
    labels = msgspec.msgpack.encode(sorted(append.labels))
    head = b"%d:%s:%d:%s" % (last.last, digest_of(last.header).encode(), append.snapshot, labels)
    before = entries[0].position - 1 if append.previous else ""
    arguments: list[Any] = [append.stream, before, append.previous, head, labels, len(entries)]
    for entry in entries:
        arguments += (f"{entry.position}-{entry.last}", entry.header, entry.body)
    return arguments


def size_of(append: Append) -> int:
    """Return about how many bytes an append sends."""
    return sum(entry.size for entry in append.entries)


def decode_head(stream: bytes, packed: bytes | None, header: bytes | None = None) -> Head:
    """Return a head; DamagedError if it is missing or cannot be read."""
    name = stream.decode(errors="replace")
    try:
        if packed is None:
            raise DamagedError(name, 0, "it is listed and has no head")
        position, digest, snapshot, labels = packed.split(b":", 3)
        decoded = frozenset(msgspec.msgpack.decode(labels, type=list[str]))
        end = (int(position), digest.decode(), decoded, header or b"", int(snapshot))
        return Head(stream.decode(), *end)
    except (ValueError, msgspec.MsgspecError) as error:
        raise DamagedError(name, 0, "its head cannot be read") from error


def decode_entries(stream: str, rows: Iterable[Any]) -> list[Entry]:
    """Return entries; DamagedError if the id of one is not an id of this layout."""
    entries = []
    for row in rows:
        try:
            first, _, last = row[0].partition(b"-")
            position = int(first)
            body = row[2] if len(row) > 2 else None  # noqa: PLR2004
            entries.append(Entry(position, row[1], body, int(last) - position + 1))
        except (ValueError, TypeError, IndexError) as error:
            raise DamagedError(stream, 0, "an entry cannot be read") from error
    return entries


def label_member(label: str, name: bytes = b"") -> bytes:
    """Return the member of the label index for a stream with a label.

    A zero byte within a label is escaped, so that labels sort as their texts do, whatever follows.
    """
    return label.encode().replace(b"\0", b"\0\xff") + b"\0" + name


def label_start(label: str) -> bytes:
    """Return the beginning of the members of all labels that begin with a text."""
    return label.encode().replace(b"\0", b"\0\xff")


class ReadPage:
    """A page of entries: where it begins, and what was read."""

    def __init__(
        self, stream: str, after: int, limit: int, max_body: int | None, *, reverse: bool
    ) -> None:
        self.stream = stream
        self.after = after
        self.limit = limit
        self.max_body = max_body
        self.reverse = reverse
        self.entries: list[Entry] = []
        self.is_last = False

    def call(self, layout: StoreLayout) -> ServerCall:
        """Return the call that reads it."""
        start = "" if not self.after else self.after - 1 if self.reverse else self.after + 1
        count = min(self.limit, PAGE_ENTRIES)
        longest = "" if self.max_body is None else self.max_body
        arguments = (start, int(self.reverse), count, PAGE_BYTES, longest)
        return layout.stream_call(self.stream, READ, *arguments)

    def take(self, rows: list[object]) -> None:
        """Keep what was read, and continue behind it."""
        self.is_last = not rows or rows[-1] != b"more"
        entries = decode_entries(self.stream, rows if self.is_last else rows[:-1])
        self.is_last = self.is_last or len(entries) >= self.limit
        self.entries = entries
        self.limit -= len(entries)
        if entries:
            self.after = entries[-1].position if self.reverse else entries[-1].last
