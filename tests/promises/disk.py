"""What a disk may hold after the power failed, given every call that was made before. Pure.

What was written to a file is certain once the file was synced; before that any part of it may have
reached the disk, in sectors, in any order. A name in a directory is certain once the directory was
synced. SQLite's `unix` VFS syncs the directory of a log or journal with the first sync through each
handle that may have created it, and when it deletes a file with `syncdir`; no other call does.
(`strace` shows an fsync of the directory after the first fdatasync of a new `-wal`.)
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import apsw

from tests.promises.calls import Done

SECTOR = 512  # The smallest unit that disks promise to write whole.

_SYNCS_DIRECTORY = (
    apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
)


class Change(NamedTuple):
    """A write, or with no data the truncation to a size."""

    number: int
    at: int
    data: bytes | None


class Rename(NamedTuple):
    """A name given to a file, or taken away; `gone` is the one that it had before."""

    number: int
    name: str
    file: "File | None"
    gone: str = ""

    def apply(self, names: "dict[str, File]") -> None:
        names.pop(self.gone, None)
        if self.file is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.file


class File:
    """Content that is certain, and the changes to it that are not."""

    def __init__(self) -> None:
        self.certain = bytearray()
        self.pending: list[Change] = []

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.certain, change)
        self.pending.clear()

    def forget(self) -> None:
        """A sync failed: the kernel drops the changes, and the next sync will not mention it."""
        self.pending.clear()


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.at :]
        content.extend(bytes(change.at - len(content)))
        return
    content.extend(bytes(max(change.at - len(content), 0)))
    content[change.at : change.at + len(change.data)] = change.data


Keep = Callable[[Change], list[Change]]


class Crash(NamedTuple):
    """Files as they may be found, and a key that tells different states apart."""

    files: dict[str, bytes]
    key: tuple[object, ...]


class Disk:
    """Takes calls one by one; `crash` says what may be left after any of them."""

    def __init__(self) -> None:
        self._names: dict[str, File] = {}
        self._certain_names: dict[str, File] = {}
        self._renames: list[Rename] = []
        self._handles: dict[int, tuple[File, bool]] = {}
        self._numbers = 0
        self._syncs = 0

    @property
    def settled(self) -> bool:
        """Whether there is only one state that a crash can leave."""
        files = {id(file): file for file in (*self._names.values(), *self._certain_names.values())}
        return not self._renames and not any(file.pending for file in files.values())

    @property
    def may_forget(self) -> bool:
        """Whether failed syncs can be coped with by whoever comes: only the log waits for one."""
        waiting = [name for name, file in self._names.items() if file.pending]
        return not self._renames and all(name.endswith("-wal") for name in waiting)

    def apply(self, done: Done) -> None:
        if done.path:  # Files without a name are SQLite's own scratch paper.
            self._numbers += 1
            getattr(self, f"_{done.op}")(done)

    def _open(self, done: Done) -> None:
        file = self._names.get(done.path)
        if file is None:
            file = self._names[done.path] = File()
            self._renames.append(Rename(self._numbers, done.path, file))
        may_create = bool(done.at & apsw.SQLITE_OPEN_CREATE and done.at & _SYNCS_DIRECTORY)
        self._handles[done.handle] = (file, may_create)

    def _file(self, done: Done) -> File:
        return self._handles[done.handle][0] if done.handle else self._names[done.path]

    def _write(self, done: Done) -> None:
        self._file(done).pending.append(Change(self._numbers, done.at, done.data))

    def _truncate(self, done: Done) -> None:
        self._file(done).pending.append(Change(self._numbers, done.at, None))

    def _sync(self, done: Done) -> None:
        self._syncs += 1
        file = self._file(done)
        file.sync()
        if done.handle and self._handles[done.handle][1]:
            self._handles[done.handle] = (file, False)
            self._sync_names()

    def _failed_sync(self, done: Done) -> None:
        self._file(done).forget()

    def fail_syncs(self) -> None:
        """Let every sync fail that would be needed now, without anybody being told again."""
        for file in self._names.values():
            file.forget()

    def _delete(self, done: Done) -> None:
        self._names.pop(done.path, None)
        self._renames.append(Rename(self._numbers, done.path, None))
        if done.at:
            self._sync_names()

    def _sync_names(self) -> None:
        self._syncs += 1
        self._certain_names = dict(self._names)
        self._renames.clear()

    def crash(self, *, data: Keep, names: Callable[[Rename], bool]) -> Crash:
        """Return one state: `data` says what is left of a change, `names` which renames are."""
        found = dict(self._certain_names)
        chosen: list[object] = [self._syncs]
        for rename in self._renames:
            if names(rename):
                chosen.append(rename.number)
                rename.apply(found)
        files = {}
        for name, file in found.items():
            content = bytearray(file.certain)
            for change in file.pending:
                for part in data(change):
                    chosen.append((part.number, part.at))
                    _apply(content, part)
            files[name] = bytes(content)
        return Crash(files, tuple(chosen))

    def drop(self) -> Crash:
        """Nothing but what was synced is left."""
        return self.crash(data=lambda _: [], names=lambda _: False)

    def keep(self) -> Crash:
        """Everything happened to reach the disk: what a killed process leaves."""
        return self.crash(data=lambda change: [change], names=lambda _: True)

    def names_only(self) -> Crash:
        """The directory reached the disk, the files did not."""
        return self.crash(data=lambda _: [], names=lambda _: True)

    def files_only(self) -> Crash:
        """The files reached the disk, the directory did not."""
        return self.crash(data=lambda change: [change], names=lambda _: False)

    def torn(self, draw: random.Random) -> Crash:
        """Return a random state: some changes are left whole, some in part, some not at all."""
        whole, part = draw.choice([(0.1, 0.3), (0.5, 0.2), (0.9, 0.05), (0.0, 0.9)])

        def left(change: Change) -> list[Change]:
            chance = draw.random()
            if chance < whole:
                return [change]
            return _sectors(change, draw) if chance < whole + part else []

        return self.crash(data=left, names=lambda _: draw.random() < 0.5)


def _sectors(change: Change, draw: random.Random) -> list[Change]:
    if change.data is None:
        return [change] if draw.random() < 0.5 else []
    found, start, end = [], change.at, change.at + len(change.data)
    while start < end:
        stop = min((start // SECTOR + 1) * SECTOR, end)
        if draw.random() < 0.5:
            found.append(
                Change(change.number, start, change.data[start - change.at : stop - change.at])
            )
        start = stop
    return found
