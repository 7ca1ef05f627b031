"""Read a stream from both stores, from beginning to end, and compare. Pure.

Only the source's chain is verified: the target's is valid if it is equal byte for byte.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from perdure.backends.protocol import Head
from perdure.journal.chain import VerifiedEntry
from perdure.journal.copying import requests
from perdure.journal.copying.plan import CopyRefused, read_one
from perdure.journal.copying.requests import CopyProgress, CopySteps
from perdure.journal.copying.source import StreamReader


class CompareResult(NamedTuple):
    """The number of entries and bytes found equal."""

    entries: int
    bytes: int


def compare_stream(head: Head, progress: Callable[[int], CopyProgress]) -> CopySteps[CompareResult]:
    """Compare a stream in both stores and return its size; on return it is equal in both.

    `progress` builds a report from the number of entries compared, after each page.
    Raises CopyRefused if they differ, and DamagedError if the source is damaged.
    Entries that the source has dropped meanwhile are dropped in the target.
    """
    reader = StreamReader("source", head, after=0, tip=None)
    entries = size = 0
    while not reader.ended:
        page = yield from reader.page()
        if not entries:
            yield from _drop_leading(head.stream, page[0].entry.position)
        yield from _compare_page(head.stream, page)
        entries += len(page)
        size += sum(len(linked.entry.header) + len(linked.entry.body or b"") for linked in page)
        yield progress(entries)
    return CompareResult(entries, size)


def _drop_leading(name: str, first: int) -> CopySteps[None]:
    (target_first, *_) = yield from read_one("target", name)
    if target_first.position < first:
        yield from requests.drop(name, before=first)


def _compare_page(name: str, page: list[VerifiedEntry]) -> CopySteps[None]:
    expected = deque(linked.entry for linked in page)
    at = page[0].entry.position - 1
    while expected:
        entries = yield from requests.read("target", name, after=at, limit=len(expected))
        if not entries:
            raise CopyRefused("damaged", "it is missing in the target", at + 1)
        for entry in entries:
            source_entry = expected.popleft()
            if entry != source_entry:
                reason = "the target's entry differs from the source's"
                raise CopyRefused("damaged", reason, source_entry.position)
        at = entries[-1].position
