"""A holder, and contenders that think its time has passed, in every order of their requests.

Each order ends with the same questions: every message stands under the lease that it was written
under, an epoch has one owner, and whoever was told that it holds the session does.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from perdure.backends.memory import MemoryBackend
from perdure.core import annotations, leases, lifecycle, messages
from perdure.core.leases import HeldLease, LeaseAttempt, LeaseRequest
from perdure.core.plans import Plan, T
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.errors import FencedError, LeaseHeldError, PerdureError
from perdure.journal.requests import Steps
from perdure.sync.store import Store
from tests.core.schedules import Actor, run, schedules, settings
from tests.promises.p08_leases import held_by_one

TTL = 30.0


class World(NamedTuple):
    """A session that one replica holds, epoch 1."""

    backend: MemoryBackend
    settings: Settings
    holder: Replica
    holding: HeldLease


def begin(replica: Replica) -> HeldLease:
    # Its own clock stands still: nothing but positions keeps it from writing.
    lease = leases.new_lease(replica, TTL, now=lambda: 0.0, here=lambda: True, lost=lambda: None)
    leases.begin_lease(replica, lease)
    return lease


def world() -> World:
    backend, with_settings = MemoryBackend(), settings()
    replica = run(backend, lifecycle.open_session("s", with_settings, must_exist=False))
    holding = begin(replica)
    run(backend, take(replica, holding, "one"))
    return World(backend, with_settings, replica, holding)


def take(replica: Replica, holding: HeldLease, who: str, *, force: bool = False) -> Steps[int]:
    """Take the lease, as one who saw it long ago."""
    claim = LeaseAttempt(replica, LeaseRequest(TTL, 0.0, who, force), holding, who)
    claim.seconds_until_free(0.0)
    claim.seconds_until_free(TTL)
    taken = yield from write(replica, claim.plan())
    holding.take(taken.epoch, 0.0)
    return taken.epoch


def write(replica: Replica, plan: Plan[T]) -> Steps[T]:
    (answer,) = yield from replica.write([plan])
    if isinstance(answer, PerdureError):
        raise answer
    return answer  # type: ignore[no-any-return] # the answers of a batch have different types


def say(replica: Replica, who: str, epoch: int) -> Steps[int]:
    message = {"role": "user", "content": who, "id": who, "by": who, "epoch": epoch}
    return write(replica, messages.append_messages(replica, [message]))


Told = list[str]


def holds(world: World) -> Steps[Told]:
    """Write, renew, and write again; return what became of each."""
    told = []
    replica, holding = world.holder, world.holding
    plans: list[Callable[[], Steps[Any]]] = [
        lambda: say(replica, "one", 1),
        lambda: write(replica, leases.plan_renewal(replica, holding)),
        lambda: say(replica, "one", 1),
    ]
    for plan in plans:
        told.append((yield from _told(plan())))  # noqa: PERF401 - a list can not yield
    return told


def leaves(world: World) -> Steps[Told]:
    """Give it back."""
    world.holding.end()
    release = leases.plan_release(world.holder, world.holding)
    return [(yield from _told(write(world.holder, release)))]


def contends(world: World, who: str = "two", *, force: bool = False) -> Steps[Told]:
    """Open the session, look at the lease for its whole time, take it over and write."""
    replica = yield from lifecycle.open_session("s", world.settings, must_exist=True)
    holding = begin(replica)
    taken = yield from _told(take(replica, holding, who, force=force))
    if not taken.isdigit():
        return [taken]
    return [taken, (yield from _told(say(replica, who, holding.epoch)))]


def interferes(world: World) -> Steps[Told]:
    """Write without a lease."""
    replica = yield from lifecycle.open_session("s", world.settings, must_exist=True)
    return [(yield from _told(say(replica, "nobody", 0)))]


def _told(steps: Steps[Any]) -> Steps[str]:
    try:
        return str((yield from steps))
    except (FencedError, LeaseHeldError) as error:
        return type(error).__name__


Play = Callable[[World], Steps[Told]]
PLAYS: dict[str, Sequence[Play]] = {
    "a contender": (holds, contends),
    "two contenders": (contends, lambda world: contends(world, "three")),
    "a contender, and a release": (leaves, contends),
    "one by force": (holds, lambda world: contends(world, force=True)),
    "somebody without a lease": (leaves, interferes),
    "a contender and somebody without a lease": (contends, interferes),
}


@pytest.mark.parametrize("plays", PLAYS.values(), ids=PLAYS)
def test_in_every_order_one_holds_the_session_at_a_time(plays: Sequence[Play]) -> None:
    ends: set[str] = set()
    for order, told, records in every_order(plays):
        assert list(held_by_one(records)) == [], order
        taken = [record.content.epoch for record in records if record.kind == "lease.taken"]
        assert taken == [*range(1, len(taken) + 1)], order
        stored = [record.content.message["by"] for record in records if record.kind == "message"]
        wanted = {"FencedError", "LeaseHeldError"}
        assert len(stored) == sum(told_of_messages(plays, told, wanted)), order
        ends.add(repr(told))
    if interferes not in plays or leaves in plays:  # Else it is held all the time.
        assert len(ends) > 1, "all orders end alike: it is no trial"


def told_of_messages(
    plays: Sequence[Play], told: Sequence[Told], refused: set[str]
) -> Sequence[bool]:
    """Say for each message whether its writer was told that it is stored."""
    found = []
    for play, answers in zip(plays, told, strict=True):
        said = answers[::2] if play is holds else answers[1:] if play is not interferes else answers
        found += [answer not in refused for answer in said if play is not leaves]
    return found


def every_order(plays: Sequence[Play]) -> Any:
    worlds: list[World] = []

    def scene() -> Sequence[Actor]:
        worlds.append(world())
        return [Actor(worlds[-1].backend, play(worlds[-1])) for play in plays]

    for order, actors in schedules(scene):
        for actor in actors:
            assert actor.done
            assert actor.error is None, f"{order}: {actor.error!r}"
        session = Store(worlds[-1].backend, worlds[-1].settings).session("s")
        session.verify()
        yield order, [actor.result for actor in actors], list(session.records())


def test_a_renewal_that_comes_first_keeps_the_contender_out() -> None:
    outcomes = {(told[0][1], told[1][0]) for _, told, _ in every_order((holds, contends))}
    renewals = {renewal for renewal, taken in outcomes if taken == "LeaseHeldError"}
    assert renewals
    assert renewals == {"True"}
    assert ("FencedError", "2") in outcomes


def test_of_two_contenders_one_gets_it() -> None:
    plays = PLAYS["two contenders"]
    firsts = {tuple(answers[0] for answers in told) for _, told, _ in every_order(plays)}
    assert ("2", "LeaseHeldError") in firsts
    assert ("LeaseHeldError", "2") in firsts
    assert ("2", "2") not in firsts


def test_whoever_was_taken_over_from_keeps_notes_and_loses_all_else() -> None:
    one = world()
    run(one.backend, contends(one))
    assert run(one.backend, holds(one)) == ["FencedError"] * 3
    run(
        one.backend,
        write(one.holder, annotations.add_note(one.holder, 1, author="", record_id=None)),
    )
