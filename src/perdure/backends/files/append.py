"""Append to many streams: lock, recover, decide, write, sync, and only then report.

Every file costs a sync, so all files of a group are written before the first one is synced. An
error of one stream is raised after the others were served.

Editing: an outcome is set only after the sync that makes it true.
"""

import contextlib
import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from perdure.backends.append_rules import decide
from perdure.backends.files.directory import (
    StoreDirectory,
    add_names,
    clear_line,
    is_listed,
    names_path,
    require_folder,
)
from perdure.backends.files.disk import Disk, LockedFile, LockedFiles, translate_error
from perdure.backends.files.format import DurableMark, encode_file_header
from perdure.backends.files.recovery import (
    NewFile,
    encode_batch,
    publish_file,
    recover,
    rewrite_file,
    set_mark,
)
from perdure.backends.files.stream_file import StreamFile, StreamLocation, locate_stream
from perdure.backends.protocol import STORED, Append, Entry, Outcome
from perdure.errors import DamagedError, PerdureError, UnavailableError

GROUP_SIZE = 32  # streams whose files are open at once; a process may open only so many files


# Errors that concern one file only; the store's other files may still be writable.
_SINGLE_FILE_ERRNOS = {
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENOENT,
    errno.ENXIO,
}


class _PendingAppend:
    """One append in progress; it is open until it has an outcome or an error."""

    def __init__(self, append: Append, location: StreamLocation) -> None:
        self.append = append
        self.location = location
        self.outcome: Outcome | None = None
        self.error: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is None and self.error is None


class _UnsyncedBatch:
    """A batch that is written to its file and not synced yet."""

    def __init__(
        self, item: _PendingAppend, locked_file: LockedFile, file: StreamFile, data: bytes
    ) -> None:
        self.item = item
        self._locked_file = locked_file
        self._file = file
        self._mark = DurableMark(name_is_durable=True, end=file.end + len(data), last=file.end)
        try:
            locked_file.disk.write(locked_file.fd, data, file.end)
        except OSError:
            self.cut()
            raise

    def sync(self) -> None:
        """Sync the batch, then advance the durable mark.

        If the mark cannot be written, the next writer redoes it.
        """
        try:
            self._locked_file.disk.sync(self._locked_file.fd)
        except OSError:
            self.cut()
            raise
        with contextlib.suppress(OSError):
            spare = self._file.file_header.spare
            set_mark(self._locked_file, self.item.location, self._mark, spare)

    def cut(self) -> None:
        """Truncate the batch: after a failed sync it may be in memory only, yet look stored."""
        with contextlib.suppress(OSError):
            self._locked_file.disk.truncate(self._locked_file.fd, self._file.end)


class Appender:
    """Appends to the streams of one store, and removes them."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._distrusted: set[str] = set()
        """Files with a failed sync: the next append writes a copy, on other disk blocks."""

    def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Return the outcomes in order; raise the first error after all were tried."""
        root = self._directory.root
        items = [_PendingAppend(append, locate_stream(root, append.stream)) for append in appends]
        # All processes lock in the same order, so that no two of them deadlock.
        ordered = sorted(items, key=lambda item: item.location.stem)
        for start in range(0, len(ordered), GROUP_SIZE):
            group = ordered[start : start + GROUP_SIZE]
            self._create([item for item in group if not os.path.lexists(item.location.path)])
            self._extend([item for item in group if item.is_open])
        for item in items:
            if item.error is not None:
                raise item.error
        return [item.outcome for item in items if item.outcome is not None]

    # New streams.

    def _create(self, items: list[_PendingAppend]) -> None:
        for _, group in itertools.groupby(items, key=lambda item: item.location.directory):
            folder_items = list(group)
            try:
                self._create_in_folder(folder_items)
            except (OSError, PerdureError) as error:
                for item in folder_items:
                    if item.is_open:
                        name = self._directory.name
                        item.error = translate_stream_error(error, item.location, name)

    def _create_in_folder(self, items: list[_PendingAppend]) -> None:
        first = items[0].location
        self._directory.create_folder(first)
        locks = LockedFiles(self._disk)
        try:
            names = self._directory.lock(locks, names_path(first.directory))
            new_files = []
            for item in items:
                outcome, entries = decide(item.append, None, lambda *_: ())
                if not entries:
                    item.outcome = outcome
                # If it exists, another process was faster: `_extend` retries.
                elif not os.path.lexists(item.location.path):
                    new_files.append((item, self._publish(item, locks)))
            if new_files:
                self._disk.sync_directory(first.directory)
            for item, new_file in new_files:
                item.outcome = STORED
                with contextlib.suppress(OSError):
                    new_file.confirm()
            add_names(self._disk, names.fd, [item.location for item, _ in new_files])
        finally:
            try:
                locks.close()
            except OSError:
                locks.close_rest()
                raise

    def _publish(self, item: _PendingAppend, locks: LockedFiles) -> NewFile:
        location, entries = item.location, item.append.entries
        if is_listed(self._disk, location):
            raise missing_file_error(location)
        first = entries[0].position
        at = len(encode_file_header(location.name, first))
        data = encode_batch(location, entries, item.append, at=at, previous_size=0)
        return publish_file(locks, location, first, [(at, data)])

    # Existing streams.

    def _extend(self, items: list[_PendingAppend]) -> None:
        locks = LockedFiles(self._disk)
        try:
            written: list[_UnsyncedBatch] = []
            for item in items:
                try:
                    batch = self._write(item, locks)
                    written += [batch] if batch is not None else []
                except (OSError, PerdureError) as error:
                    item.error = self._failed(error, item)
            for batch in written:
                try:
                    batch.sync()
                    batch.item.outcome = STORED
                except OSError as error:
                    if error.errno == errno.EIO:
                        self._distrusted.add(batch.item.location.stem)
                    batch.item.error = self._failed(error, batch.item)
        finally:
            try:
                locks.close()
            except OSError:
                locks.close_rest()
                raise

    def _failed(self, error: OSError | PerdureError, item: _PendingAppend) -> Exception:
        """Return the error to raise; a held lock or a per-file error concerns this stream only."""
        translated_error = translate_stream_error(error, item.location, self._directory.name)
        if isinstance(translated_error, UnavailableError):
            translated_error.single_stream = (
                not isinstance(error, OSError) or error.errno in _SINGLE_FILE_ERRNOS
            )
        return translated_error

    def _write(self, item: _PendingAppend, locks: LockedFiles) -> _UnsyncedBatch | None:
        location = item.location
        require_folder(location)
        locked_file = self._directory.lock(locks, location.path)
        file = recover(locked_file, location, to_write=True)
        if location.stem in self._distrusted:
            file = rewrite_file(locked_file, file, before=0)
            self._distrusted.discard(location.stem)
        batch, _ = file.head()
        outcome, entries = decide(
            item.append, file.listing_head(), lambda first, last: read_between(file, first, last)
        )
        if not entries:
            item.outcome = outcome
            return None
        data = encode_batch(location, entries, item.append, at=file.end, previous_size=batch.size)
        return _UnsyncedBatch(item, locked_file, file, data)

    # Removal.

    def remove(self, location: StreamLocation, digest: str) -> bool:
        """Remove a stream's file and name if its head has this digest; durable on return."""
        locks = LockedFiles(self._disk)
        try:
            names_file = self._directory.lock(locks, names_path(location.directory))
            try:
                locked_file = self._directory.lock(locks, location.path)
                file = recover(locked_file, location, to_write=True)
                if file.listing_head().digest != digest:
                    return False
                # The line first: a listed file must exist.
                clear_line(self._disk, names_file.fd, location)
                self._disk.unlink(location.path)
            except FileNotFoundError:  # Another process removed it, and its name too.
                return True
            for torn in Path(location.directory).glob(f"{location.stem}.torn-*"):
                self._disk.unlink(str(torn))
            self._disk.sync_directory(location.directory)
            return True
        finally:
            locks.close()


def read_between(file: StreamFile, first: int, last: int) -> list[Entry]:
    """Return the stored entries that cover any of these positions, without their bodies."""
    entries = (entry for entry, _ in file.forward(first - 1, max_body=-1))
    return [*itertools.takewhile(lambda entry: entry.position <= last, entries)]


def missing_file_error(location: StreamLocation) -> DamagedError:
    """Return the error for a stream whose file is missing although it is listed."""
    return DamagedError(location.name, 0, f"its file {location.path} is missing")


def translate_stream_error(error: Exception, location: StreamLocation, store: str) -> Exception:
    """Translate an error into the one to raise, with its cause set."""
    if isinstance(error, PerdureError):
        return error
    translated_error: PerdureError
    if isinstance(error, FileNotFoundError) and is_listed(Disk(), location):
        translated_error = missing_file_error(location)
    elif isinstance(error, FileNotFoundError):
        translated_error = UnavailableError(
            store, f"{location.name!r} was removed meanwhile", "read it again"
        )
    else:
        translated_error = translate_error(error, store, location.name)
    translated_error.__cause__ = error
    return translated_error
