"""Streams as files of JSON lines in one directory, shared by processes and threads of one machine.

    agent_state/
      perdure-store          marks the directory as a store, with its version
      perdure-store.lock     locked while folders are created
      5f/                    one folder for 1/256 of the streams, by the SHA-256 of their names
        names                the names of the streams in this folder, and their files
        5f3a….jsonl          one stream; `format` describes its lines
        5f3a….torn-1         bytes that a crash left of an append that was never acknowledged

Files are readable by their owner only (0600, directories 0700), symbolic links are not followed,
and no part of a stream's name is part of a path.

Each stream has its own lock, which a writer holds until its bytes are synced. A reader locks only
if it finds bytes that are not known to be durable: it waits for the writer, or finds that the
writer died and completes its work. It does not wait for a writer that was stopped: then it syncs
what is there itself. Nothing is held between calls, so a process may fork.

Dropped entries leave the stream's file at once. Torn bytes are kept unchanged, even if they contain
entries that were stored again and dropped later. Disk blocks keep the content of an old file until
the file system reuses them.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from perdure.backends.append_rules import POSITION_MAX, UNLIMITED, check
from perdure.backends.files.append import Appender, missing_file_error, translate_stream_error
from perdure.backends.files.directory import (
    VERSION,
    StoreDirectory,
    StreamNames,
    is_listed,
    require_folder,
)
from perdure.backends.files.disk import Disk, LockedFiles, lock_held_error, translate_error
from perdure.backends.files.recovery import accept_tail, recover, rewrite_file
from perdure.backends.files.stream_file import StreamFile, StreamLocation, locate_stream
from perdure.backends.filesystem import (
    ACCEPTABLE,
    read_only_error,
    resolve_path,
    why_read_only,
)
from perdure.backends.guarantees import Acceptance, Check, Guarantees
from perdure.backends.protocol import (
    CHECK,
    REMOVE,
    WATCH,
    Append,
    Entry,
    Head,
    Outcome,
    StreamFilter,
)
from perdure.backends.watchers import Watchers
from perdure.errors import DamagedError, PerdureError, UsageError

LOCK_TIMEOUT = 60.0  # seconds; a writer may queue behind many syncs of a slow disk

# seconds; longer than most syncs, after which a reader does the same work without the lock
READ_LOCK_TIMEOUT = 0.25

PAGE_ENTRIES = 256  # entries per page; the file is closed while the caller consumes a page

PAGE_BYTES = 2**20  # bytes per page; bounds the memory that long bodies take

READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


T = TypeVar("T")


class FilesBackend:
    """Stores streams in a directory. Entries that `append` has stored survive a power loss.

    The directory is created if it is missing; its parent must exist. A call waits up to `timeout`
    seconds for other processes. May be used after `os.fork` in both processes. On a read-only
    medium, or without write permission, streams can be read; writing raises UsageError. `accept`
    names weaknesses that are not to be refused (`perdure.backends.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({CHECK, REMOVE, WATCH})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = LOCK_TIMEOUT,
        disk: Disk | None = None,
        accept: Collection[str] = (),
    ) -> None:
        path_text = os.fspath(path)
        if not path_text or "\0" in path_text:
            raise UsageError(f"{path_text!r} is not a path")
        self.name = f"files:{path_text}"
        self._root = resolve_path(path_text, self.name)
        self._disk = disk or Disk()
        self._directory = StoreDirectory(self._disk, self._root, self.name, timeout)
        self._closed = False
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        with self._translate_errors():
            check = self._directory.open(acceptance)
        self._why_read_only = why_read_only(self._root)
        self.guarantees = _store_guarantees(check, acceptance, self._why_read_only)
        self._appender = Appender(self._directory)
        self.watchers = Watchers(lambda stream: locate_stream(self._root, stream).path)
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        self._names_lock = threading.Lock()
        self._waited: dict[str, int] = {}
        """Files whose lock a reader did not get, and their size at that time."""
        self._names = StreamNames(self._directory)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: each stream by itself, all of them synced.

        An error of one stream is raised after the others were served.
        """
        check(appends)
        self._require_writable()
        with self._translate_errors():
            outcomes = self._appender.append(appends)
        self.watchers.notify(appends)
        return outcomes

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """As `Backend.read`. Entries before a damaged one are yielded before it raises.

        Damage outside of entries is raised at the end: a read with a small limit does not reach it.
        """
        location = locate_stream(self._root, stream)
        remaining = UNLIMITED if limit is None else limit
        bound = UNLIMITED if max_body is None else max_body
        hint = 0
        while remaining > 0:
            page = _FilePage(
                min(after, POSITION_MAX), min(remaining, PAGE_ENTRIES), bound, reverse=reverse
            )
            page.hint = hint
            error = self._load(location, page)
            yield from page.entries
            if error is not None:
                raise error
            if page.is_last:
                return
            remaining -= len(page.entries)
            last, hint = page.entries[-1], page.hint
            after = last.position if reverse else last.last

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """As `Backend.streams`, by pages: a stream written meanwhile may be listed or not.

        Heads are read from the files, so labels are always those of the last append.
        """
        remaining = UNLIMITED if limit is None else limit
        stream_filter = StreamFilter(prefix, labels, without, headers=headers)
        if prefix and after < prefix and remaining > 0:
            # The prefix itself sorts first, and callers often want exactly that stream: look it up
            # directly instead of listing every folder.
            head = self._head(prefix)
            after = prefix
            if head is not None and stream_filter.matches(head):
                yield stream_filter.shown(head)
                remaining -= 1
        while remaining > 0:
            names, damage = self._page_of_names(max(prefix, after), prefix)
            for name in names:
                head = self._head(name)
                if head is not None and stream_filter.matches(head):
                    yield stream_filter.shown(head)
                    remaining -= 1
                    if not remaining:
                        return
            if len(names) < PAGE_ENTRIES:
                if damage is not None:
                    raise damage
                return
            after = names[-1]

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`: writes a new file that replaces the old one; durable on return."""
        self._require_writable()
        location = locate_stream(self._root, stream)
        with self._translate_errors(location):
            if not self._file_exists(location):
                return
            locks = LockedFiles(self._disk)
            try:
                locked_file = self._directory.lock(locks, location.path)
                file = recover(locked_file, location, to_write=True)
                _, head = file.head()
                if min(before, head) > file.file_header.first:
                    rewrite_file(locked_file, file, before=min(before, head))
            finally:
                locks.close()

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`; torn bytes of the stream are removed too."""
        self._require_writable()
        location = locate_stream(self._root, stream)
        with self._translate_errors(location):
            if not self._file_exists(location):
                return True
            return self._appender.remove(location, digest)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `WatchCapability.watch`: appends of other processes show in the stream's file."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def check(self, *, deep: bool = False) -> Iterator[DamagedError]:  # noqa: ARG002
        """As `CheckCapability.check`: the lists of names against the files, and the other way.

        Labels are in the files themselves. `deep` adds nothing: reading streams checks all else.
        """
        self._require_open()
        names = StreamNames(self._directory)  # Read anew, not as of the last listing.
        try:
            with self._translate_errors():
                names.refresh()
        except DamagedError as error:
            yield error
        yield from names.unreadable.values()
        for name in names.known:
            try:
                with self._translate_errors(locate_stream(self._root, name)):
                    self._file_exists(locate_stream(self._root, name))
            except DamagedError as error:
                yield error

    def close(self) -> None:
        """Refuse further calls; nothing else is held between them. Closing twice is harmless."""
        self._closed = True
        self.watchers.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        if self._pid != os.getpid():
            self._begin_in_this_process()  # A thread of the parent may have held the lock.

    def _require_writable(self) -> None:
        self._require_open()
        if self._why_read_only:
            raise read_only_error(self.name, self._why_read_only)

    @contextlib.contextmanager
    def _translate_errors(self, location: StreamLocation | None = None) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError) as error:
            if location is not None:
                raise translate_stream_error(error, location, self.name) from error
            raise translate_error(error, self.name) from error

    def _file_exists(self, location: StreamLocation) -> bool:
        """Return whether a stream has a file; a listed stream without one is damaged."""
        require_folder(location)
        if os.path.lexists(location.path):
            return True
        if is_listed(self._disk, location) and not os.path.lexists(location.path):
            raise missing_file_error(location)
        return False

    def _with_durable_file(
        self, location: StreamLocation, use: Callable[[StreamFile], T]
    ) -> T | None:
        """Call `use` with a file whose intact batches are all durable; None without a file.

        Recovery needs the lock and write access. While another process holds the lock, this one
        syncs the unsynced tail and accepts it. On read-only media it is accepted as it is.
        """
        self._require_open()
        if not self._file_exists(location):
            return None
        with self._disk.open(location.path) as open_file:
            file = StreamFile(self._disk, open_file.fileno(), location)
            if file.is_fully_synced:
                return use(file)
        # The file of a writer that was stopped stays as it is: wait for it only once.
        waited = self._waited.get(location.stem) == file.size
        timeout = 0.0 if waited else min(READ_LOCK_TIMEOUT, self._directory.timeout)
        locks = LockedFiles(self._disk)
        flags = os.O_RDWR
        try:
            locked_file = locks.try_lock(location.path, flags, timeout=timeout)
            if locked_file is not None:
                self._waited.pop(location.stem, None)
                return use(recover(locked_file, location, to_write=False))
            self._waited[location.stem] = file.size
        except OSError as error:
            if error.errno not in READ_ONLY_ERRNOS:
                raise
            flags = os.O_RDONLY
        finally:
            locks.close()
        with self._disk.open(location.path, flags) as open_file:
            file = StreamFile(self._disk, open_file.fileno(), location)
            if flags == os.O_RDWR:
                self._sync_tail(file, open_file.fileno())
            else:
                accept_tail(file)
            return use(file)

    def _sync_tail(self, file: StreamFile, fd: int) -> None:
        """Accept the tail of a file whose lock another process holds, once it is durable.

        It must be shown: the other process may be recovering an append that was acknowledged.
        """
        if file.size > file.end:
            self._disk.sync(fd)
        if not file.file_header.mark.name_is_durable:
            self._disk.sync_directory(file.location.directory)
        try:
            accept_tail(file)
        except DamagedError as error:  # Perhaps, or the other process cuts off a failed append.
            raise lock_held_error(self.name) from error

    def _load(self, location: StreamLocation, page: "_FilePage") -> PerdureError | None:
        """Load a page; return the error to raise after its entries were yielded."""
        try:
            with self._translate_errors(location):
                page.is_last = self._with_durable_file(location, page.load) is None or page.is_last
        except DamagedError as error:
            if error.position:
                return error
            return self._load_leniently(location, page, error)
        except PerdureError as error:
            return error
        return None

    def _load_leniently(
        self, location: StreamLocation, page: "_FilePage", damage: DamagedError
    ) -> PerdureError | None:
        """As `_load`, for a file whose first line is damaged.

        Entries are still returned, and the damage is raised after the last one. `streams` raises it
        too.
        """
        try:
            with self._translate_errors(location), self._disk.open(location.path) as open_file:
                file = StreamFile(self._disk, open_file.fileno(), location, lenient=True)
                accept_tail(file)
                page.load(file)
        except DamagedError as error:
            return error if error.position else damage
        except PerdureError as error:
            return error
        return damage if page.is_last else None

    def _head(self, name: str) -> Head | None:
        location = locate_stream(self._root, name)
        with self._translate_errors(location):
            return self._with_durable_file(location, StreamFile.listing_head)

    def _page_of_names(self, after: str, prefix: str) -> tuple[list[str], DamagedError | None]:
        self._require_open()
        with self._translate_errors(), self._names_lock:
            return self._names.page(after, prefix, PAGE_ENTRIES)


def _store_guarantees(check: Check, acceptance: Acceptance, why_read_only: str) -> Guarantees:
    sync = "by the file system's own journal" if os.name == "nt" else "on"
    writing = (Check("writing", f"read-only: {why_read_only}", "unknown"),)
    return Guarantees(
        "process death" if check.verdict == "weak" else "power loss",
        "one process" if acceptance.used else "one machine",
        "files of JSON lines, each synced before its append is answered: one sync for each stream"
        " of a call, so many sessions at once cost more than in one SQLite file",
        atomic="one append",
        engine="files",
        version=str(VERSION),
        checks=(*(writing if why_read_only else ()), Check("directory sync", sync), check),
        accepted=acceptance.used,
    )


class _FilePage:
    """Entries from one snapshot of a file; `entries` keeps those read before an error."""

    def __init__(self, after: int, size: int, max_body: int, *, reverse: bool) -> None:
        self.after = after
        self.size = size
        self.max_body = max_body
        self.reverse = reverse
        self.entries: list[Entry] = []
        self.hint = 0
        self.is_last = False

    def load(self, file: StreamFile) -> bool:
        read = file.backward if self.reverse else file.forward
        size = 0
        for entry, at in read(self.after, self.max_body, self.hint):
            self.hint = at
            self.entries.append(entry)
            size += entry.size
            if len(self.entries) == self.size or size > PAGE_BYTES:
                return True
        self.is_last = True
        return True
