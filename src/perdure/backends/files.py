"""Streams as files of JSON lines in one directory, for the processes and threads of one machine.

    agent_state/
      perdure-store          says that the directory is a store, and of which version
      perdure-store.lock     held while folders are made
      5f/                    one folder for a 256th of the streams, by the SHA-256 of their names
        names                the names of the streams in this folder, and their files
        5f3a….jsonl          one stream; `files_lines` tells what is in it
        5f3a….torn-1         what a crash left of an append that was never acknowledged

Files are made for their owner only (0600, directories 0700), links are not followed, and no part
of a stream's name is part of a path.

Each stream has a lock of its own, which a writer holds until its bytes are synced. Readers take
it only if they find bytes that are not known to be durable: then they wait for the writer, or
find that it died and finish its work. Nothing is held between calls, so a process may fork.

What is dropped is gone from the stream's file at once. What was torn is kept as it is, even if it
holds entries that were stored again and dropped later; and the blocks of a disk that held a file
keep what was in it until they are used again.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from perdure.backend import REMOVE, WATCH, Append, Entry, Head, Outcome
from perdure.backends.files_appending import WRITE, Appender, failure, missing
from perdure.backends.files_disk import Disk, held, translated
from perdure.backends.files_names import Names, is_listed
from perdure.backends.files_root import VERSION, open_root, require_folder
from perdure.backends.files_stream import Place, StreamFile, place_of
from perdure.backends.files_writing import adopt, rewrite, settle
from perdure.backends.filesystem import ACCEPTABLE, refusal, why_read_only
from perdure.backends.rules import POSITION_MAX, Choice, check
from perdure.backends.watching import Watchers
from perdure.errors import DamagedError, PerdureError, UsageError
from perdure.guarantees import Acceptance, Check, Guarantees

PATIENCE = 60.0  # Seconds; a writer may have to wait for many syncs of a slow disk.
PAGE_ENTRIES = 256  # What is read in one go, so that a reader holds no file while it is away.
PAGE_BYTES = 2**20  # And it does not hold many long bodies in memory at once.
NO_BOUND = 2**63 - 1
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

T = TypeVar("T")


class FilesBackend:
    """Keeps streams in a directory. What `append` has stored survives the loss of power.

    The directory is made if it is missing; the one above it must exist. Waits up to `patience`
    seconds for other processes. May be used after `os.fork` in both processes. On a read-only
    medium, and without permission to write, streams can be read; writing is a UsageError. `accept`
    names weaknesses that are not to be refused (`perdure.guarantees`).
    """

    capabilities: frozenset[str] = frozenset({REMOVE, WATCH})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        patience: float = PATIENCE,
        disk: Disk | None = None,
        accept: Collection[str] = (),
    ) -> None:
        given = os.fspath(path)
        if not given or "\0" in given:
            raise UsageError(f"{given!r} is not a path")
        self.name = f"files:{given}"
        self._root = os.path.realpath(given)
        self._disk = disk or Disk()
        self._patience = patience
        self._closed = False
        acceptance = Acceptance(accept, ACCEPTABLE, store=self.name)
        with self._translating():
            place = open_root(
                self._disk, self._root, patience=patience, store=self.name, acceptance=acceptance
            )
        self._refusal = why_read_only(self._root)
        self.guarantees = _promised(place, acceptance, self._refusal)
        self._appender = Appender(self._disk, self._root, patience=patience, store=self.name)
        self.watchers = Watchers(lambda stream: place_of(self._root, stream).path)
        self._begin_in_this_process()

    def _begin_in_this_process(self) -> None:
        self._pid = os.getpid()
        self._listing = threading.Lock()
        self._names = Names(self._disk, self._root, patience=self._patience, store=self.name)

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`: each stream by itself, all of them synced.

        An error of one stream is raised after the others were served.
        """
        check(appends)
        self._require_open()
        self._require_writable()
        with self._translating():
            outcomes = self._appender.append(appends)
        self.watchers.ring(appends)
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
        """As `Backend.read`. What comes before a damaged entry is yielded before it raises.

        Damage that lies in no entry is raised at the end: who wants a few does not meet it.
        """
        place = place_of(self._root, stream)
        left = NO_BOUND if limit is None else limit
        bound = NO_BOUND if max_body is None else max_body
        hint = 0
        while left > 0:
            page = _Page(min(after, POSITION_MAX), min(left, PAGE_ENTRIES), bound, reverse=reverse)
            page.hint = hint
            error = self._load(place, page)
            yield from page.entries
            if error is not None:
                raise error
            if page.is_last:
                return
            left -= len(page.entries)
            after, hint = page.entries[-1].position, page.hint

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """As `Backend.streams`, by pages: what is written meanwhile may be listed or not.

        Heads are read from the files, so labels are always those of the last append.
        """
        left = NO_BOUND if limit is None else limit
        chosen = Choice(prefix, labels, without)
        if prefix and after < prefix and left > 0:
            # The first of all names that begin so, and often the only one that is asked for.
            head = self._head(prefix)
            after = prefix
            if head is not None and chosen.has(head):
                yield head
                left -= 1
        while left > 0:
            names, hidden = self._page_of_names(max(prefix, after), prefix)
            for name in names:
                head = self._head(name)
                if head is not None and chosen.has(head):
                    yield head
                    left -= 1
                    if not left:
                        return
            if len(names) < PAGE_ENTRIES:
                if hidden is not None:
                    raise hidden
                return
            after = names[-1]

    def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`, by a new file that takes the place of the old; durable on return."""
        self._require_open()
        self._require_writable()
        place = place_of(self._root, stream)
        with self._translating(place):
            if not self._is_there(place):
                return
            with held(
                self._disk, place.path, WRITE, patience=self._patience, store=self.name
            ) as lock:
                file = settle(self._disk, lock, place, to_write=True)
                _, head = file.head()
                if min(before, head) > file.opening.first:
                    rewrite(self._disk, lock, file, before=min(before, head))

    def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`; what was torn off the stream goes as well."""
        self._require_open()
        self._require_writable()
        place = place_of(self._root, stream)
        with self._translating(place):
            if not self._is_there(place):
                return True
            return self._appender.remove(place, digest)

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """As `Watch.watch`: whether others wrote is told by the stream's file."""
        return self.watchers.wait(stream, after, timeout, self._head)

    def close(self) -> None:
        """Refuse further calls; nothing else is held between them. Closing twice is harmless."""
        self._closed = True
        self.watchers.ring_all()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.name} is closed: open the store again")
        if self._pid != os.getpid():
            self._begin_in_this_process()  # Another thread of the parent may have held the lock.

    def _require_writable(self) -> None:
        if self._refusal:
            raise refusal(self.name, self._refusal)

    @contextlib.contextmanager
    def _translating(self, place: Place | None = None) -> Iterator[None]:
        try:
            yield
        except (OSError, MemoryError) as error:
            if place is not None:
                raise failure(error, place, self.name) from error
            raise translated(error, self.name) from error

    def _is_there(self, place: Place) -> bool:
        """Say whether a stream has a file; one that had a file once and has none is damaged."""
        require_folder(place)
        if os.path.lexists(place.path):
            return True
        if is_listed(self._disk, place) and not os.path.lexists(place.path):
            raise missing(place)
        return False

    def _using(self, place: Place, use: Callable[[StreamFile], T]) -> T | None:
        """Return what is made of a file whose whole batches are all durable; None without one."""
        self._require_open()
        if not self._is_there(place):
            return None
        with self._opened(place) as file:
            if file.is_settled:
                return use(file)
        try:
            with held(
                self._disk, place.path, WRITE, patience=self._patience, store=self.name
            ) as lock:
                return use(settle(self._disk, lock, place, to_write=False))
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
        with self._opened(place) as file:
            adopt(file)
            return use(file)

    @contextlib.contextmanager
    def _opened(self, place: Place, *, lenient: bool = False) -> Iterator[StreamFile]:
        fd = self._disk.open(place.path, os.O_RDONLY)
        try:
            yield StreamFile(self._disk, fd, place, lenient=lenient)
        finally:
            self._disk.close(fd)

    def _load(self, place: Place, page: "_Page") -> PerdureError | None:
        """Return what to raise once the entries read before it have been yielded."""
        try:
            with self._translating(place):
                page.is_last = self._using(place, page.load) is None or page.is_last
        except DamagedError as error:
            if error.position:
                return error
            return self._load_leniently(place, page, error)
        except PerdureError as error:
            return error
        return None

    def _load_leniently(
        self, place: Place, page: "_Page", damage: DamagedError
    ) -> PerdureError | None:
        """As `_load`, of a file whose first line is damaged. `streams` tells of that."""
        try:
            with self._translating(place), self._opened(place, lenient=True) as file:
                adopt(file)
                page.load(file)
        except DamagedError as error:
            return error if error.position else damage
        except PerdureError as error:
            return error
        return damage if page.is_last else None

    def _head(self, name: str) -> Head | None:
        place = place_of(self._root, name)
        with self._translating(place):
            return self._using(place, StreamFile.labelled_head)

    def _page_of_names(self, after: str, prefix: str) -> tuple[list[str], DamagedError | None]:
        self._require_open()
        with self._translating(), self._listing:
            return self._names.page(after, prefix, PAGE_ENTRIES)


def _promised(place: Check, acceptance: Acceptance, why_read_only: str) -> Guarantees:
    sync = "by the file system's own journal" if os.name == "nt" else "on"
    writing = (Check("writing", f"only reading: {why_read_only}", "unknown"),)
    return Guarantees(
        "process death" if place.verdict == "weak" else "power loss",
        "one process" if acceptance.taken else "one machine",
        "files of JSON lines, each synced before its append is answered: one sync for each stream"
        " of a call, so many sessions at once cost more than in one SQLite file",
        atomic="one append",
        engine="files",
        version=str(VERSION),
        checks=(*(writing if why_read_only else ()), Check("directory sync", sync), place),
        accepted=acceptance.taken,
    )


class _Page:
    """Some entries of one moment. What was read before an error stays in `entries`."""

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
        loaded = 0
        for entry, at in read(self.after, self.max_body, self.hint):
            self.hint = at
            self.entries.append(entry)
            loaded += len(entry.header) + len(entry.body or b"")
            if len(self.entries) == self.size or loaded > PAGE_BYTES:
                return True
        self.is_last = True
        return True
