"""Large bodies in the journal: texts, bytes and media that records keep in `part` records. Pure.

In: packed trees. Out: the same trees with long leaves in citations, and back. A citation is an
object with the one key `$large`; it names the parts by their positions, and has the size and digest
of the whole. The parts are stored before the record that cites them, in its append or in earlier
ones, so a record that is there has its parts; parts that no record cites have no effect.

To edit: `canonical_tree` must give the same for a leaf and for its citation, because a repeated
write is recognized by it.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from perdure.errors import PayloadError
from perdure.formats.bodies import LEAF_MIN, TAG, Citation, Form, decode_base64, parse_citation
from perdure.journal import chain, reader
from perdure.journal.chain import PendingRecord, VerifiedRecord
from perdure.journal.parts import Part
from perdure.journal.ranges import Positions
from perdure.journal.reader import History
from perdure.journal.records import Content
from perdure.journal.requests import Steps

TAG_BYTES = b'"$large"'

PART_SIZE = 2**20  # bytes of a stored part, at most; the longest column of Aurora DSQL

LOADED_MAX = 64 * 2**20  # bytes; how much of large bodies a transcript for a provider may have

# By kind: the fields that hold a caller's payload. Only those of `SPLIT_KINDS` are split; others
# may hold bodies that the caller uploaded.
BODY_FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("message", "meta"),
    "value": ("data",),
    "note": ("data",),
    "effect.intent": ("arguments",),
    "effect.outcome": ("result",),
    "approval.requested": ("arguments",),
    "view": ("data",),
}

SPLIT_KINDS = frozenset({"message", "value", "note"})

_TYPE_FIELDS = ("media_type", "mime_type", "mimeType")


class FoundLeaf(NamedTuple):
    """A leaf of a tree that is to be a body."""

    data: bytes
    form: Form
    prefix: str
    media_type: str


def digest_body(data: bytes) -> str:
    """Return the digest of a body, as citations have it."""
    return b64encode(sha256(data).digest()).decode()


def replace_leaves(
    tree: Any,
    leaf: Callable[[Any, Mapping[str, Any]], Any],
    parent: Mapping[str, Any] | None = None,
) -> Any:
    """Return a packed tree with its long texts, long bytes and citations replaced by a function.

    The function gets the text, the packed `$bytes`, or the `$large`, and the object around it. It
    returns it unchanged to keep it. Objects of registered types keep their texts.
    """
    kind = type(tree)
    if kind is str:
        return tree if len(tree) < LEAF_MIN else leaf(tree, parent or {})
    if kind is list:
        return [replace_leaves(item, leaf, parent) for item in tree]
    if kind is not dict:
        return tree
    if len(tree) == 1:
        ((tag, packed),) = tree.items()
        if tag == TAG or (tag == "$bytes" and len(packed) >= LEAF_MIN):
            return leaf(tree, parent or {})
        if tag == "$type":
            return {tag: [packed[0], _replace_tags(packed[1], leaf)]}
        if tag == "$object":  # A caller's own object that only looks like a tag.
            return {tag: {key: replace_leaves(item, leaf, packed) for key, item in packed.items()}}
        if tag.startswith("$"):
            return tree
    return {key: replace_leaves(item, leaf, tree) for key, item in tree.items()}


def _replace_tags(tree: Any, leaf: Callable[[Any, Mapping[str, Any]], Any]) -> Any:
    """Replace the citations alone."""

    def keep_texts(item: Any, parent: Mapping[str, Any]) -> Any:
        return leaf(item, parent) if type(item) is dict and TAG in item else item

    return replace_leaves(tree, keep_texts)


def find_leaf(item: Any, parent: Mapping[str, Any], text_min: int | None) -> FoundLeaf | None:
    """Return a text or `$bytes` as a body: base64 always, the others from a length on."""
    if type(item) is dict:
        data = b64decode(item["$bytes"])
        return FoundLeaf(data, "bytes", "", _media_type(parent))
    decoded = decode_base64(item)
    if decoded is not None:
        data, form, prefix, media_type = decoded
        return FoundLeaf(data, form, prefix, media_type or _media_type(parent))
    if text_min is None or len(item) < text_min:
        return None
    return FoundLeaf(item.encode(), "text", "", "")


def _media_type(parent: Mapping[str, Any]) -> str:
    for name in _TYPE_FIELDS:
        if type(parent.get(name)) is str:
            return str(parent[name])
    format_ = parent.get("format")  # Of audio in messages of OpenAI.
    return f"audio/{format_}" if type(format_) is str and format_.isalnum() else ""


def citations_in(tree: Any) -> Iterator[Citation]:
    """Yield the citations in a packed tree."""
    found: list[Citation] = []

    def collect(item: Any, _parent: Mapping[str, Any]) -> Any:
        if type(item) is dict and TAG in item:
            found.append(parse_citation(item[TAG]))
        return item

    replace_leaves(tree, collect)
    yield from found


def citations_of(content: Content) -> list[Citation]:
    """Return the citations in a record."""
    fields = BODY_FIELDS.get(content.kind, ())
    return [item for name in fields for item in citations_in(getattr(content, name))]


def canonical_tree(tree: Any) -> Any:
    """Return a tree in which a long leaf and a citation of it are the same, without positions."""

    def reduce(item: Any, parent: Mapping[str, Any]) -> Any:
        if type(item) is dict and TAG in item:
            citation = parse_citation(item[TAG])
            form, prefix = citation.form, citation.prefix
            return {TAG: [form, prefix, citation.size, citation.digest]}
        found = find_leaf(item, parent, LEAF_MIN)
        if found is None:
            return item
        return {TAG: [found.form, found.prefix, len(found.data), digest_body(found.data)]}

    return replace_leaves(tree, reduce)


def canonical_content(content: Content) -> Content:
    """Return a record with canonical trees, to compare it with another one."""
    names = BODY_FIELDS.get(content.kind, ())
    fields = {name: canonical_tree(getattr(content, name)) for name in names}
    return msgspec.structs.replace(content, parts=(), **fields) if fields else content


def positions_of(parts: tuple[Positions, ...]) -> Iterator[int]:
    """Yield the positions of the parts, in order of the bytes."""
    for first, last in parts:
        yield from range(first, last + 1)


def read_part(past: History, position: int) -> Steps[bytes]:
    """Return the bytes of a part; the tip is not checked."""
    name = past.stream.session
    linked = yield from reader.read_record(past, position, check_tip=False)
    record = chain.decode_record(name, linked, past.cipher)
    reader.require_kind(name, position, record.content, Part)
    return record.payload


class BodyCheck:
    """Checks a body while it is read piece by piece."""

    def __init__(self, name: str, citation: Citation) -> None:
        self._name = name
        self._citation = citation
        self._digest = sha256()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        self._digest.update(data)
        self._size += len(data)

    def end(self) -> None:
        """Raise PayloadError unless the pieces are the whole body."""
        cited, position = self._citation, self._citation.parts[0][0] if self._citation.parts else 0
        if not cited.digest:
            return  # A single part, without the record that cites it.
        if self._size != cited.size:
            reason = f"the parts of a body have {self._size} bytes, not {cited.size}"
            raise PayloadError(self._name, position, reason)
        if b64encode(self._digest.digest()).decode() != cited.digest:
            raise PayloadError(self._name, position, "the parts of a body have another digest")


def read_body(past: History, citation: Citation) -> Steps[bytes]:
    """Return a body, checked; the tip is not checked."""
    check, pieces = BodyCheck(past.stream.session, citation), []
    for position in positions_of(citation.parts):
        piece = yield from read_part(past, position)
        check.add(piece)
        pieces.append(piece)
    check.end()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_body(past: History, citation: Citation) -> Steps[None]:
    """Raise DamagedError unless the parts of a body are there, and are what was stored."""
    check = BodyCheck(past.stream.session, citation)
    for position in positions_of(citation.parts):
        check.add((yield from read_part(past, position)))
    check.end()


def as_leaf(name: str, citation: Citation, data: bytes) -> str | bytes:
    """Return what a body stands for; PayloadError if it is not a text, but is said to be."""
    try:
        return citation.as_leaf(data)
    except UnicodeDecodeError as error:
        position = citation.parts[0][0]
        raise PayloadError(name, position, "a body is not UTF-8") from error


Loaded = dict[Citation, str | bytes]


def join_tree(
    past: History, tree: Any, below: int, texts_below: int = 0, loaded: Loaded | None = None
) -> Steps[Any]:
    """Return a tree with the bodies in it that are smaller than a size; the others stay cited.

    Texts may be longer. `loaded` has the bodies that were read already, and gets those read now.
    """
    leaves = {} if loaded is None else loaded
    for citation in citations_in(tree):
        limit = max(below, texts_below) if citation.form == "text" else below
        if citation.size < limit and citation not in leaves:
            data = yield from read_body(past, citation)
            leaves[citation] = as_leaf(past.stream.session, citation, data)

    def inline(item: Any, _parent: Mapping[str, Any]) -> Any:
        if type(item) is not dict or TAG not in item:
            return item
        leaf = leaves.get(parse_citation(item[TAG]))
        if leaf is None:
            return item
        return leaf if isinstance(leaf, str) else {"$bytes": b64encode(leaf).decode()}

    return replace_leaves(tree, inline)


def join_content(
    past: History,
    content: Content,
    below: int,
    texts_below: int = 0,
    loaded: Loaded | None = None,
) -> Steps[Content]:
    """Return a record with the bodies in it that are smaller than a size."""
    if not content.parts:
        return content
    fields: dict[str, Any] = {}
    for name in BODY_FIELDS.get(content.kind, ()):
        fields[name] = yield from join_tree(
            past, getattr(content, name), below, texts_below, loaded
        )
    return msgspec.structs.replace(content, **fields)


def join_records(
    past: History, records: Iterable[VerifiedRecord], below: int, texts_below: int = 0
) -> Steps[None]:
    """Read the bodies of records, before these are decoded. A body is read once for all."""
    name, loaded = past.stream.session, Loaded()
    for linked in records:
        if linked.kind in BODY_FIELDS and linked.body is not None:
            record = chain.decode_record(name, linked, past.cipher)
            if record.content.parts:
                content = yield from join_content(past, record.content, below, texts_below, loaded)
                chain.set_opened(linked, PendingRecord(record.id, content, record.payload))
