"""I/O as yielded requests: generators request, a sync or async driver performs.

Every operation of several reads and writes (opening, catching up, branching) is written once, as a
generator that yields requests; `Driver` and `AsyncDriver` perform them. An error is thrown into
the generator at the request that failed, so `try` works there as usual.

Call the typed functions below with `yield from`. Only two requests are yielded directly: the commit
of every write, and the pages that windows and openings read backward.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from perdure.backends.protocol import Append, Entry, Head, Outcome
from perdure.journal.chain import BODY_MAX

T = TypeVar("T")

PAGE_BODY_MAX = 2**16  # bytes; entries with longer bodies are not read as part of a page


class Read(NamedTuple):
    stream: str
    after: int
    limit: int
    reverse: bool
    max_body: int = BODY_MAX
    """Longer bodies are left out."""


class Tail(NamedTuple):
    stream: str
    limit: int


class Heads(NamedTuple):
    prefix: str
    after: str
    labels: Collection[str]
    limit: int
    without: Collection[str] = ()
    headers: bool = False


class Commit(msgspec.Struct, frozen=True, gc=False):
    append: Append


class CommitTogether(NamedTuple):
    appends: Sequence[Append]


class Drop(NamedTuple):
    stream: str
    before: int


class Wait(NamedTuple):
    stream: str
    after: int
    timeout: float


class Keys(NamedTuple):
    """A request to the key store, which may be another store than the one of the sessions."""

    request: "Read | Heads | Commit | CommitTogether | Drop"


class Compute(NamedTuple):
    work: Callable[[], Any]


class ReloadKeys(NamedTuple):
    """Read the keys of an encrypted store again, because they were rotated."""


Request = Read | Tail | Heads | Commit | CommitTogether | Drop | Wait | Keys | ReloadKeys | Compute

Steps = Generator[Request, Any, T]


def read(
    stream: str, *, after: int, limit: int, reverse: bool = False, max_body: int = BODY_MAX
) -> Steps[Sequence[Entry]]:
    answer: Sequence[Entry] = yield Read(stream, after, limit, reverse, max_body)
    return answer


def heads(
    *,
    prefix: str,
    after: str = "",
    labels: Collection[str] = (),
    without: Collection[str] = (),
    limit: int,
    headers: bool = False,
) -> Steps[Sequence[Head]]:
    answer: Sequence[Head] = yield Heads(prefix, after, labels, limit, without, headers)
    return answer


def head(stream: str) -> Steps[Head | None]:
    """Return the head of one stream, or None."""
    # Listings are sorted by name, and a name sorts before all longer names that begin with it.
    page = yield from heads(prefix=stream, limit=1)
    return page[0] if page and page[0].stream == stream else None


def tail(stream: str, *, limit: int) -> Steps[tuple[Head | None, Sequence[Entry]]]:
    """Return the head of a stream, and entries back to the snapshot that it names, newest first.

    If it names none, the last `limit` entries or fewer. Long bodies are left out (`journal.pages`).
    """
    answer: tuple[Head | None, Sequence[Entry]] | None = yield Tail(stream, limit)
    if answer is not None:
        return answer
    newest = yield from head(stream)
    entries = yield from _tail_entries(stream, newest, limit)
    # The head must be read before the entries, or an end cut short would go unnoticed. Here the
    # stream was created between the two reads, so read both again in that order.
    if newest is None and entries:
        newest = yield from head(stream)
        entries = yield from _tail_entries(stream, newest, limit)
    return newest, entries


def _tail_entries(stream: str, newest: Head | None, limit: int) -> Steps[Sequence[Entry]]:
    if newest is None or not newest.snapshot:
        return (yield from read(stream, after=0, limit=limit, reverse=True, max_body=PAGE_BODY_MAX))
    after, count = newest.snapshot - 1, newest.position - newest.snapshot + 1
    return (yield from read(stream, after=after, limit=count, max_body=PAGE_BODY_MAX))[::-1]


def commit(append: Append) -> Steps[Outcome]:
    outcome: Outcome = yield Commit(append)
    return outcome


def commit_together(appends: Sequence[Append]) -> Steps[Outcome]:
    """Store appends to several streams, all or none; UnsupportedError if the store cannot."""
    outcome: Outcome = yield CommitTogether(appends)
    return outcome


def drop(stream: str, *, before: int) -> Steps[None]:
    yield Drop(stream, before)


def compute(work: Callable[[], T]) -> Steps[T]:
    """Return the result of a long computation. In an event loop, a thread does it."""
    answer: T = yield Compute(work)
    return answer


def wait(stream: str, *, after: int, timeout: float) -> Steps[bool]:
    """Wait up to `timeout` seconds; return whether a stream's head is beyond a position."""
    answer: bool = yield Wait(stream, after, timeout)
    return answer
