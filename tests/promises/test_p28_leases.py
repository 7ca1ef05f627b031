"""P28 with leases, a seeded sample: they go by monotonic clocks, and by no wall clock."""

from pathlib import Path
from unittest import mock

import pytest

from perdure.core.leases import HeldLease, LeaseAttempt
from tests.promises import p28_leases
from tests.promises.kinds import SQLITE
from tests.promises.promise import Promise, sample

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize("promise", p28_leases.PROMISES, ids=lambda promise: promise.key)
def test_no_wall_clock_changes_what_a_lease_is(promise: Promise) -> None:
    sample(promise, seed=1, seconds=2.5 if promise.store == "sqlite" else 1, least=10)


def is_found(fault: str) -> bool:
    """Whether one of some stories in memory has a fault."""
    return any(
        fault in p28_leases.lease_trial(8 * number + 1, SQLITE, Path()).failure
        for number in range(60)
    )


def test_a_contender_that_does_not_wait_is_found() -> None:
    """The twin: leases are taken over when half of their time has passed."""
    look = LeaseAttempt.seconds_until_free

    def hasty(claim: LeaseAttempt, now: float) -> float:
        look(claim, now)
        sighting = claim._replica.lease_seen_at
        if sighting is None or now - sighting[1] < p28_leases.TTL / 2:
            return look(claim, now)
        claim._overdue = sighting[0]
        return 0.0

    with mock.patch.object(LeaseAttempt, "seconds_until_free", hasty):
        assert is_found("over too early")


def test_a_contender_that_never_takes_over_is_found() -> None:
    look = LeaseAttempt.seconds_until_free

    def shy(claim: LeaseAttempt, now: float) -> float:
        return look(claim, now) or float(claim._overdue is not None)

    with mock.patch.object(LeaseAttempt, "seconds_until_free", shy):
        assert is_found("for long enough")


def test_a_holder_that_believes_for_ever_is_found() -> None:
    with mock.patch.object(HeldLease, "seconds_left", return_value=1.0):
        assert is_found("too long")
