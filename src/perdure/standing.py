"""The parts of a replica: its published view, a write in doubt, and pending events. Pure."""

from typing import NamedTuple

import msgspec

from perdure.backend import Append
from perdure.fold import Fold
from perdure.journal import Stream, Tip
from perdure.plans import Batch
from perdure.reading import Past


class Notice(NamedTuple):
    """An event to log. The core does no I/O, so the handle emits it."""

    event: str
    fields: dict[str, object]


class Doubt(msgspec.Struct, frozen=True, gc=False):
    """A write whose outcome is unknown: the append sent, and the state if it was stored."""

    append: Append
    batch: Batch
    stream: Stream
    tip: Tip


class View(NamedTuple):
    """An acknowledged state with its history. Replaced as a whole, never changed in place."""

    state: Fold
    past: Past
    last: bytes | None
    """The payload of the newest message."""
