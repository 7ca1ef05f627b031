"""The directory of a file store: create it, identify it, and create the folders of its streams.

Nothing in a directory is changed before it is known to be a perdure store or empty. A folder counts
as created only once it has a list of names: a process that finds none syncs the folder's name
first.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

import msgspec

from perdure.backends.files.disk import CREATE_NEW, Disk, IrregularError, LockedFile, lock_file
from perdure.backends.files.stream_file import StreamLocation
from perdure.backends.filesystem import require_local
from perdure.backends.guarantees import Acceptance, Check
from perdure.errors import DamagedError, UnavailableError, UsageError, VersionError

MARKER_FILE = "perdure-store"

# Never replaced; locked by every process that creates something here.
LOCK_FILE = f"{MARKER_FILE}.lock"

NAMES_FILE = "names"

FORMAT = "perdure files"

VERSION = 1

_MARKER_CONTENT = b'{"format":"%b","version":%d}\n' % (FORMAT.encode(), VERSION)

_MARKER_SIZE_MAX = 4096  # bytes of a marker; a longer file belongs to another program


class _Marker(msgspec.Struct):
    format: str
    version: int


def open_root(
    disk: Disk, root: str, *, timeout: float, store: str, acceptance: Acceptance
) -> Check:
    """Create the directory of a store, or check that it is one. An existing store is only read.

    Return the check of its file system.
    """
    path = Path(root)
    if not path.parent.is_dir():
        reason = f"there is no directory {path.parent}"
        raise UnavailableError(store, reason, "create it, then try again")
    needs = "its locks and syncs are not reliable: use a directory on a local disk"
    check = require_local(root, needs, acceptance)
    for above in path.parents:
        if os.path.lexists(above / MARKER_FILE):
            raise UsageError(f"{store} would lie inside the store {above}; nothing was changed")
    if os.path.lexists(root) and not path.is_dir():
        raise UsageError(f"{store} is not a directory; nothing was changed")
    if not os.path.lexists(path / MARKER_FILE):
        _require_empty(path, store)
        _create_store(disk, path, timeout=timeout, store=store)
    _check_marker(disk, path, store)
    return check


def _require_empty(path: Path, store: str) -> None:
    contents = list(path.iterdir()) if path.is_dir() else []
    # Our lock, and unfinished markers that a crash left.
    foreign = [item for item in contents if not item.name.startswith(f"{MARKER_FILE}.")]
    if foreign and not os.path.lexists(path / MARKER_FILE):  # Else another process was faster.
        raise UsageError(
            f"{store} is not empty and has no file {MARKER_FILE!r}: "
            "it belongs to another program, or that file was lost; nothing was changed"
        )


def _create_store(disk: Disk, path: Path, *, timeout: float, store: str) -> None:
    root = str(path)
    with contextlib.suppress(FileExistsError):
        disk.make_directory(root)
    try:
        disk.sync_directory(str(path.parent))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_directory(root)  # Created again next time, with a sync of its own.
        raise
    with _lock_store(disk, root, timeout=timeout, store=store):
        if not os.path.lexists(path / MARKER_FILE):
            _write_marker(disk, path)
            disk.sync_directory(root)


def _lock_store(
    disk: Disk, root: str, *, timeout: float, store: str
) -> contextlib.AbstractContextManager[LockedFile]:
    flags = os.O_RDWR | os.O_CREAT
    return lock_file(disk, f"{root}{os.sep}{LOCK_FILE}", flags, timeout=timeout, store=store)


def _write_marker(disk: Disk, path: Path) -> None:
    temporary = str(path / f"{MARKER_FILE}.tmp-{secrets.token_hex(8)}")
    try:
        fd = disk.open(temporary, CREATE_NEW)
        try:
            disk.write(fd, _MARKER_CONTENT, 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, str(path / MARKER_FILE))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


def _check_marker(disk: Disk, path: Path, store: str) -> None:
    fd = disk.open(str(path / MARKER_FILE), os.O_RDONLY)
    try:
        content = disk.read(fd, _MARKER_SIZE_MAX, 0)
    finally:
        disk.close(fd)
    if content == _MARKER_CONTENT:
        return
    try:
        marker = msgspec.json.decode(content, type=_Marker)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedError(store, 0, f"its file {MARKER_FILE!r} cannot be read") from error
    if marker.format != FORMAT:
        raise UsageError(f"{store} is a store of another kind; nothing was changed")
    if marker.version > VERSION:
        raise VersionError(store, str(marker.version), str(VERSION))
    raise DamagedError(store, 0, f"its file {MARKER_FILE!r} was altered")


def names_path(directory: str) -> str:
    """Return the path of a folder's list of names."""
    return f"{directory}{os.sep}{NAMES_FILE}"


def require_folder(location: StreamLocation) -> None:
    """Raise IrregularError if the path of a stream's folder is not a directory."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(location.directory).st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        raise IrregularError(f"{location.directory} is not a directory")


def create_folder(disk: Disk, location: StreamLocation, *, timeout: float, store: str) -> None:
    """Create the folder of a stream unless it exists; durable on return."""
    require_folder(location)
    names = names_path(location.directory)
    if os.path.lexists(names):
        return
    root = str(Path(location.directory).parent)
    with _lock_store(disk, root, timeout=timeout, store=store):
        if os.path.lexists(names):
            return
        if not any(Path(root).glob(f"??/{NAMES_FILE}")):
            # The first folder: if the marker's sync failed or never ran, this sync covers both.
            _write_marker(disk, Path(root))
        _create_synced_folder(disk, location.directory, root)
        disk.close(disk.open(names, CREATE_NEW))


def _create_synced_folder(disk: Disk, directory: str, root: str) -> None:
    with contextlib.suppress(OSError):
        disk.remove_directory(directory)  # An empty folder's name may be in memory only.
    with contextlib.suppress(FileExistsError):
        disk.make_directory(directory)
    try:
        disk.sync_directory(root)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_directory(directory)
        raise
