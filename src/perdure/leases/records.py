"""The record kinds of leases: one worker at a time holds a session.

`epoch` numbers the leases of a session, and `owner` is a random token of each lease. No record
says how old a renewal is: a contender measures the expiry on its own clock.
"""

from typing import ClassVar

from perdure.content import Content


class LeaseChange(Content, frozen=True, kw_only=True):
    """The common base of the records about a lease."""

    epoch: int
    owner: str


class LeaseTaken(LeaseChange, frozen=True, kw_only=True):
    """A worker holds the session from here on; the previous holder is fenced.

    The lease lasts `ttl` seconds from this record or its newest renewal. `who` names the holder for
    people. `forced` means that the holder did not wait for the previous lease to expire.
    """

    kind: ClassVar[str] = "lease.taken"

    ttl: float
    who: str = ""
    forced: bool = False


class LeaseRenewed(LeaseChange, frozen=True, kw_only=True):
    """The holder extended its lease."""

    kind: ClassVar[str] = "lease.renewed"


class LeaseReleased(LeaseChange, frozen=True, kw_only=True):
    """The holder released the lease: another worker may take it at once."""

    kind: ClassVar[str] = "lease.released"
