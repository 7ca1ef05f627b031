"""The connections of one process to one SQLite file: a writer and readers, or readers only.

Readers have their own connections, so that they do not wait for a commit's sync; each is borrowed
for one page. `schema` opens and checks them. Only a write waits for the lock of other writers: a
store can be opened and read while another process is stopped in the middle of a write.

SQLite keeps its locks in a list per process, and a child of `os.fork` inherits that list without
the locks: even a new connection in the child would then write to a log that the parent may delete.
Therefore all connections are closed before a fork, and both sides reopen them when needed.
"""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw

from perdure.backends.filesystem import read_only_error, sleep_for_lock, why_read_only
from perdure.backends.guarantees import Check
from perdure.backends.sqlite import batch_append, schema
from perdure.backends.sqlite.errors import DRIVER_ERRORS, ROLLBACK_IS_ENOUGH, translate_error
from perdure.backends.sqlite.schema import check_settings
from perdure.errors import (
    PerdureError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)

# Seconds; many writers queue behind a slow disk this long before it counts as down.
BUSY_TIMEOUT = 60.0

T = TypeVar("T")

Identity = tuple[int, int] | None

"""The file that a path points to: its device and inode, or None if there is no file."""

DRAIN_TIMEOUT = 10.0  # seconds that a fork or a close waits for operations in progress

DRAIN_PAUSE = 0.001  # seconds between two looks at whether they have ended, or the fork has


def busy_handler(seconds: float) -> Callable[[int], bool]:
    """Return a busy handler that sleeps with growing, jittered pauses until its timeout."""
    deadline = 0.0

    def pause(attempt: int) -> bool:
        nonlocal deadline
        if attempt == 0:
            deadline = time.monotonic() + seconds
        return sleep_for_lock(attempt, deadline)

    return pause


class ConnectionPool:
    """Provides connections that are open, belong to this process and have no transaction."""

    def __init__(self, path: str, name: str, vfs: str | None, busy: Callable[[int], bool]) -> None:
        self._path = path
        self._name = name
        self._vfs = vfs
        self._busy = busy
        self._identify = file_identifier(path)
        self._prepare_writer = batch_append.prepare_batches
        self._file: Identity = None
        self._log_identities: list[Identity] = []
        """Identities of -wal and -shm; empty while it is not known that a connection is open."""
        self._writer: apsw.Connection | None = None
        self._may_write = False
        """Whether the writer is prepared."""
        self._readers: list[apsw.Connection] = []
        self._loans: set[object] = set()
        """One for each reader that is in use."""
        self.is_compressed = False
        """Whether the store was compressed when it was opened."""
        self._closed = False
        self._poisoned = False
        self._begin_in_this_process()
        with _fork_lock:
            _all_pools.add(self)

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        # An RLock only because it knows its owner; no thread acquires it twice.
        self._writing = threading.RLock()
        self._lock = threading.RLock()  # Guards the readers; a signal handler may read as well.
        self._paused = False
        self._log_rewritten = False

    def write(self, stream: str, work: Callable[[apsw.Connection], T], *, begin: bool = True) -> T:
        """Run `work` with the writer inside a transaction, durable on return.

        Without `begin`, each statement of the work is its own transaction.

        After an error either nothing of the transaction is in the file, or that is unknown. In the
        latter case the writer is poisoned: the log is rewritten before anything else is written.
        """
        self._require_same_process()
        self._require_no_write_here()
        with self._writing:
            self._require_open()
            try:
                self._require_same_file()
                writer = (self._may_write and self._writer) or self._prepared_writer()
                if writer.txn_state():  # A signal handler raised between two lines below.
                    writer = self._replace_writer(writer)
                if begin:
                    writer.execute("begin immediate")
                changes = writer.total_changes()
                result = work(writer)
                if begin:  # Without changes a rollback saves the sync of a commit.
                    writer.execute("commit" if writer.total_changes() != changes else "rollback")
            except ROLLBACK_IS_ENOUGH as error:
                raise translate_error(error, self._name, stream) from error
            except PerdureError:
                raise
            except DRIVER_ERRORS as error:
                # First: the call may be interrupted. Then the next write does the rest.
                self._poisoned, self._may_write = True, False
                self._poison()
                raise translate_error(error, self._name, stream) from error
            else:
                return result
            finally:
                # The first call is one of C (`interrupt_safety`): no other process waits for this.
                if self._writer is not None and self._writer.in_transaction:
                    try:
                        self._writer.execute("rollback")
                    except apsw.Error:
                        self._poisoned, self._may_write = True, False
                        self._poison()

    def open(self) -> tuple[Check, ...]:
        """Open the first connection, which will read, and return the settings that are active."""
        has_log = schema.file_size(self._path + "-wal") > 0
        with self._writing:
            try:
                self._require_same_file()
                self._readers.append(first := self._open_one())
                _, *self._log_identities = self._identify()
                if first.readonly("main"):
                    raise apsw.ReadOnlyError("the file is opened for reading only")
                if has_log:
                    # A process that holds the lock has done this before it wrote.
                    with contextlib.suppress(apsw.BusyError), _without_waiting(first, self._busy):
                        self._rewrite_log_once(first)
                self.is_compressed = schema.is_compressed(first, self._name)
                return check_settings(first, self._name)
            except DRIVER_ERRORS as error:
                raise translate_error(error, self._name) from error

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` with a reader inside a transaction, so that all its reads see one snapshot."""
        self._require_same_process()
        loan = object()
        try:
            reader = self._borrow(loan)
            try:
                reader.execute("begin")
                result = work(reader)
                reader.execute("rollback")
            except BaseException:
                # It may hold a snapshot, or cache pages that were misread.
                if self._writer is None:
                    self._log_identities = []  # SQLite removes the log with the last connection.
                reader.close(True)  # noqa: FBT003 - positional-only in apsw
                raise
            self._return_reader(reader)
            return result
        finally:
            self._loans.discard(loan)

    def close(self) -> None:
        """Wait for operations in progress, then close. Closing twice is harmless."""
        if self._pid != os.getpid():
            self._closed = True  # This process opened nothing; the parent's connections stay open.
            return
        self._require_no_write_here()
        with self._writing:
            self._closed = True
            try:
                self._close_all()
            except apsw.Error as error:
                raise translate_error(error, self._name) from error

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self._name} is closed: open the store again")

    @property
    def _writes_here(self) -> bool:
        """Whether this thread is in the middle of a write."""
        # Private, but `threading.Condition` uses it in the same way.
        return bool(self._writing._is_owned())  # type: ignore[attr-defined] # noqa: SLF001

    def _require_no_write_here(self) -> None:
        """Raise UsageError in a signal handler that interrupted a write of the same thread."""
        if self._writes_here:
            reason = f"{self._name} was called while this thread is in the middle of a write to it"
            raise UsageError(f"{reason}: in a signal handler only set a flag, or raise")

    def _require_same_file(self) -> None:
        """Raise UnavailableError if the file or its log was replaced: writes would be lost."""
        # Read before the stat: another thread may open or close the writer in between.
        expected = self._log_identities
        file, *beside = self._identify()
        if self._file is None:
            self._file = file
        if self._file is not None and file != self._file:
            reason = "the file was removed or replaced while it was open"
            raise UnavailableError(self._name, reason, "restore it, then open the store again")
        # While a connection is open, SQLite itself removes neither of them.
        if expected and beside != expected and self._log_identities is expected:
            if beside[-1] not in (None, expected[-1]):
                self._disable_checkpoint()
            reason = "its -wal or -shm file was removed or replaced while it was open"
            hint = "close the store instead of killing this process, then open it again"
            raise UnavailableError(self._name, reason, hint)

    def _disable_checkpoint(self) -> None:
        """Disable the checkpoint on close: others use the file under locks that we cannot see.

        Normally the last connection to close moves the log's content into the file.
        """
        with self._lock:
            for connection in filter(None, (self._writer, *self._readers)):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _require_same_process(self) -> None:
        if self._pid == os.getpid():
            return
        if self._is_inherited():
            raise UnsupportedError(
                f"{self._name} was open when native code forked this process",
                "open the store after the fork",
            )
        self._begin_in_this_process()

    def _is_inherited(self) -> bool:
        return self._writer is not None or bool(self._readers or self._loans)

    def _open_one(self) -> apsw.Connection:
        # With another connection open here, SQLite does not recover the log.
        first = self._writer is None and not self._readers and len(self._loans) <= 1
        return schema.open_writer(self._path, self._name, self._vfs, self._busy, first=first)

    def _open_writer(self) -> apsw.Connection:
        self._may_write = False
        writer = self._open_checkpointed() if self._poisoned else self._open_one()
        try:
            _, *identities = self._identify()
        except BaseException:
            self._readers.append(writer)  # Not closed: see `_poison`.
            raise
        self._writer, self._log_identities = writer, identities
        return writer

    def _prepared_writer(self) -> apsw.Connection:
        """Return the writer, ready for its first write; waits for others, as every write does."""
        if self._poisoned:
            self._poison()  # It may have been interrupted.
        writer = self._writer or self._open_writer()
        if not self._log_rewritten:
            self._rewrite_log_once(writer)
        schema.prepare_writer(writer, self._name)
        self._prepare_writer(writer)
        self._may_write = True
        return writer

    def _replace_writer(self, writer: apsw.Connection) -> apsw.Connection:
        """Close a writer that was left in a transaction, and return another one.

        A rollback is not enough: the traceback of an interrupt may keep a cursor, whose statement
        keeps its snapshot. Every write would be refused after one of another process.
        """
        self._may_write, self._log_identities, self._writer = False, [], None
        writer.close(True)  # noqa: FBT003 - positional-only in apsw
        return self._prepared_writer()

    def _rewrite_log_once(self, writer: apsw.Connection) -> None:
        """Rewrite the log, once per process, while no other process can write to it.

        A process that died after a failed sync leaves entries in the log that can be read, but
        that no later sync writes to the disk.
        """

        def rewrite() -> None:
            schema.rewrite_file(self._path + "-wal")
            schema.sync_file(self._path + "-wal")

        schema.in_transaction(writer, rewrite)
        self._log_rewritten = True

    def _open_checkpointed(self) -> apsw.Connection:
        """Open a connection and move the log's content into the database.

        After a failed sync the kernel may consider pages clean that never reached the disk. The
        checkpoint writes them again, into the database, and syncs that.
        """
        connection = self._open_one()
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except BaseException:
            connection.close(True)  # noqa: FBT003 - positional-only in apsw
            raise
        self._poisoned = False
        return connection

    def _poison(self) -> None:
        self._poisoned = True
        if self._writer is None:
            return
        self._log_identities = []
        writer, self._writer = self._writer, None
        try:
            if writer.in_transaction:
                writer.execute("rollback")
        except apsw.Error:
            writer.close(True)  # noqa: FBT003 - positional-only in apsw
            return
        # Kept open as a reader, where it is harmless. If it were the last connection and closed,
        # the next one would recover the log, with entries that were never synced.
        self._readers.append(writer)

    def _borrow(self, loan: object) -> apsw.Connection:
        recovers = False
        while True:
            with self._lock:
                if not self._paused:
                    self._require_open()
                    self._loans.add(loan)
                    if self._readers:
                        return self._readers.pop()
                    recovers = self._poisoned and self._writer is None and len(self._loans) == 1
                    break
            time.sleep(DRAIN_PAUSE)  # Another thread forks.
        self._require_same_file()
        return self._open_checkpointed() if recovers else self._open_one()

    def _return_reader(self, reader: apsw.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._readers.append(reader)
                return
        reader.close(True)  # noqa: FBT003 - positional-only in apsw

    def _close_all(self) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT
        while self._loans and time.monotonic() < deadline:
            time.sleep(DRAIN_PAUSE)
        with self._lock:  # Loans that have not ended are closed when they are returned.
            self._log_identities = []
            while self._readers:
                self._readers.pop().close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def pause(self) -> None:
        """Close all connections before a fork, and block new ones until `resume`."""
        if self._writes_here:
            return  # The forking thread is inside a write. The child will refuse to use the store.
        self._paused = True
        if not self._writing.acquire(timeout=DRAIN_TIMEOUT):
            self._paused = False  # As above, with another thread.
            return
        try:
            self._close_all()
        except apsw.Error:
            self._poisoned = True  # The next write reports it, if the problem persists.

    def resume(self) -> None:
        """Allow connections again after `pause`, in the parent."""
        if self._paused:
            self._paused = False
            with contextlib.suppress(RuntimeError):  # `pause` was interrupted.
                self._writing.release()

    def resume_in_child(self) -> None:
        """Start over after `pause`, in the child, where the locks' other holders do not exist."""
        if self._is_inherited():
            _leak(self._writer, *self._readers)
        else:
            self._begin_in_this_process()


@contextlib.contextmanager
def _without_waiting(connection: apsw.Connection, busy: Callable[[int], bool]) -> Iterator[None]:
    """Let a connection raise BusyError at once, instead of waiting for a lock."""
    connection.set_busy_handler(None)
    try:
        yield
    finally:
        connection.set_busy_handler(busy)


def _leak(*connections: apsw.Connection | None) -> None:
    """Leak inherited connections: closing them in a child, even at exit, could harm the parent."""
    import ctypes  # imported here because it is rarely needed

    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_all_pools: "weakref.WeakSet[ConnectionPool]" = weakref.WeakSet()

_fork_lock = threading.Lock()

_paused_pools: list[ConnectionPool] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    _paused_pools.extend(_all_pools)
    for connections in _paused_pools:
        connections.pause()


def _after_fork(resume: Callable[[ConnectionPool], None]) -> None:
    try:
        while _paused_pools:
            resume(_paused_pools[-1])
            _paused_pools.pop()
    finally:
        if _paused_pools:  # A signal handler raised, which is not passed on to the forking code.
            _after_fork(resume)
        else:
            _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(ConnectionPool.resume),
        after_in_child=lambda: _after_fork(ConnectionPool.resume_in_child),
    )


_NOT_WRITABLE = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError)

"""The errors of opening a file or a log that cannot be written."""

# nanoseconds; three ticks of a file system's clock, which has 10 ms or less
CLOCK_MARGIN = 30_000_000


def connect(
    path: str, name: str, vfs: str | None, timeout: float
) -> tuple[ConnectionPool, tuple[Check, ...], str]:
    """Open and check a store, creating the file if it is missing.

    Return its connections, the settings that are active, and why the store is read-only ("" if it
    is not). Problems are raised here and not at the first append.
    """
    busy = busy_handler(timeout)
    connections = ConnectionPool(path, name, vfs, busy)
    try:
        return connections, connections.open(), ""
    except VersionError:
        connections.close()
        raise
    except UnavailableError as error:
        reason = why_read_only(path, str(Path(path).parent))
        if not (reason and isinstance(error.__cause__, _NOT_WRITABLE) and os.access(path, os.R_OK)):
            raise
        connections.close()
    read_only = ReadOnlyPool(path, name, vfs, busy, reason)
    read_only.is_compressed = read_only.read(lambda db: schema.is_compressed(db, name))
    return read_only, (), reason


def file_identifier(path: str) -> Callable[[], tuple[Identity, ...]]:
    """Return a function that identifies the file, -wal and -shm that a path points to.

    Every write calls it, so it looks at them only if their directory has changed.
    """
    files, folder = (path, path + "-wal", path + "-shm"), str(Path(path).parent)
    cached: tuple[tuple[int, ...], tuple[Identity, ...]] = ((), ())

    def identify() -> tuple[Identity, ...]:
        nonlocal cached  # One tuple, so that threads see both parts or neither.
        directory, (cached_directory, identified) = _directory_state(folder), cached
        if not directory or directory != cached_directory:
            identified = tuple(map(_file_identity, files))
            # File systems have coarse clocks: a later change could get the same time. Cache only
            # if the last change is old enough.
            settled = directory and time.time_ns() - max(directory[2:]) > CLOCK_MARGIN
            cached = (directory if settled else (), identified)
        return identified

    return identify


def _directory_state(path: str) -> tuple[int, ...]:
    """Return the identity of a directory, and when a file was last added to it or removed.

    Both mtime and ctime: restoring a backup resets the former, and some systems lack the latter.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - as below
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _file_identity(path: str) -> Identity:
    try:
        status = os.stat(path)  # noqa: PTH116 - in every write, and Path takes twice as long
    except OSError:  # Missing, or not accessible: opening the file reports why.
        return None
    return status.st_dev, status.st_ino


class _Fingerprint(NamedTuple):
    """A fingerprint of the file and its log: if it is unchanged, no process wrote."""

    changed: int
    size: int
    log: int


class ReadOnlyPool(ConnectionPool):
    """Provides readers, each for one page. `reason` says why there is no writer."""

    def __init__(
        self, path: str, name: str, vfs: str | None, busy: Callable[[int], bool], reason: str
    ) -> None:
        super().__init__(path, name, vfs, busy)
        self._reason = reason
        self._has_read = False
        self._fingerprints = weakref.WeakKeyDictionary[apsw.Connection, _Fingerprint]()

    def write(
        self,
        stream: str,  # noqa: ARG002 - as in ConnectionPool
        work: Callable[[apsw.Connection], T],  # noqa: ARG002
        *,
        begin: bool = True,  # noqa: ARG002
    ) -> T:
        """Raise UsageError: the store is read-only. Nothing was written."""
        self._require_open()
        raise read_only_error(self._name, self._reason)

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """As `ConnectionPool.read`; UnavailableError if a file without a log was written to."""

        def read(reader: apsw.Connection) -> T:
            try:
                result = work(reader)
            except (PerdureError, *DRIVER_ERRORS) as error:
                self._require_unchanged(reader, error)
                raise
            self._require_unchanged(reader)
            return result

        return super().read(read)

    def _require_unchanged(self, reader: apsw.Connection, cause: Exception | None = None) -> None:
        fingerprint = self._fingerprints[reader]
        if not fingerprint.log and self._fingerprint() != fingerprint:
            reason = "another process wrote to it during the read"
            raise UnavailableError(self._name, reason, "read again") from cause

    def _open_one(self) -> apsw.Connection:
        fingerprint = self._fingerprint()
        unlocked = not fingerprint.log  # Without a log there is no -shm to hold locks in.
        reader = schema.open_reader(
            self._path,
            self._name,
            self._vfs,
            self._busy,
            unlocked=unlocked,
            first=not self._has_read,
        )
        self._has_read = True
        self._fingerprints[reader] = fingerprint
        return reader

    def _fingerprint(self) -> _Fingerprint:
        try:
            file = Path(self._path).stat()
        except OSError as error:
            raise translate_error(error, self._name) from error
        try:
            log = Path(self._path + "-wal").stat().st_size
        except FileNotFoundError:
            log = 0
        return _Fingerprint(file.st_mtime_ns, file.st_size, log)

    def _return_reader(self, reader: apsw.Connection) -> None:
        # An `immutable` file may have changed before the next page.
        reader.close(True)  # noqa: FBT003 - positional-only in apsw
