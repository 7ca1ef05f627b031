"""The connections of one process to one SQLite file: a writer, and readers lent by the page.

Readers have connections of their own, so that they do not wait for a commit's sync. Nothing here
knows a table.

SQLite keeps its locks in a list per process, and a child of `os.fork` inherits that list without
the locks: even a new connection in the child then writes to a log that the parent may delete.
Therefore all connections are closed before a fork, and both sides open new ones when needed.
"""

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import apsw

from perdure.backends.sqlite_errors import DRIVER_ERRORS, HARMLESS, translated
from perdure.errors import PerdureError, UnavailableError, UnsupportedError, UsageError

T = TypeVar("T")

Identity = tuple[int, int] | None
"""Which file a path leads to: its device and number there, or None if to none."""

FIRST_PAUSE = 0.0002  # A commit on a fast disk takes about as long.
LONGEST_PAUSE = 0.005  # Long enough to leave the processor alone, short against a slow sync.
DRAIN_PATIENCE = 10.0  # A fork or a close waits so long for what is under way.


def patient(seconds: float) -> Callable[[int], bool]:
    """Return a busy handler that pauses, shortly and then longer, until the time has passed."""
    deadline = 0.0

    def pause(attempt: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        if attempt == 0:
            deadline = now + seconds
        if now >= deadline:
            return False
        # Jitter, so that two processes do not wake at the same moments for ever.
        longest = min(FIRST_PAUSE * 1.5 ** min(attempt, 16), LONGEST_PAUSE)
        time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret.
        return True

    return pause


class Connections:
    """Hands out connections that are open, of this process, and free of transactions."""

    def __init__(
        self,
        name: str,
        open_one: Callable[[], apsw.Connection],
        rewrite_log: Callable[[], None],
        identify: Callable[[], tuple[Identity, ...]],
        prepare_writer: Callable[[apsw.Connection], object] = lambda _: None,
    ) -> None:
        self._name = name
        self._open_one = open_one
        self._rewrite_log = rewrite_log
        self._identify = identify
        self._prepare_writer = prepare_writer
        self._file: Identity = None
        self._beside: list[Identity] = []
        """The log and the locks of the writer; nothing while it is being opened or closed."""
        self._writer: apsw.Connection | None = None
        self._readers: list[apsw.Connection] = []
        self._lent = 0
        self._closed = False
        self._poisoned = False
        self._begin_in_this_process()
        with _forking:
            _all.add(self)

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        self._writing = threading.RLock()  # It knows its owner; nobody takes it twice.
        self._lending = threading.Condition()
        self._paused = False
        self._took_over = False

    def write(self, stream: str, work: Callable[[apsw.Connection], T], *, begin: bool = True) -> T:
        """Do some work with the writer inside a transaction, durable on return.

        Without `begin`, each statement of the work is a transaction of its own.

        After any error nothing of the transaction is in the file, or nobody knows: then the
        writer is poisoned, and what the log holds is rewritten before anything else is written.
        """
        self._require_same_process()
        self._require_no_write_here()
        with self._writing:
            self._require_open()
            try:
                self._require_same_file()
                writer = self._writer or self._open_writer()
                if writer.in_transaction:  # An interrupt came between two lines below.
                    writer.execute("rollback")
                if begin:
                    writer.execute("begin immediate")
                before = writer.total_changes()
                done = work(writer)
                if begin:
                    writer.execute("commit" if writer.total_changes() != before else "rollback")
            except HARMLESS as error:
                raise translated(error, self._name, stream) from error
            except PerdureError:
                raise
            except DRIVER_ERRORS as error:
                self._poison()
                raise translated(error, self._name, stream) from error
            else:
                return done
            finally:
                if self._writer is not None and self._writer.in_transaction:
                    self._roll_back()

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Lend a reader inside a transaction, so that all it reads is of one moment."""
        self._require_same_process()
        reader = self._borrow()
        try:
            reader.execute("begin")
            yield reader
            reader.execute("rollback")
        except BaseException:
            self._discard(reader)  # It may hold a snapshot, or pages that were read wrongly.
            raise
        self._give_back(reader)

    def close(self) -> None:
        """Close what is open, wait for what is under way. Closing twice is harmless."""
        if self._pid != os.getpid():
            self._closed = True  # Nothing of this process is open; the parent's stays as it is.
            return
        self._require_no_write_here()
        with self._writing:
            self._closed = True
            try:
                self._close_all()
            except apsw.Error as error:
                raise translated(error, self._name) from error

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self._name} is closed: open the store again")

    @property
    def _writes_here(self) -> bool:
        """Whether this thread is in the middle of a write."""
        # `threading.Condition` asks a lock in the same way.
        return bool(self._writing._is_owned())  # type: ignore[attr-defined] # noqa: SLF001

    def _require_no_write_here(self) -> None:
        """Refuse what interrupts a write of the same thread, such as a signal handler."""
        if self._writes_here:
            reason = f"{self._name} is in the middle of a write of this very thread"
            raise UsageError(f"{reason}: in a signal handler set a flag, or raise")

    def _require_same_file(self) -> None:
        """Refuse to write to a file, or to a log, that nobody will find again."""
        expected = self._beside  # Before looking: another thread may open or close the writer.
        found, *beside = self._identify()
        if self._file is None:
            self._file = found
        if self._file is not None and found != self._file:
            reason = "the file was removed or replaced while it was open"
            raise UnavailableError(self._name, reason, "put it back, then open the store again")
        # As long as the writer is open, SQLite itself removes neither of them.
        if expected and beside != expected and self._beside is expected:
            if beside[-1] not in (None, expected[-1]):
                self._keep_off()
            reason = "its -wal or -shm was removed or replaced while it was open"
            hint = "close the store rather than kill this process, then open it again"
            raise UnavailableError(self._name, reason, hint)

    def _keep_off(self) -> None:
        """Have closing leave the file alone: others work on it, under locks that we do not see.

        Elsewhere the last one to close brings what the log holds into the file.
        """
        with self._lending:
            for connection in filter(None, (self._writer, *self._readers)):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _require_same_process(self) -> None:
        if self._pid == os.getpid():
            return
        if self._is_inherited():
            raise UnsupportedError(
                f"{self._name} was open when another program's code forked this process",
                "open the store after the fork",
            )
        self._begin_in_this_process()

    def _is_inherited(self) -> bool:
        return self._writer is not None or bool(self._readers or self._lent)

    def _open_writer(self) -> apsw.Connection:
        writer = self._writer = self._open_healed() if self._poisoned else self._open_one()
        try:
            if not self._took_over:
                self._take_over(writer)
            self._prepare_writer(writer)
        except BaseException:
            with self._lending:  # Half prepared it can not write. Not closed: see `_poison`.
                self._readers.append(writer)
                self._writer = None
            raise
        _, *self._beside = self._identify()
        return writer

    def _take_over(self, writer: apsw.Connection) -> None:
        """Have the log written anew, once in a process, while nobody else writes to it.

        A process whose sync failed, and that died of it, leaves entries in the log that can be
        read, but that no sync brings to the disk any more.
        """
        writer.execute("begin immediate")
        try:
            self._rewrite_log()
        finally:
            writer.execute("rollback")
        self._took_over = True

    def _open_healed(self) -> apsw.Connection:
        """Open a connection and rewrite what the log holds.

        After a failed sync the kernel may hold pages that it believes to be on disk. The
        checkpoint writes them anew, into the database, and syncs that.
        """
        connection = self._open_one()
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except BaseException:
            connection.close(True)  # noqa: FBT003 - apsw takes it by position.
            raise
        self._poisoned = False
        return connection

    def _poison(self) -> None:
        self._poisoned = True
        if self._writer is None:
            return
        self._beside = []
        writer, self._writer = self._writer, None
        try:
            if writer.in_transaction:
                writer.execute("rollback")
        except apsw.Error:
            writer.close(True)  # noqa: FBT003 - apsw takes it by position.
            return
        # As a reader it does no harm. Were it the last connection and closed, the next one would
        # recover the log, with what was never synced.
        with self._lending:
            self._readers.append(writer)

    def _borrow(self) -> apsw.Connection:
        with self._lending:
            while self._paused:
                self._lending.wait()
            self._require_open()
            self._lent += 1
            if self._readers:
                return self._readers.pop()
            recovers = self._poisoned and self._writer is None and self._lent == 1
        try:
            self._require_same_file()
            return self._open_healed() if recovers else self._open_one()
        except BaseException:
            self._one_less_lent()
            raise

    def _give_back(self, reader: apsw.Connection) -> None:
        with self._lending:
            if not self._closed:
                self._readers.append(reader)
                self._lent -= 1
                self._lending.notify_all()
                return
        self._discard(reader)

    def _discard(self, reader: apsw.Connection) -> None:
        try:
            reader.close(True)  # noqa: FBT003 - apsw takes it by position.
        finally:
            self._one_less_lent()

    def _one_less_lent(self) -> None:
        with self._lending:
            self._lent -= 1
            self._lending.notify_all()

    def _roll_back(self) -> None:
        if self._writer is not None and self._writer.in_transaction:
            try:
                self._writer.execute("rollback")
            except apsw.Error:
                self._poison()

    def _close_all(self) -> None:
        with self._lending:
            self._lending.wait_for(lambda: self._lent == 0, DRAIN_PATIENCE)
            self._beside = []
            while self._readers:
                self._readers.pop().close()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def pause(self) -> None:
        """Close everything and let nobody open anything until `resume`: a fork comes."""
        if self._writes_here or not self._writing.acquire(timeout=DRAIN_PATIENCE):
            return  # The thread that forks holds it. The child will refuse to use the store.
        self._paused = True
        try:
            self._close_all()
        except apsw.Error:
            self._poisoned = True  # Said by the next write, if it is still so.

    def resume(self) -> None:
        """Go on after `pause`, in the parent."""
        if self._paused:
            with self._lending:
                self._paused = False
                self._lending.notify_all()
            self._writing.release()

    def resume_in_child(self) -> None:
        """Go on after `pause`, in the child: the locks' other holders do not exist here."""
        if self._is_inherited():
            _keep_for_ever(self._writer, *self._readers)
        else:
            self._begin_in_this_process()


def _keep_for_ever(*connections: apsw.Connection | None) -> None:
    """Closing the parent's connections in a child, even at its exit, could harm the parent's."""
    import ctypes  # Here, because it is hardly ever needed.

    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_all: "weakref.WeakSet[Connections]" = weakref.WeakSet()
_forking = threading.Lock()
_pausing: list[Connections] = []


def _before_fork() -> None:
    _forking.acquire()
    _pausing.extend(_all)
    for connections in _pausing:
        connections.pause()


def _after_fork(resume: Callable[[Connections], None]) -> None:
    for connections in _pausing:
        resume(connections)
    _pausing.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(Connections.resume),
        after_in_child=lambda: _after_fork(Connections.resume_in_child),
    )
