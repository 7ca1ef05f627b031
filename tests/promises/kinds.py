"""The kinds of store that trials are run on: where one lies, who watches it, what a crash leaves.

`MODES` are kinds with a fault that every trial must see, for controls.
"""

import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from perdure.backends.files.backend import FilesBackend
from perdure.backends.files.disk import Disk as FilesDisk
from perdure.backends.protocol import Backend
from perdure.backends.sqlite.backend import SqliteBackend
from tests.promises.calls import Watcher, let_pass
from tests.promises.disk import Crash, Disk
from tests.promises.tree import Tree
from tests.promises.vfs import tune, watching
from tests.promises.watched_files import WatchedFiles

PATIENCE = 60.0

Opener = Callable[[], Backend]


class Kind(ABC):
    """A kind of store. Each directory has room for one."""

    name: str
    changes: tuple[str, ...]
    """The system calls that change files; `write` is left out, as reports go through it."""

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def disk(self) -> Disk:
        """Return a model of an empty disk, which takes the calls that a watcher saw."""

    @abstractmethod
    def address(self, directory: Path) -> str: ...

    @abstractmethod
    def clear(self, directory: Path) -> None:
        """Take the store away, if there is one."""

    @abstractmethod
    def lay_out(self, directory: Path, crash: Crash) -> None:
        """Put what a crash left in the place of the store."""

    @abstractmethod
    def opener(self, directory: Path) -> Opener:
        """Return what opens the store, time and again."""

    @abstractmethod
    def watched(
        self,
        directory: Path,
        watcher: Watcher = let_pass,
        *,
        timeout: float = PATIENCE,
        checkpoint: int = 0,
    ) -> AbstractContextManager[Opener]:
        """Lend what opens the store on a disk that somebody watches.

        A log is written back after `checkpoint` pages, where there is such a thing.
        """


class Sqlite(Kind):
    """One file, and its log."""

    name = "sqlite"
    changes = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")

    def __init__(self, synchronous: str = "full") -> None:
        self.synchronous = synchronous

    def disk(self) -> Disk:
        return Disk()

    def address(self, directory: Path) -> str:
        return f"sqlite:{directory / 'store.db'}"

    def clear(self, directory: Path) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            (directory / f"store.db{suffix}").unlink(missing_ok=True)

    def lay_out(self, directory: Path, crash: Crash) -> None:
        self.clear(directory)  # Shared memory does not survive.
        for name, content in crash.files.items():
            (directory / name).write_bytes(content)

    def opener(self, directory: Path) -> Opener:
        return lambda: self._open(directory, None, PATIENCE, 0)

    @contextlib.contextmanager
    def watched(
        self,
        directory: Path,
        watcher: Watcher = let_pass,
        *,
        timeout: float = PATIENCE,
        checkpoint: int = 0,
    ) -> Iterator[Opener]:
        with watching(watcher) as vfs:
            yield lambda: self._open(directory, vfs.name, timeout, checkpoint)

    def _open(
        self, directory: Path, vfs: str | None, timeout: float, checkpoint: int
    ) -> SqliteBackend:
        backend = SqliteBackend(directory / "store.db", vfs=vfs, timeout=timeout)
        if self.synchronous != "full":
            tune(backend, synchronous=self.synchronous)
        if checkpoint:
            tune(backend, wal_autocheckpoint=checkpoint)
        return backend


class Files(Kind):
    """One directory, and many files."""

    name = "files"
    changes = ("pwrite64", "fsync", "ftruncate", "rename", "mkdir", "rmdir", "unlink")

    def disk(self) -> Disk:
        return Tree()

    def address(self, directory: Path) -> str:
        return f"files:{directory / 'store'}"

    def clear(self, directory: Path) -> None:
        shutil.rmtree(directory / "store", ignore_errors=True)

    def lay_out(self, directory: Path, crash: Crash) -> None:
        self.clear(directory)
        for name, content in sorted(crash.files.items()):  # Folders come before what is in them.
            if name.endswith("/"):
                (directory / name).mkdir()
            else:
                (directory / name).write_bytes(content)

    def opener(self, directory: Path) -> Opener:
        return lambda: FilesBackend(directory / "store")

    @contextlib.contextmanager
    def watched(
        self,
        directory: Path,
        watcher: Watcher = let_pass,
        *,
        timeout: float = PATIENCE,
        checkpoint: int = 0,
    ) -> Iterator[Opener]:
        disk = WatchedFiles(directory, watcher)
        yield lambda: FilesBackend(directory / "store", disk=disk, timeout=timeout)


class UnsyncedFiles(Files):
    """As if somebody had taken the syncs out."""

    def opener(self, directory: Path) -> Opener:
        return lambda: FilesBackend(directory / "store", disk=Unsynced())


class Unsynced(FilesDisk):
    def sync(self, fd: int) -> None:
        """Return at once; directories are synced by this as well."""


SQLITE, FILES = Sqlite(), Files()
KINDS: tuple[Kind, ...] = (SQLITE, FILES)
MODES: dict[str, Kind] = {
    "sqlite": SQLITE,
    "sqlite-normal": Sqlite("normal"),
    "files": FILES,
    "files-unsynced": UnsyncedFiles(),
}
