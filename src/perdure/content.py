"""The common base of the content of every kind of record. The kinds are in `records`."""

from typing import ClassVar

import msgspec


class Content(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,  # plain trees hold no cycles; tracking them would slow every collection down
):
    """The content of one record. `v` is its schema version, omitted while that is 1."""

    kind: ClassVar[str] = ""
    schema: ClassVar[int] = 1

    v: int = 1

    @property
    def subject(self) -> str:
        """The turn, value, effect, approval or keep that the record is about; empty if none."""
        return ""
