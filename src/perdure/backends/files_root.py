"""The directory of a store: whose it is, which version, and the folders that streams lie in.

Nothing in a directory is changed before it is known to be ours or empty. A folder counts as made
only once there is a list of names in it: whoever finds none syncs the folder's own name first.
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
LOCK = f"{MARKER}.lock"  # A file that is never replaced: whoever makes something here holds it.
NAMES = "names"
FORMAT = "perdure files"
VERSION = 1
_CONTENT = b'{"format":"%b","version":%d}\n' % (FORMAT.encode(), VERSION)
_SIZE_MAX = 4096  # Of a marker; a longer one is another program's.


class _Marker(msgspec.Struct):
    format: str
    version: int


def open_root(
    disk: Disk, root: str, *, patience: float, store: str, acceptance: Acceptance
) -> Check:
    """Make the directory of a store, or make sure that it is one. What exists is only read.

    Return what is known of the file system.
    """
    path = Path(root)
    if not path.parent.is_dir():
        reason = f"there is no directory {path.parent}"
        raise UnavailableError(store, reason, "make it, then try again")
    needs = "its locks and syncs can not be relied on: use a directory on a local disk"
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
    found = list(path.iterdir()) if path.is_dir() else []
    # Our lock, and markers that were not finished when a crash came.
    strange = [one for one in found if not one.name.startswith(f"{MARKER}.")]
    if strange and not os.path.lexists(path / MARKER):  # Else another process was faster.
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
            disk.remove_directory(root)  # Made anew next time, and that will be synced.
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
        found = msgspec.json.decode(content, type=_Marker)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedError(store, 0, f"its file {MARKER!r} can not be read") from error
    if found.format != FORMAT:
        raise UsageError(f"{store} is a store of another kind; nothing was changed")
    if found.version > VERSION:
        raise VersionError(store, str(found.version), str(VERSION))
    raise DamagedError(store, 0, f"its file {MARKER!r} was altered")


def names_path(directory: str) -> str:
    """Return the path of the list of names in a folder."""
    return f"{directory}{os.sep}{NAMES}"


def require_folder(place: Place) -> None:
    """Raise IrregularError if something else stands where the folder of a stream belongs."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(place.directory).st_mode)
    except FileNotFoundError:
        return
    if not is_folder:
        raise IrregularError(f"{place.directory} is not a directory")


def make_folder(disk: Disk, place: Place, *, patience: float, store: str) -> None:
    """Make the folder of a stream, durable on return, unless it is there."""
    require_folder(place)
    names = names_path(place.directory)
    if os.path.lexists(names):
        return
    root = str(Path(place.directory).parent)
    with _held(disk, root, patience=patience, store=store):
        if os.path.lexists(names):
            return
        if not any(Path(root).glob(f"??/{NAMES}")):
            # The first folder: if the marker's sync failed or never came, this one serves both.
            _put_marker(disk, Path(root))
        _make_empty(disk, place.directory, root)
        disk.close(disk.open(names, NEW))


def _make_empty(disk: Disk, directory: str, root: str) -> None:
    with contextlib.suppress(OSError):
        disk.remove_directory(directory)  # Empty: its name may be in memory only.
    with contextlib.suppress(FileExistsError):
        disk.make_directory(directory)
    try:
        disk.sync_directory(root)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_directory(directory)
        raise
