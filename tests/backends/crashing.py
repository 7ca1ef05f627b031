"""A disk for stores of files that records every call, fails where told, and can lose its power.

What was written to a file is certain once the file was synced; before that any part of it may have
reached the disk, in sectors, in any order. A name (of a file, a folder, after a rename) is certain
once its directory was synced. After a sync that failed, the kernel forgets what was to be written
and does not mention it again; what is read until the crash is still the new content.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from perdure.backends.files_disk import Disk

SECTOR = 512  # The smallest unit that disks promise to write whole.


class Change(NamedTuple):
    """A write, or without data the truncation to a size."""

    at: int
    data: bytes | None


class Content:
    """What a file holds for certain, and the changes that are not."""

    def __init__(self) -> None:
        self.certain = bytearray()
        self.pending: list[Change] = []

    def left(self, keep: Callable[[Change], list[Change]]) -> bytes:
        found = bytearray(self.certain)
        for change in self.pending:
            for part in keep(change):
                _apply(found, part)
        return bytes(found)

    def sync(self) -> None:
        self.certain = bytearray(self.left(lambda change: [change]))
        self.pending.clear()


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.at :]
    content.extend(bytes(max(change.at - len(content), 0)))
    if change.data is not None:
        content[change.at : change.at + len(change.data)] = change.data


Names = dict[str, Content | None]  # None is a folder.


class Renamed(NamedTuple):
    """Names that were taken away and given, together."""

    gone: str
    new: str
    what: Content | None


class Model:
    """All files of a disk. `certain` names survive, of `pending` ones anything may."""

    def __init__(self) -> None:
        self.names: Names = {}
        self.certain: Names = {}
        self.pending: list[Renamed] = []

    def rename(self, gone: str, new: str, what: Content | None) -> None:
        self.names.pop(gone, None)
        if new:
            self.names[new] = what
        self.pending.append(Renamed(gone, new, what))

    def sync_names(self, directory: str, *, forget: bool = False) -> None:
        for one in [one for one in self.pending if _parent(one.new or one.gone) == directory]:
            self.pending.remove(one)
            if not forget:
                _move(self.certain, one)

    def crash(
        self, data: Callable[[Change], list[Change]], names: Callable[[Renamed], bool]
    ) -> dict[str, bytes | None]:
        """Return the files that are found after the power came back; None is a folder."""
        found = dict(self.certain)
        for one in self.pending:
            if names(one):
                _move(found, one)
        return {
            name: None if content is None else content.left(data)
            for name, content in sorted(found.items())
            if all(str(above) in found for above in Path(name).parents if str(above) != ".")
        }

    def states(self, draw: random.Random, tears: int) -> list[dict[str, bytes | None]]:
        """Return the plainest states, and some random ones."""
        nothing: Callable[[Change], list[Change]] = lambda _: []  # noqa: E731
        everything: Callable[[Change], list[Change]] = lambda change: [change]  # noqa: E731
        found = [
            self.crash(nothing, lambda _: False),
            self.crash(everything, lambda _: True),
            self.crash(nothing, lambda _: True),
            self.crash(everything, lambda _: False),
        ]
        found += [self.crash(_torn(draw), lambda _: draw.random() < 0.5) for _ in range(tears)]
        return found


def _parent(name: str) -> str:
    return str(Path(name).parent)


def _move(names: Names, one: Renamed) -> None:
    names.pop(one.gone, None)
    if one.new:
        names[one.new] = one.what


def _torn(draw: random.Random) -> Callable[[Change], list[Change]]:
    whole, part = draw.choice([(0.1, 0.3), (0.5, 0.3), (0.8, 0.15), (0.0, 1.0)])

    def left(change: Change) -> list[Change]:
        chance = draw.random()
        if chance < whole:
            return [change]
        if chance > whole + part:
            return []
        if change.data is None:
            return [change] if draw.random() < 0.5 else []
        return [one for one in _sectors(change.at, change.data) if draw.random() < 0.5]

    return left


def _sectors(at: int, data: bytes) -> list[Change]:
    found, start, end = [], at, at + len(data)
    while start < end:
        stop = min((start // SECTOR + 1) * SECTOR, end)
        found.append(Change(start, data[start - at : stop - at]))
        start = stop
    return found


class WatchedDisk(Disk):
    """The real disk under a directory, and its model. `before` sees each call and may raise.

    After a call that changed something, `after` is told.
    """

    def __init__(self, root: Path) -> None:
        self.model = Model()
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[], None] = lambda: None
        self._root = root
        self._open: dict[int, Content] = {}

    def _name(self, path: str) -> str:
        return str(Path(path).relative_to(self._root))

    def open(self, path: str, flags: int) -> int:
        name = self._name(path)
        creates = flags & os.O_CREAT and name not in self.model.names
        if creates:
            self.before("open")
        fd = super().open(path, flags)
        if creates:
            self.model.rename("", name, Content())
            self.after()
        content = self.model.names[name]
        assert content is not None
        self._open[fd] = content
        return fd

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        self.before("write")
        done = super().write_some(fd, data, at)
        self._open[fd].pending.append(Change(at, bytes(data[:done])))
        self.after()
        return done

    def truncate(self, fd: int, size: int) -> None:
        self.before("truncate")
        super().truncate(fd, size)
        self._open[fd].pending.append(Change(size, None))
        self.after()

    def sync(self, fd: int) -> None:
        try:
            self.before("sync")
        except OSError:
            self._open[fd].pending.clear()
            raise
        self._open[fd].sync()
        self.after()

    def sync_directory(self, path: str) -> None:
        name = self._name(path) if Path(path) != self._root else "."
        try:
            self.before("sync_directory")
        except OSError:
            self.model.sync_names(name, forget=True)
            raise
        self.model.sync_names(name)
        self.after()

    def rename(self, old: str, new: str) -> None:
        self.before("rename")
        super().rename(old, new)
        self.model.rename(self._name(old), self._name(new), self.model.names[self._name(old)])
        self.after()

    def unlink(self, path: str) -> None:
        self.before("unlink")
        super().unlink(path)
        self.model.rename(self._name(path), "", None)
        self.after()

    def make_directory(self, path: str) -> None:
        self.before("make_directory")
        super().make_directory(path)
        self.model.rename("", self._name(path), None)
        self.after()

    def remove_directory(self, path: str) -> None:
        self.before("remove_directory")
        super().remove_directory(path)
        self.model.rename(self._name(path), "", None)
        self.after()


def put(root: Path, files: dict[str, bytes | None]) -> None:
    """Write a state to a directory that is empty."""
    for name, content in files.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
