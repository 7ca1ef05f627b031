"""The names of all streams, in order: read from a list in each folder, checked against the folder.

A line is added to a list, without a sync, once the file of a stream is durable. So a name in a
list whose file is gone is damage, and a file whose name is in no list (the line was lost in a
crash, or the list is damaged) is found in the folder, and its name is read from the file. Lists
save time; what they say is never needed.
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

from perdure.backends.files_disk import Disk, held
from perdure.backends.files_lines import parse_opening, stem
from perdure.backends.files_root import names_path
from perdure.backends.files_stream import SUFFIX, Place
from perdure.errors import DamagedError, PerdureError

_FOLDER = re.compile(r"[0-9a-f]{2}")
FEW = 100  # New names that are put in their places rather than sorted with all others.
_LONGEST = 2**20  # Bytes of a first line that are looked at.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, str]).decode


def line_of(place: Place) -> bytes:
    """Return the line of a list that names a stream and its file."""
    return _encode((place.name, place.stem)) + b"\n"


def is_listed(disk: Disk, place: Place) -> bool:
    """Say whether the file of a stream was durable once, whatever became of it."""
    line = line_of(place)
    content = _content(disk, place.directory)
    return content.startswith(line) or b"\n" + line in content


def add(disk: Disk, fd: int, places: Iterable[Place]) -> None:
    """Add names to a list that is held. What fails is made good by whoever lists the streams."""
    with contextlib.suppress(OSError):
        size = os.fstat(fd).st_size
        # What a crash left of a line must not become part of the next one.
        torn = size > 0 and disk.read(fd, 1, size - 1) != b"\n"
        disk.write(fd, b"\n" * torn + b"".join(map(line_of, places)), size)


def blank(disk: Disk, fd: int, place: Place) -> None:
    """Make the line of a stream in a list that is held one that names nothing; durable on return.

    Whoever reads the list meanwhile finds the file in the folder.
    """
    line = line_of(place)
    content = disk.read(fd, os.fstat(fd).st_size, 0)
    at = 0 if content.startswith(line) else content.find(b"\n" + line) + 1
    while at or content.startswith(line):
        disk.write(fd, b" " * (len(line) - 1), at)
        content = content[:at] + b" " * (len(line) - 1) + content[at + len(line) - 1 :]
        at = content.find(b"\n" + line) + 1
    disk.sync(fd)


def _content(disk: Disk, directory: str) -> bytes:
    try:
        fd = disk.open(names_path(directory), os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return disk.read(fd, os.fstat(fd).st_size, 0)
    finally:
        disk.close(fd)


class _State(NamedTuple):
    """Of a folder and its list: if it is the same again, nothing was added or removed."""

    changed: int
    inode: int
    size: int


class Names:
    """The names of all streams of a store. Not for two threads at once."""

    def __init__(self, disk: Disk, root: str, *, patience: float, store: str) -> None:
        self._disk = disk
        self._root = root
        self._patience = patience
        self._store = store
        self._states: dict[str, _State] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self._sorted: list[str] = []
        self._unreadable: dict[str, DamagedError] = {}

    def page(self, after: str, prefix: str, size: int) -> tuple[list[str], DamagedError | None]:
        """Return names beyond one, in order, and what hides a name from every page, if anything."""
        self._refresh()
        start = bisect.bisect_right(self._sorted, after)
        found = self._sorted[start : start + size]
        names = list(itertools.takewhile(lambda name: name.startswith(prefix), found))
        return names, next(iter(self._unreadable.values()), None)

    def _refresh(self) -> None:
        added: set[str] = set()
        removed: set[str] = set()
        with os.scandir(self._root) as found:
            folders = sorted(one.name for one in found if _FOLDER.fullmatch(one.name))
        try:
            for folder in folders:
                state = self._state(folder)
                if self._states.get(folder) != state:
                    before, after = self._folders.get(folder, frozenset()), self._read(folder)
                    self._states[folder], self._folders[folder] = state, after
                    added |= after - before
                    removed |= before - after
        finally:  # What was read before an error is not read again.
            self._put(added, removed)

    def _put(self, added: set[str], removed: set[str]) -> None:
        if removed or len(added) > FEW:
            self._sorted = sorted(set().union(*self._folders.values()))
        else:
            for name in added:  # A new session must not cost more the more there are.
                bisect.insort(self._sorted, name)

    def _state(self, folder: str) -> _State:
        directory = f"{self._root}{os.sep}{folder}"
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode):
            raise DamagedError(self._store, 0, f"{directory} is not a directory")
        try:
            names = os.lstat(names_path(directory))
        except FileNotFoundError:
            return _State(status.st_mtime_ns, 0, 0)
        return _State(status.st_mtime_ns, names.st_ino, names.st_size)

    def _read(self, folder: str) -> frozenset[str]:
        """Return the names of the streams in a folder, and make its list good if need be."""
        directory = f"{self._root}{os.sep}{folder}"
        listed = dict(_lines(_content(self._disk, directory)))
        with os.scandir(directory) as found:
            stems = {one.name[: -len(SUFFIX)] for one in found if one.name.endswith(SUFFIX)}
        unlisted = self._unlisted(directory, stems - listed.keys())
        self._note(directory, [place for place, placed in unlisted.items() if placed])
        return frozenset(listed.values()) | {place.name for place in unlisted}

    def _unlisted(self, directory: str, stems: set[str]) -> dict[Place, bool]:
        """Return files that no list names, and whether their names are known to be durable."""
        found = {}
        for one in stems:
            path = f"{directory}{os.sep}{one}{SUFFIX}"
            self._unreadable.pop(path, None)
            try:
                name, placed = self._first_line(path, one)
            except FileNotFoundError:
                continue
            if name is None:
                reason = f"the first line of {path} can not be read"
                self._unreadable[path] = DamagedError(self._store, 0, reason)
            else:
                found[Place(name, one, directory)] = placed
        return found

    def _first_line(self, path: str, wanted: str) -> tuple[str | None, bool]:
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            content = self._disk.read(fd, 4096, 0)
            if b"\n" not in content:
                content = self._disk.read(fd, _LONGEST, 0)
        finally:
            self._disk.close(fd)
        found = parse_opening(content[: content.find(b"\n") + 1])
        if found is None or stem(found.name.encode()) != wanted:
            return None, False
        return found.name, found.mark.placed

    def _note(self, directory: str, places: list[Place]) -> None:
        """Add lost names to a list, if it can be written."""
        if not places:
            return
        path = names_path(directory)
        with (
            contextlib.suppress(OSError, PerdureError),
            held(self._disk, path, os.O_RDWR, patience=0, store=self._store) as names,
        ):
            known = dict(_lines(_content(self._disk, directory)))
            add(self._disk, names.fd, [place for place in places if place.stem not in known])


def _lines(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the stems and names of lines that are whole."""
    for line in content.split(b"\n"):
        try:
            name, found = _decode(line)
            if stem(name.encode()) == found:
                yield found, name
        except (msgspec.MsgspecError, UnicodeError):
            continue
