"""A session that `perdure doctor` writes to and takes away again; nothing else is touched.

It bears a name that no application uses, and all its records say that it was deleted, so listings
do not show it. If the doctor is killed, `perdure verify` finds it whole, and a later doctor removes
it.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from perdure import codec, journal
from perdure.backend import REMOVE, Append, Backend, Entry, able_to_remove
from perdure.cipher import Plain, random_text
from perdure.errors import PerdureError
from perdure.fold import DELETED
from perdure.journal import Draft, Stream, Tip
from perdure.records import Deleted

PREFIX = "perdure-doctor-"
LABELS = frozenset({DELETED})
REASON = "tried by perdure doctor"
FORGOTTEN = 600.0  # Seconds after which another doctor's session was surely left behind.


class Scratch:
    """A stream of its own in a store, and entries that continue it."""

    def __init__(self, backend: Backend, reopen: Callable[[], Backend]) -> None:
        self.backend = backend
        self.name = f"{PREFIX}{random_text()}"
        self.reopen = reopen
        self.tip = journal.EMPTY
        self._others: list[str] = []
        self._handles = ExitStack()

    def other(self) -> Backend:
        """Return another handle on the store, closed in the end."""
        found = self.reopen()
        if found is not self.backend:
            self._handles.callback(found.close)
        return found

    def stream(self) -> str:
        """Return the name of one more stream, taken away in the end."""
        self._others.append(f"{self.name}-{len(self._others)}")
        return self._others[-1]

    def entry(self, tip: Tip, name: str = "") -> Entry:
        """Return an entry, never the same twice, that continues the stream at a tip."""
        content = Deleted(reason=REASON)
        draft = Draft(f".{random_text()}", content, codec.encode(content))
        stream = Stream(name or self.name, "perdure-doctor")
        at = journal.timestamp(time.time())
        entries, _ = journal.link(stream, tip, [draft], time=at, cipher=Plain())
        return entries[0]

    def append(self) -> Append:
        """Return an append that comes next."""
        return Append(self.name, [self.entry(self.tip)], LABELS)

    def stored(self, append: Append) -> None:
        """Move the tip after an append that was stored."""
        last = append.entries[-1]
        self.tip = Tip(last.position, journal.digest(last))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._handles:
            for name in (self.name, *self._others):
                take_away(self.backend, name)


def take_away(backend: Backend, name: str) -> bool:
    """Remove a stream, or, where that can not be done, all of it but its last entry."""
    head = next((one for one in backend.streams(prefix=name, limit=1) if one.stream == name), None)
    if head is None:
        return True
    if REMOVE in backend.capabilities:
        return able_to_remove(backend).remove(name, digest=head.digest)
    backend.drop(name, before=head.position)
    return False


def left_behind(backend: Backend) -> list[str]:
    """Return the sessions that doctors left behind who were killed long ago."""
    found = []
    for head in backend.streams(prefix=PREFIX, labels=LABELS):
        (last, *_) = backend.read(head.stream, limit=1, reverse=True)
        if _age(head.stream, last) > FORGOTTEN:
            found.append(head.stream)
    return found


def _age(name: str, entry: Entry) -> float:
    """Return how old an entry of a doctor is; anything else is not old enough to be removed."""
    try:
        linked = journal.inspect(name, entry)
        content = journal.decode(name, linked, Plain())
        record = journal.record(name, linked, content)
    except PerdureError:
        return -float("inf")
    ours = content == Deleted(reason=REASON)
    return time.time() - record.time.timestamp() if ours else -float("inf")
