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

from perdure.backends.files_disk import NEW, Disk, Held, IrregularError, held
from perdure.backends.files_stream import Place
from perdure.backends.filesystem import require_local
from perdure.errors import (
    DamagedError,
    UnavailableError,
    UsageError,
    VersionError,
)
from perdure.guarantees import Acceptance, Check

MARKER = "perdure-store"
LOCK = f"{MARKER}.lock"  # Never replaced; locked by every process that creates something here.
NAMES = "names"
FORMAT = "perdure files"
VERSION = 1
_CONTENT = b'{"format":"%b","version":%d}\n' % (FORMAT.encode(), VERSION)
_SIZE_MAX = 4096  # bytes of a marker; a longer file belongs to another program


class _Marker(msgspec.Struct):
    format: str
    version: int


def open_root(
    disk: Disk, root: str, *, patience: float, store: str, acceptance: Acceptance
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
        if os.path.lexists(above / MARKER):
            raise UsageError(f"{store} would lie inside the store {above}; nothing was changed")
    if os.path.lexists(root) and not path.is_dir():
        raise UsageError(f"{store} is not a directory; nothing was changed")
    if not os.path.lexists(path / MARKER):
        _require_empty(path, store)
        _make(disk, path, patience=patience, store=store)
    _require_ours(disk, path, store)
    return check


def _require_empty(path: Path, store: str) -> None:
    contents = list(path.iterdir()) if path.is_dir() else []
    # Our lock, and unfinished markers that a crash left.
    foreign = [item for item in contents if not item.name.startswith(f"{MARKER}.")]
    if foreign and not os.path.lexists(path / MARKER):  # Else another process was faster.
        raise UsageError(
            f"{store} is not empty and has no file {MARKER!r}: "
            "it belongs to another program, or that file was lost; nothing was changed"
        )


def _make(disk: Disk, path: Path, *, patience: float, store: str) -> None:
    root = str(path)
    with contextlib.suppress(FileExistsError):
        disk.make_directory(root)
    try:
        disk.sync_directory(str(path.parent))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_directory(root)  # Created again next time, with a sync of its own.
        raise
    with _held(disk, root, patience=patience, store=store):
        if not os.path.lexists(path / MARKER):
            _put_marker(disk, path)
            disk.sync_directory(root)


def _held(
    disk: Disk, root: str, *, patience: float, store: str
) -> contextlib.AbstractContextManager[Held]:
    flags = os.O_RDWR | os.O_CREAT
    return held(disk, f"{root}{os.sep}{LOCK}", flags, patience=patience, store=store)


def _put_marker(disk: Disk, path: Path) -> None:
    temporary = str(path / f"{MARKER}.tmp-{secrets.token_hex(8)}")
    try:
        fd = disk.open(temporary, NEW)
        try:
            disk.write(fd, _CONTENT, 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, str(path / MARKER))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


def _require_ours(disk: Disk, path: Path, store: str) -> None:
    fd = disk.open(str(path / MARKER), os.O_RDONLY)
    try:
        content = disk.read(fd, _SIZE_MAX, 0)
    finally:
        disk.close(fd)
    if content == _CONTENT:
        return
    try:
        marker = msgspec.json.decode(content, type=_Marker)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedError(store, 0, f"its file {MARKER!r} cannot be read") from error
    if marker.format != FORMAT:
        raise UsageError(f"{store} is a store of another kind; nothing was changed")
    if marker.version > VERSION:
        raise VersionError(store, str(marker.version), str(VERSION))
    raise DamagedError(store, 0, f"its file {MARKER!r} was altered")


def names_path(directory: str) -> str:
    """Return the path of a folder's list of names."""
    return f"{directory}{os.sep}{NAMES}"


def require_folder(location: Place) -> None:
    """Raise IrregularError if the path of a stream's folder is not a directory."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(location.directory).st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        raise IrregularError(f"{location.directory} is not a directory")


def make_folder(disk: Disk, location: Place, *, patience: float, store: str) -> None:
    """Create the folder of a stream unless it exists; durable on return."""
    require_folder(location)
    names = names_path(location.directory)
    if os.path.lexists(names):
        return
    root = str(Path(location.directory).parent)
    with _held(disk, root, patience=patience, store=store):
        if os.path.lexists(names):
            return
        if not any(Path(root).glob(f"??/{NAMES}")):
            # The first folder: if the marker's sync failed or never ran, this sync covers both.
            _put_marker(disk, Path(root))
        _make_empty(disk, location.directory, root)
        disk.close(disk.open(names, NEW))


def _make_empty(disk: Disk, directory: str, root: str) -> None:
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
