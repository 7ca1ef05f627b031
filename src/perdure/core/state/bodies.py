"""The newest bodies that records of a session cite, so that an equal one is not stored again. Pure.

The state knows a body by its size and by the record that cites it, never by a digest: a digest in a
snapshot could be used to guess the content after the record was erased. The record has the digest.
"""

from typing import NamedTuple

from perdure.journal.large import citations_of
from perdure.journal.records import Content

BODIES_MAX = 128  # bodies; bounds what a snapshot takes for them to 3 kB


class CitedBody(NamedTuple):
    """A body: its size, its first part, and the newest record that cites it.

    Snapshots store it as an array: the order of the fields is part of the format.
    """

    size: int
    part: int
    position: int


def with_bodies(
    bodies: tuple[CitedBody, ...], position: int, content: Content
) -> tuple[CitedBody, ...]:
    """Return the bodies after a record that cites some; one that is cited again is the newest."""
    rows = {row.part: row for row in bodies}
    for citation in citations_of(content):
        if citation.parts:
            part = citation.parts[0][0]
            rows.pop(part, None)
            rows[part] = CitedBody(citation.size, part, position)
    return (*rows.values(),)[-BODIES_MAX:]
