"""What copying asks of two stores, as requests that a driver of either colour carries out. Pure.

Steps yield an `Ask` and get the answer back; now and then they yield a `Progress`.
Code calls the typed functions below with `yield from`.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from perdure.backend import Append, Entry, Head, Outcome
from perdure.errors import DamagedError
from perdure.steps import Drop, Heads, Read

T = TypeVar("T")
Side = Literal["source", "target"]
Phase = Literal["counting", "copying", "verifying"]


class Send(NamedTuple):
    appends: Sequence[Append]


class Remove(NamedTuple):
    stream: str
    digest: str


class Ask(NamedTuple):
    side: Side
    request: Read | Heads | Send | Drop | Remove


class Listed(NamedTuple):
    """A page of heads, and what kept the store from listing more of them."""

    heads: Sequence[Head]
    damage: DamagedError | None


class Progress(NamedTuple):
    """How far a copy is. Totals are those of the first look: writers may have gone on since.

    While that one is counting, they are 0.
    """

    phase: Phase
    sessions: int
    of_sessions: int
    entries: int
    of_entries: int
    bytes: int
    round: int


CopySteps = Generator[Ask | Progress, Any, T]


def read(
    side: Side, stream: str, *, after: int, limit: int, reverse: bool = False
) -> CopySteps[Sequence[Entry]]:
    """Return entries in order, fewer than the limit where they are long, but at least one."""
    answer: Sequence[Entry] = yield Ask(side, Read(stream, after, limit, reverse))
    return answer


def heads(
    side: Side, *, prefix: str, after: str, labels: Collection[str] = (), limit: int
) -> CopySteps[Listed]:
    answer: Listed = yield Ask(side, Heads(prefix, after, labels, limit))
    return answer


def head(side: Side, stream: str) -> CopySteps[Head | None]:
    """Return the head of one stream, None if there is none; DamagedError if it can not be read."""
    listed = yield from heads(side, prefix=stream, after="", limit=1)
    if listed.damage is not None:
        raise listed.damage
    found = listed.heads
    return found[0] if found and found[0].stream == stream else None


def send(appends: Sequence[Append]) -> CopySteps[Sequence[Outcome]]:
    answer: Sequence[Outcome] = yield Ask("target", Send(appends))
    return answer


def drop(stream: str, *, before: int) -> CopySteps[None]:
    yield Ask("target", Drop(stream, before))


def remove(stream: str, *, digest: str) -> CopySteps[bool]:
    answer: bool = yield Ask("target", Remove(stream, digest))
    return answer
