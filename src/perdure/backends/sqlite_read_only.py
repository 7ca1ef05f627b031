"""Connect to a SQLite file: for writing, or read-only if this process may not write.

A read-only process sees what other processes write. While a write-ahead log exists, SQLite reads
under its own locks. Without a log it has no place for locks, and the file is opened as one that
does not change (`immutable`). That is verified: a writer creates a log first, so the file and its
log must be the same after each page as before it; otherwise the page is discarded.
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
"""The errors of opening a file or a log that cannot be written."""

SETTLED = 30_000_000  # nanoseconds; three ticks of a file system's clock, which has 10 ms or less


def connect(
    path: str, name: str, vfs: str | None, patience: float
) -> tuple[Connections, tuple[Check, ...], str]:
    """Open and check a store, creating the file if it is missing.

    Return its connections, the settings that are active, and why the store is read-only ("" if it
    is not). Problems are raised here and not at the first append.
    """
    busy = patient(patience)
    connections = Connections(
        name,
        lambda: sqlite_schema.open_connection(path, name, vfs, busy),
        lambda: sqlite_schema.rewrite_log(path),
        identities(path),
        sqlite_at_once.prepare,
    )
    try:
        return connections, connections.write("", lambda db: settings_of(db, name)), ""
    except UnavailableError as error:
        reason = why_read_only(path, str(Path(path).parent))
        if not (reason and isinstance(error.__cause__, _REFUSED) and os.access(path, os.R_OK)):
            raise
        connections.close()
    read_only = ReadOnlyConnections(
        path,
        name,
        lambda unlocked: _open(path, name, vfs, busy, unlocked=unlocked),
        lambda: (_identity(path),),
        reason,
    )
    with read_only.reading():
        return read_only, (), reason


def identities(path: str) -> Callable[[], tuple[Identity, ...]]:
    """Return a function that identifies the file, -wal and -shm that a path points to.

    Every write calls it, so it looks at them only if their directory has changed.
    """
    files, folder = (path, path + "-wal", path + "-shm"), str(Path(path).parent)
    cached: tuple[tuple[int, ...], tuple[Identity, ...]] = ((), ())

    def identify() -> tuple[Identity, ...]:
        nonlocal cached  # One tuple, so that threads see both parts or neither.
        directory, (cached_directory, identified) = _folder(folder), cached
        if not directory or directory != cached_directory:
            identified = tuple(map(_identity, files))
            # File systems have coarse clocks: a later change could get the same time. Cache only
            # if the last change is old enough.
            settled = directory and time.time_ns() - max(directory[2:]) > SETTLED
            cached = (directory if settled else (), identified)
        return identified

    return identify


def _folder(path: str) -> tuple[int, ...]:
    """Return the identity of a directory, and when a file was last added to it or removed.

    Both mtime and ctime: restoring a backup resets the former, and some systems lack the latter.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - as below
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _identity(path: str) -> Identity:
    try:
        status = os.stat(path)  # noqa: PTH116 - in every write, and Path takes twice as long
    except OSError:  # Missing, or not accessible: opening the file reports why.
        return None
    return status.st_dev, status.st_ino


class _Seen(NamedTuple):
    """A fingerprint of the file and its log: if it is unchanged, no process wrote."""

    changed: int
    size: int
    log: int


class ReadOnlyConnections(Connections):
    """Provides readers, each for one page. `reason` says why there is no writer.

    `open_reader` opens the file; its argument says whether to open it without locks.
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
        self._fingerprints: dict[apsw.Connection, _Seen] = {}

    def write(
        self,
        stream: str,  # noqa: ARG002 - as in Connections
        work: Callable[[apsw.Connection], T],  # noqa: ARG002
        *,
        begin: bool = True,  # noqa: ARG002
    ) -> T:
        """Raise UsageError: the store is read-only. Nothing was written."""
        self._require_open()
        raise refusal(self._name, self._reason)

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """As `Connections.reading`; UnavailableError if a file without a log was written to."""
        with super().reading() as reader:
            try:
                yield reader
            except (PerdureError, *DRIVER_ERRORS) as error:
                self._require_unchanged(reader, error)
                raise
            self._require_unchanged(reader)

    def _require_unchanged(self, reader: apsw.Connection, cause: Exception | None = None) -> None:
        fingerprint = self._fingerprints[reader]
        if not fingerprint.log and self._fingerprint() != fingerprint:
            reason = "another process wrote to it during the read"
            raise UnavailableError(self._name, reason, "read again") from cause

    def _open(self) -> apsw.Connection:
        fingerprint = self._fingerprint()
        reader = self._open_reader(not fingerprint.log)
        self._fingerprints[reader] = fingerprint
        return reader

    def _fingerprint(self) -> _Seen:
        try:
            file = Path(self._path).stat()
        except OSError as error:
            raise translated(error, self._name) from error
        try:
            log = Path(self._path + "-wal").stat().st_size
        except FileNotFoundError:
            log = 0
        return _Seen(file.st_mtime_ns, file.st_size, log)

    def _return_reader(self, reader: apsw.Connection) -> None:
        self._discard(reader)  # An `immutable` file may have changed before the next page.

    def _discard(self, reader: apsw.Connection) -> None:
        self._fingerprints.pop(reader, None)
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
            connection.close(True)  # noqa: FBT003 - positional-only in apsw
        if isinstance(error, apsw.CantOpenError) and not unlocked:
            reason = f"its -wal cannot be read without its -shm (SQLite: {error})"
            hint = "copy the file and its -wal to a writable directory, and open the copy"
            raise UnavailableError(name, reason, hint) from error
        if isinstance(error, DRIVER_ERRORS):
            raise translated(error, name) from error
        raise
    return connection


def _sync(path: str) -> None:
    """Like `sync_file`, but a read-only medium may refuse: it has nothing unsynced."""
    try:
        sqlite_schema.sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise
