"""System calls of a file store, and locks between processes.

All calls are methods of one small object, `Disk`, so that a test can record them, inject faults and
build every disk state that a crash could leave. Errors are OSErrors here, except a lock timeout,
which is an UnavailableError. Nothing in this module knows the format of a file.

Editing: the store must make no other system call that changes a file, or the crash tests miss it.
"""

import contextlib
import errno
import functools
import operator
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from weakref import ref

from perdure.backends.filesystem import STOPPED_WRITER_HINT, sleep_for_lock
from perdure.errors import DamagedError, PerdureError, UnavailableError

# Do not follow symbolic links, do not block on pipes, do not translate newlines on Windows.
_OPEN_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)

CREATE_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Disk:
    """The real file system. Tests subclass it to record calls and inject faults."""

    def open(self, path: str, flags: int = os.O_RDONLY) -> FileIO:
        """Open a regular file; create it with mode 0600. A symbolic link is an OSError.

        The object owns the descriptor, and closes it at the latest when it is collected.
        """
        try:
            # Only calls of C, so that no signal handler can raise before the object owns the
            # descriptor (`interrupt_safety`).
            opened = map(os.open, (path,), (flags | _OPEN_FLAGS,), (0o600,))
            file = next(map(FileIO, opened, ("rb",)))
        except IsADirectoryError as error:
            if not isinstance(error.filename, int):
                raise
            os.close(error.filename)  # It is open for reading, and has no owner.
            raise IrregularError(f"{path} is not a regular file") from error
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise IrregularError(f"{path} is not a regular file")
        return file

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        data = _pread(fd, size, at)
        while data and len(data) < size:
            more = _pread(fd, size - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def skip_hole(self, fd: int, at: int) -> int:
        """Return the first offset from `at` on that is stored; the end if only a hole follows.

        A hole reads as zeros and takes no space: a file can seem to have terabytes.
        """
        if not hasattr(os, "SEEK_DATA"):
            return at
        try:
            return os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.EINVAL:  # This file system does not know its holes.
                return at
            if error.errno != errno.ENXIO:
                raise
            return max(at, os.fstat(fd).st_size)

    def write(self, fd: int, data: bytes, at: int) -> None:
        """Write all of the data, or raise: then any part of it may have been written."""
        remaining = memoryview(data)
        while remaining:
            try:
                written = self.write_some(fd, remaining, at)
            except InterruptedError:
                continue
            if written <= 0:
                raise OSError(errno.ENOSPC, "nothing was written")
            remaining, at = remaining[written:], at + written

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        """Write a prefix of the data of the system's choosing; return its size in bytes."""
        return _pwrite(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when everything written to a file is on stable storage."""
        if sys.platform == "darwin":
            import fcntl

            # On macOS a plain fsync leaves data in the drive's cache; not every file system
            # supports F_FULLFSYNC, so fall back to fsync.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
        os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on stable storage."""
        if sys.platform == "win32":
            return  # Windows cannot open a directory; NTFS journals its names.
        descriptors: list[int] = []
        close = functools.partial(any, map(os.close, descriptors))  # C alone, as in `open`.
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS
            descriptors.extend(map(os.open, (path,), (flags,)))
            self.sync(descriptors[0])
        finally:
            close()

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)

    def unlink(self, path: str) -> None:
        Path(path).unlink()

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(0o700)

    def remove_directory(self, path: str) -> None:
        Path(path).rmdir()

    def lock(self, fd: int) -> bool:
        """Try to lock an open file; return False if another holder has the lock."""
        try:
            _lock(fd)
        except (BlockingIOError, PermissionError):
            return False
        return True


@contextlib.contextmanager
def undo_on_error(remove: Callable[[str], None], path: str) -> Iterator[None]:
    """Remove a path if the block fails: it is not known to be durable."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            remove(path)
        raise


class IrregularError(OSError):
    """A path that should be a regular file or folder is a link, a pipe or the like."""


class LockedFiles:
    """Files that this process has locked, and closes together; closing unlocks them.

    The caller calls `close` first in a `finally`: no lock outlives the call that took it, wherever
    a signal handler raises (`interrupt_safety`).
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._files: list[FileIO] = []
        # Calls of C alone. After an error it continues with the next file if it is called again.
        self.close = functools.partial(any, map(operator.methodcaller("close"), self._files))

    def close_rest(self) -> None:
        """Close the other files after an error of `close`."""
        is_closed = False
        while not is_closed:
            with contextlib.suppress(OSError):
                self.close()
                is_closed = True

    def create(self, path: str) -> "LockedFile":
        """Create a file and lock it before any other process can see it."""
        file = self._open(path, CREATE_NEW)
        if not self.disk.lock(file.fileno()):
            raise BlockingIOError(f"another process holds the lock of the new {path}")
        return LockedFile(self, file)

    def lock(self, path: str, flags: int, *, timeout: float, store: str) -> "LockedFile":
        """Lock the file at a path. FileNotFoundError if there is none."""
        locked_file = self.try_lock(path, flags, timeout=timeout)
        if locked_file is None:
            raise lock_held_error(store)
        return locked_file

    def try_lock(self, path: str, flags: int, *, timeout: float) -> "LockedFile | None":
        """As `lock`; return None if another process still holds the lock after the timeout."""
        deadline = time.monotonic() + timeout
        while True:
            file = self._open(path, flags)
            if not _lock_until(self.disk, file.fileno(), deadline):
                return None
            if _is_still_at_path(file.fileno(), path):
                return LockedFile(self, file)
            # Another file replaced it at this path while we waited for the lock: try that one.
            file.close()

    def _open(self, path: str, flags: int) -> FileIO:
        with _fork_lock:
            self._files.append(self.disk.open(path, flags))
            _open_files.add(_OpenFile(self._files[-1], _open_files.discard))
        return self._files[-1]


class LockedFile:
    """An open file whose lock this process holds. `exchange` replaces it by its successor."""

    def __init__(self, group: LockedFiles, file: FileIO) -> None:
        self.group = group
        self.disk = group.disk
        self.file = file
        self.fd = file.fileno()

    def exchange(self, other: "LockedFile") -> None:
        """Release the current file and hold another one of the group."""
        old = self.file
        self.file, self.fd = other.file, other.fd
        old.close()


def _lock_until(disk: Disk, fd: int, deadline: float) -> bool:
    attempt = 0
    while not disk.lock(fd):
        if not sleep_for_lock(attempt, deadline):
            return False
        attempt += 1
    return True


def _is_still_at_path(fd: int, path: str) -> bool:
    """Return whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


class _OpenFile(ref[FileIO]):
    """Refers to an open file, and has its descriptor and identity for a child of `os.fork`."""

    __slots__ = ("fd", "identity")

    def __init__(self, file: FileIO, callback: Callable[[ref[FileIO]], object]) -> None:
        super().__init__(file, callback)  # type: ignore[call-arg]  # typeshed: `__new__` alone
        self.fd = file.fileno()
        self.identity = _identify(self.fd)

    def close(self) -> None:
        """Close the descriptor, also if another thread was closing the file during the fork.

        Such a file says that it is closed before its descriptor is, and the child has the
        descriptor still. The number may be that of another file by now: identities are compared.
        """
        file = self()
        with contextlib.suppress(OSError):
            if file is not None and not file.closed:
                file.close()
            elif _identify(self.fd) == self.identity:
                os.close(self.fd)


def _identify(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


# A lock belongs to the open file description, which a child of `os.fork` shares. Unless the child
# closes its descriptor, the lock outlives that of its parent.
_open_files: set[_OpenFile] = set()

_fork_lock = threading.RLock()  # Reentrant: a signal handler may use a store too.


def _close_in_child() -> None:
    _fork_lock.release()
    for open_file in [*_open_files]:
        open_file.close()
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork_lock.acquire,
        after_in_parent=_fork_lock.release,
        after_in_child=_close_in_child,
    )


if sys.platform == "win32":
    import msvcrt

    _LOCK_OFFSET = 2**40  # offset; beyond the end of any file, because Windows locks block readers

    def _pread(fd: int, size: int, at: int) -> bytes:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, size)

    def _pwrite(fd: int, data: memoryview, at: int) -> int:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)

    def _lock(fd: int) -> None:
        os.lseek(fd, _LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    _pread = os.pread
    _pwrite = os.pwrite

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


_REASONS = {
    errno.ENOSPC: ("the disk is full", "free space, then try again"),
    errno.EDQUOT: ("the quota is used up", "free space, then try again"),
    errno.EFBIG: ("a file may not grow further", "raise the limit, then try again"),
    errno.EROFS: ("the file system is read-only", "mount it for writing, then try again"),
    errno.EACCES: ("no permission", "check the permissions of the directory and its files"),
    errno.EPERM: ("no permission", "check the permissions of the directory and its files"),
    errno.EMFILE: ("too many files are open", "raise the limit, then try again"),
    errno.ENFILE: ("too many files are open", "try again later"),
    errno.EIO: ("a read or write failed", "check the disk, then try again"),
}


def lock_held_error(store: str) -> UnavailableError:
    """Return the error for a lock that another process did not release in time."""
    return UnavailableError(store, "another process holds the lock", STOPPED_WRITER_HINT)


def translate_error(error: Exception, store: str, stream: str = "") -> PerdureError:
    """Translate an OSError or MemoryError into the perdure error to raise from it."""
    number = (error.errno if isinstance(error, OSError) else None) or 0
    if isinstance(error, IrregularError) or number in (errno.ELOOP, errno.ENOTDIR):
        return DamagedError(
            stream or store, 0, f"a path of the store is not a regular perdure file: {error}"
        )
    code = errno.errorcode.get(number, type(error).__name__)
    reason, hint = _REASONS.get(number, ("the operating system refused", "try again later"))
    return UnavailableError(store, f"{reason} ({code})", hint)
