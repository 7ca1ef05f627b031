"""The kinds of record by which a session is held by one worker: leases.

`epoch` counts the leases of a session, and `owner` is drawn for each of them. How old a renewal is
no record says: whoever wants to take a lease over counts on its own clock.
"""

from typing import ClassVar

from perdure.content import Content


class LeaseChange(Content, frozen=True, kw_only=True):
    """What the records about a lease have in common."""

    epoch: int
    owner: str


class LeaseTaken(LeaseChange, frozen=True, kw_only=True):
    """Somebody holds the session from here on; whoever held it before is fenced off.

    `ttl` is for how many seconds after this record or its newest renewal it is held, `who` says to
    people who that is. `forced` means that somebody decided not to wait for the former holder.
    """

    kind: ClassVar[str] = "lease.taken"

    ttl: float
    who: str = ""
    forced: bool = False


class LeaseRenewed(LeaseChange, frozen=True, kw_only=True):
    """The holder is still there."""

    kind: ClassVar[str] = "lease.renewed"


class LeaseReleased(LeaseChange, frozen=True, kw_only=True):
    """The holder let the session go: anybody may take it at once."""

    kind: ClassVar[str] = "lease.released"
