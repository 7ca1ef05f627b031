"""The records of a compaction: what it dropped, and what the session still needs of that.

When editing: as in `records`. The facts of a `compacted` record are the only copy of the state that
the dropped records made, so every later version must be able to read them.
"""

from typing import Any, ClassVar

from perdure.journal.ranges import Count, Position
from perdure.journal.records import Content


class Carried(Content, frozen=True, kw_only=True):
    """A record that a compaction dropped and the session still needs, with its own position.

    `record_kind` is its kind, `digest` that of its entry, `content` what it held.
    """

    kind: ClassVar[str] = "carried"

    position: Position
    record_kind: str
    id: str
    time: str
    digest: str
    content: dict[str, Any]


class DroppedIds(Content, frozen=True, kw_only=True):
    """A page of the callers' ids whose records were compacted, so that they stay recognized.

    `rows` is base64 of sorted rows of 25 bytes: the first 8 of the id's SHA-256, its position, the
    kind of its record (1), and what tells its content from another (8). Pages are as in `index`.
    """

    kind: ClassVar[str] = "ids.dropped"

    rows: str
    page: Count = 0
    bits: Count = 0
    size: Count = 0


class Compacted(Content, frozen=True, kw_only=True):
    """The session was compacted: entries before `first` may be dropped.

    `digest` is that of the last of them; empty in a copy, which never had them. `facts` are the
    state before `first`, as in a snapshot of that `state_version`, and `recent` the ids that the
    index did not have by then. `carried` are the positions of the carried records right before this
    one, in order. `messages` messages are no longer part of the conversation. `moved` are parts of
    large bodies that were stored again: the first position before, the first one now, how many.
    """

    kind: ClassVar[str] = "compacted"

    first: Position
    digest: str
    state_version: Count
    facts: dict[str, Any]
    recent: dict[str, Position]
    carried: tuple[Position, ...] = ()
    messages: Count = 0
    moved: tuple[tuple[Position, Position, Count], ...] = ()
