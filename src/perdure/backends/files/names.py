"""List the names of all streams in order, from a list in each folder checked against the folder.

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
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from perdure.backends.files.directory import names_path
from perdure.backends.files.disk import Disk, lock_file
from perdure.backends.files.format import file_stem, parse_file_header
from perdure.backends.files.stream_file import SUFFIX, StreamLocation
from perdure.errors import DamagedError, PerdureError

_FOLDER = re.compile(r"[0-9a-f]{2}")

# names; up to this many new ones are inserted one by one, more are sorted with all
INSERT_MAX = 100

_FIRST_LINE_MAX = 2**20  # bytes of a first line that are read; a name fits easily

_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder(tuple[str, str]).decode


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
        fd = disk.open(names_path(directory), os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return disk.read(fd, os.fstat(fd).st_size, 0)
    finally:
        disk.close(fd)


class _FolderState(NamedTuple):
    """Fingerprint of a folder and its list; unchanged means nothing was added or removed."""

    changed: int
    inode: int
    size: int


class StreamNames:
    """The names of all streams of a store. Not thread-safe."""

    def __init__(self, disk: Disk, root: str, *, timeout: float, store: str) -> None:
        self._disk = disk
        self._root = root
        self._timeout = timeout
        self._store = store
        self._states: dict[str, _FolderState] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self._sorted: list[str] = []
        self._unreadable: dict[str, DamagedError] = {}

    def page(self, after: str, prefix: str, size: int) -> tuple[list[str], DamagedError | None]:
        """Return names after a given one, in order, and the damage that hides a name, if any."""
        self._refresh()
        start = bisect.bisect_right(self._sorted, after)
        candidates = self._sorted[start : start + size]
        names = list(itertools.takewhile(lambda name: name.startswith(prefix), candidates))
        return names, next(iter(self._unreadable.values()), None)

    def _refresh(self) -> None:
        added: set[str] = set()
        removed: set[str] = set()
        with os.scandir(self._root) as items:
            folders = sorted(item.name for item in items if _FOLDER.fullmatch(item.name))
        try:
            for folder in folders:
                state = self._state(folder)
                if self._states.get(folder) != state:
                    old, new = self._folders.get(folder, frozenset()), self._read(folder)
                    self._states[folder], self._folders[folder] = state, new
                    added |= new - old
                    removed |= old - new
        finally:  # Keep what was read before an error: its folders are not read again.
            self._put(added, removed)

    def _put(self, added: set[str], removed: set[str]) -> None:
        if removed or len(added) > INSERT_MAX:
            self._sorted = sorted(set().union(*self._folders.values()))
        else:
            for name in added:  # The cost of one new session must not grow with their number.
                bisect.insort(self._sorted, name)

    def _state(self, folder: str) -> _FolderState:
        directory = f"{self._root}{os.sep}{folder}"
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode):
            raise DamagedError(self._store, 0, f"{directory} is not a directory")
        try:
            names = os.lstat(names_path(directory))
        except FileNotFoundError:
            return _FolderState(status.st_mtime_ns, 0, 0)
        return _FolderState(status.st_mtime_ns, names.st_ino, names.st_size)

    def _read(self, folder: str) -> frozenset[str]:
        """Return the names of the streams in a folder, and repair its list if needed."""
        directory = f"{self._root}{os.sep}{folder}"
        listed = dict(_parse_lines(_read_list(self._disk, directory)))
        with os.scandir(directory) as items:
            stems = {item.name[: -len(SUFFIX)] for item in items if item.name.endswith(SUFFIX)}
        unlisted = self._unlisted(directory, stems - listed.keys())
        self._note(
            directory,
            [location for location, name_is_durable in unlisted.items() if name_is_durable],
        )
        return frozenset(listed.values()) | {location.name for location in unlisted}

    def _unlisted(self, directory: str, stems: set[str]) -> dict[StreamLocation, bool]:
        """Return files that no list names, and whether their names are known to be durable."""
        unlisted = {}
        for hashed_name in stems:
            path = f"{directory}{os.sep}{hashed_name}{SUFFIX}"
            self._unreadable.pop(path, None)
            try:
                name, name_is_durable = self._first_line(path, hashed_name)
            except FileNotFoundError:
                continue
            if name is None:
                reason = f"the first line of {path} cannot be read"
                self._unreadable[path] = DamagedError(self._store, 0, reason)
            else:
                unlisted[StreamLocation(name, hashed_name, directory)] = name_is_durable
        return unlisted

    def _first_line(self, path: str, expected_stem: str) -> tuple[str | None, bool]:
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            content = self._disk.read(fd, 4096, 0)
            if b"\n" not in content:
                content = self._disk.read(fd, _FIRST_LINE_MAX, 0)
        finally:
            self._disk.close(fd)
        file_header = parse_file_header(content[: content.find(b"\n") + 1])
        if file_header is None or file_stem(file_header.name.encode()) != expected_stem:
            return None, False
        return file_header.name, file_header.mark.name_is_durable

    def _note(self, directory: str, places: list[StreamLocation]) -> None:
        """Add lost names to a list, if it can be locked at once and written."""
        if not places:
            return
        path = names_path(directory)
        with (
            contextlib.suppress(OSError, PerdureError),
            lock_file(self._disk, path, os.O_RDWR, timeout=0, store=self._store) as names_file,
        ):
            listed = dict(_parse_lines(_read_list(self._disk, directory)))
            add_names(
                self._disk,
                names_file.fd,
                [location for location in places if location.stem not in listed],
            )


def _parse_lines(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the stem and name of every intact line."""
    for line in content.split(b"\n"):
        try:
            name, hashed_name = _decode(line)
            if file_stem(name.encode()) == hashed_name:
                yield hashed_name, name
        except (msgspec.MsgspecError, UnicodeError):
            continue
