"""Plans to take, renew and release a lease. Pure: the caller passes the time.

A contender may take over a lease when its ttl has passed since this handle saw its newest renewal.
The plan refers to that renewal and is checked on every execution: if a newer one was stored, the
contender waits again.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from perdure.errors import ConflictError, FencedError, NotFoundError, PerdureError, UsageError
from perdure.leases import tenure
from perdure.leases.records import LeaseReleased, LeaseRenewed, LeaseTaken
from perdure.leases.tenure import Holder, Holding, Tenure
from perdure.plans import Batch, Made, Plan, require_str
from perdure.replica import Replica
from perdure.standing import Notice

TTL_MIN, TTL_MAX = 0.05, 86_400.0  # seconds; the fastest renewals a disk sustains; one day
WHO_BYTES_MAX = 256  # bytes of UTF-8; every snapshot contains it
RENEW_AFTER = 1 / 3  # of the ttl; two renewals may fail before the lease is lost
RETRY_AFTER = 1 / 12  # of the ttl, after a failed renewal; leaves several retries before expiry
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.25  # seconds; keeps a contender from polling on every write


class Asked(NamedTuple):
    """The lease that the caller requested. `wait` is in seconds; infinity means no timeout."""

    ttl: float
    wait: float
    who: str
    force: bool


def asked(ttl: object, wait: object, who: object, *, force: object) -> Asked:
    """Validate the arguments of `session.lease`; raise UsageError if they are wrong."""
    seconds = _number(ttl, "ttl")
    if not TTL_MIN <= seconds <= TTL_MAX:
        raise UsageError(f"ttl must be {TTL_MIN:g} to {TTL_MAX:g} seconds, not {seconds:g}")
    if wait is None or isinstance(wait, bool):
        timeout = math.inf if wait else 0.0
    else:
        timeout = _number(wait, "wait")
        if not timeout >= 0:  # Rejects NaN too.
            raise UsageError(f"wait must be a number of seconds, True or None, not {timeout:g}")
    text = require_str(who, "who")
    if len(text.encode()) > WHO_BYTES_MAX:
        raise UsageError(f"who must be at most {WHO_BYTES_MAX} bytes of UTF-8")
    if not isinstance(force, bool):
        raise UsageError(f"force must be True or False, not {force!r}")
    return Asked(seconds, timeout, text, force)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number of seconds, not {type(value).__name__}")
    return float(value)


def begin(
    replica: Replica,
    ttl: float,
    *,
    now: Callable[[], float],
    here: Callable[[], bool],
    lost: Callable[[], None],
) -> Holding:
    """Prepare a lease that is not taken yet; UsageError if this handle already has one."""
    earlier = replica.holding
    if earlier is not None and earlier.busy and earlier.here():
        raise UsageError(f"this handle already holds the lease on {replica.name!r}")

    def on_loss(loss: FencedError) -> None:
        lost()
        fields = {"epoch": loss.epoch, "newer": loss.newer, "who": loss.who, "reason": loss.reason}
        replica.notices.append(Notice("lost", fields))

    token = replica.settings.token()
    replica.holding = Holding(token, ttl, earlier, now=now, here=here, on_loss=on_loss)
    return replica.holding


class Claim:
    """One handle's attempt to take the lease. `who` is stored in the record, for people."""

    def __init__(self, replica: Replica, request: Asked, holding: Holding, who: str) -> None:
        self._replica = replica
        self._request = request
        self._holding = holding
        self._who = who
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

    def _is_free(self, lease: Tenure) -> bool:
        """Whether it is released, held by an earlier attempt of this handle, or taken by force."""
        return not lease.owner or self._holding.owns(lease) or self._request.force

    def refusal(self) -> PerdureError:
        """Return the error for a caller whose timeout has passed."""
        lease = self._replica.state.lease
        assert lease is not None  # noqa: S101 - only a stored lease can make the caller wait
        return tenure.held_error(self._replica.name, lease)

    def plan(self) -> Plan:
        """Plan to take the lease; returns its epoch, raises LeaseHeldError if it is still held."""
        record_id = self._replica.settings.new_id()

        def make(batch: Batch) -> Made:
            yield from ()
            lease = batch.state.lease
            # A renewal stored since `seconds_until_free` means that the holder is alive.
            if (
                lease is not None
                and not self._is_free(lease)
                and self._overdue != (lease.epoch, lease.renewed)
            ):
                raise tenure.held_error(batch.name, lease)
            is_held = lease is not None and bool(lease.owner)
            content = LeaseTaken(
                epoch=lease.epoch + 1 if lease is not None else 1,
                owner=self._holding.owner,
                ttl=self._request.ttl,
                who=self._who,
                forced=self._request.force and is_held,
            )
            batch.add_content(record_id, content)
            return content.epoch

        return Plan("lease.take", "", make)


def renew(replica: Replica, holding: Holding) -> Plan:
    """Plan a renewal. It does nothing after the lease was released."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        if not holding.active:
            return batch.position
        fenced = holding.fenced(batch.name, batch.state.lease)
        if fenced is not None:
            raise fenced
        content = LeaseRenewed(epoch=holding.epoch, owner=holding.owner)
        return batch.add_content(record_id, content)

    return Plan("lease.renew", "", make)


def release(replica: Replica, holding: Holding) -> Plan:
    """Plan to release the lease. The result is 0 if this handle no longer held it."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        lease = batch.state.lease
        if lease is None or not holding.owns(lease):
            return 0
        return batch.add_content(record_id, LeaseReleased(epoch=lease.epoch, owner=lease.owner))

    return Plan("lease.release", "", make)


def given_back(replica: Replica, holding: Holding, position: int) -> None:
    """Update a lease after its release: another handle may have taken it over before."""
    holding.owners = frozenset()
    if not position and holding.epoch:  # Epoch 0: it was never taken.
        holding.fenced(replica.name, replica.state.lease)


def pause_after(replica: Replica, holding: Holding, error: Exception) -> float | None:
    """Return the delay in seconds before a failed renewal is retried; None if the lease is lost."""
    name = replica.name
    if isinstance(error, ConflictError | NotFoundError):
        holding.lose(FencedError(name, holding.epoch, 0, "", tenure.DELETED))
    if holding.fenced(name, replica.state.lease) is not None:
        return None
    return holding.ttl * RETRY_AFTER


def holder(replica: Replica) -> Holder | None:
    """Return the lease holder of a session as this replica knows it, or None."""
    lease = replica.state.lease
    if lease is None or not lease.owner:
        return None
    holding = replica.holding
    here = holding is not None and holding.active and holding.owns(lease)
    return Holder(lease.epoch, lease.who, lease.ttl, here)
