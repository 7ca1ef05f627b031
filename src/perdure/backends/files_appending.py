"""Carry out appends to many streams: lock, settle, decide, write, sync, and only then answer.

A file costs a sync, so all files of a group are written before the first is synced. What goes
wrong with one stream is raised after the others were served.
"""

import contextlib
import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from perdure.backend import STORED, Append, Outcome
from perdure.backends.files_disk import Disk, Held, held, translated
from perdure.backends.files_lines import Mark, opening
from perdure.backends.files_names import add, blank, is_listed
from perdure.backends.files_root import make_folder, names_path, require_folder
from perdure.backends.files_stream import Place, StreamFile, place_of
from perdure.backends.files_writing import (
    Published,
    encoded,
    publish,
    rewrite,
    set_mark,
    settle,
)
from perdure.backends.rules import decide
from perdure.errors import DamagedError, PerdureError, UnavailableError

GROUP = 32  # Streams whose files are open at once: a process may have few open files.

WRITE = os.O_RDWR

# What a system says of one file; the others of the store may well be written.
_OF_ONE = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENXIO}


class _Item:
    """One append on its way: neither an outcome nor an error means that it is still to be done."""

    def __init__(self, append: Append, place: Place) -> None:
        self.append = append
        self.place = place
        self.outcome: Outcome | None = None
        self.error: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is None and self.error is None


class _Written:
    """A batch that stands in a file and is not synced."""

    def __init__(self, item: _Item, lock: Held, file: StreamFile, data: bytes) -> None:
        self.item = item
        self._lock = lock
        self._file = file
        self._mark = Mark(placed=True, end=file.end + len(data), last=file.end)
        try:
            lock.disk.write(lock.fd, data, file.end)
        except OSError:
            self.cut()
            raise

    def sync(self) -> None:
        """Make it durable, and note it; the note may fail, then whoever comes next makes it."""
        try:
            self._lock.disk.sync(self._lock.fd)
        except OSError:
            self.cut()
            raise
        with contextlib.suppress(OSError):
            spare = self._file.opening.spare
            set_mark(self._lock.disk, self._lock.fd, self.item.place, self._mark, spare)

    def cut(self) -> None:
        """Take it away: after a failed sync it may be in memory only, and be taken for stored."""
        with contextlib.suppress(OSError):
            self._lock.disk.truncate(self._lock.fd, self._file.end)


class Appender:
    """Appends to the streams of one store."""

    def __init__(self, disk: Disk, root: str, *, patience: float, store: str) -> None:
        self._disk = disk
        self._root = root
        self._patience = patience
        self._store = store
        self._distrusted: set[str] = set()
        """Files in which a sync failed: the next append goes to a copy, on other blocks."""

    def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Return the outcomes in order; raise the first error once all were tried."""
        items = [_Item(append, place_of(self._root, append.stream)) for append in appends]
        # In one order everywhere, so that no two processes wait for each other.
        ordered = sorted(items, key=lambda item: item.place.stem)
        for start in range(0, len(ordered), GROUP):
            group = ordered[start : start + GROUP]
            self._create([item for item in group if not os.path.lexists(item.place.path)])
            self._extend([item for item in group if item.is_open])
        for item in items:
            if item.error is not None:
                raise item.error
        return [item.outcome for item in items if item.outcome is not None]

    # New streams.

    def _create(self, items: list[_Item]) -> None:
        for _, group in itertools.groupby(items, key=lambda item: item.place.directory):
            together = list(group)
            try:
                self._create_in_folder(together)
            except (OSError, PerdureError) as error:
                for item in together:
                    if item.is_open:
                        item.error = self._failure(error, item.place)

    def _create_in_folder(self, items: list[_Item]) -> None:
        first = items[0].place
        make_folder(self._disk, first, patience=self._patience, store=self._store)
        with (
            contextlib.ExitStack() as stack,
            held(
                self._disk,
                names_path(first.directory),
                WRITE,
                patience=self._patience,
                store=self._store,
            ) as names,
        ):
            made = []
            for item in items:
                outcome, entries = decide(item.append, None, lambda *_: ())
                if not entries:
                    item.outcome = outcome
                elif not os.path.lexists(item.place.path):  # Else another process was faster.
                    published = self._publish(item)
                    stack.callback(published.held.close)
                    made.append((item, published))
            if made:
                self._disk.sync_directory(first.directory)
            for item, published in made:
                item.outcome = STORED
                with contextlib.suppress(OSError):
                    published.confirm()
            add(self._disk, names.fd, [item.place for item, _ in made])

    def _publish(self, item: _Item) -> Published:
        place, (_, entries, labels, _) = item.place, item.append
        if is_listed(self._disk, place):
            raise missing(place)
        first = entries[0].position
        at = len(opening(place.name, first))
        data = encoded(place, entries, labels, at=at, back=0)
        return publish(self._disk, place, first, [(at, data)])

    # Streams that are there.

    def _extend(self, items: list[_Item]) -> None:
        with contextlib.ExitStack() as stack:
            written: list[_Written] = []
            for item in items:
                try:
                    found = self._write(item, stack)
                    written += [found] if found is not None else []
                except (OSError, PerdureError) as error:
                    item.error = self._failed(error, item)
            for one in written:
                try:
                    one.sync()
                    one.item.outcome = STORED
                except OSError as error:
                    if error.errno == errno.EIO:
                        self._distrusted.add(one.item.place.stem)
                    one.item.error = self._failed(error, one.item)

    def _failed(self, error: OSError | PerdureError, item: _Item) -> Exception:
        """Return the error to raise; a lock, or what is said of one file, is not about others."""
        raised = self._failure(error, item.place)
        if isinstance(raised, UnavailableError):
            raised.of_one = not isinstance(error, OSError) or error.errno in _OF_ONE
        return raised

    def _write(self, item: _Item, stack: contextlib.ExitStack) -> _Written | None:
        place = item.place
        require_folder(place)
        lock = stack.enter_context(
            held(self._disk, place.path, WRITE, patience=self._patience, store=self._store)
        )
        file = settle(self._disk, lock, place, to_write=True)
        if place.stem in self._distrusted:
            file = rewrite(self._disk, lock, file, before=0)
            self._distrusted.discard(place.stem)
        batch, position = file.head()
        outcome, entries = decide(
            item.append, position, lambda first, last: headers(file, first, last)
        )
        if not entries:
            item.outcome = outcome
            return None
        labels = item.append.labels
        data = encoded(place, entries, labels, at=file.end, back=batch.size)
        return _Written(item, lock, file, data)

    # Streams that are to be forgotten.

    def remove(self, place: Place, digest: str) -> bool:
        """Remove the file of a stream and its name if it ends so; durable on return."""
        path, patience, store = place.path, self._patience, self._store
        names = names_path(place.directory)
        with held(self._disk, names, WRITE, patience=patience, store=store) as names_held:
            try:
                with held(self._disk, path, WRITE, patience=patience, store=store) as lock:
                    file = settle(self._disk, lock, place, to_write=True)
                    if file.labelled_head().digest != digest:
                        return False
                    blank(self._disk, names_held.fd, place)  # First: a listed file must be there.
                    self._disk.unlink(path)
            except FileNotFoundError:  # Another process was faster; the name is gone too.
                return True
            for torn in Path(place.directory).glob(f"{place.stem}.torn-*"):
                self._disk.unlink(str(torn))
            self._disk.sync_directory(place.directory)
        return True

    def _failure(self, error: Exception, place: Place) -> Exception:
        return failure(error, place, self._store)


def headers(file: StreamFile, first: int, last: int) -> list[bytes]:
    """Return the headers that stand at some positions."""
    found = (entry for entry, _ in file.forward(first - 1, max_body=-1))
    return [one.header for one in itertools.takewhile(lambda one: one.position <= last, found)]


def missing(place: Place) -> DamagedError:
    """Say that the file of a stream is gone."""
    return DamagedError(place.name, 0, f"its file {place.path} is missing")


def failure(error: Exception, place: Place, store: str) -> Exception:
    """Return what to raise for an error, with its cause."""
    if isinstance(error, PerdureError):
        return error
    better: PerdureError
    if isinstance(error, FileNotFoundError) and is_listed(Disk(), place):
        better = missing(place)
    elif isinstance(error, FileNotFoundError):
        better = UnavailableError(store, f"{place.name!r} was removed meanwhile", "look again")
    else:
        better = translated(error, store, place.name)
    better.__cause__ = error
    return better
