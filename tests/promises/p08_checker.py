"""The list-append checker: it asks for one order in which all that was observed makes sense.

For a list that only grows the answer is simple: the final list is that order. What was
acknowledged is in it once, what a reader saw is a beginning of it, and nobody saw less than was
certain when they began, nor more than there could be when they ended.
"""

import bisect
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.promises.p08_processes import FOREVER, Done


class Stored(NamedTuple):
    """A message of the final history: where it stands, and how many its writer had seen."""

    position: int
    id: str
    saw: int


def digests(ids: Sequence[str]) -> list[str]:
    """Return for each length the digest of that many ids, so that a read is told in one line."""
    running, found = hashlib.sha256(), [""]
    for one in ids:
        running.update(one.encode() + b"\n")
        found.append(running.hexdigest()[:16])
    return found


def faults(operations: Sequence[Done], final: Sequence[Stored]) -> Iterator[str]:
    """Yield everything about a history that can not be."""
    appends = [done for done in operations if done.what == "append"]
    reads = [done for done in operations if done.what == "read"]
    yield from _lost_and_doubled(appends, final)
    yield from _stale(final)
    yield from _torn_reads(reads, final)
    yield from _backwards(_bounds(appends, reads, final))


def _lost_and_doubled(appends: Sequence[Done], final: Sequence[Stored]) -> Iterator[str]:
    count = Counter(stored.id for stored in final)
    where = {stored.id: stored.position for stored in final}
    sent: dict[str, list[Done]] = {}
    for done in appends:
        sent.setdefault(done.facts["id"], []).append(done)
    for one, tries in sent.items():
        acknowledged = [done for done in tries if isinstance(done.outcome, int)]
        unknown = any(done.outcome == "unknown" for done in tries)
        least, most = len(acknowledged), len(acknowledged) or int(unknown)
        if not least <= count[one] <= most:
            yield f"{one} was acknowledged {least} times and is there {count[one]} times"
        for done in acknowledged:
            if where.get(one) != done.outcome:
                yield f"{one} was acknowledged at {done.outcome}, and stands at {where.get(one)}"
    for one in count.keys() - sent.keys():
        yield f"{one} is there, and nobody sent it"


def _stale(final: Sequence[Stored]) -> Iterator[str]:
    for number, stored in enumerate(final):
        if stored.saw != number:
            yield f"stale view: {stored.id} is number {number}, its writer had seen {stored.saw}"


def _torn_reads(reads: Sequence[Done], final: Sequence[Stored]) -> Iterator[str]:
    known = digests([stored.id for stored in final])
    for done in reads:
        if done.outcome == "unknown":
            continue
        if done.outcome >= len(known) or known[done.outcome] != done.facts["digest"]:
            yield f"{done.who} read {done.outcome} messages that are no beginning of the history"


class Bound(NamedTuple):
    """From `begin` to `end` somebody saw the list: it had `least` items then, and `most`."""

    begin: int
    end: int
    least: int
    most: int
    who: str


def _bounds(appends: Sequence[Done], reads: Sequence[Done], final: Sequence[Stored]) -> list[Bound]:
    number = {stored.id: index for index, stored in enumerate(final)}
    found = [
        Bound(done.begin, done.end, done.outcome, done.outcome, f"{done.who} reading")
        for done in reads
        if done.outcome != "unknown"
    ]
    for done in appends:
        index = number.get(done.facts["id"])
        if isinstance(done.outcome, int) and index is not None:
            # Just before it took effect there were so many, and just after it one more.
            found.append(Bound(done.begin, done.end, index + 1, index, f"{done.who} appending"))
    return found


def _backwards(bounds: Sequence[Bound]) -> Iterator[str]:
    """What was certain when an operation ended is certain for all that begin later."""
    by_end = sorted((bound for bound in bounds if bound.end < FOREVER), key=lambda one: one.end)
    ends = [bound.end for bound in by_end]
    highest: list[int] = []
    for bound in by_end:
        highest.append(max(bound.least, highest[-1] if highest else 0))
    for bound in bounds:
        before = bisect.bisect_left(ends, bound.begin)
        if before and highest[before - 1] > bound.most:
            yield f"{bound.who} found {bound.most}, after {highest[before - 1]} had been there"
