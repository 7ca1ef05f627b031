"""Leases as plans: to take one, to renew it, to give it back. Pure: the caller tells the time.

A contender may take a lease over when its time has passed since this handle saw its newest renewal.
The plan names that renewal, and is judged each time it is made: a newer one makes it wait again.
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

TTL_MIN, TTL_MAX = 0.05, 86_400.0  # Seconds: what a disk can keep up with; a day.
WHO_BYTES_MAX = 256  # It is kept in fold snapshots.
RENEW_AFTER = 1 / 3  # Of the ttl: two renewals may fail before it is lost.
RETRY_AFTER = 1 / 12  # Of the ttl, after a renewal that failed.
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.25  # Seconds: a contender does not follow a busy holder's heels.


class Asked(NamedTuple):
    """A lease as the caller wants it. `wait` is in seconds; infinite means as long as it takes."""

    ttl: float
    wait: float
    who: str
    force: bool


def asked(ttl: object, wait: object, who: object, *, force: object) -> Asked:
    """Return what a caller asked for, or say what is wrong with it."""
    seconds = _number(ttl, "ttl")
    if not TTL_MIN <= seconds <= TTL_MAX:
        raise UsageError(f"ttl must be {TTL_MIN:g} to {TTL_MAX:g} seconds, not {seconds:g}")
    if wait is None or isinstance(wait, bool):
        patience = math.inf if wait else 0.0
    else:
        patience = _number(wait, "wait")
        if not patience >= 0:
            raise UsageError(f"wait must be a number of seconds, True or None, not {patience:g}")
    text = require_str(who, "who")
    if len(text.encode()) > WHO_BYTES_MAX:
        raise UsageError(f"who must be at most {WHO_BYTES_MAX} bytes of UTF-8")
    if not isinstance(force, bool):
        raise UsageError(f"force must be True or False, not {force!r}")
    return Asked(seconds, patience, text, force)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{what} must be a number of seconds, not {type(value).__name__}")
    return float(value)


def begin(
    replica: Replica,
    ttl: float,
    *,
    now: Callable[[], float],
    here: Callable[[], bool],
    lost: Callable[[], None],
) -> Holding:
    """Return what a handle is to hold, before it is taken; it holds one at a time."""
    earlier = replica.holding
    if earlier is not None and earlier.busy and earlier.here():
        raise UsageError(f"this handle holds the lease on {replica.name!r} already")

    def on_loss(loss: FencedError) -> None:
        lost()
        told = {"epoch": loss.epoch, "newer": loss.newer, "who": loss.who, "reason": loss.reason}
        replica.notices.append(Notice("lost", told))

    token = replica.settings.token()
    replica.holding = Holding(token, ttl, earlier, now=now, here=here, on_loss=on_loss)
    return replica.holding


class Claim:
    """The attempt of one handle to get the lease. `who` is what the record will say."""

    def __init__(self, replica: Replica, asked: Asked, holding: Holding, who: str) -> None:
        self._replica = replica
        self._asked = asked
        self._holding = holding
        self._who = who
        self._overdue: tuple[int, int] | None = None

    def look(self, now: float) -> float:
        """Return in how many seconds the lease can be taken, by what this view shows; 0 is now."""
        found = self._replica.fold.lease
        if found is None or self._is_free(found):
            return 0.0
        seen = (found.epoch, found.renewed)
        if self._replica.sighting is None or self._replica.sighting[0] != seen:
            self._replica.sighting = (seen, now)
        left = max(self._replica.sighting[1] + found.ttl - now, 0.0)
        self._overdue = None if left else seen
        return left

    def _is_free(self, found: Tenure) -> bool:
        """Whether nobody holds it but perhaps an earlier attempt of this very handle."""
        return not found.owner or self._holding.owns(found) or self._asked.force

    def refusal(self) -> PerdureError:
        """Return the error for who does not want to wait any longer."""
        found = self._replica.fold.lease
        assert found is not None  # noqa: S101 - else there was nothing to wait for
        return tenure.held_error(self._replica.name, found)

    def plan(self) -> Plan:
        """Plan to take the lease; LeaseHeldError if it can not be taken yet. Answers the epoch."""
        record_id = self._replica.settings.new_id()

        def make(batch: Batch) -> Made:
            yield from ()
            found = batch.fold.lease
            if (
                found is not None
                and not self._is_free(found)
                and self._overdue != (found.epoch, found.renewed)
            ):
                raise tenure.held_error(batch.name, found)
            held = found is not None and bool(found.owner)
            content = LeaseTaken(
                epoch=found.epoch + 1 if found is not None else 1,
                owner=self._holding.owner,
                ttl=self._asked.ttl,
                who=self._who,
                forced=self._asked.force and held,
            )
            batch.add_content(record_id, content)
            return content.epoch

        return Plan("lease.take", "", make)


def renew(replica: Replica, holding: Holding) -> Plan:
    """Plan a renewal. It does nothing once the lease was given back."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        if not holding.active:
            return batch.position
        lost = holding.fenced(batch.name, batch.fold.lease)
        if lost is not None:
            raise lost
        content = LeaseRenewed(epoch=holding.epoch, owner=holding.owner)
        return batch.add_content(record_id, content)

    return Plan("lease.renew", "", make)


def release(replica: Replica, holding: Holding) -> Plan:
    """Plan to give the lease back. The answer is 0 if it was not there any more."""
    record_id = replica.settings.new_id()

    def make(batch: Batch) -> Made:
        yield from ()
        found = batch.fold.lease
        if found is None or not holding.owns(found):
            return 0
        return batch.add_content(record_id, LeaseReleased(epoch=found.epoch, owner=found.owner))

    return Plan("lease.release", "", make)


def given_back(replica: Replica, holding: Holding, answer: int) -> None:
    """Take note of what came of giving a lease back: somebody else may have taken it before."""
    holding.own = frozenset()
    if not answer and holding.epoch:  # Else it was never taken.
        holding.fenced(replica.name, replica.fold.lease)


def pause_after(replica: Replica, holding: Holding, error: Exception) -> float | None:
    """Return when to try a renewal again that failed, in seconds; None if the lease is lost."""
    name = replica.name
    if isinstance(error, ConflictError | NotFoundError):
        holding.lose(FencedError(name, holding.epoch, 0, "", tenure.DELETED))
    if holding.fenced(name, replica.fold.lease) is not None:
        return None
    return holding.ttl * RETRY_AFTER


def holder(replica: Replica) -> Holder | None:
    """Return who holds a session in this view, if somebody does."""
    found = replica.fold.lease
    if found is None or not found.owner:
        return None
    own = replica.holding
    here = own is not None and own.active and own.owns(found)
    return Holder(found.epoch, found.who, found.ttl, here)
