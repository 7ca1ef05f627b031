"""What a replica holds, all of a piece: the state it shows, and what is in doubt. Pure."""

from typing import NamedTuple

import msgspec

from perdure.backend import Append
from perdure.fold import Fold
from perdure.journal import Stream, Tip
from perdure.plans import Batch
from perdure.reading import Past


class Notice(NamedTuple):
    """Something that a person should know of; whoever does the I/O tells of it."""

    event: str
    fields: dict[str, object]


class Doubt(msgspec.Struct, frozen=True, gc=False):
    """A write whose outcome is unknown: what was sent, and the state if it was stored."""

    append: Append
    batch: Batch
    stream: Stream
    tip: Tip


class View(NamedTuple):
    """A state that was acknowledged, all of a piece: it never changes under whoever holds it."""

    fold: Fold
    past: Past
    last: bytes | None
    """The payload of the newest message."""
