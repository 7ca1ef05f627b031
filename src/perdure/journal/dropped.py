"""Dropped entries: why one is missing, and the records of one that a compaction carries. Pure."""

from typing import NamedTuple, NoReturn

import msgspec

from perdure.backends.protocol import Entry
from perdure.errors import ChainError, CompactedError, NotFoundError
from perdure.journal import chain, codec, key_store, requests
from perdure.journal.chain import VerifiedRecord
from perdure.journal.cipher import Cipher
from perdure.journal.compaction import Carried, Compacted
from perdure.journal.pages import read_page
from perdure.journal.parts import Part
from perdure.journal.records import Deleted
from perdure.journal.requests import Steps

PAGE = 128  # entries per read


def explain_missing(name: str, position: int, cipher: Cipher) -> Steps[NoReturn]:
    """Raise for a missing entry: why its session no longer has it, else ChainError.

    NotFoundError if the session was deleted, CompactedError if it was compacted.
    """
    error = yield from why_dropped(name, position, cipher)
    raise error or ChainError(name, position, "it is missing")


def why_dropped(name: str, position: int, cipher: Cipher) -> Steps[NotFoundError | None]:
    """Return the error if a deletion or a compaction has removed the entry at a position."""
    first = yield from requests.read(name, after=0, limit=1)
    if not first or first[0].position <= position:
        return None
    if chain.verify_entry(name, first[0]).header.kind == Deleted.kind:
        return NotFoundError(f"session {name!r}", "it was deleted while it was being read")
    compaction = yield from find_compaction(name, cipher)
    if compaction is not None and first[0].position <= compaction.first:
        return CompactedError(name, position, compaction.first)
    return None


class CompactionPlace(NamedTuple):
    """The newest compaction of a stream: its position, and the first one that it kept."""

    position: int
    first: int


def find_compaction(name: str, cipher: Cipher) -> Steps[CompactionPlace | None]:
    """Return the newest compaction of a stream, or None.

    Reads backward from the end. Only errors and salvage need it: the state has it.
    """
    after = 0
    while entries := (yield from read_page(name, after=after, limit=PAGE, reverse=True)):
        for entry in entries:
            linked = chain.verify_entry(name, entry)
            for record in reversed(linked.records):
                if record.kind == Compacted.kind:
                    if cipher.is_placed:
                        yield from key_store.load_keys(cipher, linked.header)
                    content = chain.decode_content(name, record, cipher)
                    if not isinstance(content, Compacted):
                        raise ChainError(name, record.position, "it is not a compaction")
                    return CompactionPlace(record.position, content.first)
        after = entries[-1].position
        if after == 1:
            break
    return None


def unwrap(name: str, linked: VerifiedRecord, cipher: Cipher) -> VerifiedRecord:
    """Return the record that a `carried` record keeps, as if it were still at its own position.

    It has its own id, time and digest; its carrier was verified.
    """
    if linked.kind == Part.kind:
        return linked  # A compaction stores parts again as they are.
    content = chain.decode_content(name, linked, cipher)
    if not isinstance(content, Carried):
        raise ChainError(name, linked.position, "a record of kind 'carried' is expected here")
    position, payload = content.position, codec.encode_tree(content.content)
    record = chain.RecordHeader(content.record_kind, content.id, len(payload), "")
    header = msgspec.structs.replace(
        linked.header, position=position, time=content.time, bound=None, records=(record,)
    )
    facts = chain.EntryFacts(Entry(position, b"", payload), header, content.digest, name)
    kept = codec.decode(content.record_kind, payload, stream=name, position=position)
    opened = VerifiedRecord(facts, position, record, payload)
    chain.set_opened(opened, chain.PendingRecord(content.id, kept, payload))
    return opened
