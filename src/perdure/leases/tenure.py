"""The state of a lease: as the records say, and as its holder sees it. Pure.

The records say which epoch is current and where it was last renewed. A holder relies on its lease
for `ttl` seconds from when it *sent* the newest stored renewal; contenders count from when they
*read* that renewal, which is later. So a holder stops before another takes over. If it does not,
because its process was suspended, its write comes second and is rejected by position.
"""

from collections.abc import Callable
from typing import NamedTuple

from perdure.errors import FencedError, LeaseHeldError
from perdure.leases.records import LeaseChange, LeaseTaken

DELETED = "the session was deleted"


class Tenure(NamedTuple):
    """The newest lease of a session. `owner` is empty after its release."""

    epoch: int
    owner: str
    ttl: float
    who: str
    renewed: int
    """The position of the record that took or last renewed it."""


class Holder(NamedTuple):
    """The holder of a session's lease. `here` is True if this handle holds it."""

    epoch: int
    who: str
    ttl: float
    here: bool


def taken(position: int, content: LeaseTaken) -> Tenure:
    """Return the lease state after a `lease.taken` record."""
    return Tenure(content.epoch, content.owner, content.ttl, content.who, position)


def renewed(lease: Tenure | None, position: int, content: LeaseChange) -> Tenure | None:
    """Apply a renewal; one of another lease is ignored, as it came too late."""
    if lease is None or (lease.epoch, lease.owner) != (content.epoch, content.owner):
        return lease
    return lease._replace(renewed=position)


def released(lease: Tenure | None, content: LeaseChange) -> Tenure | None:
    """Apply a release. The epoch stays, as the next lease increments it."""
    if lease is None or (lease.epoch, lease.owner) != (content.epoch, content.owner):
        return lease
    return lease._replace(owner="")


class Holding:
    """A lease as seen by the handle that takes it. Once lost, it stays lost.

    `now` is a monotonic clock; `here` returns whether this is the process that took the lease, not
    a fork of it; `on_loss` is called once, when the loss is detected.
    """

    def __init__(
        self,
        owner: str,
        ttl: float,
        earlier: "Holding | None" = None,
        *,
        now: Callable[[], float],
        here: Callable[[], bool],
        on_loss: Callable[[FencedError], None],
    ) -> None:
        self.owner = owner
        self.ttl = ttl
        self.epoch = 0
        self.busy = True
        """Whether it is being taken, or was taken and is not released yet."""
        self.active = False
        """Whether it was taken and is not released yet, lost or not."""
        self.here = here
        self.owners = frozenset({owner})
        """The owner tokens of this handle; a write in doubt may have stored an earlier one."""
        if earlier is not None and earlier.here():
            self.owners |= earlier.owners
        self._now = now
        self._on_loss = on_loss
        self._until = 0.0
        self.loss: FencedError | None = None
        """Why the lease was lost, or None."""

    def take(self, epoch: int, sent: float) -> None:
        """Start holding the lease. `sent` is when the write that took it began."""
        self.epoch, self._until, self.active = epoch, sent + self.ttl, True

    def end(self) -> bool:
        """Stop holding the lease; return True the first time."""
        was_active, self.busy, self.active = self.active, False, False
        return was_active

    def seconds_left(self) -> float:
        """Return for how many seconds this handle may still rely on the lease."""
        return max(self._until - self._now(), 0.0)

    def renew(self, sent: float) -> None:
        """Extend the lease: a renewal sent at that time is durable."""
        self._until = max(self._until, sent + self.ttl)

    def owns(self, lease: Tenure) -> bool:
        """Whether the records name this handle as the holder.

        That includes a lease that it took without receiving the reply, or failed to release.
        """
        return lease.owner in self.owners and self.here()

    def lose(self, loss: FencedError) -> FencedError:
        """Mark the lease as lost. The first reason is kept."""
        if self.loss is None:
            self.loss = loss
            self._on_loss(loss)
        return self.loss

    def fenced(self, name: str, lease: Tenure | None) -> FencedError | None:
        """Return the error that forbids the holder to write, or None if it may write."""
        if self.loss is not None:
            return FencedError(*self.loss.args)
        if not self.here():  # Not lost: the parent process still holds it.
            return FencedError(name, self.epoch, 0, "", "this process is a fork of the holder")
        if lease is None:
            return self.lose(FencedError(name, self.epoch, 0, "", DELETED))
        if lease.epoch != self.epoch or lease.owner != self.owner:
            return self.lose(FencedError(name, self.epoch, lease.epoch, lease.who))
        if not self.seconds_left():
            reason = f"no renewal was stored for {self.ttl:g} s"
            return self.lose(FencedError(name, self.epoch, 0, "", reason))
        return None


def barred(
    name: str, lease: Tenure | None, holding: Holding | None
) -> FencedError | LeaseHeldError | None:
    """Return the error for a plan that needs the lease, or None if the handle may write."""
    if holding is not None and holding.active:
        return holding.fenced(name, lease)
    if lease is None or not lease.owner:
        return None
    if holding is not None and holding.owns(lease):
        return None
    return held_error(name, lease)


def held_error(name: str, lease: Tenure) -> LeaseHeldError:
    return LeaseHeldError(name, lease.epoch, lease.who, lease.ttl, lease.renewed)
