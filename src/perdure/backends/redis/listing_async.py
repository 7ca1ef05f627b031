"""Listings of a Redis store. Each bucket lists its streams in order; here they are merged.

A page of a bucket is a consistent view of one moment; the pages of several buckets are of several.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from perdure.backends.append_rules import UNLIMITED
from perdure.backends.fields import FieldOrder
from perdure.backends.protocol import DELETED, Head, StreamFilter, arrange
from perdure.backends.redis import scripts
from perdure.backends.redis.layout import (
    MAX_NAME,
    ServerCall,
    StoreLayout,
    decode_head,
    label_member,
    label_start,
)
from perdure.backends.redis.pool_async import AsyncRedisPool
from perdure.errors import UsageError

PAGE_ROWS = 256  # heads of one bucket at a time

FIRST_ROWS = 4  # heads of each of several buckets at first; most of a page is in a few of them

# Up to FEW matches of a filter are sorted. Of more, the listing is scanned; once FEW heads were
# skipped, up to MANY are sorted as well.
SORT_FEW_MAX = 1000  # streams

SORT_MANY_MAX = 20_000  # streams


class _Row(NamedTuple):
    """A head and its place in a listing."""

    key: Any
    time: float
    head: Head


class _Range:
    """A part of an index of one bucket, read page by page.

    `index` is as in the script `LIST`; `start` and `end` are in the direction of the listing.
    """

    def __init__(
        self, bucket: int, index: str, start: bytes, end: bytes, *, reverse: bool = False
    ) -> None:
        self.bucket = bucket
        self.index = index
        self.start = start
        self.end = end
        self.reverse = reverse
        self.rows: deque[_Row] = deque()
        self.is_finished = False
        self._size = 0

    def call(self, size: int, *, headers: bool, times: bool) -> ServerCall:
        """Return the call that reads the next page."""
        self._size = min(max(size, self._size * 4), PAGE_ROWS)
        bounds = (self.start, self.end, self._size)
        flags = (int(self.reverse), int(headers), int(times))
        return ServerCall(self.bucket, scripts.LIST, (self.index, *bounds, *flags))

    def take(self, found: Sequence[Any]) -> None:
        """Keep a page."""
        self.is_finished = len(found) < self._size
        for member, time, name, packed, header in found:
            key = -float(time) if self.index in "rd" else name if self.index == "n" else member
            self.rows.append(_Row(key, float(time or 0), decode_head(name, packed, header)))
        if found:
            member, time = found[-1][:2]
            self.start = b"(" + (time if self.index in "rd" else member)


class _Merge:
    """Ranges of all buckets, merged into one order."""

    def __init__(
        self, pool: AsyncRedisPool, ranges: list[_Range], *, headers: bool, times: bool = False
    ) -> None:
        self._pool = pool
        self._ranges = ranges
        self._reverse = ranges[0].reverse
        self._headers = headers
        self._times = times

    async def next_rows(self, wanted: int) -> list[_Row]:
        """Return the next rows; none means that there are no more."""
        size = min(max(wanted, 1), PAGE_ROWS)
        if len(self._ranges) > 1:
            size = max(FIRST_ROWS, 2 * size // len(self._ranges))
        empty = [part for part in self._ranges if not part.rows and not part.is_finished]
        if empty:
            calls = [part.call(size, headers=self._headers, times=self._times) for part in empty]
            for part, found in zip(empty, await self._pool.run(calls), strict=True):
                part.take(found)
        rows: list[_Row] = []
        # Until a range has no rows left: its next one could come before those of the others.
        while len(rows) < wanted and all(part.rows or part.is_finished for part in self._ranges):
            filled = [part for part in self._ranges if part.rows]
            if not filled:
                break
            choose = max if self._reverse else min
            rows.append(choose(filled, key=lambda part: part.rows[0].key).rows.popleft())
        return rows

    @property
    def is_finished(self) -> bool:
        """Whether there are no more rows."""
        return all(part.is_finished and not part.rows for part in self._ranges)


class AsyncListing:
    """A listing of the heads that match a filter."""

    def __init__(
        self, pool: AsyncRedisPool, stream_filter: StreamFilter, limit: int | None
    ) -> None:
        self._pool = pool
        self._layout: StoreLayout = pool.layout
        self._filter = stream_filter
        self._prefix = _encode(stream_filter.prefix)
        for label in (*stream_filter.labels, *stream_filter.without):
            _encode(label)
        self._remaining = UNLIMITED if limit is None else limit
        self._seen: set[str] = set()
        self._skipped = 0

    async def by_name(self, after: str) -> AsyncIterator[Head]:
        """Yield heads by name."""
        if self._is_empty:
            return
        await self._choose_label()
        merge = self._merge(self._name_ranges(_encode(after)))
        while not (merge.is_finished or self._is_empty):
            for head in self._take(await merge.next_rows(self._wanted())):
                yield head

    async def by_time(self) -> AsyncIterator[Head]:
        """Yield heads by their last append, newest first.

        A stream that is appended to meanwhile moves to the front: it comes last, unless it was
        yielded before.
        """
        if self._is_empty:
            return
        matching = await self._count() if self._filter.is_narrow else UNLIMITED
        merge = self._merge(self._time_ranges(b"+inf", b"-inf"))
        newest = 0.0
        while not (merge.is_finished or self._is_empty):
            if matching <= (SORT_FEW_MAX if self._skipped < SORT_FEW_MAX else SORT_MANY_MAX):
                rows = await self._matching_rows()
                rows.sort(key=lambda row: (-row.time, row.head.stream))
                for head in self._take(rows):
                    yield head
                return
            rows = await merge.next_rows(self._wanted())
            newest = newest or (rows[0].time if rows else 0.0)
            for head in self._take(rows):
                yield head
        late = self._merge(self._time_ranges(b"+inf", b"(%d" % newest))
        while newest and not (late.is_finished or self._is_empty):
            for head in self._take(await late.next_rows(PAGE_ROWS)):
                yield head

    async def by_field(self, order: FieldOrder) -> AsyncIterator[Head]:
        """Yield heads in the order of a field."""
        if self._is_empty:
            return
        if self._filter.is_narrow and await self._count() <= SORT_FEW_MAX:
            heads = [row.head for row in await self._matching_rows()]
            for head in arrange(order, heads)[: self._remaining]:
                yield head
            return
        merge = self._merge(self._field_ranges(order))
        while not (merge.is_finished or self._is_empty):
            for head in self._take(await merge.next_rows(self._wanted())):
                yield head

    @property
    def _is_empty(self) -> bool:
        """Whether nothing more is to be listed."""
        return self._remaining <= 0 or self._filter.matches_nothing

    def _merge(self, ranges: list[_Range], *, times: bool = False) -> _Merge:
        return _Merge(self._pool, ranges, headers=self._filter.headers, times=times)

    def _take(self, rows: list[_Row]) -> list[Head]:
        """Return those of some heads that match and are new, up to the limit."""
        heads = []
        for row in rows:
            if row.head.stream in self._seen or not self._filter.matches(row.head):
                self._skipped += 1
            elif self._remaining > 0:
                self._remaining -= 1
                self._seen.add(row.head.stream)
                heads.append(row.head)
        return heads

    def _wanted(self) -> int:
        """Return how many rows to look at next. Where few match, the pages of a range grow."""
        return min(self._remaining, PAGE_ROWS)

    async def _matching_rows(self) -> list[_Row]:
        """Return all matches."""
        merge = self._merge(self._name_ranges(b""), times=True)
        rows: list[_Row] = []
        while not merge.is_finished:
            page = await merge.next_rows(PAGE_ROWS)
            rows += [row for row in page if self._filter.matches(row.head)]
        return rows

    async def _count(self) -> int:
        """Return how many streams have the prefix and the rarest label."""
        await self._choose_label()
        return await self._sum_counts([*self._name_ranges(b"")])

    async def _choose_label(self) -> None:
        """Look streams up by the label that the fewest have, if there are several."""
        stream_filter = self._filter
        if len(stream_filter.labels) < 2 or stream_filter.label_is_rarest:  # noqa: PLR2004
            return
        counts = {}
        for label in sorted(stream_filter.labels):
            counts[label] = await self._sum_counts(self._label_ranges(label, b""))
        stream_filter.label = min(counts, key=lambda label: (counts[label], label))
        stream_filter.label_is_rarest = True

    async def _sum_counts(self, ranges: list[_Range]) -> int:
        calls = []
        for part in ranges:
            key = self._layout.key(part.bucket, part.index)
            calls.append(ServerCall(part.bucket, None, ("ZLEXCOUNT", key, part.start, part.end)))
        return sum(await self._pool.run(calls))

    def _name_ranges(self, after: bytes) -> list[_Range]:
        stream_filter = self._filter
        if stream_filter.label is not None:
            return self._label_ranges(stream_filter.label, after)
        start = b"(" + after if after >= self._prefix and after else b"[" + self._prefix
        end = b"(" + self._prefix + MAX_NAME
        ranges = [_Range(bucket, "n", start, end) for bucket in range(self._layout.buckets)]
        if not stream_filter.only_live:
            ranges += self._label_ranges(DELETED, after)
        return ranges

    def _label_ranges(self, label: str, after: bytes) -> list[_Range]:
        member = label_member(label)
        start = b"[" + member + self._prefix
        if after and after >= self._prefix:
            start = b"(" + member + after
        end = b"(" + member + self._prefix + MAX_NAME
        return [_LabelRange(bucket, "x", start, end) for bucket in range(self._layout.buckets)]

    def _time_ranges(self, start: bytes, end: bytes) -> list[_Range]:
        indexes = "r" if self._filter.only_live else "rd"
        return [
            _Range(bucket, index, start, end)
            for bucket in range(self._layout.buckets)
            for index in indexes
        ]

    def _field_ranges(self, order: FieldOrder) -> list[_Range]:
        low, high = order.labels
        start, end = b"[" + label_start(low), b"(" + label_start(high)
        if order.reverse:
            start, end = end, start
        if order.after is not None:
            value, name = order.after
            place = label_member(order.start + value, _encode(name))
            passed = place < start[1:] if order.reverse else place >= start[1:]
            start = b"(" + place if passed else start
        return [
            _Range(bucket, "x", start, end, reverse=order.reverse)
            for bucket in range(self._layout.buckets)
        ]


class _LabelRange(_Range):
    """The streams with one label, by name."""

    def take(self, found: Sequence[Any]) -> None:
        """Keep a page."""
        super().take(found)
        self.rows = deque(row._replace(key=row.head.stream.encode()) for row in self.rows)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r} is not encodable as UTF-8") from error
