"""Read pages of entries without the long bodies of parts. Pure.

A page has many entries. One with nothing but parts of large bodies is returned without its body;
any other entry is returned whole, read once more if it is long. So the memory that a page takes
does not grow with the bodies that a session keeps.
"""

from collections.abc import Sequence

from perdure.backends.protocol import Entry
from perdure.journal import headers, requests
from perdure.journal.requests import PAGE_BODY_MAX, Steps


def read_page(
    name: str, *, after: int, limit: int, reverse: bool = False
) -> Steps[Sequence[Entry]]:
    """Return entries as `requests.read` does; those with only parts may be without a body."""
    entries = yield from requests.read(
        name, after=after, limit=limit, reverse=reverse, max_body=PAGE_BODY_MAX
    )
    return (yield from complete_page(name, entries))


def complete_page(name: str, entries: Sequence[Entry]) -> Steps[Sequence[Entry]]:
    """Return entries with the long bodies that were left out, except those of parts."""
    if all(entry.body is not None for entry in entries):
        return entries
    whole = []
    for entry in entries:
        needed = entry.body is None and not headers.has_only_parts(entry.header)
        whole.append((yield from read_whole(name, entry)) if needed else entry)
    return whole


def read_whole(name: str, entry: Entry) -> Steps[Entry]:
    """Return an entry with its body; as it is if the store has another one there by now."""
    again = yield from requests.read(name, after=entry.position - 1, limit=1)
    return again[0] if again and again[0].header == entry.header else entry
