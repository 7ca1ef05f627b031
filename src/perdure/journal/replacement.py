"""Find out whether a store still has the history that was read before. Pure.

In: the end of that history. Out: steps that return a `HistoryReplacedError`, or None. A store is
put back to an earlier state by a restored backup, or by a standby that takes over without the
newest records; other writers may have continued it since.

Damage is not a replacement, so None is returned if the store contradicts itself: the error that led
here says more. To edit: only what agrees with its head, or with its successor, is another history.
"""

from collections.abc import Sequence

from perdure.backends.protocol import Entry, Head
from perdure.errors import HistoryReplacedError
from perdure.journal import chain, requests
from perdure.journal.chain import ChainTip, StreamIdentity
from perdure.journal.records import Deleted
from perdure.journal.requests import Steps


def find_replacement(stream: StreamIdentity, tip: ChainTip) -> Steps[HistoryReplacedError | None]:
    """Return the error if the store has another history than the one that ends at `tip`.

    None if it has the same one, if a deletion dropped its end, or if it is damaged.
    """
    name = stream.session
    head = yield from requests.head(name)
    if head is None:
        entries = yield from requests.read(name, after=0, limit=1)
        return None if entries else HistoryReplacedError(name, tip.position, 0)
    position = min(head.position, tip.position)
    entries = yield from requests.read(name, after=position - 1, limit=2)
    if not entries:
        return None
    if entries[0].position <= position:
        differs = _has_other_entry(name, head, entries, tip)
    else:
        differs = yield from _begins_otherwise(stream, entries[0])
    return HistoryReplacedError(name, tip.position, head.position) if differs else None


def _has_other_entry(name: str, head: Head, entries: Sequence[Entry], tip: ChainTip) -> bool:
    """Whether the first entry is another one than the tip's, and confirmed by what follows it."""
    digest, position = chain.entry_digest(entries[0]), entries[0].last
    confirmed = head.digest
    if head.position > position:
        links = [chain.verify_entry(name, successor).header.previous for successor in entries[1:]]
        confirmed = links[0] if links else ""
    return digest == confirmed and ChainTip(position, digest) != tip


def _begins_otherwise(stream: StreamIdentity, entry: Entry) -> Steps[bool]:
    """Whether a stream begins with an entry that no deletion in this history can have left."""
    name = stream.session
    first = yield from requests.read(name, after=0, limit=1)
    header = chain.verify_entry(name, entry).header
    if [*first] != [entry] or not header.begins_stream:
        return False
    return (header.kind, header.stream) != (Deleted.kind, stream.id)
