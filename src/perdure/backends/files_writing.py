"""Change the file of a stream whose lock is held: settle what a crash left, append, rewrite.

The order of the calls is the promise. A batch is written and synced before the mark covers it.
What is beyond the mark when a writer comes was never acknowledged, or the mark itself was lost
with the power: whole batches are written once more and synced, since nobody knows whether they
are more than pages in memory; the rest is torn, is kept in a file of its own, and is cut off.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from perdure.backend import Entry
from perdure.backends.files_disk import NEW, Disk, Held, open_held
from perdure.backends.files_lines import (
    MARKS_AT,
    Batch,
    Mark,
    batch_line,
    entry_line,
    mark_text,
    opening,
)
from perdure.backends.files_stream import BLOCK, Place, StreamFile
from perdure.errors import DamagedError

NO_BOUND = 2**63 - 1


def set_mark(disk: Disk, fd: int, place: Place, mark: Mark, at: int) -> None:
    """Note how far a file is durable. Not synced: the next sync of the file takes it along."""
    disk.write(fd, mark_text(mark, place.stem), at)


def encoded(
    place: Place,
    entries: Sequence[Entry],
    labels: frozenset[str],
    *,
    at: int,
    back: int,
) -> bytes:
    """Return a batch as it will stand at an offset of the file."""
    lines = [entry_line(entry.header, entry.body or b"") for entry in entries]
    own = batch_line(
        place.stem,
        at=at,
        back=back,
        first=entries[0].position,
        pieces=[piece for _, piece in lines],
        labels=sorted(labels),
    )
    return b"".join([own, *(line for line, _ in lines)])


class Tail:
    """What stands beyond the mark: whole batches up to `end`, then perhaps something torn."""

    def __init__(self, file: StreamFile) -> None:
        self.end, self.last = file.end, file.last
        before, position = file.head()
        while self.end < file.size:
            batch = self._whole(file, before, position)
            if batch is None:
                break
            self.end, self.last, before, position = batch.end, batch.at, batch, batch.last
        # One append is one batch, so a crash leaves no whole batch after a torn one.
        if self.end < file.size and file.scan(self.end + 1, file.size) is not None:
            raise file.damaged(position + 1, "it was altered, and others follow")

    def _whole(self, file: StreamFile, before: Batch, position: int) -> Batch | None:
        batch = file.batch(self.end)
        if batch is None or (batch.first, batch.back) != (position + 1, before.size):
            return None
        if batch.end > file.size:
            return None
        try:
            for number in range(len(batch.pieces)):
                file.entry(batch, number, NO_BOUND)
        except DamagedError:
            return None
        return batch


def settle(disk: Disk, held: Held, place: Place, *, to_write: bool) -> StreamFile:
    """Return the file with all its whole batches known to be durable.

    A writer also gets rid of what is torn; a reader does without, and needs no space on the disk.
    """
    file = StreamFile(disk, held.fd, place)
    if not file.opening.mark.placed:
        return _place(disk, held, file)
    if file.size > file.end:
        tail = Tail(file)
        cut = tail.end < file.size and to_write
        if cut:
            _set_aside(disk, held.fd, place, tail.end, file.size)
            disk.truncate(held.fd, tail.end)
        if cut or tail.end > file.end:
            _write_again(disk, held.fd, file.end, tail.end)
            disk.sync(held.fd)
        if tail.end > file.end:
            mark = Mark(placed=True, end=tail.end, last=tail.last)
            set_mark(disk, held.fd, place, mark, file.opening.spare)
            file = StreamFile(disk, held.fd, place)
    return file


def _place(disk: Disk, held: Held, file: StreamFile) -> StreamFile:
    """Give a file its name once more, by a copy: the first time may not have lasted."""
    adopt(file)
    if file.size > file.end:
        _set_aside(disk, held.fd, file.place, file.end, file.size)
    return rewrite(disk, held, file, before=0)


def adopt(file: StreamFile) -> None:
    """Show what stands beyond the mark where nothing can be written, the mark neither."""
    if file.size > file.end:
        tail = Tail(file)
        file.end, file.last = tail.end, tail.last


def _write_again(disk: Disk, fd: int, start: int, end: int) -> None:
    for at in range(start, end, BLOCK):
        disk.write(fd, disk.read(fd, min(BLOCK, end - at), at), at)


def _set_aside(disk: Disk, fd: int, place: Place, start: int, end: int) -> None:
    base = f"{place.directory}{os.sep}{place.stem}.torn-"
    path = next(base + str(n) for n in itertools.count(1) if not os.path.lexists(base + str(n)))
    aside = disk.open(path, NEW)
    try:
        for at in range(start, end, BLOCK):
            disk.write(aside, disk.read(fd, min(BLOCK, end - at), at), at - start)
        disk.sync(aside)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        raise
    finally:
        disk.close(aside)
    disk.sync_directory(place.directory)


class Published(NamedTuple):
    """A new file that is held, and what to note when its directory was synced."""

    held: Held
    place: Place
    mark: Mark

    def confirm(self) -> None:
        """Note that the name of the file is durable."""
        set_mark(self.held.disk, self.held.fd, self.place, self.mark, MARKS_AT[0])


def publish(
    disk: Disk, place: Place, first: int, batches: Iterable[tuple[int, bytes]]
) -> Published:
    """Put a new file under a stream's name, and hold it. Its name is not durable yet.

    `batches` yields pieces of the file in order, each with the offset of the batch that it
    belongs to; they begin after `opening(...)`.
    """
    temporary = f"{place.directory}{os.sep}{place.stem}.tmp"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)  # Left by a crash; whoever could still use it holds our lock.
    held = open_held(disk, temporary, NEW)
    fd = held.fd
    try:
        line = opening(place.name, first)
        disk.write(fd, line, 0)
        end, last = len(line), 0
        for at, data in batches:
            disk.write(fd, data, end)
            end, last = end + len(data), at
        disk.write(fd, opening(place.name, first, Mark(placed=False, end=end, last=last)), 0)
        disk.sync(fd)
        disk.rename(temporary, place.path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        held.close()
        raise
    return Published(held, place, Mark(placed=True, end=end, last=last))


def rewrite(disk: Disk, held: Held, file: StreamFile, *, before: int) -> StreamFile:
    """Replace a file by a new one without the entries before a position, durable on return.

    Whoever has the old one open can go on reading it.
    """
    place = file.place
    first = max(before, file.opening.first)
    published = publish(disk, place, first, _copied(file, first))
    held.exchange(published.held.fd)
    disk.sync_directory(place.directory)
    published.confirm()
    return StreamFile(disk, held.fd, place)


def _copied(file: StreamFile, first: int) -> Iterator[tuple[int, bytes]]:
    at, back = len(opening(file.place.name, first)), 0
    batch = file.seek(first)
    while batch is not None:
        skipped = max(first - batch.first, 0)
        pieces = batch.pieces[skipped:]
        own = batch_line(
            file.place.stem,
            at=at,
            back=back,
            first=batch.first + skipped,
            pieces=pieces,
            labels=sorted(batch.labels),
        )
        yield at, own
        for number, piece in enumerate(pieces, skipped):
            file.entry(batch, number, NO_BOUND)  # What is damaged is not copied as if it were not.
            yield at, file.stored(batch.starts[number], piece.size)
        back = len(own) + sum(piece.size for piece in pieces)
        at += back
        batch = file.after(batch)
