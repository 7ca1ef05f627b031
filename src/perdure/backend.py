"""The waist: what a store must do, and the few plain values that cross it.

Entries come in and go out as they are; a backend never looks inside one. Whoever writes a backend
runs `perdure.testing.BackendContract` against it.

The concurrency rule is one sentence: *the first entry of an append must stand right after the
last one of its stream.* Positions are inside the entries, so there is no expected version to pass.
"""

from binascii import b2a_base64
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol, cast, overload

from perdure.errors import UnavailableError, UnsupportedError, UsageError
from perdure.guarantees import Guarantees

LABELS_MAX = 16  # A listing filter, not a data model: enough for states and a few tags.
LABEL_BYTES_MAX = 64  # Keeps the head of a stream within one small row.

DELETED = "deleted"  # What is left of a deleted session bears this label and no other.

RECENT = "recent"  # The capability of a store that has the method of `Recent`.
CLOCK = "clock"  # The capability of a store that has the method of `Timed`.
REMOVE = "remove"  # The capability of a store that has the method of `Removing`.
WATCH = "watch"  # The capability of a store that has the method of `Watch`.


class UnstorableError(UsageError):
    """The store has judged an append itself, and will never take it: what it can not hold."""


class UnmadeError(UnavailableError):
    """Nothing was made yet where a store is to be, and the address says not to make it."""


# To hash more than this at once, Python lets other threads run, and then waits until it is its turn
# again. That takes much longer than hashing a few pages: up to the second figure it goes in pieces.
_PIECE, _PIECES_MAX = 2047, 32 * 1024


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes in base64, as headers and heads carry it."""
    return digest_bytes(data).decode()


def digest_bytes(data: bytes) -> bytes:
    """The same, as a header holds it."""
    if len(data) <= _PIECE or len(data) > _PIECES_MAX:
        hashed = sha256(data)
    else:
        hashed = sha256(data[:_PIECE])
        for start in range(_PIECE, len(data), _PIECE):
            hashed.update(data[start : start + _PIECE])
    return b2a_base64(hashed.digest(), newline=False)


class Entry(NamedTuple):
    """A header and a body as stored. `body` is None where it was left out (`max_body`)."""

    position: int
    header: bytes
    body: bytes | None


class Append(NamedTuple):
    """Entries of one stream, in order and without gaps, and the labels of its head after them.

    `begins` says that they are the first: where other entries stand before them, it is a conflict.
    """

    stream: str
    entries: Sequence[Entry]
    labels: frozenset[str] = frozenset()
    begins: bool = False


class Outcome(NamedTuple):
    """What became of one append: `stored`, `conflict` (nothing changed) or `refused` (neither)."""

    status: Literal["stored", "conflict", "refused"]
    reason: str = ""


STORED = Outcome("stored")
CONFLICT = Outcome("conflict")


class Head(NamedTuple):
    """The end of a stream: its last position, and the digest of that entry's header."""

    stream: str
    position: int
    digest: str
    labels: frozenset[str]

    @property
    def id(self) -> str:
        """The session's id, which is the name of its stream."""
        return self.stream


class Backend(Protocol):
    """Keeps streams of entries for blocking callers. Any thread may call any method.

    Driver errors never escape: what the store can not do now is UnavailableError, what it read
    and can not trust is DamagedError.
    """

    name: str
    """Says which store, never a password. Of those that last, two of one name are the same."""

    capabilities: frozenset[str]
    """What it can do beyond these methods, by name: declared and not guessed."""

    guarantees: Guarantees
    """What this store keeps, with what was checked when it was opened."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store each append whole or not at all; on return what was stored survives a crash.

        One commit serves all appends, and one outcome answers each, in order; a conflict of one
        stream leaves the others alone. A stream without entries begins at position 1, or anywhere
        with an append that says that it `begins` it; otherwise that is a gap. In one that has some:

        - the first entry stands right after the last one: *stored*;
        - entries with equal headers stand at those positions already, all or the first of them:
          *stored*, with what was missing added (labels stay if nothing was missing);
        - others stand there, or the position was dropped: *conflict*;
        - the first entry would leave a gap: *refused*.

        An append that `begins` such a stream is a *conflict* in the first case and in the last.

        A stream occurs at most once in a call. After an exception nobody knows what was stored:
        sending the same appends again finds out.
        """
        ...

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> Iterator[Entry]:
        """Yield durable entries in order of position, or in reverse.

        `after` excludes: reading goes on beyond that position in its direction; 0 begins at
        either end. Bodies longer than `max_body` bytes are left out. An unknown stream is empty.
        """
        ...

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """Yield heads by name, in code point order, of streams that bear all the labels.

        Those that bear one of `without` are left out. Where a store can have an index, that takes
        no longer however many bear `DELETED` and no other.
        """
        ...

    def drop(self, stream: str, *, before: int) -> None:
        """Remove the entries before a position. The last entry of a stream always stays."""
        ...

    def close(self) -> None:
        """Let go of everything held. Closing twice is harmless; using it afterwards is not."""
        ...


class AsyncBackend(Protocol):
    """The same for callers in an event loop."""

    name: str
    capabilities: frozenset[str]
    guarantees: Guarantees

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`. When cancelled, nobody knows what was stored."""
        ...

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        limit: int | None = None,
        reverse: bool = False,
        max_body: int | None = None,
    ) -> AsyncIterator[Entry]:
        """As `Backend.read`."""
        ...

    def streams(
        self,
        *,
        prefix: str = "",
        after: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `Backend.streams`."""
        ...

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        ...

    async def close(self) -> None:
        """As `Backend.close`."""
        ...


class Recent(Protocol):
    """What a store with the capability `recent` does besides: it knows what changed last."""

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> Iterator[Head]:
        """Yield heads as `Backend.streams` does, but those first that were appended to last.

        Each stream comes once, those of one append call in any order among themselves. Dropping,
        and an append that had nothing to add, change no place. A stream that is appended to
        meanwhile may come at its former place, or at its new one if that is still ahead.
        """
        ...


class AsyncRecent(Protocol):
    """The same for callers in an event loop."""

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
    ) -> AsyncIterator[Head]:
        """As `Recent.recent`."""
        ...


@overload
def knowing_recency(backend: Backend) -> Recent: ...
@overload
def knowing_recency(backend: AsyncBackend) -> AsyncRecent: ...
def knowing_recency(backend: Backend | AsyncBackend) -> Recent | AsyncRecent:
    """Return a backend as one that knows what changed last, or raise UnsupportedError."""
    if RECENT not in backend.capabilities:
        reason = f"{backend.name} does not know which sessions changed last"
        raise UnsupportedError(reason, "list them by id")
    return cast("Recent | AsyncRecent", backend)


class Removing(Protocol):
    """What a store with the capability `remove` does besides: it can forget a stream whole.

    Sessions never ask for it, because a deleted one keeps its last entry. It is for tools that move
    or try stores.
    """

    def remove(self, stream: str, *, digest: str) -> bool:
        """Remove a stream with its name, if the digest of its last entry is this one.

        True means that it is gone, durably, as if it had never been, or was not there; False that
        it has another end, and nothing changed.
        """
        ...


class AsyncRemoving(Protocol):
    """The same for callers in an event loop."""

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `Removing.remove`."""
        ...


@overload
def able_to_remove(backend: Backend) -> Removing: ...
@overload
def able_to_remove(backend: AsyncBackend) -> AsyncRemoving: ...
def able_to_remove(backend: Backend | AsyncBackend) -> Removing | AsyncRemoving:
    """Return a backend as one that can forget a stream, or raise UnsupportedError."""
    if REMOVE not in backend.capabilities:
        reason = f"{backend.name} can not remove a stream whole"
        raise UnsupportedError(reason, "its last entry stays")
    return cast("Removing | AsyncRemoving", backend)


class Watch(Protocol):
    """What a store with the capability `watch` does besides: it waits for what others append."""

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """Return True once a stream's head stands after a position, at once if it does already.

        False when `timeout` seconds have passed; None waits for ever, 0 only looks. What this
        process appends is seen at once, what others append a moment later; waiting costs next to
        nothing. It may be called by many threads at a time, for streams that are not there yet.
        Closing the store ends the wait with UsageError.
        """
        ...


class AsyncWatch(Protocol):
    """The same for callers in an event loop."""

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as its twin
        """As `Watch.watch`. It may be cancelled at any time."""
        ...


@overload
def knowing_watch(backend: Backend) -> Watch: ...
@overload
def knowing_watch(backend: AsyncBackend) -> AsyncWatch: ...
def knowing_watch(backend: Backend | AsyncBackend) -> Watch | AsyncWatch:
    """Return a backend as one that waits for records, or raise UnsupportedError."""
    if WATCH not in backend.capabilities:
        reason = f"{backend.name} does not tell when records come"
        raise UnsupportedError(reason, "look now and then, as session.watch does")
    return cast("Watch | AsyncWatch", backend)


class Timed(Protocol):
    """What a store with the capability `clock` does besides: it is a server, and tells its time.

    For whoever asks why recorded times of two machines differ: nothing else goes by it.
    """

    def server_time(self) -> float:
        """Return the seconds since 1970 by the server's clock."""
        ...


def knowing_time(backend: Backend) -> Timed:
    """Return a backend as one that tells its server's time, or raise UnsupportedError."""
    if CLOCK not in backend.capabilities:
        raise UnsupportedError(f"{backend.name} has no clock of its own", "ask the machine's")
    return cast("Timed", backend)
