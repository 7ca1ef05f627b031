"""The scratch session that `perdure doctor` writes to and removes; it touches no other session.

Its name is one that no application uses, and all its records mark it as deleted, so listings hide
it. If the doctor is killed, `perdure verify` finds the session intact, and a later doctor run
removes it.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from perdure.backends.protocol import (
    DELETED,
    REMOVE,
    Append,
    Backend,
    Entry,
    require_remove,
    tenant_of,
)
from perdure.errors import PerdureError
from perdure.journal import chain, codec
from perdure.journal.chain import ChainTip, PendingRecord, StreamIdentity
from perdure.journal.cipher import PlainCipher
from perdure.journal.ids import random_text
from perdure.journal.key_store import OWN_PREFIX
from perdure.journal.records import Deleted

PREFIX = f"{OWN_PREFIX}doctor/"  # No session: a sealed store has only sealed ones.

LABELS = frozenset({DELETED})

REASON = "tried by perdure doctor"  # Stored: it identifies the records that may be removed.

LEFTOVER_AGE = 600.0  # Seconds; no doctor runs this long, so an older session was left behind.


class ScratchSession:
    """A scratch stream in a store, and entries that continue it."""

    def __init__(self, backend: Backend, reopen: Callable[[], Backend]) -> None:
        self.backend = backend
        self.name = f"{PREFIX}{random_text()}"
        self.reopen = reopen
        self.tip = chain.EMPTY_CHAIN
        self._streams: list[str] = []
        self._handles = ExitStack()

    def open_handle(self) -> Backend:
        """Return another handle on the store; it is closed on exit."""
        handle = self.reopen()
        if handle is not self.backend:
            self._handles.callback(handle.close)
        return handle

    def new_stream(self) -> str:
        """Return the name of another scratch stream; it is removed on exit."""
        self._streams.append(f"{self.name}-{len(self._streams)}")
        return self._streams[-1]

    def entry(self, tip: ChainTip, name: str = "") -> Entry:
        """Return a new, unique entry that continues the stream at `tip`."""
        content = Deleted(reason=REASON)
        draft = PendingRecord(f".{random_text()}", content, codec.encode(content))
        stream = StreamIdentity(name or self.name, "perdure-doctor", tenant_of(self.backend))
        at = chain.timestamp(time.time())
        entry, _ = chain.link_entry(stream, tip, [draft], time=at, cipher=PlainCipher())
        return entry

    def append(self) -> Append:
        """Return an append at the next position."""
        return Append(self.name, [self.entry(self.tip)], LABELS, self.tip.digest or "")

    def advance(self, append: Append) -> None:
        """Advance the tip after a stored append."""
        last = append.entries[-1]
        self.tip = ChainTip(last.last, chain.entry_digest(last))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._handles:
            for name in (self.name, *self._streams):
                remove_stream(self.backend, name)


def remove_stream(backend: Backend, name: str) -> bool:
    """Remove a stream, or, if the backend cannot, drop all but its last entry.

    Returns whether the stream is gone.
    """
    heads = backend.streams(prefix=name, limit=1)
    head = next((head for head in heads if head.stream == name), None)
    if head is None:
        return True
    if REMOVE in backend.capabilities:
        return require_remove(backend).remove(name, digest=head.digest)
    backend.drop(name, before=head.position)
    return False


def find_leftovers(backend: Backend) -> list[str]:
    """Return the scratch sessions that killed doctor runs left behind."""
    names = []
    for head in backend.streams(prefix=PREFIX, labels=LABELS):
        (last, *_) = backend.read(head.stream, limit=1, reverse=True, max_body=chain.BODY_MAX)
        if _age(head.stream, last) > LEFTOVER_AGE:
            names.append(head.stream)
    return names


def _age(name: str, entry: Entry) -> float:
    """Return the age of a doctor's entry in seconds; any other entry is never old enough."""
    try:
        linked = chain.verify_entry(name, entry).records[0]
        decoded = chain.decode_record(name, linked, PlainCipher())
        record = chain.to_record(name, linked, decoded)
    except PerdureError:
        return -float("inf")
    is_scratch = decoded.content == Deleted(reason=REASON)
    return time.time() - record.time.timestamp() if is_scratch else -float("inf")
