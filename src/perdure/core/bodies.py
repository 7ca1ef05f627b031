"""Store large bodies as parts, before the record that cites them; find equal ones. Pure.

In: records as plans make them, with long texts, bytes and base64 in their payload. Out: parts in
the same batch, and the records with citations in their place. A body that the session has already
is cited again and not stored.

To edit: `split_record` cannot read. If it needs the record that cites a body of the same size, it
raises `UnreadBodies`; the replica reads those records and executes the plans again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.errors import NotFoundError, UsageError
from perdure.formats.bodies import TAG, Citation, Form, parse_citation, to_tag
from perdure.journal import codec, reader
from perdure.journal.chain import BODY_EXTRA, PendingRecord
from perdure.journal.large import (
    BODY_FIELDS,
    PART_SIZE,
    SPLIT_KINDS,
    FoundLeaf,
    citations_of,
    digest_body,
    find_leaf,
    positions_of,
    replace_leaves,
)
from perdure.journal.ranges import merge_ranges
from perdure.journal.reader import History
from perdure.journal.records import Content
from perdure.journal.requests import Steps

if TYPE_CHECKING:
    from perdure.core.plans import RecordBatch

CANDIDATES_MAX = 16  # records; how many bodies of the same size are compared

CACHED_MAX = 256  # records; all that the state knows, and some more

NewBodies = dict[tuple[int, str, str], Citation]
"""By size, digest and data subject."""


class CitedBodies(NamedTuple):
    """The bodies that a record cites, and the data subject of the record."""

    about: str
    citations: Sequence[Citation]


class BodyCache:
    """The citations of the records that cite the newest bodies, by position, and the part size."""

    def __init__(self, part_size: int = PART_SIZE) -> None:
        self.part_size = part_size
        self.may_be_cited = False
        """Whether a caller put a body into something to store: only then short records cite one."""
        self._cited: dict[int, CitedBodies] = {}

    def get(self, position: int) -> CitedBodies | None:
        return self._cited.get(position)

    def put(self, position: int, content: Content) -> None:
        """Keep the citations of a record, in the place of the oldest."""
        self._cited[position] = CitedBodies(content.about, citations_of(content))
        while len(self._cited) > CACHED_MAX:
            del self._cited[next(iter(self._cited))]

    def put_all(self, first: int, records: Iterable[PendingRecord]) -> None:
        """Keep the citations of records that were stored, from a position on."""
        for position, record in enumerate(records, first):
            if record.content.parts:
                self.put(position, record.content)

    def load(self, past: History, positions: Iterable[int]) -> Steps[None]:
        """Read the citations of records."""
        for position in positions:
            content = yield from reader.read_content(past, position, check_tip=False)
            self.put(position, content)


NOT_SPLIT = BodyCache(0)
"""For a batch that is not stored: its records keep their bodies."""


class UnreadBodies(Exception):  # noqa: N818 - the replica handles it
    """A plan needs the citations of records that were not read."""

    def __init__(self, positions: Collection[int]) -> None:
        super().__init__(positions)
        self.positions = positions


def find_equal(batch: "RecordBatch", size: int, digest: str, about: str) -> Citation | None:
    """Return a citation of an equal body, of the same data subject; None if there is none."""
    if batch.bodies is NOT_SPLIT:
        return None
    new = batch.new_bodies.get((size, digest, about))
    if new is not None:
        return new
    same_size = [row.position for row in batch.state.bodies if row.size == size]
    unread = []
    for position in same_size[: -CANDIDATES_MAX - 1 : -1]:
        cited = batch.bodies.get(position)
        if cited is None:
            if position <= batch.tip.position:
                unread.append(position)
            continue
        for citation in cited.citations if cited.about == about else ():
            if (citation.size, citation.digest) == (size, digest):
                return citation
    if unread:
        raise UnreadBodies(unread)
    return None


def cut_parts(data: bytes, part_size: int) -> list[bytes]:
    """Return bytes in parts that have at most this size once they are stored; one at least."""
    size = part_size - BODY_EXTRA
    return [data[at : at + size] for at in range(0, max(len(data), 1), size)]


def add_body(batch: "RecordBatch", leaf: FoundLeaf, about: str) -> Citation:
    """Add the parts of a body, unless the session has an equal one; return its citation."""
    digest = digest_body(leaf.data)
    equal = find_equal(batch, len(leaf.data), digest, about)
    if equal is not None:
        parts = equal.parts
    else:
        pieces = cut_parts(leaf.data, batch.bodies.part_size)
        first = batch.position + 1
        for piece in pieces:
            batch.add_part(piece)
        parts = ((first, batch.position),)
    citation = Citation(
        form=leaf.form,
        size=len(leaf.data),
        digest=digest,
        parts=parts,
        media_type=leaf.media_type,
        prefix=leaf.prefix,
    )
    batch.new_bodies[citation.size, digest, about] = citation
    return citation


def split_tree(batch: "RecordBatch", tree: Any, about: str, text_min: int | None) -> Any:
    """Return a tree with its bodies stored apart: base64 and bytes always, texts from a length."""

    def move(item: Any, parent: Mapping[str, Any]) -> Any:
        if type(item) is dict and TAG in item:
            require_citable(batch, parse_citation(item[TAG]))
            return item
        leaf = find_leaf(item, parent, text_min)
        return item if leaf is None else to_tag(add_body(batch, leaf, about))

    return tree if batch.bodies is NOT_SPLIT else replace_leaves(tree, move)


def text_min_of(size: int, part_size: int) -> int | None:
    """Return the length from which the texts of a payload are bodies; None if it is short."""
    return part_size // 16 if size > part_size - BODY_EXTRA else None


def split_record(batch: "RecordBatch", draft: PendingRecord) -> PendingRecord:
    """Return a record that cites its bodies, whose parts are added to the batch before it."""
    content, size = draft.content, len(draft.payload)
    names = BODY_FIELDS.get(content.kind)
    if names is None or batch.bodies is NOT_SPLIT:
        return draft
    fields: dict[str, Any] = {}
    if content.kind in SPLIT_KINDS and not content.parts:
        text_min = text_min_of(size, batch.bodies.part_size)
        for name in names:
            fields[name] = split_tree(batch, getattr(content, name), content.about, text_min)
        content = msgspec.structs.replace(content, **fields)
    citations = citations_of(content)
    if not citations:
        return draft
    for citation in citations:
        require_citable(batch, citation)
    ranges = merge_ranges([*content.parts, *(part for item in citations for part in item.parts)])
    content = msgspec.structs.replace(content, parts=ranges)
    return PendingRecord(draft.id, content, codec.encode(content))


def require_citable(batch: "RecordBatch", citation: Citation) -> None:
    """Raise unless the parts of a body are there: before the batch, or in it."""
    past, erased = batch.past, batch.state.erasures
    for position in positions_of(citation.parts):
        if position > batch.position:
            raise UsageError("a body of another session: upload it to this one")
        if position <= batch.tip.position and (
            past.is_dropped(position) or erased.cover(position, "")
        ):
            hint = "it was compacted or erased since: upload it again"
            raise NotFoundError(f"part {position} of a body in session {batch.name!r}", hint)


def change_form(citation: Citation, form: Form, prefix: str) -> Citation:
    """Return a citation of the same parts that stands for something else."""
    return msgspec.structs.replace(citation, form=form, prefix=prefix)
