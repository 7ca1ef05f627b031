"""Read a stream on both sides, from the beginning to the end, and compare. Pure.

What is equal byte for byte to a chain that was checked is a chain that was checked.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from perdure.backend import Head
from perdure.copying import asking as ask
from perdure.copying.asking import CopySteps, Progress
from perdure.copying.chain import Walk
from perdure.copying.plan import Refused, some
from perdure.journal import Linked


class Equal(NamedTuple):
    """How much was found to be equal."""

    entries: int
    bytes: int


def compared(head: Head, tell: Callable[[int], Progress]) -> CopySteps[Equal]:
    """Return how much of a stream is the same on both sides, which is all of it.

    `tell` makes a report, after each page, of how many entries that are.
    Raises Refused where they differ, and DamagedError where the source is not what was written.
    What the source has dropped meanwhile is dropped in the target.
    """
    walk = Walk("source", head, after=0, tip=None)
    entries = size = 0
    while not walk.ended:
        page = yield from walk.page()
        if not entries:
            yield from _begin_alike(head.stream, page[0].entry.position)
        yield from _equal(head.stream, page)
        entries += len(page)
        size += sum(len(one.entry.header) + len(one.entry.body or b"") for one in page)
        yield tell(entries)
    return Equal(entries, size)


def _begin_alike(name: str, first: int) -> CopySteps[None]:
    (there, *_) = yield from some("target", name)
    if there.position < first:
        yield from ask.drop(name, before=first)


def _equal(name: str, page: list[Linked]) -> CopySteps[None]:
    waiting = deque(linked.entry for linked in page)
    at = page[0].entry.position - 1
    while waiting:
        found = yield from ask.read("target", name, after=at, limit=len(waiting))
        if not found:
            raise Refused("damaged", "it is missing in the target", at + 1)
        for entry in found:
            wanted = waiting.popleft()
            if entry != wanted:
                reason = "what the target has is not what the source has"
                raise Refused("damaged", reason, wanted.position)
        at = found[-1].position
