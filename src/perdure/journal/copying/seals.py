"""Encrypted stores in a copy: their entries are copied as they are, and their keys with them. Pure.

No key is needed for that, and none is unwrapped: the target is encrypted with the same keys.
"""

from perdure.errors import UnsupportedError
from perdure.journal import chain
from perdure.journal.copying import requests
from perdure.journal.copying.pairs import PAGE, Selection
from perdure.journal.copying.requests import CopySteps, Side
from perdure.journal.key_store import OWN_END, SEAL, SealMark, parse_mark

NEW_TARGET = "copy to a new store"


def require_copyable(selection: Selection, *, same_tenant: bool) -> CopySteps[SealMark | None]:
    """Return the mark of an encrypted source; UnsupportedError if the target cannot have a copy."""
    source, target = (yield from _find_mark("source")), (yield from _find_mark("target"))
    if source is None:
        if target is not None:
            reason = "the target is encrypted, and the source is not"
            raise UnsupportedError(reason, NEW_TARGET)
        return None
    if target is None:
        page = yield from requests.heads("target", prefix="", after=OWN_END, limit=1)
        if page.heads or page.damage:
            reason = "the source is encrypted, and the target has sessions that are not"
            raise UnsupportedError(reason, NEW_TARGET)
    elif target.store != source.store:
        reason = "the source and the target are encrypted with different keys"
        raise UnsupportedError(reason, NEW_TARGET)
    if selection.labels:
        reason = "the labels of the source are encrypted, and a copy has no keys to compare them"
        raise UnsupportedError(reason, "choose sessions by their ids or a prefix")
    if not same_tenant:
        reason = "encrypted sessions are bound to their tenant, and that of the target is another"
        raise UnsupportedError(reason, "open both stores with the same ?tenant=")
    return source


def _find_mark(side: Side) -> CopySteps[SealMark | None]:
    entries = yield from requests.read(side, SEAL, after=0, limit=1, reverse=True)
    return parse_mark(entries[0]) if entries else None


def find_branches(parent: str, parent_stream: str) -> CopySteps[list[tuple[str, str]]]:
    """Return the branches of a session in the target, and their streams, from their headers.

    The parent's own records of them are encrypted. This reads an entry of every session; it is
    needed only for a session that was deleted or compacted since it was copied.
    """
    branches: list[tuple[str, str]] = []
    after: str | None = OWN_END
    while after is not None:
        page = yield from requests.heads("target", prefix="", after=after, limit=PAGE)
        for head in page.heads:
            for entry in (yield from requests.read("target", head.stream, after=0, limit=1)):
                header = chain.verify_entry(head.stream, entry).header
                if (header.bound or ())[2:] == (parent, parent_stream):
                    branches.append((head.stream, header.stream))
        if page.damage is not None:
            raise page.damage
        after = page.heads[-1].stream if page.heads else None
    return branches
