"""Callers' ids whose records were compacted: recognized, and told from others, without the records.

In: the records that a compaction drops. Out: `ids.dropped` pages, and steps that look an id up in
them. A row has the first 8 bytes of the id's SHA-256, the position of its record, its kind, and 8
bytes that tell its content from another. A repeated call is thereby still recognized, and other
content under the same id is still refused.

To edit: pages are stored, so the form of rows must not change.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import ClassVar, NamedTuple

from perdure.core import index
from perdure.core.state.session_state import INPUT_SUFFIX, IndexRun
from perdure.errors import DivergenceError, PayloadError
from perdure.journal import reader
from perdure.journal.compaction import DroppedIds
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.reader import History
from perdure.journal.records import BatchStored, Content, EffectOutcome, TurnBegun, TurnEnd
from perdure.journal.requests import Steps

ROW_BYTES = 25

PAGE_ROWS = 512  # rows; at most, on average: a page of 17 kB is read for each look-up

_RECORD, _TURN, _BATCH = 0, 1, 2  # the kinds of a row

_MARK_BYTES = 8

_COUNT_BYTES = 2  # of the mark of a batch: how many records it has

_COUNT_MAX = (1 << 8 * _COUNT_BYTES) - 1  # records; more fit into no batch


class DroppedRecord(Content, frozen=True, kw_only=True):
    """The remains of a record that was compacted. They are never stored as a record."""

    kind: ClassVar[str] = "dropped"

    row_kind: int
    mark: bytes

    @property
    def is_turn(self) -> bool:
        """Whether it is the end of a turn."""
        return self.row_kind == _TURN

    def require_batch(self, name: str, batch_id: str, digest: str) -> int:
        """Return the number of records of a batch; DivergenceError if it is not this one."""
        mark = self.mark[:-_COUNT_BYTES]
        if self.row_kind != _BATCH or mark != _batch_mark(digest, 0)[:-_COUNT_BYTES]:
            raise DivergenceError(name, batch_id, mark.hex(), digest)
        return int.from_bytes(self.mark[-_COUNT_BYTES:])


class DroppedRow(NamedTuple):
    """A row: the position of a dropped record, and what is known of it."""

    position: int
    content: DroppedRecord


def mark_of(payload: bytes) -> bytes:
    """Return what tells a payload from another one under the same id."""
    return sha256(payload).digest()[:_MARK_BYTES]


def _batch_mark(digest: str, count: int) -> bytes:
    size = _MARK_BYTES - _COUNT_BYTES
    return sha256(digest.encode()).digest()[:size] + min(count, _COUNT_MAX).to_bytes(_COUNT_BYTES)


def key_of(record_id: str, content: Content) -> str:
    """Return the caller's id or the identity that the index has a record under, or ""."""
    if isinstance(content, TurnEnd):
        return content.turn if content.turn[:1] != GENERATED_PREFIX else ""
    if isinstance(content, EffectOutcome):
        return content.identity if content.intent else ""
    if record_id[:1] == GENERATED_PREFIX or record_id.endswith(INPUT_SUFFIX):
        return ""
    return "" if isinstance(content, TurnBegun) else record_id


def encode_row(key: str, position: int, content: Content, payload: bytes) -> bytes:
    """Return the row of a record. The payload is without what depends on the store."""
    kind, mark = _RECORD, mark_of(payload)
    if isinstance(content, TurnEnd):
        kind = _TURN
    elif isinstance(content, BatchStored):
        kind, mark = _BATCH, _batch_mark(content.digest, content.count)
    return b"".join((index.digest_id(key), position.to_bytes(8), bytes((kind,)), mark))


def newest_rows(rows: Iterable[bytes]) -> list[bytes]:
    """Return rows in order, of each id only that with the highest position."""
    newest = {row[: index.DIGEST_BYTES]: row for row in sorted(rows)}
    return sorted(newest.values())


def encode_pages(rows: Sequence[bytes]) -> list[DroppedIds]:
    """Return sorted rows as pages; none if there are no rows."""
    if not rows:
        return []
    pages = index.split_pages(rows, PAGE_ROWS)
    bits = (len(pages) - 1).bit_length()
    return [
        DroppedIds(
            rows=b64encode(b"".join(page)).decode(),
            page=number,
            bits=bits,
            size=len(rows) if number == len(pages) - 1 else 0,
        )
        for number, page in enumerate(pages)
    ]


def find(past: History, run: IndexRun, key: str) -> Steps[DroppedRow | None]:
    """Return the row of an id, or None; reads one page."""
    digest = index.digest_id(key)
    number = index.page_of(int.from_bytes(digest), run.bits)
    for row in (yield from _read_page(past, run, number)):
        if row[: index.DIGEST_BYTES] == digest:
            kind, mark = row[16], row[17:]
            content = DroppedRecord(row_kind=kind, mark=mark)
            return DroppedRow(int.from_bytes(row[8:16]), content)
    return None


def read_rows(past: History, run: IndexRun | None) -> Steps[list[bytes]]:
    """Return all rows."""
    rows: list[bytes] = []
    for number in range(1 << run.bits if run else 0):
        rows += yield from _read_page(past, run, number)  # type: ignore[arg-type] # none without a run
    return rows


def _read_page(past: History, run: IndexRun, number: int) -> Steps[list[bytes]]:
    name, position = past.stream.session, run.first + number
    content = yield from reader.read_kind(past, position, DroppedIds, check_tip=False)
    return decode_rows(name, position, content)


def decode_rows(name: str, position: int, content: DroppedIds) -> list[bytes]:
    """Return the rows of a page; raise PayloadError if they cannot be decoded."""
    try:
        rows = b64decode(content.rows, validate=True)
    except ValueError as error:
        raise PayloadError(name, position, "an unreadable page of dropped ids") from error
    if len(rows) % ROW_BYTES:
        raise PayloadError(name, position, "a page of dropped ids that ends within a row")
    return [rows[start : start + ROW_BYTES] for start in range(0, len(rows), ROW_BYTES)]
