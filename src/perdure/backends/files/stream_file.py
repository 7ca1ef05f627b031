"""Read one open file of a stream: find batches and return entries, each verified. Writes nothing.

A batch is found from its neighbor or by bisection: a batch line can be distinguished from an entry
line, and positions ascend through the file. Reading never skips damage; a read that starts after
the damage does not see it. A reader that salvages (`lenient`) can do without the first line.
"""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from perdure.backends.append_rules import check_name
from perdure.backends.digests import digest_of
from perdure.backends.files.disk import Disk
from perdure.backends.files.format import (
    BATCH_PREFIX,
    VERSION,
    FileHeader,
    StoredBatch,
    decode_body,
    decode_header,
    file_stem,
    newer_version,
    parse_batch,
    parse_file_header,
    reconstruct_file_header,
)
from perdure.backends.protocol import HEADER_MAX, Entry, Head
from perdure.errors import DamagedError, VersionError

FIRST_BLOCK = 4096  # bytes; enough for the first line, and for all of a small file

FIRST_LINE_MAX = 2**20  # bytes of a first line that are read; a name fits easily

BLOCK = 65536  # bytes; a page of short entries takes one read call

BISECT_MIN = 16384  # bytes; walking through this much is cheaper than bisecting further

LINE_BLOCK = 512  # bytes; enough for most batch lines

OPEN_ATTEMPTS = 3  # attempts; a writer may overwrite both marks, one after the other, during a read

SUFFIX = ".jsonl"


class StreamLocation(NamedTuple):
    """Path of a stream's file: a directory shared with other streams, and its own file name."""

    name: str
    stem: str
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}{os.sep}{self.stem}{SUFFIX}"


def locate_stream(root: str, name: str) -> StreamLocation:
    """Return where a stream is stored; its name is never part of a path."""
    hashed_name = file_stem(check_name(name))
    return StreamLocation(name, hashed_name, f"{root}{os.sep}{hashed_name[:2]}")


class StreamFile:
    """Verified access to a file up to `end`; `last` is the offset of its last batch.

    A snapshot: batches that another process appends later are not seen.
    """

    def __init__(
        self, disk: Disk, fd: int, location: StreamLocation, *, lenient: bool = False
    ) -> None:
        self.location = location
        self._disk = disk
        self._fd = fd
        self._block = b""
        self._block_at = 0
        self._block_ends = False  # Whether the file ends with the block.
        self.file_header = self._guess() if lenient else self._open()
        self.end = self.file_header.mark.end
        self.last = self.file_header.mark.last
        # Read the size after the mark: a file that is shorter than its mark was truncated.
        self.size = os.fstat(fd).st_size

    @property
    def is_fully_synced(self) -> bool:
        """Whether all of the file is known to be durable."""
        return self.file_header.mark.name_is_durable and self.size <= self.end

    def head(self) -> tuple[StoredBatch, int]:
        """Return the last batch and the last position."""
        if self.size < self.end:
            raise self.damaged(self.first_unreadable(), "its file was truncated")
        batch = self.batch(self.last)
        if batch is None or batch.end != self.end:
            raise self.damaged(self.first_unreadable(), "its last batch cannot be read")
        return batch, batch.last

    def listing_head(self) -> Head:
        """Return the head for a listing."""
        batch, position = self.head()
        entry = self.entry(batch, len(batch.pieces) - 1, max_body=0)
        header, name = entry.header, self.location.name
        return Head(name, position, digest_of(header), batch.labels, header, batch.snapshot)

    def damaged(self, position: int, reason: str) -> DamagedError:
        return DamagedError(self.location.name, position, f"{reason} (in {self.location.path})")

    # Entries.

    def forward(self, after: int, max_body: int, hint: int = 0) -> Iterator[tuple[Entry, int]]:
        """Yield the entries that end after a position.

        Each comes with the offset of its batch, which is usable as `hint` later.
        """
        batch = self.seek(after + 1, hint)
        while batch is not None:
            for number in range(batch.covering(after + 1), len(batch.pieces)):
                yield self.entry(batch, number, max_body), batch.at
            batch = self.next_batch(batch)

    def backward(self, after: int, max_body: int, hint: int = 0) -> Iterator[tuple[Entry, int]]:
        """Yield the entries that begin before a position, newest first; all if `after` is 0.

        Each comes with the offset of its batch, as in `forward`.
        """
        batch = self.seek(after - 1, hint) if after else None
        current: StoredBatch | None = batch or self.head()[0]
        while current is not None:
            count = len(current.pieces)
            if after:
                count = min(count, current.covering(after - 1) + (current.first < after))
            for number in reversed(range(count)):
                yield self.entry(current, number, max_body), current.at
            current = self.previous_batch(current)

    def entry(self, batch: StoredBatch, number: int, max_body: int) -> Entry:
        """Return an entry of a batch; a body longer than `max_body` is not read."""
        position, piece = batch.positions[number], batch.pieces[number]
        if piece.header > 2 * HEADER_MAX:  # Twice as much has room for the encoding as text.
            raise self.damaged(position, "its header is too long")
        has_body = piece.body_length <= max_body
        stored = self.read_bytes(batch.starts[number], piece.size if has_body else piece.header + 1)
        header = decode_header(piece, stored[: piece.header])
        body = decode_body(piece, stored[piece.header + 1 : -1]) if has_body else None
        is_whole = stored[piece.header : piece.header + 1] == b"\t" and (
            not has_body or (stored.endswith(b"\n") and body is not None)
        )
        if header is None or not is_whole:
            raise self.damaged(position, "it was altered")
        return Entry(position, header, body, piece.records)

    # Batches.

    def batch(self, at: int, block: int = BLOCK) -> StoredBatch | None:
        """Return the batch at an offset; None if there is none or its line is damaged."""
        line = self._line(at, block)
        return parse_batch(self.location.stem, at, line) if line.startswith(BATCH_PREFIX) else None

    def next_batch(self, batch: StoredBatch) -> StoredBatch | None:
        """Return the next batch, None after the last one."""
        if batch.end >= self.end:
            if batch.end > self.end or self.size < self.end:
                raise self.damaged(batch.last, "its batch does not end where the file does")
            return None
        following = self.batch(batch.end)
        if following is None or (following.first, following.previous_size) != (
            batch.last + 1,
            batch.size,
        ):
            raise self.damaged(batch.last + 1, "it was altered or truncated")
        return following

    def previous_batch(self, batch: StoredBatch) -> StoredBatch | None:
        """Return the previous batch, None before the first one."""
        if not batch.previous_size:
            if batch.at != self.file_header.size or batch.first != self.file_header.first:
                raise self.damaged(batch.first - 1, "it is missing")
            return None
        self._load_before(batch)
        preceding = self.batch(batch.at - batch.previous_size)
        if preceding is None or preceding.end != batch.at or preceding.last != batch.first - 1:
            raise self.damaged(batch.first - 1, "it was altered")
        return preceding

    def seek(self, position: int, hint: int = 0) -> StoredBatch | None:
        """Return the batch with a position, or the first one after it; None past the end.

        Raises only if the position itself lies in damaged bytes. `hint` is the offset of a batch
        that may be near; after a rewrite of the file that offset may hold another batch or none.
        """
        near = self.batch(hint) if hint else None
        if near is not None and near.first - 1 <= position <= near.last + 1:
            if position > near.last:
                return self.next_batch(near)
            return near if position >= near.first else self.previous_batch(near)
        low, high, first = self.file_header.size, min(self.end, self.size), self.file_header.first
        last = self.batch(self.last) if self.size >= self.end else None
        if last is not None and last.first <= position:
            return last if position <= last.last else None
        while high - low > BISECT_MIN:
            middle = (low + high) // 2
            candidate = self.scan(middle, high)
            if candidate is None or candidate.first > position:
                high = middle
            else:
                low, first = candidate.at, candidate.first
        return self._walk(position, low, first)

    def _walk(self, position: int, at: int, expected: int) -> StoredBatch | None:
        while at < self.end:
            batch = self.batch(at)
            if batch is None or batch.first != expected:
                batch = self.scan(at + 1, self.end)
                if batch is None or batch.first > position:
                    raise self.damaged(expected, "it was altered or truncated")
            if position <= batch.last:
                return batch
            at, expected = batch.end, batch.last + 1
        return None

    def scan(self, at: int, high: int) -> StoredBatch | None:
        """Return the first batch with an intact line that begins in a range of offsets."""
        at -= 1  # Include the newline before: a line begins after one.
        size = FIRST_BLOCK
        while at < high:
            block = self._disk.read(self._fd, size + len(BATCH_PREFIX), at)
            index = block.find(b"\n" + BATCH_PREFIX)
            if index < 0:
                if len(block) <= size:
                    return None
                at, size = self._disk.skip_hole(self._fd, at + size), BLOCK
                continue
            at += index + 1
            batch = self.batch(at, FIRST_BLOCK) if at < high else None
            if batch is not None:
                return batch
        return None

    def first_unreadable(self) -> int:
        """Return the first position that cannot be read from the start, 0 if all can."""
        at, expected = self.file_header.size, self.file_header.first
        while at < self.end:
            batch = self.batch(at)
            if batch is None or batch.first != expected:
                return expected
            if batch.end > self.size:
                ends = [*batch.starts[1:], batch.end]
                return batch.positions[sum(end <= self.size for end in ends)]
            at, expected = batch.end, batch.last + 1
        return 0

    # Bytes.

    def read_bytes(self, at: int, size: int, block: int = BLOCK) -> bytes:
        """Return `size` bytes of the file, fewer at its end."""
        start = at - self._block_at
        if start < 0 or (start + size > len(self._block) and not self._block_ends):
            self._load(at, max(size, block))
            start = 0
        return self._block[start : start + size]

    def _load(self, at: int, size: int) -> None:
        self._block = self._disk.read(self._fd, size, at)
        self._block_at = at
        self._block_ends = len(self._block) < size

    def _load_before(self, batch: StoredBatch) -> None:
        """Load the block before a batch, for reading backwards; a long batch only in parts."""
        at = batch.at - batch.previous_size
        if at < self._block_at and batch.previous_size <= BLOCK:
            start = max(batch.at - BLOCK, 0)
            self._load(start, batch.at + LINE_BLOCK - start)

    def _line(self, at: int, block: int) -> bytes:
        size = LINE_BLOCK
        while True:
            data = self.read_bytes(at, size, block)
            end = data.find(b"\n")
            if end >= 0:
                return data[: end + 1]
            if len(data) < size or not data.startswith(BATCH_PREFIX):
                return b""
            size *= 4

    def _open(self) -> FileHeader:
        line = b""
        for attempt in range(OPEN_ATTEMPTS):
            line = self._first_line()
            file_header = parse_file_header(line)
            if file_header is not None:
                return self._checked(file_header)
            time.sleep(0.0001 * attempt)
        version = newer_version(line)
        if version:
            raise VersionError(f"{self.location.name!r}", str(version), str(VERSION))
        raise self.damaged(0, "the first line of its file cannot be read")

    def _guess(self) -> FileHeader:
        self._load(0, FIRST_BLOCK)
        start, size = self._block, os.fstat(self._fd).st_size
        batch = self.scan(1, size)
        if batch is None or batch.end > size:
            raise self.damaged(0, "no line of its file can be read")
        return reconstruct_file_header(start, self.location.name, batch)

    def _first_line(self) -> bytes:
        size = FIRST_BLOCK
        self._load(0, size)
        while len(self._block) == size < FIRST_LINE_MAX and b"\n" not in self._block:
            size *= 4
            self._load(0, size)
        return self._block[: self._block.find(b"\n") + 1]

    def _checked(self, file_header: FileHeader) -> FileHeader:
        if file_header.name != self.location.name:
            raise self.damaged(0, "its file names another stream")
        if not file_header.size <= file_header.mark.last < file_header.mark.end:
            raise self.damaged(0, "the first line of its file contradicts itself")
        return file_header
