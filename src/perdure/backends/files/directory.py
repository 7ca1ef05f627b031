"""The directory of a file store: its marker, the folders of its streams, and their names.

Nothing in a directory is changed before it is known to be a perdure store or empty. A folder counts
as created only once it has a list of names: a process that finds none syncs the folder's name
first.

A line is added to a list, without a sync, once the file of a stream is durable. So a listed name
without a file is damage. A file without a listed name (its line was lost in a crash, or the list is
damaged) is found in the folder, and its name is read from the file. Lists only save time: all names
can be read from the files.
"""

import bisect
import contextlib
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from perdure.backends.files.disk import (
    CREATE_NEW,
    Disk,
    IrregularError,
    LockedFile,
    LockedFiles,
    undo_on_error,
)
from perdure.backends.files.format import file_stem, parse_file_header
from perdure.backends.files.stream_file import FIRST_LINE_MAX, SUFFIX, StreamLocation
from perdure.backends.filesystem import require_local
from perdure.backends.guarantees import Acceptance, Check
from perdure.errors import DamagedError, UnavailableError, UsageError, VersionError

MARKER_FILE = "perdure-store"

LOCK_FILE = f"{MARKER_FILE}.lock"  # Never replaced; its holder may create the marker and folders.

NAMES_FILE = "names"

FORMAT = "perdure files"

VERSION = 1

_MARKER_CONTENT = b'{"format":"%b","version":%d}\n' % (FORMAT.encode(), VERSION)

_MARKER_SIZE_MAX = 4096  # bytes of a marker; a longer file belongs to another program

_FOLDER = re.compile(r"[0-9a-f]{2}")

INSERT_MAX = 100  # names; up to this many new ones are inserted one by one, more are sorted again

_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder(tuple[str, str]).decode


class _Marker(msgspec.Struct):
    format: str
    version: int


class StoreDirectory(NamedTuple):
    """The directory of one store. `name` is the store's, for errors; `timeout` is that of locks."""

    disk: Disk
    root: str
    name: str
    timeout: float

    def lock(self, locks: LockedFiles, path: str, flags: int = os.O_RDWR) -> LockedFile:
        """Lock a file, as `LockedFiles.lock`."""
        return locks.lock(path, flags, timeout=self.timeout, store=self.name)

    def open(self, acceptance: Acceptance) -> Check:
        """Create the directory, or check that it is a store. An existing store is only read.

        Return the check of its file system.
        """
        path = Path(self.root)
        if not path.parent.is_dir():
            reason = f"there is no directory {path.parent}"
            raise UnavailableError(self.name, reason, "create it, then try again")
        needs = "its locks and syncs are not reliable: use a directory on a local disk"
        check = require_local(self.root, needs, acceptance)
        for above in path.parents:
            if os.path.lexists(above / MARKER_FILE):
                raise UsageError(
                    f"{self.name} would lie inside the store {above}; nothing was changed"
                )
        if os.path.lexists(path) and not path.is_dir():
            raise UsageError(f"{self.name} is not a directory; nothing was changed")
        if not os.path.lexists(path / MARKER_FILE):
            self._require_empty(path)
            self._create(path)
        self._check_marker()
        return check

    def create_folder(self, location: StreamLocation) -> None:
        """Create the folder of a stream unless it exists; durable on return."""
        require_folder(location)
        names = names_path(location.directory)
        if os.path.lexists(names):
            return
        locks = LockedFiles(self.disk)
        try:
            self._lock_root(locks)
            if os.path.lexists(names):
                return
            if not any(Path(self.root).glob(f"??/{NAMES_FILE}")):
                # The first folder: if the marker's sync failed or never ran, this sync covers both.
                self._write_marker()
            with contextlib.suppress(OSError):
                # An empty folder's name may be in memory only.
                self.disk.remove_directory(location.directory)
            self._create_directory(location.directory)
            self.disk.open(names, CREATE_NEW).close()
        finally:
            locks.close()

    def _require_empty(self, path: Path) -> None:
        contents = list(path.iterdir()) if path.is_dir() else []
        # Our lock, and unfinished markers that a crash left.
        foreign = [item for item in contents if not item.name.startswith(f"{MARKER_FILE}.")]
        if foreign and not os.path.lexists(path / MARKER_FILE):  # Else another process was faster.
            raise UsageError(
                f"{self.name} is not empty and has no file {MARKER_FILE!r}: "
                "it belongs to another program, or that file was lost; nothing was changed"
            )

    def _create(self, path: Path) -> None:
        self._create_directory(self.root)
        locks = LockedFiles(self.disk)
        try:
            self._lock_root(locks)
            if not os.path.lexists(path / MARKER_FILE):
                self._write_marker()
                self.disk.sync_directory(self.root)
        finally:
            locks.close()

    def _create_directory(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            self.disk.make_directory(path)
        # After a failure it is removed: created again next time, with a sync of its own.
        with undo_on_error(self.disk.remove_directory, path):
            self.disk.sync_directory(str(Path(path).parent))

    def _lock_root(self, locks: LockedFiles) -> None:
        self.lock(locks, f"{self.root}{os.sep}{LOCK_FILE}", os.O_RDWR | os.O_CREAT)

    def _write_marker(self) -> None:
        marker = f"{self.root}{os.sep}{MARKER_FILE}"
        temporary = f"{marker}.tmp-{secrets.token_hex(8)}"
        with undo_on_error(self.disk.unlink, temporary):
            with self.disk.open(temporary, CREATE_NEW) as file:
                self.disk.write(file.fileno(), _MARKER_CONTENT, 0)
                self.disk.sync(file.fileno())
            self.disk.rename(temporary, marker)

    def _check_marker(self) -> None:
        with self.disk.open(f"{self.root}{os.sep}{MARKER_FILE}") as file:
            content = self.disk.read(file.fileno(), _MARKER_SIZE_MAX, 0)
        if content == _MARKER_CONTENT:
            return
        try:
            marker = msgspec.json.decode(content, type=_Marker)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise DamagedError(self.name, 0, f"its file {MARKER_FILE!r} cannot be read") from error
        if marker.format != FORMAT:
            raise UsageError(f"{self.name} is a store of another kind; nothing was changed")
        if marker.version > VERSION:
            raise VersionError(self.name, str(marker.version), str(VERSION))
        raise DamagedError(self.name, 0, f"its file {MARKER_FILE!r} was altered")


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


def name_line(location: StreamLocation) -> bytes:
    """Return the line of a list that names a stream and its file."""
    return _encode((location.name, location.stem)) + b"\n"


def is_listed(disk: Disk, location: StreamLocation) -> bool:
    """Return whether a stream's file was durable once, even if it is missing now."""
    line = name_line(location)
    content = _read_list(disk, location.directory)
    return content.startswith(line) or b"\n" + line in content


def add_names(disk: Disk, fd: int, places: Iterable[StreamLocation]) -> None:
    """Add names to a locked list. After a failure the next listing of streams adds them."""
    with contextlib.suppress(OSError):
        size = os.fstat(fd).st_size
        # A line torn by a crash must not become part of the next one.
        torn = size > 0 and disk.read(fd, 1, size - 1) != b"\n"
        disk.write(fd, b"\n" * torn + b"".join(map(name_line, places)), size)


def clear_line(disk: Disk, fd: int, location: StreamLocation) -> None:
    """Overwrite a stream's line in a locked list with spaces; durable on return.

    A process that reads the list meanwhile finds the file in the folder.
    """
    line = name_line(location)
    content = disk.read(fd, os.fstat(fd).st_size, 0)
    at = 0 if content.startswith(line) else content.find(b"\n" + line) + 1
    while at or content.startswith(line):
        disk.write(fd, b" " * (len(line) - 1), at)
        content = content[:at] + b" " * (len(line) - 1) + content[at + len(line) - 1 :]
        at = content.find(b"\n" + line) + 1
    disk.sync(fd)


def _read_list(disk: Disk, directory: str) -> bytes:
    try:
        with disk.open(names_path(directory)) as file:
            return disk.read(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    except FileNotFoundError:
        return b""


class StreamNames:
    """The names of all streams of a store. Not thread-safe."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._disk = directory.disk
        self._root = directory.root
        self._store = directory.name
        self._states: dict[str, tuple[int, ...]] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self._sorted: list[str] = []
        self._must_sort = False
        self.unreadable: dict[str, DamagedError] = {}

    def page(self, after: str, prefix: str, size: int) -> tuple[list[str], DamagedError | None]:
        """Return names after a given one, in order, and the damage that hides a name, if any."""
        self.refresh()
        start = bisect.bisect_right(self._sorted, after)
        candidates = self._sorted[start : start + size]
        names = list(itertools.takewhile(lambda name: name.startswith(prefix), candidates))
        return names, next(iter(self.unreadable.values()), None)

    @property
    def known(self) -> list[str]:
        """All names, of the folders that could be read, in order."""
        return sorted(set().union(*self._folders.values()))

    def refresh(self) -> None:
        """Read the folders that have changed; after an error the others are known."""
        added: set[str] = set()
        removed: set[str] = set()
        with os.scandir(self._root) as items:
            folders = sorted(item.name for item in items if _FOLDER.fullmatch(item.name))
        # After an error the folders that were read before it are not read again, only sorted.
        must_sort, self._must_sort = self._must_sort, True
        for folder in folders:
            state = self._state(folder)
            if self._states.get(folder) != state:
                old, new = self._folders.get(folder, frozenset()), self._read(folder)
                self._states[folder], self._folders[folder] = state, new
                added |= new - old
                removed |= old - new
        if must_sort or removed or len(added) > INSERT_MAX:
            self._sorted = sorted(set().union(*self._folders.values()))
        else:
            for name in added:  # The cost of one new session must not grow with their number.
                bisect.insort(self._sorted, name)
        self._must_sort = False

    def _state(self, folder: str) -> tuple[int, ...]:
        """Fingerprint a folder and its list; unchanged means nothing was added or removed."""
        directory = f"{self._root}{os.sep}{folder}"
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode):
            raise DamagedError(self._store, 0, f"{directory} is not a directory")
        try:
            names = os.lstat(names_path(directory))
        except FileNotFoundError:
            return (status.st_mtime_ns,)
        return status.st_mtime_ns, names.st_ino, names.st_size

    def _read(self, folder: str) -> frozenset[str]:
        """Return the names of the streams in a folder, and repair its list if needed."""
        directory = f"{self._root}{os.sep}{folder}"
        listed = dict(_parse_lines(_read_list(self._disk, directory)))
        with os.scandir(directory) as items:
            stems = {item.name[: -len(SUFFIX)] for item in items if item.name.endswith(SUFFIX)}
        unlisted = self._unlisted(directory, stems - listed.keys())
        durable = [location for location, is_durable in unlisted.items() if is_durable]
        if durable:
            self._repair_list(directory, durable)
        return frozenset(listed.values()) | {location.name for location in unlisted}

    def _unlisted(self, directory: str, stems: set[str]) -> dict[StreamLocation, bool]:
        """Return files that no list names, and whether their names are known to be durable."""
        unlisted = {}
        for hashed_name in stems:
            path = f"{directory}{os.sep}{hashed_name}{SUFFIX}"
            self.unreadable.pop(path, None)
            try:
                name, name_is_durable = self._first_line(path, hashed_name)
            except FileNotFoundError:
                continue
            if name is None:
                reason = f"the first line of {path} cannot be read"
                self.unreadable[path] = DamagedError(self._store, 0, reason)
            else:
                unlisted[StreamLocation(name, hashed_name, directory)] = name_is_durable
        return unlisted

    def _first_line(self, path: str, expected_stem: str) -> tuple[str | None, bool]:
        with self._disk.open(path) as file:
            content = self._disk.read(file.fileno(), 4096, 0)
            if b"\n" not in content:
                content = self._disk.read(file.fileno(), FIRST_LINE_MAX, 0)
        file_header = parse_file_header(content[: content.find(b"\n") + 1])
        if file_header is None or file_stem(file_header.name.encode()) != expected_stem:
            return None, False
        return file_header.name, file_header.mark.name_is_durable

    def _repair_list(self, directory: str, lost: list[StreamLocation]) -> None:
        """Add lost names to a list, if it can be locked at once and written."""
        locks = LockedFiles(self._disk)
        try:
            path = names_path(directory)
            names_file = locks.try_lock(path, os.O_RDWR, timeout=0)
            if names_file is None:
                return  # As below.
            listed = dict(_parse_lines(_read_list(self._disk, directory)))
            still_lost = [location for location in lost if location.stem not in listed]
            add_names(self._disk, names_file.fd, still_lost)
        except OSError:
            pass  # The next listing tries again.
        finally:
            locks.close()


def _parse_lines(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the stem and name of every intact line."""
    for line in content.split(b"\n"):
        try:
            name, hashed_name = _decode(line)
            if file_stem(name.encode()) == hashed_name:
                yield hashed_name, name
        except (msgspec.MsgspecError, UnicodeError):
            continue
