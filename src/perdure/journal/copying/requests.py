"""The I/O of a copy between two stores, as requests that a sync or async driver performs. Pure.

Steps yield a `StoreRequest` and receive its result; now and then they yield a `CopyProgress`.
Call the typed functions below with `yield from`.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from perdure.backends.protocol import Append, Entry, Head, Outcome
from perdure.errors import DamagedError
from perdure.journal.requests import Drop, Heads, Read

T = TypeVar("T")

Side = Literal["source", "target"]

Phase = Literal["counting", "copying", "verifying"]


class Send(NamedTuple):
    appends: Sequence[Append]


class Remove(NamedTuple):
    stream: str
    digest: str


class CheckStore(NamedTuple):
    deep: bool


class StoreRequest(NamedTuple):
    side: Side
    request: Read | Heads | Send | Drop | Remove | CheckStore


class HeadPage(NamedTuple):
    """A page of heads, and the damage that kept the store from listing more."""

    heads: Sequence[Head]
    damage: DamagedError | None


class CopyProgress(NamedTuple):
    """The progress of a copy. Totals are from the initial count; writers may have added since.

    During that count (phase `counting`) the totals are 0.
    """

    phase: Phase
    sessions: int
    of_sessions: int
    records: int
    of_records: int
    bytes: int
    round: int


CopySteps = Generator[StoreRequest | CopyProgress, Any, T]


def read(
    side: Side, stream: str, *, after: int, limit: int, reverse: bool = False
) -> CopySteps[Sequence[Entry]]:
    """Return entries in order: fewer than the limit if they are long, but at least one if any."""
    answer: Sequence[Entry] = yield StoreRequest(side, Read(stream, after, limit, reverse))
    return answer


def heads(
    side: Side, *, prefix: str, after: str, labels: Collection[str] = (), limit: int
) -> CopySteps[HeadPage]:
    answer: HeadPage = yield StoreRequest(side, Heads(prefix, after, labels, limit))
    return answer


def head(side: Side, stream: str) -> CopySteps[Head | None]:
    """Return the head of one stream, or None; raise DamagedError if it cannot be read."""
    page = yield from heads(side, prefix=stream, after="", limit=1)
    if page.damage is not None:
        raise page.damage
    first = page.heads[0] if page.heads else None
    return first if first is not None and first.stream == stream else None


def send(appends: Sequence[Append]) -> CopySteps[Sequence[Outcome]]:
    answer: Sequence[Outcome] = yield StoreRequest("target", Send(appends))
    return answer


def drop(stream: str, *, before: int) -> CopySteps[None]:
    yield StoreRequest("target", Drop(stream, before))


def remove(stream: str, *, digest: str) -> CopySteps[bool]:
    answer: bool = yield StoreRequest("target", Remove(stream, digest))
    return answer


def check(side: Side, *, deep: bool) -> CopySteps[Sequence[tuple[str, str]]]:
    """Return what is wrong with a store: a session, or "" for the store itself, and the reason.

    Nothing, if the store cannot compare itself with its lists.
    """
    answer: Sequence[tuple[str, str]] = yield StoreRequest(side, CheckStore(deep))
    return answer
