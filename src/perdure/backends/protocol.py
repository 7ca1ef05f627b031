"""The backend protocol: what a store must do, and the plain values that it exchanges.

Entries are stored and returned unchanged; a backend never looks inside one. Authors of a backend
run `perdure.testing.BackendContract` against it.

An entry holds one or more records, and positions count records: an entry covers a range of them.

The concurrency rule is one sentence: *the first entry of an append must be the next one of its
stream, and link to its last one.* The digest that it links to is passed beside the entries, because
two histories of equal length differ only in that.

Rules for editing: optional abilities are declared capabilities with one method each, and each has
a chapter in the contract suite.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, cast, overload

from perdure.backends.fields import FieldOrder
from perdure.backends.guarantees import Guarantees
from perdure.errors import DamagedError, UnsupportedError

LABELS_MAX = 16  # labels; they are a listing filter: enough for states and a few tags

LABEL_BYTES_MAX = 128  # bytes of UTF-8; a caller's label has 64, which grow if it is encrypted


HEADER_MAX = 2**21  # bytes; headers are read with every entry; a record takes about 100 bytes of it


DELETED = "deleted"  # The only label on the head of a deleted session.


ATOMIC = "atomic"  # capability: the store implements `AtomicCapability`

ORDER = "order"  # capability: the store implements `OrderCapability`

RECENT = "recent"  # capability: the store implements `RecencyCapability`

CHECK = "check"  # capability: the store implements `CheckCapability`

CLOCK = "clock"  # capability: the store implements `ClockCapability`

REMOVE = "remove"  # capability: the store implements `RemovalCapability`

WATCH = "watch"  # capability: the store implements `WatchCapability`


class Entry(NamedTuple):
    """A header and a body as stored. `body` is None if `max_body` left it out.

    It covers as many positions as it has records, from `position` on.
    """

    position: int
    header: bytes
    body: bytes | None
    records: int = 1

    @property
    def last(self) -> int:
        """The last position that it covers."""
        return self.position + self.records - 1

    @property
    def size(self) -> int:
        """The bytes of header and body."""
        return len(self.header) + len(self.body or b"")


class Append(NamedTuple):
    """Entries of one stream, in order and without gaps, and its head's labels after them.

    A label may be a field and its value (`perdure.backends.fields`).

    `previous` is the digest of the entry before the first one, as in the head that it continues. If
    it is empty, the append `begins` its stream: earlier entries are a conflict.

    `snapshot` is a position for the head (`Head.snapshot`), given with every append as labels are.
    """

    stream: str
    entries: Sequence[Entry]
    labels: frozenset[str] = frozenset()
    previous: str = ""
    snapshot: int = 0

    @property
    def begins(self) -> bool:
        """Whether the entries are the first of their stream; they may have any position."""
        return not self.previous


class Outcome(NamedTuple):
    """The result of one append: `stored`, `conflict` or `refused`; the last two changed nothing."""

    status: Literal["stored", "conflict", "refused"]
    reason: str = ""


STORED = Outcome("stored")

CONFLICT = Outcome("conflict")


class Head(NamedTuple):
    """The end of a stream: its last position, the last entry's header, and the header's digest."""

    stream: str
    position: int
    digest: str
    labels: frozenset[str]
    header: bytes = b""
    """Empty unless asked for, or if the entry cannot be read, which reading the stream reports."""
    snapshot: int = 0
    """The position of the newest snapshot in the stream, where opening begins to read; 0: none.

    A store keeps the number of the newest append, and does not know what is there.
    """


class Backend(Protocol):
    """Keeps streams of entries for blocking callers. Any thread may call any method.

    Driver errors never escape: UnavailableError if the store cannot do it now, DamagedError if it
    read data that it cannot trust.
    """

    name: str
    """Identifies the store, without passwords. Persistent stores with equal names are the same."""

    capabilities: frozenset[str]
    """Optional abilities beyond these methods, by name: declared, never guessed."""

    guarantees: Guarantees
    """The promises of this store, with the settings that were checked when it was opened."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Store each append completely or not at all; on return it survives a crash.

        One commit covers all appends. The outcomes are in the order of the appends; a conflict in
        one stream does not affect the others. A stream without entries begins at any position, with
        an append that `begins` it; any other start is a gap. In a stream with entries:

        - the first entry is the next one of the stream, and `previous` is the digest of the head:
          *stored*; with another digest, the stream has another history: *conflict*;
        - entries with equal headers exist at those positions, all of them or the first ones, and
          the entry before them, unless it was dropped, has the digest `previous`: *stored*, and
          the missing ones are added (labels and `snapshot` are unchanged if none were missing);
        - different entries exist there, or a position was dropped: *conflict*;
        - the first entry would leave a gap: *refused*, or *conflict* if it `begins` the stream.

        UsageError if a header is longer than `HEADER_MAX`.

        A stream occurs at most once in a call. After an exception it is unknown what was stored:
        sending the same appends again resolves that.
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

        `after` is exclusive: reading starts with the entry that covers the next position in its
        direction, whole even if it covers `after` too; 0 starts at the beginning, or at the end in
        reverse. Bodies longer than `max_body` bytes are left out (None). An unknown stream is
        empty.
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
        headers: bool = False,
    ) -> Iterator[Head]:
        """Yield the heads of streams that have all the labels, by name in code point order.

        Streams with one of the labels `without` are left out. With an index, the cost does not
        depend on the number of deleted streams (those whose only label is `DELETED`). With
        `headers`, each head has the header of its last entry.
        """
        ...

    def drop(self, stream: str, *, before: int) -> None:
        """Remove the entries that end before a position; the last one of a stream always stays."""
        ...

    def close(self) -> None:
        """Release all resources. Closing twice is harmless; using it afterwards is not."""
        ...


class AsyncBackend(Protocol):
    """`Backend` for callers in an event loop."""

    name: str
    capabilities: frozenset[str]
    guarantees: Guarantees

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """As `Backend.append`. After a cancellation it is unknown what was stored."""
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
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `Backend.streams`."""
        ...

    async def drop(self, stream: str, *, before: int) -> None:
        """As `Backend.drop`."""
        ...

    async def close(self) -> None:
        """As `Backend.close`."""
        ...


def tenant_of(backend: "Backend | AsyncBackend") -> str:
    """Return the tenant whose streams a store shows: its attribute `tenant`; "" if it has none.

    Sessions name it in their headers, so that a stream moved to another tenant is refused.
    """
    return getattr(backend, "tenant", "")


class AtomicCapability(Protocol):
    """The method of a store with the capability `atomic`: append to several streams, all or none.

    Appends of one `Backend.append` are independent: one of them may conflict and the others not.
    """

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Store all appends or none, and return one outcome; on return they survive a crash.

        *Stored* if `Backend.append` would answer that to each of them, as for a resend after a
        lost reply. Otherwise nothing changes, and the outcome is that of the first other answer.
        """
        ...


class AsyncAtomicCapability(Protocol):
    """`AtomicCapability` for callers in an event loop."""

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """As `AtomicCapability.append_together`."""
        ...


@overload
def require_atomic(backend: Backend) -> AtomicCapability: ...


@overload
def require_atomic(backend: AsyncBackend) -> AsyncAtomicCapability: ...


def require_atomic(backend: Backend | AsyncBackend) -> AtomicCapability | AsyncAtomicCapability:
    """Return the backend typed as `AtomicCapability`, or raise UnsupportedError."""
    if ATOMIC not in backend.capabilities:
        reason = f"{backend.name} cannot write to several sessions in one commit"
        raise UnsupportedError(reason, "write to each session with its own session.batch()")
    return cast("AtomicCapability | AsyncAtomicCapability", backend)


class RecencyCapability(Protocol):
    """The method of a store with the capability `recent`: list streams by last change."""

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """Yield heads as `Backend.streams` does, but the most recently appended stream first.

        Each stream is yielded once; streams of one append call have no order among themselves.
        `drop`, and an append that had nothing to add, do not change the order. A stream that is
        appended to during the listing may appear at its old place, or at its new one if that is
        still ahead.
        """
        ...


class AsyncRecencyCapability(Protocol):
    """`RecencyCapability` for callers in an event loop."""

    def recent(
        self,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `RecencyCapability.recent`."""
        ...


@overload
def require_recent(backend: Backend) -> RecencyCapability: ...


@overload
def require_recent(backend: AsyncBackend) -> AsyncRecencyCapability: ...


def require_recent(backend: Backend | AsyncBackend) -> RecencyCapability | AsyncRecencyCapability:
    """Return the backend typed as `RecencyCapability`, or raise UnsupportedError."""
    if RECENT not in backend.capabilities:
        reason = f"{backend.name} cannot list sessions by last change"
        raise UnsupportedError(reason, "list them by id")
    return cast("RecencyCapability | AsyncRecencyCapability", backend)


class OrderCapability(Protocol):
    """The method of a store with the capability `order`: list streams by the value of a field."""

    def ordered(
        self,
        order: FieldOrder,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> Iterator[Head]:
        """Yield heads as `Backend.streams` does, but only those with the field, and in its order.

        The cost of a page does not depend on the number of streams. A stream whose field changes
        during the listing may be yielded at its old place, at its new one, or at both.
        """
        ...


class AsyncOrderCapability(Protocol):
    """`OrderCapability` for callers in an event loop."""

    def ordered(
        self,
        order: FieldOrder,
        *,
        prefix: str = "",
        labels: Collection[str] = (),
        without: Collection[str] = (),
        limit: int | None = None,
        headers: bool = False,
    ) -> AsyncIterator[Head]:
        """As `OrderCapability.ordered`."""
        ...


@overload
def require_order(backend: Backend) -> OrderCapability: ...


@overload
def require_order(backend: AsyncBackend) -> AsyncOrderCapability: ...


def require_order(backend: Backend | AsyncBackend) -> OrderCapability | AsyncOrderCapability:
    """Return the backend typed as `OrderCapability`, or raise UnsupportedError."""
    if ORDER not in backend.capabilities:
        reason = f"{backend.name} cannot list sessions by the values of a field"
        raise UnsupportedError(reason, "list them by id, and sort them")
    return cast("OrderCapability | AsyncOrderCapability", backend)


class RemovalCapability(Protocol):
    """The method of a store with the capability `remove`: remove a stream entirely.

    Sessions never use it, because a deleted session keeps its last entry. It is for tools that copy
    or test stores.
    """

    def remove(self, stream: str, *, digest: str) -> bool:
        """Remove a stream and its name, if its head still has this digest.

        True means that the stream does not exist, durably: it was removed without a trace, or never
        existed. False means that its head has another digest, and nothing changed.
        """
        ...


class AsyncRemovalCapability(Protocol):
    """`RemovalCapability` for callers in an event loop."""

    async def remove(self, stream: str, *, digest: str) -> bool:
        """As `RemovalCapability.remove`."""
        ...


@overload
def require_remove(backend: Backend) -> RemovalCapability: ...


@overload
def require_remove(backend: AsyncBackend) -> AsyncRemovalCapability: ...


def require_remove(backend: Backend | AsyncBackend) -> RemovalCapability | AsyncRemovalCapability:
    """Return the backend typed as `RemovalCapability`, or raise UnsupportedError."""
    if REMOVE not in backend.capabilities:
        reason = f"{backend.name} cannot remove a stream entirely"
        raise UnsupportedError(reason, "delete the session, which keeps its last entry")
    return cast("RemovalCapability | AsyncRemovalCapability", backend)


class WatchCapability(Protocol):
    """The method of a store with the capability `watch`: wait for appends."""

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        """Return True once a stream's head is beyond a position, at once if it already is.

        Return False after `timeout` seconds; None waits forever, 0 only checks. Appends of this
        process are seen at once, those of other processes a moment later; waiting costs next to
        nothing. Many threads may wait at a time, also for streams that do not exist yet. Closing
        the store ends the wait with UsageError.
        """
        ...


class AsyncWatchCapability(Protocol):
    """`WatchCapability` for callers in an event loop."""

    async def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as in `WatchCapability`
        """As `WatchCapability.watch`. It may be cancelled at any time."""
        ...


@overload
def require_watch(backend: Backend) -> WatchCapability: ...


@overload
def require_watch(backend: AsyncBackend) -> AsyncWatchCapability: ...


def require_watch(backend: Backend | AsyncBackend) -> WatchCapability | AsyncWatchCapability:
    """Return the backend typed as `WatchCapability`, or raise UnsupportedError."""
    if WATCH not in backend.capabilities:
        reason = f"{backend.name} cannot wait for records"
        raise UnsupportedError(reason, "use session.watch, which polls")
    return cast("WatchCapability | AsyncWatchCapability", backend)


class CheckCapability(Protocol):
    """The method of a store with the capability `check`: compare the store with itself."""

    def check(self, *, deep: bool = False) -> Iterator[DamagedError]:
        """Yield what is wrong with the store as a whole, and not what is wrong in one stream.

        At least: a stream that has entries and is in no list, and one that is not listed under a
        label of its head. That costs about as much as listing all streams. With `deep`, also what
        the engine itself can find by reading all of its files. Problems are yielded, never raised;
        a stream's problem names it. Streams that are written, created or removed meanwhile are no
        problem.
        """
        ...


class AsyncCheckCapability(Protocol):
    """`CheckCapability` for callers in an event loop."""

    def check(self, *, deep: bool = False) -> AsyncIterator[DamagedError]:
        """As `CheckCapability.check`."""
        ...


@overload
def require_check(backend: Backend) -> CheckCapability: ...


@overload
def require_check(backend: AsyncBackend) -> AsyncCheckCapability: ...


def require_check(backend: Backend | AsyncBackend) -> CheckCapability | AsyncCheckCapability:
    """Return the backend typed as `CheckCapability`, or raise UnsupportedError."""
    if CHECK not in backend.capabilities:
        reason = f"{backend.name} cannot compare itself with its lists"
        raise UnsupportedError(reason, "verify its sessions by their ids")
    return cast("CheckCapability | AsyncCheckCapability", backend)


class ClockCapability(Protocol):
    """The method of a store with the capability `clock`: return its server's time.

    It is for diagnosing why the recorded times of two machines differ; nothing else uses it.
    """

    def server_time(self) -> float:
        """Return the server's time, in seconds since 1970."""
        ...


def require_clock(backend: Backend) -> ClockCapability:
    """Return the backend typed as `ClockCapability`, or raise UnsupportedError."""
    if CLOCK not in backend.capabilities:
        raise UnsupportedError(f"{backend.name} has no server clock", "use this machine's clock")
    return cast("ClockCapability", backend)


HALF_COPIED = "half-copied"  # an unfinished copy; such a head has no other label but `DELETED`

UNFINISHED = frozenset({DELETED, HALF_COPIED})  # a copy within its store, hidden until it is whole


class StreamFilter:
    """Selects heads of a listing, by the prefix of their names and by their labels."""

    def __init__(
        self,
        prefix: str,
        labels: Collection[str],
        without: Collection[str],
        *,
        headers: bool = False,
    ) -> None:
        self.prefix = prefix
        self.labels = frozenset(labels)
        self.label = min(self.labels, default=None)
        """The label to look streams up by; a store may set the one that the fewest streams have."""
        self.label_is_rarest = False
        self.without = frozenset(without)
        self.matches_nothing = not self.labels.isdisjoint(self.without)
        """Whether no head can match."""
        self.only_live = DELETED in self.without
        """Whether an index without deleted streams contains all matches."""
        self.headers = headers
        self.is_narrow = bool(prefix or labels)
        """Whether a prefix or a label limits the listing, so that few heads may match."""

    def shown(self, head: Head) -> Head:
        """Return a head as the listing yields it: without its header, unless asked for."""
        return head if self.headers else head._replace(header=b"")

    def matches(self, head: Head) -> bool:
        """Return whether a head matches."""
        return (
            self.labels <= head.labels
            and self.without.isdisjoint(head.labels)
            and head.stream.startswith(self.prefix)
        )


def arrange(order: FieldOrder, heads: Iterable[Head]) -> list[Head]:
    """Return those of some heads that a listing in this order has, in this order."""
    keyed = [(order.key(head.stream, head.labels), head) for head in heads]
    chosen = [(key, head) for key, head in keyed if key is not None]
    return [head for _, head in sorted(chosen, key=lambda item: item[0], reverse=order.reverse)]
