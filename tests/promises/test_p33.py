"""P33, quick: a sample of deaths, forgeries and races, and proof that they are seen."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.effects import approvals, calls, plans
from perdure.core.effects.calls import CallArguments
from perdure.core.state.approvals import ApprovalsState, binding_digest
from perdure.journal.requests import Steps
from perdure.sync import tools
from tests.promises import p33_approvals, p33_arguments, p33_forgeries
from tests.promises.kinds import FILES, SQLITE
from tests.promises.p33_approvals import Place
from tests.promises.promise import Promise, Trial, sample
from tests.promises.world import Death

pytestmark = [pytest.mark.durability, pytest.mark.slow]


@pytest.mark.parametrize("promise", p33_approvals.PROMISES, ids=lambda promise: promise.key)
def test_no_death_makes_a_call_happen_unapproved_or_twice(promise: Promise) -> None:
    assert sample(promise, seed=3, seconds=2.0, least=4) >= 4


def test_no_forgery_race_or_clock_makes_a_call_happen() -> None:
    assert sample(p33_forgeries.PROMISE, seed=3, seconds=2.0, least=60) >= 60


def test_no_change_of_the_callers_objects_reaches_a_call() -> None:
    assert sample(p33_arguments.PROMISE, seed=3, seconds=2.0, least=100) >= 100


def _live_arguments(replica: Any, bound: Any) -> tuple[Any, str, CallArguments]:
    """Record and approve a copy of the arguments, and call with the caller's objects."""
    arguments = bound.by_name()
    packed, digest = calls.encode_arguments(replica, arguments)
    return packed, digest, CallArguments(arguments, bound.args, bound.kwargs)


def test_a_call_with_the_callers_own_objects_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "copy_arguments", _live_arguments)
    draw = random.Random(3)
    ways = (p33_arguments.in_threads, p33_arguments.in_tasks, p33_arguments.reconciled)
    assert all(any(_fails(way, draw) for _ in range(20)) for way in ways)


def test_a_model_that_gets_the_callers_own_objects_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tools, "copy_data", lambda value, **_: value)
    draw = random.Random(3)
    assert any(p33_arguments.models(draw).failure.startswith("sent") for _ in range(20))


def test_every_step_of_an_approval_is_a_point_to_die_at(directory: Path) -> None:
    found = p33_approvals.points(FILES, directory)
    assert {place.process for place in found} == {0, 1, 2}
    assert len([place for place in found if place.death.of == "record"]) > 2 * 12
    assert {place.death.of for place in found if place.process == 2} == {"record", "effect", "io"}
    assert not [place for place in found if place.process < 2 and place.death.number == 0]


def any_version(tool: str, _version: str, digest: str) -> str:
    return binding_digest(tool, "1", digest)


def any_decision(consents: ApprovalsState, position: int, content: Any) -> ApprovalsState:
    """Take every decision for one about whatever waits."""
    for identity, consent in consents.by_identity.items():
        return consents._with(identity, consent._replace(state=content.decision, decision=position))
    return consents


def nobody_looks(*args: Any, **_: object) -> Steps[Any]:
    """Return the decision as it was before anybody looked."""
    yield from ()
    return args[4]


BREAKAGES: dict[str, tuple[Any, str, Any]] = {
    "nobody looks for an approval": (plans, "require_approval", nobody_looks),
    "an approval is good for any version": (approvals, "binding_digest", any_version),
    "no approval is ever over": (approvals, "is_expired", lambda *_: False),
    "any decision counts": (ApprovalsState, "with_decision", any_decision),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_it_is_noticed_if(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    assert not any(way(draw).failure for way in p33_forgeries.WAYS for _ in range(20))
    owner, name, broken = BREAKAGES[breakage]
    monkeypatch.setattr(owner, name, broken)
    trials = (way for _ in range(200) for way in p33_forgeries.WAYS)
    assert any(_fails(way, draw) for way in trials)


def _fails(way: Callable[[random.Random], Trial], draw: random.Random) -> bool:
    try:
        return bool(way(draw).failure)
    except perdure.PerdureError:  # What is broken may break the trial too.
        return False
    except AssertionError:
        return True


def test_an_approval_that_is_not_used_up_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plans.intent_record

    def forgetting(*args: Any, approval: str = "", **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    monkeypatch.setattr(plans, "intent_record", forgetting)
    place = Place(0, Death("record", 3, "after"))
    assert "without an approval" in p33_approvals.trial(SQLITE, directory, [place])
