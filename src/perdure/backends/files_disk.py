"""Every call that a store of files makes to the operating system, and locks between processes.

All of them are methods of one small object, so that a test can record them, spoil them, and build
every disk that a crash could leave. Errors are OSErrors here; nothing knows a line of a file.
"""

import contextlib
import errno
import os
import random
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.errors import DamagedError, PerdureError, UnavailableError

FIRST_PAUSE = 0.0002  # An append on a fast disk takes about as long.
LONGEST_PAUSE = 0.005  # Long enough to leave the processor alone, short against a slow sync.
# Symbolic links are not followed, pipes are not waited for, Windows translates no newlines.
_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Disk:
    """The real one."""

    def open(self, path: str, flags: int) -> int:
        """Open a regular file, for nobody else where it is made; a link is an OSError."""
        fd = os.open(path, flags | _FLAGS, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise IrregularError(f"{path} is not a regular file")
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        found = _pread(fd, size, at)
        while found and len(found) < size:
            more = _pread(fd, size - len(found), at + len(found))
            if not more:
                break
            found += more
        return found

    def write(self, fd: int, data: bytes, at: int) -> None:
        """Write all of the data, or raise: then any part of it may be there."""
        left = memoryview(data)
        while left:
            try:
                done = self.write_some(fd, left, at)
            except InterruptedError:
                continue
            if done <= 0:
                raise OSError(errno.ENOSPC, "nothing was written")
            left, at = left[done:], at + done

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        """Write some of the data, as the system pleases, and return how many bytes."""
        return _pwrite(fd, data, at)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Return when what was written to a file is on stable storage."""
        if sys.platform == "darwin":
            import fcntl

            # A plain fsync leaves it in the drive's cache; not every file system knows the other.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
        os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on stable storage."""
        if sys.platform == "win32":
            return  # A directory can not be opened there; NTFS journals its names.
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        Path(old).replace(new)

    def unlink(self, path: str) -> None:
        Path(path).unlink()

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(0o700)

    def remove_directory(self, path: str) -> None:
        Path(path).rmdir()

    def lock(self, fd: int) -> bool:
        """Take the lock of an open file, or say that another has it."""
        try:
            _lock(fd)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, fd: int) -> None:
        _unlock(fd)


class IrregularError(OSError):
    """A link, a pipe or a directory stands where a file belongs."""


class Held:
    """An open file whose lock this process holds. `fd` may be exchanged for its successor's."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self.disk = disk
        self.fd = fd

    def exchange(self, fd: int) -> None:
        """Hold another file instead, which is locked already."""
        old, self.fd = self.fd, fd
        _release(self.disk, old)

    def close(self) -> None:
        """Let go of the lock and the file."""
        _release(self.disk, self.fd)


def open_held(disk: Disk, path: str, flags: int) -> Held:
    """Return a new file, locked before anybody else can know of it."""
    held = Held(disk, _open_tracked(disk, path, flags))
    if not disk.lock(held.fd):
        held.close()
        raise BlockingIOError(f"another process holds the lock of the new {path}")
    return held


@contextlib.contextmanager
def held(disk: Disk, path: str, flags: int, *, patience: float, store: str) -> Iterator[Held]:
    """Lend the file that bears a name, locked. FileNotFoundError if there is none."""
    lock = Held(disk, _acquire(disk, path, flags, patience, store))
    try:
        yield lock
    finally:
        lock.close()


def _acquire(disk: Disk, path: str, flags: int, patience: float, store: str) -> int:
    deadline = time.monotonic() + patience
    while True:
        fd = _open_tracked(disk, path, flags)
        try:
            attempt = 0
            while not disk.lock(fd):
                _pause(attempt, deadline, store)
                attempt += 1
            if _still_bears_its_name(fd, path):
                return fd
        except BaseException:
            _release(disk, fd)
            raise
        _release(disk, fd)  # Another file took its name while this one was waited for.


def _pause(attempt: int, deadline: float, store: str) -> None:
    if time.monotonic() >= deadline:
        raise UnavailableError(store, "another process holds the lock")
    longest = min(FIRST_PAUSE * 1.5 ** min(attempt, 16), LONGEST_PAUSE)
    # Jitter, so that two processes do not wake at the same moments for ever.
    time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret.


def _still_bears_its_name(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


# A lock belongs to the open file, and a child of `os.fork` has that file open as well. Unless the
# child closes it, the lock outlives a parent that is killed before it unlocks.
_held: set[int] = set()
_forking = threading.RLock()  # A signal handler may use a store as well.


def _open_tracked(disk: Disk, path: str, flags: int) -> int:
    with _forking:
        fd = disk.open(path, flags)
        _held.add(fd)
        return fd


def _release(disk: Disk, fd: int) -> None:
    with contextlib.suppress(OSError):
        disk.unlock(fd)
    with _forking:
        _held.discard(fd)
        disk.close(fd)


def _in_child() -> None:
    _forking.release()
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_in_child
    )


if sys.platform == "win32":
    import msvcrt

    _LOCKED_AT = 2**40  # Beyond the end of any file: a lock there keeps nobody from reading.

    def _pread(fd: int, size: int, at: int) -> bytes:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, size)

    def _pwrite(fd: int, data: memoryview, at: int) -> int:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)

    def _lock(fd: int) -> None:
        os.lseek(fd, _LOCKED_AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, _LOCKED_AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _pread = os.pread
    _pwrite = os.pwrite

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


_REASONS = {
    errno.ENOSPC: ("the disk is full", "free space, then try again"),
    errno.EDQUOT: ("the quota is used up", "free space, then try again"),
    errno.EFBIG: ("a file may not grow further", "raise the limit, then try again"),
    errno.EROFS: ("the file system is read-only", "mount it for writing, then try again"),
    errno.EACCES: ("no permission", "check the permissions of the directory and its files"),
    errno.EPERM: ("no permission", "check the permissions of the directory and its files"),
    errno.EMFILE: ("too many files are open", "raise the limit, then try again"),
    errno.ENFILE: ("too many files are open", "try again later"),
    errno.EIO: ("reading or writing failed", "check the disk, then try again"),
}


def translated(error: Exception, store: str, stream: str = "") -> PerdureError:
    """Return the error to raise instead, `from` the given one."""
    number = (error.errno if isinstance(error, OSError) else None) or 0
    if isinstance(error, IrregularError) or number in (errno.ELOOP, errno.ENOTDIR):
        return DamagedError(stream or store, 0, f"no file of perdure's stands there: {error}")
    code = errno.errorcode.get(number, type(error).__name__)
    reason, hint = _REASONS.get(number, ("the system refused", "try again later"))
    return UnavailableError(store, f"{reason} ({code})", hint)
