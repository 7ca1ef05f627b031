"""Tell a damaged write-ahead log from one that a crash cut off, before anything is written to it.

SQLite takes the first frame that does not match its checksum for the end of the log. After a crash
that is right: the last commit may be torn. After a flipped bit it drops every commit behind the
bit, without an error, and the next writer overwrites them.

A commit is synced before the next one begins. So if a frame follows a commit frame that SQLite did
not accept, and continues its checksum, then that commit was once whole: the log is damaged. Frames
of an earlier generation of the log have other salts. Frames that a torn transaction left behind,
beyond the end of a shorter one that was written over it, do not continue the checksum.

Damage within the last commit looks like a torn one; so may damage to the header of the frame that
ends the commit before it.

A connection and the path of a log come in; DamagedError, or nothing, goes out. It reads only.
"""

import os
import struct
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple

import apsw

from perdure.errors import DamagedError

LOG_HEADER = 32  # bytes; magic, version, page size, sequence, two salts, two checksums

FRAME_HEADER = 24  # bytes; page, size of the database if it ends a commit, salts, checksums

SECTOR = 512  # bytes; the smallest unit that a disk writes whole

NO_COMMIT = bytes(4)  # The size of the database, in the header of a frame that ends no commit.

LITTLE, BIG = "<", ">"  # The byte order of the words that are summed up: the magic number says it.

MAGIC = {0x377F0682: LITTLE, 0x377F0683: BIG}

HINT = (
    "copy the file and its -wal to a safe place; `perdure verify --salvage FILE` saves the records"
)


class Frame(NamedTuple):
    """A frame of a log: its number, from 1 on, and its bytes."""

    number: int
    data: bytes

    @property
    def ends_commit(self) -> bool:
        return self.data[4:8] != NO_COMMIT

    @property
    def page_number(self) -> int:
        """The page that the frame holds a version of."""
        return int.from_bytes(self.data[:4], "big")

    @property
    def page(self) -> bytes:
        return self.data[FRAME_HEADER:]

    @property
    def salts(self) -> bytes:
        return self.data[8:16]

    @property
    def checksum(self) -> tuple[int, int]:
        """The checksum up to this frame, as stored."""
        return struct.unpack_from(">2I", self.data, 16)

    def continues(self, checksum: tuple[int, int], order: str) -> bool:
        """Return whether this frame was written after one with this checksum."""
        summed = self.data[:8] + self.data[FRAME_HEADER:]
        return add_checksum(checksum, summed, order) == self.checksum


def add_checksum(start: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return SQLite's checksum of some data, continued from that of the data before."""
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


class LogFile:
    """The frames of a log, read through a descriptor while other processes may write to it."""

    def __init__(self, handle: int, page_size: int) -> None:
        self._handle = handle
        self._frame_size = FRAME_HEADER + page_size
        self.header = self._read_header()
        magic, *checksum = struct.unpack(">I20x2I", self.header)
        self.order = MAGIC.get(magic, LITTLE)
        self.checksum = (checksum[0], checksum[1])
        self.is_valid = magic in MAGIC and self.checksum == add_checksum(
            (0, 0), self.header[:24], self.order
        )
        """Whether SQLite accepts the header. If it does not, it takes the log for empty."""
        # The salts of the frames, if those of the header cannot be trusted.
        self.salts = self.header[16:24] if self.is_valid else self._read(8, LOG_HEADER + 8)

    def _read(self, size: int, at: int) -> bytes:
        os.lseek(self._handle, at, os.SEEK_SET)
        return os.read(self._handle, size)

    def _read_header(self) -> bytes:
        return self._read(LOG_HEADER, 0).ljust(LOG_HEADER, b"\0")

    def has_changed(self) -> bool:
        """Return whether the log was begun anew since it was opened here."""
        return self._read_header() != self.header

    def frame(self, number: int) -> Frame | None:
        """Return a frame, None if the log ends before the end of it."""
        at = LOG_HEADER + (number - 1) * self._frame_size
        data = self._read(self._frame_size, at)
        return Frame(number, data) if len(data) == self._frame_size else None

    def count_valid(self) -> int:
        """Return the number of the last frame that ends an intact commit, as SQLite would.

        It takes 0.1 s for 1,000 frames: only for a log that this process cannot write, where SQLite
        does not say it, and for one that seems to be damaged.
        """
        number = last = 0
        checksum = self.checksum
        while self.is_valid and (frame := self.frame(number + 1)) is not None:
            if frame.salts != self.salts or not frame.continues(checksum, self.order):
                break
            number, checksum = frame.number, frame.checksum
            last = number if frame.ends_commit else last
        return last

    def commits_after(self, number: int) -> Iterator[Frame]:
        """Yield the frames after a number that end a commit of this generation of the log.

        Of all other frames only the header is read: 1 ms for 1,000 of an older generation.
        """
        size, end = self._frame_size, os.fstat(self._handle).st_size
        for at in range(LOG_HEADER + number * size, end - size + 1, size):
            header = self._read(FRAME_HEADER, at)
            if header[8:16] == self.salts and header[4:8] != NO_COMMIT:
                frame = self.frame((at - LOG_HEADER) // size + 1)
                if frame is not None:
                    yield frame

    def acknowledged(self) -> Iterator[tuple[Frame, bool]]:
        """Yield the frames of all commits that were once acknowledged, for salvage.

        Those that SQLite accepts, and those behind the damage that are proven. The second value is
        False for a frame that does not continue the one before: it may be damaged.
        """
        for number in range(1, self._last_acknowledged() + 1):
            frame = self.frame(number)
            if frame is not None:
                yield frame, self._is_linked(frame)

    def _last_acknowledged(self) -> int:
        last = valid = self.count_valid()
        for commit in self.commits_after(valid):
            follows = last > valid and all(
                frame is not None and self._is_linked(frame)
                for frame in map(self.frame, range(last + 1, commit.number + 1))
            )
            if follows or self.proves_loss(commit):
                last = commit.number
        return last

    def proves_loss(self, commit: Frame) -> bool:
        """Return whether a commit that SQLite does not accept was once acknowledged."""
        is_linked = self._is_linked(commit)
        if not self.is_valid:
            # A header is one sector, and is synced before the first frame: it cannot be torn.
            return is_linked
        at = LOG_HEADER + (commit.number - 1) * self._frame_size
        is_torn = at // SECTOR != (at + FRAME_HEADER - 1) // SECTOR
        if not is_linked and is_torn:
            return False  # Old bytes may say that it ends a commit, and new ones its salts.
        following = self.frame(commit.number + 1)
        return (
            following is not None
            and following.salts == self.salts
            and following.continues(commit.checksum, self.order)
        )

    def _is_linked(self, frame: Frame) -> bool:
        before = self.frame(frame.number - 1) if frame.number > 1 else None
        checksum = self.checksum if before is None else before.checksum
        orders = (self.order,) if self.is_valid else (LITTLE, BIG)
        return any(frame.continues(checksum, order) for order in orders)


def require_whole_log(connection: apsw.Connection, path: str, name: str) -> None:
    """Raise DamagedError if a log has commits that SQLite does not accept, and no crash explains.

    The connection must have read once, so that SQLite has recovered the log, and must not be in a
    transaction. Others may write meanwhile: a commit shows in the index of the log (`_accepted`)
    before any frame follows it, so the index is read again after the frames.
    """
    try:
        file = FileIO(path)  # An object: a number would get lost if a signal handler raises here.
    except FileNotFoundError:
        return
    with file:
        log = LogFile(file.fileno(), connection.pragma("page_size"))
        accepted = _accepted(connection, log)
        for commit in log.commits_after(accepted):
            if not log.proves_loss(commit):
                continue
            # Another process writes, or its checkpoint empties the index before the log: no frame
            # is lost. The header is compared last, because a log that is begun anew has another.
            valid = max(log.count_valid(), _accepted(connection, log))
            if valid >= commit.number or log.has_changed():
                return
            reason = f"its write-ahead log is damaged after frame {accepted}"
            lost = f"at least one commit (frame {commit.number}) would be lost"
            raise DamagedError(name, 0, f"{reason}: {lost}", HINT)


def _accepted(connection: apsw.Connection, log: LogFile) -> int:
    """Return the number of the last frame that SQLite accepts."""
    try:
        # -1 if it has no log: a database that uses none, or one opened as `immutable`.
        return max(connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0], 0)
    except apsw.ReadOnlyError:
        return log.count_valid()
