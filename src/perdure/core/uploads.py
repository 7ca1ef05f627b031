"""Plans and bookkeeping of bodies that a caller uploads, part by part. Pure.

The parts are stored one by one, in appends of their own, and have no effect. A record that a later
plan writes cites them; until then, and after a crash, nothing refers to them.
"""

from base64 import b64encode
from hashlib import sha256

import msgspec

from perdure.core.bodies import find_equal
from perdure.core.plans import Plan
from perdure.core.state.session_state import SessionState
from perdure.formats.bodies import Citation
from perdure.journal.ranges import Positions


class Upload:
    """A body while it is stored, part by part. Other writers may write between the parts."""

    def __init__(self, media_type: str) -> None:
        self._media_type = media_type
        self._digest = sha256()
        self._size = 0
        self.parts: list[Positions] = []

    def add(self, data: bytes, position: int) -> None:
        """Add a part that was stored at a position."""
        self._digest.update(data)
        self._size += len(data)
        if self.parts and self.parts[-1][1] + 1 == position:
            self.parts[-1] = (self.parts[-1][0], position)
        else:
            self.parts.append((position, position))

    def citation(self) -> Citation:
        """Return the citation of the parts so far, as bytes."""
        digest = b64encode(self._digest.digest()).decode()
        return Citation(
            form="bytes",
            size=self._size,
            digest=digest,
            parts=tuple(self.parts),
            media_type=self._media_type,
        )


def store_part(data: bytes) -> Plan[int]:
    """Plan a part of a body that is uploaded. The result is its position."""
    return Plan("part", "", lambda batch: batch.add_part(data))


def find_stored(size: int, digest: str) -> Plan[Citation | None]:
    """Plan to look for a stored body. The result is a citation of it, or None."""
    return Plan("part", "", lambda batch: find_equal(batch, size, digest, ""))


def has_size(state: SessionState, size: int) -> bool:
    """Whether the state knows a body of this size."""
    return any(row.size == size for row in state.bodies)


def retype(citation: Citation, media_type: str) -> Citation:
    """Return a citation of the same parts as bytes of a media type."""
    kept = media_type or citation.media_type
    return msgspec.structs.replace(citation, form="bytes", prefix="", media_type=kept)
