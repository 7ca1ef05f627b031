"""Plans to take, renew and release a lease. Pure: the caller passes the time.

A contender may take over a lease when its ttl has passed since this handle saw its newest renewal.
The plan refers to that renewal and is checked on every execution: if a newer one was stored, the
contender waits again.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from perdure.core.plans import PendingEvent, Plan, RecordBatch
from perdure.core.state.leases import LeaseState
from perdure.core.validation import require_str
from perdure.errors import (
    ConflictError,
    FencedError,
    LeaseHeldError,
    NotFoundError,
    PerdureError,
    UsageError,
)
from perdure.journal.records import LeaseReleased, LeaseRenewed, LeaseTaken

if TYPE_CHECKING:
    from perdure.core.replica import Replica


SESSION_DELETED = "the session was deleted"

HISTORY_REPLACED = "the store's history was replaced"


class LeaseHolder(NamedTuple):
    """The holder of a session's lease. `here` is True if this handle holds it."""

    epoch: int
    name: str
    ttl: float
    here: bool


class HeldLease:
    """A lease as seen by the handle that takes it. Once lost, it stays lost.

    `now` is a monotonic clock; `here` returns whether this is the process that took the lease, not
    a fork of it; `on_loss` is called once, when the loss is detected.
    """

    def __init__(
        self,
        owner: str,
        ttl: float,
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

    def owns(self, lease: LeaseState) -> bool:
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

    def fenced(self, name: str, lease: LeaseState | None) -> FencedError | None:
        """Return the error that forbids the holder to write, or None if it may write."""
        if self.loss is not None:
            return FencedError(*self.loss.args)
        if not self.here():  # Not lost: the parent process still holds it.
            return FencedError(name, self.epoch, 0, "", "this process is a fork of the holder")
        if lease is None:
            return self.lose(FencedError(name, self.epoch, 0, "", SESSION_DELETED))
        if lease.epoch != self.epoch or lease.owner != self.owner:
            return self.lose(FencedError(name, self.epoch, lease.epoch, lease.holder))
        if not self.seconds_left():
            reason = f"no renewal was stored for {self.ttl:g} s"
            return self.lose(FencedError(name, self.epoch, 0, "", reason))
        return None


def lease_refusal(
    name: str, lease: LeaseState | None, holding: HeldLease | None
) -> FencedError | LeaseHeldError | None:
    """Return the error for a plan that needs the lease, or None if the handle may write."""
    if holding is not None and holding.active:
        return holding.fenced(name, lease)
    if lease is None or not lease.owner:
        return None
    if holding is not None and holding.owns(lease):
        return None
    return lease_held_error(name, lease)


def lease_held_error(name: str, lease: LeaseState) -> LeaseHeldError:
    return LeaseHeldError(name, lease.epoch, lease.holder, lease.ttl, lease.renewed)


TTL_MIN, TTL_MAX = 0.05, 86_400.0  # seconds; the fastest renewals a disk sustains; one day

WHO_BYTES_MAX = 256  # bytes of UTF-8; every snapshot contains it

RENEW_AFTER = 1 / 3  # of the ttl; two renewals may fail before the lease is lost

RETRY_AFTER = 1 / 12  # of the ttl, after a failed renewal; leaves several retries before expiry

# seconds; keeps a contender from polling on every write
CONTENDER_PAUSE_MIN, CONTENDER_PAUSE_MAX = 0.005, 0.25


class LeaseRequest(NamedTuple):
    """The lease that the caller requested. `wait` is in seconds; infinity means no timeout."""

    ttl: float
    wait: float
    holder: str
    force: bool


def parse_request(ttl: object, timeout: object, owner: object, *, force: object) -> LeaseRequest:
    """Validate the arguments of `session.lease`; raise UsageError if they are wrong."""
    seconds = _require_seconds(ttl, "ttl")
    if not TTL_MIN <= seconds <= TTL_MAX:
        raise UsageError(f"ttl must be {TTL_MIN:g} to {TTL_MAX:g} seconds, not {seconds:g}")
    if timeout is None or isinstance(timeout, bool):
        wait = math.inf if timeout else 0.0
    else:
        wait = _require_seconds(timeout, "timeout")
        if not wait >= 0:  # Rejects NaN too.
            raise UsageError(f"timeout must be a number of seconds, True or None, not {wait:g}")
    text = require_str(owner, "owner")
    if len(text.encode()) > WHO_BYTES_MAX:
        raise UsageError(f"owner must be at most {WHO_BYTES_MAX} bytes of UTF-8")
    if not isinstance(force, bool):
        raise UsageError(f"force must be True or False, not {force!r}")
    return LeaseRequest(seconds, wait, text, force)


def _require_seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number of seconds, not {type(value).__name__}")
    return float(value)


def new_lease(
    replica: "Replica",
    ttl: float,
    *,
    now: Callable[[], float],
    here: Callable[[], bool],
    lost: Callable[[], None],
) -> HeldLease:
    """Return a lease that is not taken yet, for `begin_lease`."""

    def on_loss(loss: FencedError) -> None:
        lost()
        fields = {
            "epoch": loss.epoch,
            "newer": loss.newer,
            "holder": loss.holder,
            "reason": loss.reason,
        }
        replica.pending_events.append(PendingEvent("lease_lost", fields))

    return HeldLease(replica.settings.token(), ttl, now=now, here=here, on_loss=on_loss)


def begin_lease(replica: "Replica", holding: HeldLease) -> None:
    """Make a lease the one of its handle; UsageError if the handle already has one."""
    earlier = replica.held_lease
    if earlier is not None and earlier.here():
        if earlier.busy:
            raise UsageError(
                f"this handle already holds the lease on {replica.name!r}: release it first"
            )
        holding.owners |= earlier.owners
    replica.held_lease = holding


class TakenLease(NamedTuple):
    """A lease that this handle took. `epoch` is its number among the leases of the session."""

    epoch: int


class LeaseAttempt:
    """One handle's attempt to take the lease. `holder` is stored in the record, for people."""

    def __init__(
        self, replica: "Replica", request: LeaseRequest, holding: HeldLease, holder: str
    ) -> None:
        self._replica = replica
        self._request = request
        self._holding = holding
        self._holder = holder
        self._overdue: tuple[int, int] | None = None

    def seconds_until_free(self, now: float) -> float:
        """Return in how many seconds the lease can be taken, as far as this replica knows."""
        lease = self._replica.state.lease
        if lease is None or self._is_free(lease):
            return 0.0
        seen = (lease.epoch, lease.renewed)
        if self._replica.lease_seen_at is None or self._replica.lease_seen_at[0] != seen:
            self._replica.lease_seen_at = (seen, now)
        # Measured on this process's own clock, from when it first saw that renewal.
        remaining = max(self._replica.lease_seen_at[1] + lease.ttl - now, 0.0)
        self._overdue = None if remaining else seen
        return remaining

    def _is_free(self, lease: LeaseState) -> bool:
        """Whether it is released, held by an earlier attempt of this handle, or taken by force."""
        return not lease.owner or self._holding.owns(lease) or self._request.force

    def refusal(self) -> PerdureError:
        """Return the error for a caller whose timeout has passed."""
        lease = self._replica.state.lease
        assert lease is not None  # noqa: S101 - only a stored lease can make the caller wait
        return lease_held_error(self._replica.name, lease)

    def plan(self) -> Plan[TakenLease]:
        """Plan to take the lease; LeaseHeldError if it is still held by another handle."""
        record_id = self._replica.new_id()

        def make(batch: RecordBatch) -> TakenLease:
            lease = batch.state.lease
            # A renewal stored since `seconds_until_free` means that the holder is alive.
            if (
                lease is not None
                and not self._is_free(lease)
                and self._overdue != (lease.epoch, lease.renewed)
            ):
                raise lease_held_error(batch.name, lease)
            is_held = lease is not None and bool(lease.owner)
            content = LeaseTaken(
                epoch=lease.epoch + 1 if lease is not None else 1,
                owner=self._holding.owner,
                ttl=self._request.ttl,
                holder=self._holder,
                forced=self._request.force and is_held,
            )
            batch.add_content(record_id, content)
            return TakenLease(content.epoch)

        return Plan("lease.take", "", make)


def plan_renewal(replica: "Replica", holding: HeldLease) -> Plan[bool]:
    """Plan a renewal. The result is False, and nothing is added, after the lease was released."""
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> bool:
        if not holding.active:
            return False
        fenced = holding.fenced(batch.name, batch.state.lease)
        if fenced is not None:
            raise fenced
        batch.add_content(record_id, LeaseRenewed(epoch=holding.epoch, owner=holding.owner))
        return True

    return Plan("lease.renew", "", make)


def plan_release(replica: "Replica", holding: HeldLease) -> Plan[bool]:
    """Plan to release the lease. The result is False if this handle no longer held it."""
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> bool:
        lease = batch.state.lease
        if lease is None or not holding.owns(lease):
            return False
        batch.add_content(record_id, LeaseReleased(epoch=lease.epoch, owner=lease.owner))
        return True

    return Plan("lease.release", "", make)


def after_release(replica: "Replica", holding: HeldLease, *, was_held: bool) -> None:
    """Update a lease after its release: another handle may have taken it over before."""
    holding.owners = frozenset()
    if not was_held and holding.epoch:  # Epoch 0: it was never taken.
        holding.fenced(replica.name, replica.state.lease)


def retry_delay(replica: "Replica", holding: HeldLease, error: Exception) -> float | None:
    """Return the delay in seconds before a failed renewal is retried; None if the lease is lost."""
    name = replica.name
    if isinstance(error, ConflictError | NotFoundError):
        holding.lose(FencedError(name, holding.epoch, 0, "", SESSION_DELETED))
    if holding.fenced(name, replica.state.lease) is not None:
        return None
    return holding.ttl * RETRY_AFTER


def lease_holder(replica: "Replica") -> LeaseHolder | None:
    """Return the lease holder of a session as this replica knows it, or None."""
    lease = replica.state.lease
    if lease is None or not lease.owner:
        return None
    holding = replica.held_lease
    here = holding is not None and holding.active and holding.owns(lease)
    return LeaseHolder(lease.epoch, lease.holder, lease.ttl, here)
