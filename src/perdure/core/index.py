"""The index: find the record of a caller's id, however long ago it was stored. Pure.

In: the runs that the state cites, and the ids since the newest run. Out: steps that return the
positions of an id, or the `index` records of a new run.

A run is 2**bits `index` records (pages) at consecutive positions. Its rows are 16 bytes: the first
8 of the SHA-256 of an id, and the position of its record. They are sorted. Digests are uniformly
distributed, so the first bits of one are the number of its page: a look-up reads one page of each
run, and the record, to compare the whole id. Two ids with equal digests are two rows.

New ids are written as a run right before each snapshot. To keep the runs few, the new run replaces
some of the newest ones and takes over their rows (`count_to_merge`). Runs are in order of time, so
the newest row of an id is found first.

To edit: pages are stored, so the form of rows and the choice of the page must not change. Limits
may change: every run says how many pages it has.
"""

import sys
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from perdure.core.state.session_state import IndexRun
from perdure.errors import ChainError, DamagedError, NotFoundError, PayloadError
from perdure.journal import chain, dropped, key_store, reader, requests
from perdure.journal.chain import VerifiedRecord
from perdure.journal.reader import History
from perdure.journal.records import IndexPage
from perdure.journal.requests import Steps

DIGEST_BYTES = 8

ROW_BYTES = 16

PAGE_ROWS = 512  # rows; at most, on average: a page of 11 kB is read for each look-up

RUNS_MAX = 5  # runs; a look-up reads a page of each; fewer would be written more often

RUN_ROWS_MAX = 2**18  # rows; larger runs are not made, so that an append stays below 6 MB

CACHE_PAGES = 1024  # pages; a full run and all smaller ones, at most 12 MB of memory


class CachedPage(NamedTuple):
    """A page as look-ups use it: its rows, and their digests as numbers, which bisect in C."""

    rows: bytes
    digests: Sequence[int]

    @classmethod
    def of(cls, rows: bytes) -> "CachedPage":
        """Return a page with these rows."""
        words = array("Q", rows)
        if sys.byteorder == "little":
            words.byteswap()
        return cls(rows, words[::2])

    def positions(self, digest: int) -> list[int]:
        """Return the positions of a digest, newest first."""
        first = last = bisect_left(self.digests, digest)
        if last == len(self.digests) or self.digests[last] != digest:
            return []  # The usual case: the id is new.
        while last < len(self.digests) and self.digests[last] == digest:
            last += 1
        rows = split_rows(self.rows[first * ROW_BYTES : last * ROW_BYTES])
        return [int.from_bytes(row[DIGEST_BYTES:]) for row in reversed(rows)]


class IndexCache:
    """The pages that a handle used last, by position. Pages never change.

    Threads that read a session share it without a lock: each operation on the dict is atomic, and
    none relies on the one before. At worst a page is read twice.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[int, CachedPage] = OrderedDict()

    def get(self, position: int) -> CachedPage | None:
        """Return a page, or None if it is not cached."""
        page = self._pages.pop(position, None)
        if page is not None:
            self._pages[position] = page  # At the end: it was used last.
        return page

    def put(self, position: int, rows: bytes) -> CachedPage:
        """Add a page that is stored; drop the one that was not used for longest."""
        page = self._pages[position] = CachedPage.of(rows)
        while len(self._pages) > CACHE_PAGES:
            self._pages.popitem(last=False)
        return page


def digest_id(key: str) -> bytes:
    """Return the digest of an id or identity in a row."""
    return sha256(key.encode()).digest()[:DIGEST_BYTES]


def page_of(digest: int, bits: int) -> int:
    """Return the page of a run with 2**bits pages that has the rows of a digest."""
    return digest >> (8 * DIGEST_BYTES - bits)


def read_page(past: History, cache: IndexCache, run: IndexRun, page: int) -> Steps[CachedPage]:
    """Read a page of a run, and cache it."""
    (rows,) = yield from _read_pages(past, run, page, 1)
    return cache.put(run.first + page, rows)


def _read_pages(past: History, run: IndexRun, page: int, count: int) -> Steps[list[bytes]]:
    """Read pages of a run; raise DamagedError if one is missing, altered or another record."""
    first, pages = run.first + page, []
    stream = past.segment(first).stream
    records: dict[int, VerifiedRecord] = {}
    for entry in (yield from requests.read(stream.session, after=first - 1, limit=count)):
        verified = chain.verify_entry(stream.session, entry)
        chain.require_same_stream(stream, verified)
        if past.cipher.is_placed:
            yield from key_store.load_keys(past.cipher, verified.header)
        records.update({record.position: record for record in verified.records})
    for number in range(count):
        linked = records.get(first + number)
        if linked is None:
            linked = yield from dropped.explain_missing(stream.session, first + number, past.cipher)
        content = chain.decode_content(stream.session, linked, past.cipher)
        content = reader.require_kind(stream.session, first + number, content, IndexPage)
        if (content.page, content.bits) != (page + number, run.bits):
            raise ChainError(stream.session, first + number, "it is a page of another index run")
        pages.append(decode_rows(stream.session, first + number, content))
    return pages


def decode_rows(name: str, position: int, content: IndexPage) -> bytes:
    """Return the rows of a page; raise PayloadError if they cannot be decoded."""
    try:
        rows = b64decode(content.rows, validate=True)
    except ValueError as error:
        raise PayloadError(name, position, "an unreadable index page") from error
    if len(rows) % ROW_BYTES:
        raise PayloadError(name, position, "an index page that ends within a row")
    return rows


def split_rows(rows: bytes) -> list[bytes]:
    """Return the rows of a page, or of pages in order, one by one."""
    return [rows[start : start + ROW_BYTES] for start in range(0, len(rows), ROW_BYTES)]


def encode_row(key: str, position: int) -> bytes:
    """Return the row of an id."""
    return digest_id(key) + position.to_bytes(ROW_BYTES - DIGEST_BYTES)


def make_run(
    past: History, cache: IndexCache, runs: Sequence[IndexRun], ids: Mapping[str, int]
) -> Steps[list[IndexPage]]:
    """Return the pages of a run for new ids, which replaces some of the newest runs."""
    rows = [encode_row(key, position) for key, position in ids.items()]
    merged, count = 0, count_to_merge([run.size for run in runs], len(rows))
    while merged < count:
        try:
            rows += yield from _read_run(past, cache, runs[-1 - merged])
        except (DamagedError, NotFoundError):
            # Appending must not depend on old pages. A damaged run stays in the index, so that
            # look-ups raise the damage; a deletion in the meantime is a conflict for the commit.
            break
        merged += 1
    return encode_run(sorted(rows), merged)


def count_to_merge(runs: Sequence[int], new: int) -> int:
    """Return how many of the newest runs a run of new ids replaces, given their numbers of rows.

    At most RUNS_MAX runs remain, besides those that are full: with all newer ones, their rows would
    exceed RUN_ROWS_MAX. Earlier merges pay off where sizes are similar; the ratio makes n flushes
    write a row about n**(1/5) times, near the optimum for five runs (k-binomial merging).
    """
    total, open_runs = new, 0
    for size in reversed(runs):
        if total + size > RUN_ROWS_MAX:
            break
        total += size
        open_runs += 1
    ratio = (total / new) ** (1 / RUNS_MAX) / 2
    merged, rows = 0, new
    while merged < open_runs:
        size = runs[-1 - merged]
        if open_runs - merged < RUNS_MAX and rows * ratio <= size:
            break
        rows += size
        merged += 1
    return merged


def _read_run(past: History, cache: IndexCache, run: IndexRun) -> Steps[list[bytes]]:
    """Return all rows of a run."""
    pages: list[bytes] = []
    while len(pages) < 1 << run.bits:
        cached = cache.get(run.first + len(pages))
        if cached is not None:
            pages.append(cached.rows)
            continue
        limit = min((1 << run.bits) - len(pages), reader.PAGE)
        pages += yield from _read_pages(past, run, len(pages), limit)
    rows = split_rows(b"".join(pages))
    if len(rows) != run.size:
        reason = f"the index run that begins here has {len(rows)} rows, not {run.size}"
        raise ChainError(past.stream.session, run.first, reason)
    return rows


def split_pages(rows: Sequence[bytes], page_rows: int) -> list[Sequence[bytes]]:
    """Return sorted rows, which begin with a digest, as 2**bits pages by the first bits of that."""
    bits = max(0, (len(rows) - 1) // page_rows).bit_length()
    shift = 8 * DIGEST_BYTES - bits
    starts = [
        *(bisect_left(rows, (page << shift).to_bytes(DIGEST_BYTES)) for page in range(1 << bits)),
        len(rows),
    ]
    return [rows[start:end] for start, end in pairwise(starts)]


def encode_run(rows: Sequence[bytes], merged: int) -> list[IndexPage]:
    """Return sorted rows as pages of a run that replaces some of the newest runs."""
    pages = split_pages(rows, PAGE_ROWS)
    last = len(pages) - 1
    return [
        IndexPage(
            rows=b64encode(b"".join(page)).decode(),
            page=number,
            bits=last.bit_length(),
            size=len(rows) if number == last else 0,
            merged=merged if number == last else 0,
        )
        for number, page in enumerate(pages)
    ]


def rows_since(
    past: History, cache: IndexCache, runs: Sequence[IndexRun], ids: Mapping[str, int], first: int
) -> Steps[list[bytes]]:
    """Return the rows of all ids from a position on, sorted."""
    rows = [encode_row(key, position) for key, position in ids.items()]
    for run in runs:
        rows += yield from _read_run(past, cache, run)
    return sorted(row for row in rows if int.from_bytes(row[DIGEST_BYTES:]) >= first)
