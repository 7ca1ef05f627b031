"""The state of a lease: as the records say, and as its holder sees it. Pure.

The records say which epoch is current and where it was last renewed. A holder relies on its lease
for `ttl` seconds from when it *sent* the newest stored renewal; contenders count from when they
*read* that renewal, which is later. So a holder stops before another takes over. If it does not,
because its process was suspended, its write comes second and is rejected by position.
"""

from typing import NamedTuple

from perdure.journal.records import LeaseChange, LeaseReleased, LeaseTaken


class LeaseState(NamedTuple):
    """The newest lease of a session. `owner` is empty after its release."""

    epoch: int
    owner: str
    ttl: float
    holder: str
    renewed: int
    """The position of the record that took or last renewed it."""


def apply_taken(position: int, content: LeaseTaken) -> LeaseState:
    """Return the lease state after a `lease.taken` record."""
    return LeaseState(content.epoch, content.owner, content.ttl, content.holder, position)


def apply_change(
    lease: LeaseState | None, position: int, content: LeaseChange
) -> LeaseState | None:
    """Apply a renewal or a release; one of another lease is ignored, as it came too late."""
    if lease is None or (lease.epoch, lease.owner) != (content.epoch, content.owner):
        return lease
    if isinstance(content, LeaseReleased):
        return lease._replace(owner="")  # The epoch stays, as the next lease increments it.
    return lease._replace(renewed=position)
