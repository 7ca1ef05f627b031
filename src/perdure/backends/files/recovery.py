"""Modify a stream's file under its lock: recover after a crash, append, rewrite.

The order of the calls is the promise. A batch is written and synced before the mark covers it.
Bytes beyond the mark were never acknowledged, or the mark itself was lost in a power failure. The
next writer writes intact batches once more and syncs them, because they may exist only in the page
cache; torn bytes after them are saved to a file of their own and cut off.

Editing: never move a mark, an unlink or a rename before the sync it depends on.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from perdure.backends.append_rules import UNLIMITED
from perdure.backends.files.disk import (
    CREATE_NEW,
    Disk,
    LockedFile,
    LockedFiles,
    undo_on_error,
)
from perdure.backends.files.format import (
    MARK_OFFSETS,
    DurableMark,
    StoredBatch,
    encode_batch_line,
    encode_entry,
    encode_file_header,
    encode_mark,
)
from perdure.backends.files.stream_file import BLOCK, StreamFile, StreamLocation
from perdure.backends.protocol import Append, Entry
from perdure.errors import DamagedError


def set_mark(locked_file: LockedFile, location: StreamLocation, mark: DurableMark, at: int) -> None:
    """Write how far a file is durable. Not synced: the file's next sync covers it."""
    locked_file.disk.write(locked_file.fd, encode_mark(mark, location.stem), at)


def encode_batch(
    location: StreamLocation,
    entries: Sequence[Entry],
    append: Append,
    *,
    at: int,
    previous_size: int,
) -> bytes:
    """Encode entries of an append as a batch, for a given offset of the file."""
    lines = [encode_entry(entry.header, entry.body or b"", entry.records) for entry in entries]
    batch_header = encode_batch_line(
        location.stem,
        at=at,
        previous_size=previous_size,
        first=entries[0].position,
        pieces=[piece for _, piece in lines],
        labels=sorted(append.labels),
        snapshot=append.snapshot,
    )
    return b"".join([batch_header, *(line for line, _ in lines)])


class UnsyncedTail:
    """Bytes beyond the mark: intact batches up to `end`, then perhaps torn bytes."""

    def __init__(self, file: StreamFile) -> None:
        self.end, self.last = file.end, file.last
        previous, position = file.head()
        while self.end < file.size:
            batch = self._whole(file, previous, position)
            if batch is None:
                break
            self.end, self.last, previous, position = batch.end, batch.at, batch, batch.last
        # One append writes one batch, so a crash cannot leave an intact batch after a torn one.
        if self.end < file.size and file.scan(self.end + 1, file.size) is not None:
            raise file.damaged(position + 1, "it was altered, and intact entries follow")

    def _whole(self, file: StreamFile, previous: StoredBatch, position: int) -> StoredBatch | None:
        batch = file.batch(self.end)
        if batch is None or (batch.first, batch.previous_size) != (position + 1, previous.size):
            return None
        if batch.end > file.size:
            return None
        try:
            for number in range(len(batch.pieces)):
                file.entry(batch, number, UNLIMITED)
        except DamagedError:
            return None
        return batch


def recover(locked_file: LockedFile, location: StreamLocation, *, to_write: bool) -> StreamFile:
    """Return the file with all its intact batches durable.

    A writer also cuts off torn bytes; a reader leaves them, so that reading needs no disk space.
    """
    disk, fd = locked_file.disk, locked_file.fd
    file = StreamFile(disk, fd, location)
    if not file.file_header.mark.name_is_durable:
        return _republish(locked_file, file)
    if file.size > file.end:
        tail = UnsyncedTail(file)
        cut = tail.end < file.size and to_write
        if cut:
            _save_torn_bytes(disk, fd, location, tail.end, file.size)
            disk.truncate(fd, tail.end)
        if cut or tail.end > file.end:
            _rewrite_range(disk, fd, file.end, tail.end)
            disk.sync(fd)
        if tail.end > file.end:
            mark = DurableMark(name_is_durable=True, end=tail.end, last=tail.last)
            set_mark(locked_file, location, mark, file.file_header.spare)
            file = StreamFile(disk, fd, location)
    return file


def _republish(locked_file: LockedFile, file: StreamFile) -> StreamFile:
    """Publish a file under its name again, as a copy: the first rename may not be durable."""
    accept_tail(file)
    if file.size > file.end:
        disk, fd = locked_file.disk, locked_file.fd
        _save_torn_bytes(disk, fd, file.location, file.end, file.size)
    return rewrite_file(locked_file, file, before=0)


def accept_tail(file: StreamFile) -> None:
    """Expose intact batches beyond the mark where neither they nor the mark can be written."""
    if file.size > file.end:
        tail = UnsyncedTail(file)
        file.end, file.last = tail.end, tail.last


def _rewrite_range(disk: Disk, fd: int, start: int, end: int) -> None:
    """Write bytes again so that the next sync covers them; a failed sync may have dropped them."""
    for at in range(start, end, BLOCK):
        disk.write(fd, disk.read(fd, min(BLOCK, end - at), at), at)


def _save_torn_bytes(disk: Disk, fd: int, location: StreamLocation, start: int, end: int) -> None:
    """Save torn bytes to a numbered file of their own, durable on return."""
    base = f"{location.directory}{os.sep}{location.stem}.torn-"
    path = next(base + str(n) for n in itertools.count(1) if not os.path.lexists(base + str(n)))
    with disk.open(path, CREATE_NEW) as torn_file, undo_on_error(disk.unlink, path):
        torn_fd = torn_file.fileno()
        at, saved = disk.skip_hole(fd, start), start
        while at < end:
            disk.write(torn_fd, disk.read(fd, min(BLOCK, end - at), at), at - start)
            saved = min(at + BLOCK, end)
            at = disk.skip_hole(fd, saved)
        if saved < end:
            disk.truncate(torn_fd, end - start)  # It ends with a hole, as the original.
        disk.sync(torn_fd)
    disk.sync_directory(location.directory)


class NewFile(NamedTuple):
    """A new locked file, and the mark to write once its directory is synced."""

    locked_file: LockedFile
    location: StreamLocation
    mark: DurableMark

    def confirm(self) -> None:
        """Write the mark that says that the file's name is durable."""
        set_mark(self.locked_file, self.location, self.mark, MARK_OFFSETS[0])


def publish_file(
    locks: LockedFiles, location: StreamLocation, first: int, batches: Iterable[tuple[int, bytes]]
) -> NewFile:
    """Create a file under a stream's name and keep it locked. Its name is not durable yet.

    `batches` yields parts of the file in order, each with the offset of its batch; the first offset
    is the size of `encode_file_header(...)`.
    """
    disk, temporary = locks.disk, f"{location.directory}{os.sep}{location.stem}.tmp"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)  # Left by a crash: only the holder of our lock could use it.
    locked_file = locks.create(temporary)
    fd = locked_file.fd
    with undo_on_error(disk.unlink, temporary):
        line = encode_file_header(location.name, first)
        disk.write(fd, line, 0)
        end, last = len(line), 0
        for at, data in batches:
            disk.write(fd, data, end)
            end, last = end + len(data), at
        mark = DurableMark(name_is_durable=False, end=end, last=last)
        disk.write(fd, encode_file_header(location.name, first, mark), 0)
        disk.sync(fd)
        disk.rename(temporary, location.path)
    return NewFile(locked_file, location, mark._replace(name_is_durable=True))


def rewrite_file(locked_file: LockedFile, file: StreamFile, *, before: int) -> StreamFile:
    """Replace a file by one without the entries that end before a position; durable on return.

    A reader that has the old file open can continue to read it.
    """
    disk, location = locked_file.disk, file.location
    first = _first_kept(file, max(before, file.file_header.first))
    new_file = publish_file(locked_file.group, location, first, _copy_batches(file, first))
    locked_file.exchange(new_file.locked_file)
    disk.sync_directory(location.directory)
    new_file.confirm()
    return StreamFile(disk, locked_file.fd, location)


def _first_kept(file: StreamFile, position: int) -> int:
    """Return where the entry begins that covers a position."""
    batch = file.seek(position)
    return position if batch is None else batch.positions[batch.covering(position)]


def _copy_batches(file: StreamFile, first: int) -> Iterator[tuple[int, bytes]]:
    at, previous_size = len(encode_file_header(file.location.name, first)), 0
    batch = file.seek(first)
    while batch is not None:
        skipped = batch.covering(first)
        pieces = batch.pieces[skipped:]
        batch_header = encode_batch_line(
            file.location.stem,
            at=at,
            previous_size=previous_size,
            first=batch.positions[skipped],
            pieces=pieces,
            labels=sorted(batch.labels),
            snapshot=batch.snapshot,
        )
        yield at, batch_header
        for number, piece in enumerate(pieces, skipped):
            file.entry(batch, number, UNLIMITED)  # Verify: damage must not be copied.
            yield at, file.read_bytes(batch.starts[number], piece.size)
        previous_size = len(batch_header) + sum(piece.size for piece in pieces)
        at += previous_size
        batch = file.next_batch(batch)
