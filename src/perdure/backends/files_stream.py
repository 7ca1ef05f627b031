"""One open file of a stream: finds batches and gives out entries, each checked. Writes nothing.

A batch is found from the one before it or after it, or by bisection: a line of perdure's own can
be told from any other, and their positions are in order. What is damaged is never skipped while
reading; whoever begins to read after it does not meet it. Who reads past damage (`lenient`) can do
without the first line.
"""

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from perdure.backend import Entry, Head, digest_of
from perdure.backends.files_disk import Disk
from perdure.backends.files_lines import (
    BATCH,
    VERSION,
    Batch,
    Opening,
    guessed_opening,
    newer_version,
    parse_batch,
    parse_opening,
    plain_body,
    plain_header,
    stem,
)
from perdure.backends.rules import check_name
from perdure.errors import DamagedError, VersionError

FIRST_BLOCK = 4096  # Holds the first line, and all of a small file.
BLOCK = 65536  # A page of short entries is one call.
NEAR = 16384  # Walking through so much is cheaper than bisecting it further.
LINE = 512  # Holds most lines of perdure's own.
RETRIES = 3  # While a mark is read, both can be written over, one after the other.
SUFFIX = ".jsonl"


class Place(NamedTuple):
    """Where a stream is kept: a directory shared with others, and a name of its own in it."""

    name: str
    stem: str
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}{os.sep}{self.stem}{SUFFIX}"


def place_of(root: str, name: str) -> Place:
    """Return where a stream is kept; the name itself is never part of a path."""
    found = stem(check_name(name))
    return Place(name, found, f"{root}{os.sep}{found[:2]}")


class StreamFile:
    """What can be read of a file up to `end`, and the batch that stands `last` before it."""

    def __init__(self, disk: Disk, fd: int, place: Place, *, lenient: bool = False) -> None:
        self.place = place
        self._disk = disk
        self._fd = fd
        self._block = b""
        self._block_at = 0
        self._block_ends = False  # Whether the file ends with the block.
        self.opening = self._guess() if lenient else self._open()
        self.end = self.opening.mark.end
        self.last = self.opening.mark.last
        # After the mark: a file that is shorter than its mark was cut.
        self.size = os.fstat(fd).st_size

    @property
    def is_settled(self) -> bool:
        """Whether all of the file is known to be durable."""
        return self.opening.mark.placed and self.size <= self.end

    def head(self) -> tuple[Batch, int]:
        """Return the last batch and the last position."""
        if self.size < self.end:
            raise self.damaged(self.first_bad(), "its file was cut")
        batch = self.batch(self.last)
        if batch is None or batch.end != self.end:
            raise self.damaged(self.first_bad(), "its last batch can not be read")
        return batch, batch.last

    def labelled_head(self) -> Head:
        """Return the head for a listing."""
        batch, position = self.head()
        entry = self.entry(batch, len(batch.pieces) - 1, max_body=0)
        return Head(self.place.name, position, digest_of(entry.header), batch.labels)

    def damaged(self, position: int, reason: str) -> DamagedError:
        return DamagedError(self.place.name, position, f"{reason} (in {self.place.path})")

    # Entries.

    def forward(self, after: int, max_body: int, hint: int = 0) -> Iterator[tuple[Entry, int]]:
        """Yield entries beyond a position, each with the offset of its batch, a later `hint`."""
        batch = self.seek(after + 1, hint)
        while batch is not None:
            for number in range(max(after + 1 - batch.first, 0), len(batch.pieces)):
                yield self.entry(batch, number, max_body), batch.at
            batch = self.after(batch)

    def backward(self, after: int, max_body: int, hint: int = 0) -> Iterator[tuple[Entry, int]]:
        """Yield entries below a position, or from the end, the newest first; as `forward`."""
        batch = self.seek(after - 1, hint) if after else None
        found: Batch | None = batch or self.head()[0]
        while found is not None:
            count = len(found.pieces) if not after else min(after - found.first, len(found.pieces))
            for number in reversed(range(count)):
                yield self.entry(found, number, max_body), found.at
            found = self.before(found)

    def entry(self, batch: Batch, number: int, max_body: int) -> Entry:
        """Return an entry of a batch; a body that is longer than `max_body` is not read."""
        position, piece = batch.first + number, batch.pieces[number]
        has_body = piece.body_length <= max_body
        stored = self.stored(batch.starts[number], piece.size if has_body else piece.header + 1)
        header = plain_header(piece, stored[: piece.header])
        body = plain_body(piece, stored[piece.header + 1 : -1]) if has_body else None
        is_whole = stored[piece.header : piece.header + 1] == b"\t" and (
            not has_body or (stored.endswith(b"\n") and body is not None)
        )
        if header is None or not is_whole:
            raise self.damaged(position, "it was altered")
        return Entry(position, header, body)

    # Batches.

    def batch(self, at: int, block: int = BLOCK) -> Batch | None:
        """Return the batch that begins at an offset, None if none does or its line is damaged."""
        line = self._line(at, block)
        return parse_batch(self.place.stem, at, line) if line.startswith(BATCH) else None

    def after(self, batch: Batch) -> Batch | None:
        """Return the next batch, None after the last one."""
        if batch.end >= self.end:
            if batch.end > self.end or self.size < self.end:
                raise self.damaged(batch.last, "its batch does not end where the file does")
            return None
        found = self.batch(batch.end)
        if found is None or (found.first, found.back) != (batch.last + 1, batch.size):
            raise self.damaged(batch.last + 1, "it was altered or cut")
        return found

    def before(self, batch: Batch) -> Batch | None:
        """Return the batch before, None before the first one."""
        if not batch.back:
            if batch.at != self.opening.size or batch.first != self.opening.first:
                raise self.damaged(batch.first - 1, "it is missing")
            return None
        self._load_before(batch)
        found = self.batch(batch.at - batch.back)
        if found is None or found.end != batch.at or found.last != batch.first - 1:
            raise self.damaged(batch.first - 1, "it was altered")
        return found

    def seek(self, position: int, hint: int = 0) -> Batch | None:
        """Return the batch that holds a position, or the first one after it; None after the end.

        Damage is raised only if the position lies in it. `hint` is the offset of a batch that may
        be near; in a file that was rewritten meanwhile another one, or none, stands there.
        """
        near = self.batch(hint) if hint else None
        if near is not None and near.first - 1 <= position <= near.last + 1:
            if position > near.last:
                return self.after(near)
            return near if position >= near.first else self.before(near)
        low, high, first = self.opening.size, min(self.end, self.size), self.opening.first
        last = self.batch(self.last) if self.size >= self.end else None
        if last is not None and last.first <= position:
            return last if position <= last.last else None
        while high - low > NEAR:
            middle = (low + high) // 2
            found = self.scan(middle, high)
            if found is None or found.first > position:
                high = middle
            else:
                low, first = found.at, found.first
        return self._walk(position, low, first)

    def _walk(self, position: int, at: int, expected: int) -> Batch | None:
        while at < self.end:
            batch = self.batch(at)
            if batch is None or batch.first != expected:
                batch = self.scan(at + 1, self.end)
                if batch is None or batch.first > position:
                    raise self.damaged(expected, "it was altered or cut")
            if position <= batch.last:
                return batch
            at, expected = batch.end, batch.last + 1
        return None

    def scan(self, at: int, high: int) -> Batch | None:
        """Return the first batch that begins in a range of offsets and whose line is whole."""
        at -= 1  # A line begins after a newline.
        size = FIRST_BLOCK
        while at < high:
            block = self._disk.read(self._fd, size + len(BATCH), at)
            found = block.find(b"\n" + BATCH)
            if found < 0:
                if len(block) <= size:
                    return None
                at, size = at + size, BLOCK
                continue
            at += found + 1
            batch = self.batch(at, FIRST_BLOCK) if at < high else None
            if batch is not None:
                return batch
        return None

    def first_bad(self) -> int:
        """Return the first position that can not be read from the beginning, 0 if all can."""
        at, expected = self.opening.size, self.opening.first
        while at < self.end:
            batch = self.batch(at)
            if batch is None or batch.first != expected:
                return expected
            if batch.end > self.size:
                ends = [*batch.starts[1:], batch.end]
                return batch.first + sum(end <= self.size for end in ends)
            at, expected = batch.end, batch.last + 1
        return 0

    # Bytes.

    def stored(self, at: int, size: int, block: int = BLOCK) -> bytes:
        """Return so many bytes of the file, fewer if it ends before."""
        start = at - self._block_at
        if start < 0 or (start + size > len(self._block) and not self._block_ends):
            self._load(at, max(size, block))
            start = 0
        return self._block[start : start + size]

    def _load(self, at: int, size: int) -> None:
        self._block = self._disk.read(self._fd, size, at)
        self._block_at = at
        self._block_ends = len(self._block) < size

    def _load_before(self, batch: Batch) -> None:
        """Load what is before a batch, for whoever reads backwards; a long batch only in parts."""
        at = batch.at - batch.back
        if at < self._block_at and batch.back <= BLOCK:
            start = max(batch.at - BLOCK, 0)
            self._load(start, batch.at + LINE - start)

    def _line(self, at: int, block: int) -> bytes:
        size = LINE
        while True:
            found = self.stored(at, size, block)
            end = found.find(b"\n")
            if end >= 0:
                return found[: end + 1]
            if len(found) < size or not found.startswith(BATCH):
                return b""
            size *= 4

    def _open(self) -> Opening:
        line = b""
        for attempt in range(RETRIES):
            self._load(0, FIRST_BLOCK)
            line = self._block[: self._block.find(b"\n") + 1] or self._long_first_line()
            found = parse_opening(line)
            if found is not None:
                return self._checked(found)
            time.sleep(0.0001 * attempt)
        version = newer_version(line)
        if version:
            raise VersionError(f"{self.place.name!r}", str(version), str(VERSION))
        raise self.damaged(0, "the first line of its file can not be read")

    def _guess(self) -> Opening:
        self._load(0, FIRST_BLOCK)
        start, size = self._block, os.fstat(self._fd).st_size
        batch = self.scan(1, size)
        if batch is None or batch.end > size:
            raise self.damaged(0, "no line of its file can be read")
        return guessed_opening(start, self.place.name, batch)

    def _long_first_line(self) -> bytes:
        size = FIRST_BLOCK
        while len(self._block) == size and b"\n" not in self._block:
            size *= 4
            self._load(0, size)
        return self._block[: self._block.find(b"\n") + 1]

    def _checked(self, found: Opening) -> Opening:
        if found.name != self.place.name:
            raise self.damaged(0, "its file bears another name")
        if not found.size <= found.mark.last < found.mark.end:
            raise self.damaged(0, "the first line of its file contradicts itself")
        return found
