"""P33, quick: a sample of deaths, forgeries and races, and proof that they are seen."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.effects import approvals, plans
from perdure.core.state.approvals import ApprovalsState, binding_digest
from perdure.journal.requests import Steps
from tests.promises import p33_approvals, p33_forgeries
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


def test_an_approval_that_is_not_used_up_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plans.intent_record

    def forgetting(*args: Any, approval: str = "", **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    monkeypatch.setattr(plans, "intent_record", forgetting)
    place = Place(0, Death("record", 3, "after"))
    assert "without an approval" in p33_approvals.trial(SQLITE, directory, [place])
