"""Connect to a SQLite file: to write, or where this process may not, to read.

What others write to a file that this process may only read is seen. As long as there is a
write-ahead log, SQLite reads under its own locks. Without one it has no place for them, and the
file is read as one that does not change. That is checked: whoever writes makes a log first, so the
file and its log must be, after each page, as they were before it; else the page is thrown away.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from perdure.backends import sqlite_at_once, sqlite_schema
from perdure.backends.filesystem import refusal, why_read_only
from perdure.backends.sqlite_connections import Connections, Identity, T, patient
from perdure.backends.sqlite_errors import DRIVER_ERRORS, translated
from perdure.backends.sqlite_guarantees import settings_of
from perdure.errors import PerdureError, UnavailableError
from perdure.guarantees import Check

_REFUSED = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError)
"""What a file or a log that can not be written leads to."""

SETTLED = 30_000_000  # Nanoseconds; the clock of a file system ticks every 10 ms, or more often.


def connect(
    path: str, name: str, vfs: str | None, patience: float
) -> tuple[Connections, tuple[Check, ...], str]:
    """Return connections to a store that is there and whole, made new if the file is missing.

    With them come the settings that were found in force, and why nothing can be written, if so.
    Whatever is wrong with it is raised now and not at the first append.
    """
    busy = patient(patience)
    found = Connections(
        name,
        lambda: sqlite_schema.open_connection(path, name, vfs, busy),
        lambda: sqlite_schema.rewrite_log(path),
        identities(path),
        sqlite_at_once.prepare,
    )
    try:
        return found, found.write("", lambda db: settings_of(db, name)), ""
    except UnavailableError as error:
        reason = why_read_only(path, str(Path(path).parent))
        if not (reason and isinstance(error.__cause__, _REFUSED) and os.access(path, os.R_OK)):
            raise
        found.close()
    only_reading = ReadOnlyConnections(
        path,
        name,
        lambda unlocked: _open(path, name, vfs, busy, unlocked=unlocked),
        lambda: (_identity(path),),
        reason,
    )
    with only_reading.reading():
        return only_reading, (), reason


def identities(path: str) -> Callable[[], tuple[Identity, ...]]:
    """Return what tells which file, log and locks a path leads to.

    It asks for each of them only when their directory has changed: it is called in every write.
    """
    files, folder = (path, path + "-wal", path + "-shm"), str(Path(path).parent)
    known: tuple[tuple[int, ...], tuple[Identity, ...]] = ((), ())

    def identify() -> tuple[Identity, ...]:
        nonlocal known  # One tuple, so that threads see both of its parts or neither.
        place, (place_before, found) = _folder(folder), known
        if not place or place != place_before:
            found = tuple(map(_identity, files))
            # The clock of a file system ticks slowly: another change could bear the same time.
            settled = place and time.time_ns() - max(place[2:]) > SETTLED
            known = (place if settled else (), found)
        return found

    return identify


def _folder(path: str) -> tuple[int, ...]:
    """Return which directory a path leads to, and when something last came or went in it.

    Both times: whoever restores a backup sets the first one back, and some systems lack the second.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - as below
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _identity(path: str) -> Identity:
    try:
        found = os.stat(path)  # noqa: PTH116 - in every write, and Path takes twice as long
    except OSError:  # There is none, or nobody can look: opening says why.
        return None
    return found.st_dev, found.st_ino


class _Seen(NamedTuple):
    """The file and its log: if they are the same again, nobody wrote."""

    changed: int
    size: int
    log: int


class ReadOnlyConnections(Connections):
    """Hands out readers, each for one page. `reason` says why there is no writer.

    `open_reader` opens the file, and is told whether to do without locks.
    """

    def __init__(
        self,
        path: str,
        name: str,
        open_reader: Callable[[bool], apsw.Connection],
        identify: Callable[[], tuple[Identity, ...]],
        reason: str,
    ) -> None:
        super().__init__(name, self._open, lambda: None, identify)
        self._path = path
        self._open_reader = open_reader
        self._reason = reason
        self._seen: dict[apsw.Connection, _Seen] = {}

    def write(
        self,
        stream: str,  # noqa: ARG002 - as the others.
        work: Callable[[apsw.Connection], T],  # noqa: ARG002
        *,
        begin: bool = True,  # noqa: ARG002
    ) -> T:
        """Raise UsageError: nothing can be written, and nothing was."""
        self._require_open()
        raise refusal(self._name, self._reason)

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """As `Connections.reading`; UnavailableError if somebody wrote to a file without a log."""
        with super().reading() as reader:
            try:
                yield reader
            except (PerdureError, *DRIVER_ERRORS) as error:
                self._require_unchanged(reader, error)
                raise
            self._require_unchanged(reader)

    def _require_unchanged(self, reader: apsw.Connection, cause: Exception | None = None) -> None:
        seen = self._seen[reader]
        if not seen.log and self._look() != seen:
            reason = "it was written to while it was read"
            raise UnavailableError(self._name, reason, "read again") from cause

    def _open(self) -> apsw.Connection:
        seen = self._look()
        reader = self._open_reader(not seen.log)
        self._seen[reader] = seen
        return reader

    def _look(self) -> _Seen:
        try:
            file = Path(self._path).stat()
        except OSError as error:
            raise translated(error, self._name) from error
        try:
            log = Path(self._path + "-wal").stat().st_size
        except FileNotFoundError:
            log = 0
        return _Seen(file.st_mtime_ns, file.st_size, log)

    def _give_back(self, reader: apsw.Connection) -> None:
        self._discard(reader)  # What it believes not to change may change before the next page.

    def _discard(self, reader: apsw.Connection) -> None:
        self._seen.pop(reader, None)
        super()._discard(reader)


def _open(
    path: str, name: str, vfs: str | None, busy: Callable[[int], bool], *, unlocked: bool
) -> apsw.Connection:
    connection = None
    try:
        uri = f"file:{quote(path)}?mode=ro" + "&immutable=1" * unlocked
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(uri, flags, vfs)
        connection.set_busy_handler(busy)
        sqlite_schema.prepare_reader(connection, path, name)
        if not unlocked:
            _sync(path + "-wal")
    except BaseException as error:
        if connection is not None:
            connection.close(True)  # noqa: FBT003 - apsw takes it by position.
        if isinstance(error, apsw.CantOpenError) and not unlocked:
            reason = f"its log can not be read without its -shm (SQLite: {error})"
            hint = "copy both to a directory that can be written, and open the copy"
            raise UnavailableError(name, reason, hint) from error
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, name) from error
        raise
    return connection


def _sync(path: str) -> None:
    """As `sync_file`. A read-only medium holds nothing back, and may say that it can not sync."""
    try:
        sqlite_schema.sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise
