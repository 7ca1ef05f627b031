"""What the content of every kind of record has in common. The kinds are in `records`."""

from typing import ClassVar

import msgspec


class Content(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,  # Plain trees hold no cycles, and what is under way is not to be looked through.
):
    """What one record says. `v` is the schema that it follows, left out while that is 1."""

    kind: ClassVar[str] = ""
    schema: ClassVar[int] = 1

    v: int = 1

    @property
    def subject(self) -> str:
        """The turn, value or keep that the record is about; empty where it is about none."""
        return ""
