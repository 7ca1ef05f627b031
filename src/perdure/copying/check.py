"""Read a stream from both stores, from beginning to end, and compare. Pure.

Only the source's chain is verified: the target's is valid if it is equal byte for byte.
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
    """The number of entries and bytes found equal."""

    entries: int
    bytes: int


def compared(head: Head, progress: Callable[[int], Progress]) -> CopySteps[Equal]:
    """Compare a stream in both stores and return its size; on return it is equal in both.

    `progress` builds a report from the number of entries compared, after each page.
    Raises CopyRefused if they differ, and DamagedError if the source is damaged.
    Entries that the source has dropped meanwhile are dropped in the target.
    """
    reader = Walk("source", head, after=0, tip=None)
    entries = size = 0
    while not reader.ended:
        page = yield from reader.page()
        if not entries:
            yield from _begin_alike(head.stream, page[0].entry.position)
        yield from _equal(head.stream, page)
        entries += len(page)
        size += sum(len(linked.entry.header) + len(linked.entry.body or b"") for linked in page)
        yield progress(entries)
    return Equal(entries, size)


def _begin_alike(name: str, first: int) -> CopySteps[None]:
    (target_first, *_) = yield from some("target", name)
    if target_first.position < first:
        yield from ask.drop(name, before=first)


def _equal(name: str, page: list[Linked]) -> CopySteps[None]:
    expected = deque(linked.entry for linked in page)
    at = page[0].entry.position - 1
    while expected:
        entries = yield from ask.read("target", name, after=at, limit=len(expected))
        if not entries:
            raise Refused("damaged", "it is missing in the target", at + 1)
        for entry in entries:
            source_entry = expected.popleft()
            if entry != source_entry:
                reason = "the target's entry differs from the source's"
                raise Refused("damaged", reason, source_entry.position)
        at = entries[-1].position
