"""The real file system under SQLite, with somebody who watches each call and may spoil it.

SQLite's shared memory (`-shm`) can not be watched this way.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from perdure.backends.sqlite import schema
from perdure.backends.sqlite.backend import SqliteBackend
from tests.promises.calls import Call, Watcher, let_pass

_number = itertools.count(1)


class WatchedVfs(apsw.VFS):
    """Passes every call to its watcher, under a name that no other VFS of the process has."""

    def __init__(self, watcher: Watcher = let_pass) -> None:
        self.watcher = watcher
        self.name = f"watched-{os.getpid()}-{next(_number)}"
        super().__init__(self.name, "")

    def excepthook(self, *_: object) -> bool:
        """What could not be reported to SQLite was raised on purpose."""
        return True

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - apsw's name
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "").name
        number = next(_number)
        call = Call(
            "open", path, lambda _: WatchedFile(self, name, flags, path, number), number, flags[0]
        )
        return self.watcher(call)  # type: ignore[no-any-return]

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - as apsw calls it
        delete = super().xDelete
        path = Path(filename).name
        self.watcher(Call("delete", path, lambda _: delete(filename, syncdir), 0, syncdir))


class WatchedFile(apsw.VFSFile):
    def __init__(
        self, vfs: WatchedVfs, name: Any, flags: list[int], path: str, number: int
    ) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs
        self._path = path
        self._number = number

    def excepthook(self, *_: object) -> bool:
        return True

    def _watched(self, op: str, do: Callable[[bytes], Any], at: int = 0, data: bytes = b"") -> Any:
        return self._vfs.watcher(Call(op, self._path, do, self._number, at, data))

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        read = super().xRead
        return self._watched("read", lambda _: read(amount, offset), offset)  # type: ignore[no-any-return]

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        write = super().xWrite
        self._watched("write", lambda part: write(part, offset), offset, bytes(data))

    def xSync(self, flags: int) -> None:  # noqa: N802
        sync = super().xSync
        self._watched("sync", lambda _: sync(flags))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        truncate = super().xTruncate
        self._watched("truncate", lambda _: truncate(newsize), newsize)


@contextlib.contextmanager
def watching(watcher: Watcher = let_pass) -> Iterator[WatchedVfs]:
    """Register a watched VFS, and let its watcher see the sync that perdure does by itself."""
    vfs = WatchedVfs(watcher)
    real_sync, real_rewrite = schema.sync_file, schema.rewrite_file

    def sync_file(path: str) -> None:
        if Path(path).exists():
            vfs.watcher(Call("sync", Path(path).name, lambda _: real_sync(path)))

    def rewrite_file(path: str) -> None:
        if Path(path).exists():
            data = Path(path).read_bytes()
            vfs.watcher(Call("write", Path(path).name, lambda _: real_rewrite(path), 0, 0, data))

    schema.sync_file, schema.rewrite_file = sync_file, rewrite_file
    try:
        yield vfs
    finally:
        schema.sync_file, schema.rewrite_file = real_sync, real_rewrite
        vfs.unregister()


def tune(backend: SqliteBackend, **pragmas: object) -> None:
    """Set pragmas of the connection that a store writes with."""
    backend._connections.write("", lambda _: None)
    writer = backend._connections._writer
    assert writer is not None
    for name, value in pragmas.items():
        writer.pragma(name, value)
