"""P14, a seeded sample: replay is deterministic, and nothing happens in it."""

import random
from typing import Any

import pytest

import perdure
from perdure.core.replay.cursor import ReplayCursor
from perdure.core.replay.served_calls import RecordedCalls
from perdure.core.replica import Replica
from tests.promises import p14_live, p14_replay
from tests.promises.p14_agents import Running, World, draw, drive
from tests.promises.promise import Promise, sample

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_agents_are_replayed_to_the_byte(seed: int) -> None:
    sample(p14_replay.PROMISE, seed=seed, seconds=4, least=100)


@pytest.mark.slow
def test_the_trials_notice_a_replay_that_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayCursor, "_compare", lambda *_: None)
    with pytest.raises(AssertionError, match=r"not found|it was found at|departed"):
        sample(p14_replay.PROMISE, seed=1, seconds=4, least=100)


@pytest.mark.slow
def test_the_trials_notice_a_tool_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    served = RecordedCalls.serve

    def running(self: Any, spec: Any, call: Any, tell: Any) -> Any:
        if spec.name == "charge":
            spec.function(1)
        return served(self, spec, call, tell)

    monkeypatch.setattr(RecordedCalls, "serve", running)
    with pytest.raises(AssertionError, match="something was called"):
        sample(p14_replay.PROMISE, seed=1, seconds=4, least=100)


@pytest.mark.slow
@pytest.mark.parametrize("promise", p14_live.PROMISES, ids=lambda promise: promise.store)
def test_a_replayed_agent_writes_to_no_live_store(promise: Promise) -> None:
    sample(promise, seed=1, seconds=2, least=60)


@pytest.mark.slow
def test_the_trials_notice_a_live_session_that_is_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replica, "require_live", lambda *_: None)
    with pytest.raises(AssertionError, match="was not refused"):
        sample(p14_live.PROMISES[0], seed=1, seconds=4, least=100)


def test_agents_of_one_seed_are_the_same() -> None:
    scripts = [draw(random.Random(7), served=True) for _ in range(2)]
    assert scripts[0] == scripts[1]
    returned = []
    for _ in range(2):
        with perdure.open("memory:") as store:
            script = draw(random.Random(7), served=False)
            returned.append(drive(Running(store.session("s"), World(), script).run()))
    assert returned[0] == returned[1]
