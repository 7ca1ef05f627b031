"""The record of a part of a large body (`journal.large`).

When editing: its payload is the bytes as they are, so that it can have no fields.
"""

from typing import Any, ClassVar

from perdure.journal.records import Content


class Part(Content, frozen=True, kw_only=True):
    """A part of a large body: the length of its body as stored, and what reads it."""

    kind: ClassVar[str] = "part"

    size: int = 0
    data: Any = None
