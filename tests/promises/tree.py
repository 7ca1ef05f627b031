"""What a tree of directories may hold after the power failed: a `Disk` with folders. Pure.

A name (of a file or a folder, new, changed or taken away) is certain once the directory that it
stands in was synced; no other call makes it so. Folders are names that end with a slash.
"""

import functools
import os
from collections.abc import Callable
from pathlib import PurePosixPath

from tests.promises.calls import Done
from tests.promises.disk import Crash, Disk, File, Keep, Rename


class Tree(Disk):
    """Takes the calls of `watched_files`."""

    @property
    def may_forget(self) -> bool:
        """Whoever finds bytes that no mark covers writes them again before they count."""
        return True

    def _open(self, done: Done) -> None:
        if done.path not in self._names and done.at & os.O_CREAT:
            self._change(Rename(self._numbers, done.path, File()))
        self._handles[done.handle] = (self._names[done.path], False)

    def _make(self, done: Done) -> None:
        self._change(Rename(self._numbers, f"{done.path}/", File()))

    def _remove(self, done: Done) -> None:
        self._change(Rename(self._numbers, f"{done.path}/", None))

    def _delete(self, done: Done) -> None:
        self._change(Rename(self._numbers, done.path, None))

    def _rename(self, done: Done) -> None:
        self._change(Rename(self._numbers, done.to, self._names[done.path], done.path))

    def _change(self, rename: Rename) -> None:
        rename.apply(self._names)
        self._renames.append(rename)

    def _sync_directory(self, done: Done) -> None:
        self._syncs += 1
        for rename in self._settled_by(done):
            rename.apply(self._certain_names)

    def _failed_sync_directory(self, done: Done) -> None:
        self._settled_by(done)

    def _settled_by(self, done: Done) -> list[Rename]:
        """Take away the changes that were waiting for a sync of this directory."""
        found = [one for one in self._renames if str(PurePosixPath(one.name).parent) == done.path]
        self._renames = [one for one in self._renames if one not in found]
        return found

    def crash(self, *, data: Keep, names: Callable[[Rename], bool]) -> Crash:
        """As `Disk.crash`; what lies in a folder whose name was lost can not be found."""
        files, key = super().crash(data=data, names=names)
        return Crash({name: files[name] for name in files if _folders(name) <= files.keys()}, key)


@functools.cache
def _folders(name: str) -> frozenset[str]:
    """Return the folders that something lies in."""
    return frozenset(f"{above}/" for above in PurePosixPath(name).parents if above.name)
