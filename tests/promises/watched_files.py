"""The real disk under a store of files, with somebody who watches each call and may spoil it.

Syncs are not passed on: what they would change is only known to a `Tree`, which is told of them.
"""

import itertools
import os
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from perdure.backends.files.disk import Disk
from tests.promises.calls import Call, Watcher, let_pass

_number = itertools.count(1)


class WatchedFile(FileIO):
    """Tells that it is closed."""

    def __init__(self, disk: "WatchedFiles", fd: int) -> None:
        super().__init__(fd)
        self._disk = disk

    def close(self) -> None:
        if not self.closed:
            self._disk.close(self)


class WatchedFiles(Disk):
    """Passes every call to its watcher. Names are told as they stand below a directory."""

    def __init__(self, directory: Path, watcher: Watcher = let_pass) -> None:
        self.watcher = watcher
        self._directory = directory.resolve()
        self._files: dict[int, tuple[str, int]] = {}
        self._one_at_a_time = threading.RLock()  # What is written down is the order of things.

    def _name(self, path: str) -> str:
        return Path(path).relative_to(self._directory).as_posix()

    def _watched(self, call: Call) -> Any:
        with self._one_at_a_time:
            return self.watcher(call)

    def _of(self, fd: int, op: str, do: Callable[[bytes], Any], at: int = 0) -> Any:
        name, handle = self._files[fd]
        return self._watched(Call(op, name, do, handle, at))

    def open(self, path: str, flags: int = os.O_RDONLY) -> FileIO:
        real, name, handle = super().open, self._name(path), next(_number)

        def do(_: bytes) -> FileIO:
            with real(path, flags) as file:
                watched = WatchedFile(self, os.dup(file.fileno()))
            self._files[watched.fileno()] = (name, handle)
            return watched

        op = "open" if flags & (os.O_RDWR | os.O_CREAT) else "look"
        found: FileIO = self._watched(Call(op, name, do, handle, flags))
        return found

    def close(self, file: "WatchedFile") -> None:
        self._of(file.fileno(), "close", lambda _: FileIO.close(file))

    def read(self, fd: int, size: int, at: int) -> bytes:
        real = super().read
        found: bytes = self._of(fd, "read", lambda _: real(fd, size, at), at)
        return found

    def write_some(self, fd: int, data: memoryview, at: int) -> int:
        real, (name, handle) = super().write_some, self._files[fd]

        def do(part: bytes) -> int:
            return real(fd, memoryview(part), at)

        return int(self._watched(Call("write", name, do, handle, at, bytes(data))))

    def truncate(self, fd: int, size: int) -> None:
        real = super().truncate
        self._of(fd, "truncate", lambda _: real(fd, size), size)

    def sync(self, fd: int) -> None:
        self._of(fd, "sync", lambda _: None)

    def lock(self, fd: int) -> bool:
        real = super().lock
        return bool(self._of(fd, "lock", lambda _: real(fd)))

    def sync_directory(self, path: str) -> None:
        self._watched(Call("sync_directory", self._name(path), lambda _: None))

    def rename(self, old: str, new: str) -> None:
        real = super().rename
        do = lambda _: real(old, new)  # noqa: E731 - as its siblings
        self._watched(Call("rename", self._name(old), do, to=self._name(new)))

    def unlink(self, path: str) -> None:
        real = super().unlink
        self._watched(Call("delete", self._name(path), lambda _: real(path)))

    def make_directory(self, path: str) -> None:
        real = super().make_directory
        self._watched(Call("make", self._name(path), lambda _: real(path)))

    def remove_directory(self, path: str) -> None:
        real = super().remove_directory
        self._watched(Call("remove", self._name(path), lambda _: real(path)))
