"""P11 and P12, quick: a sample of deaths, and proof that the harness sees what must not happen."""

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.core.effects import calls, plans
from perdure.core.effects.calls import Effect
from perdure.core.index import CachedPage
from perdure.core.state.effects import EffectsState
from perdure.journal.records import EffectIntent
from perdure.sync import tools
from perdure.sync.tools import DurableCall, Tool
from tests.promises import (
    errand_runs,
    p11_deaths,
    p11_ids,
    p11_memory,
    p12_in_flight,
    straced,
)
from tests.promises.errands import Scenario
from tests.promises.kinds import FILES, KINDS, SQLITE, Kind
from tests.promises.p11_deaths import Chain, System, points
from tests.promises.p11_memory import Life
from tests.promises.promise import Promise, sample
from tests.promises.world import Death, World

pytestmark = [pytest.mark.durability, pytest.mark.slow]

PROMISES = [*p11_deaths.PROMISES, p11_memory.PROMISE, *p12_in_flight.PROMISES]
EFFECTS = range(4, 28, 2)  # Steps of the errands that a model asked for.


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.key)
def test_no_death_runs_a_call_again_or_forgets_it(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=1.5, least=8) >= 8


def test_no_id_or_key_is_forgotten_however_many_came_after_it() -> None:
    assert sample(p11_ids.PROMISE, seed=1, seconds=2.0, least=1_500) >= 1_500


def test_an_id_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedPage, "positions", lambda *_: [])
    with pytest.raises(AssertionError, match=r"stored again|ran again"):
        sample(p11_ids.PROMISE, seed=1, seconds=2.0, least=1_500)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_step_of_a_call_is_a_point_to_die_at(kind: Kind, directory: Path) -> None:
    every = points(kind, directory, Scenario("mixed", "blocking"))
    counts = Counter(death.of for death in every)
    assert counts["record"] >= 2 * 20
    assert counts["effect"] >= 7 * 15
    assert counts["io"] > 200
    assert {death.how for death in every if death.of == "effect"} == {"before", "half of", "after"}


@pytest.mark.skipif(not straced.WORKS, reason="strace is not there, or not allowed")
def test_strace_kills_a_process_that_another_one_follows(directory: Path) -> None:
    chain = Chain(SQLITE, directory, Scenario("mixed", "blocking"))
    assert not chain.run(System("fsync", 2))  # Of one thread.
    assert chain.run(None)
    assert chain.judge() == ""


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_nobody_judges_what_a_living_process_has_under_way(
    kind: Kind, directory: Path, colour: str
) -> None:
    scenario = Scenario("unsafe", colour)
    steps = (Death("effect", number) for number in p12_in_flight.IN_THE_KEYED_CALL)
    found = (p12_in_flight.looked_at(kind, directory, scenario, step) for step in steps)
    assert "" in found, "it slept in the call with a key, and somebody else was refused"


def failures(directory: Path, policy: str) -> list[str]:
    """Die at some steps of the errands; return what is found each time that something is."""
    found = []
    for number in EFFECTS:
        life = Life(directory / "world", Scenario(policy, "blocking"))
        assert life.run(Death("effect", number, "after")).dead
        assert not life.run(None).dead
        found.append(life.judge())
    return [failure for failure in found if failure]


def test_nothing_is_found_where_nothing_is_wrong(directory: Path) -> None:
    assert failures(directory, "mixed") == []


def test_an_unsafe_call_that_is_made_again_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_RERUN_POLICIES", ("read_only", "idempotent", "unsafe"))
    assert any("was repeated" in one for one in failures(directory, "unsafe"))


def test_an_outcome_that_is_not_looked_for_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EffectsState, "with_outcome", lambda self, *_, **__: self)
    assert failures(directory, "idempotent") != []


def test_a_key_that_is_not_the_same_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = EffectsState.with_intent

    def forgetful(
        self: EffectsState, position: int, id: str, content: EffectIntent
    ) -> EffectsState:
        other = msgspec.structs.replace(content, key=f"{content.key}'")
        return real(self, position, id, other)

    monkeypatch.setattr(EffectsState, "with_intent", forgetful)
    assert any("different keys" in one for one in failures(directory, "idempotent"))


def test_an_outcome_that_is_not_recorded_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DurableCall, "_settle", lambda *_: None)
    assert failures(directory, "unsafe") != []


def test_a_model_that_is_not_told_is_seen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "INTERRUPTED_NOTICE", "It was done.")
    assert any("the model is told" in one for one in failures(directory, "unsafe"))


def test_a_tool_that_does_not_wait_for_its_intent_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Tool.make

    def hasty(self: Tool[..., Any], call: Any, given: Any, *rest: Any, **more: Any) -> Any:
        effect = Effect(".hasty", call.tool, self._handle.replica.settings.token(), {})
        with calls.effect_context(effect, call.identity):
            self.spec.function(*given.args, **given.kwargs)
        return real(self, call, given, *rest, **more)

    monkeypatch.setattr(Tool, "make", hasty)
    assert any("without an intent" in one for one in failures(directory, "unsafe"))


def test_a_call_that_nobody_gave_up_in_words_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "mark_unknown", lambda *_: None)
    chain = Chain(FILES, directory, Scenario("unsafe", "blocking"))
    assert not chain.run(Death("effect", 10, "after"))
    assert "0 outcomes" in chain.judge(give_up=True)


def test_a_loop_as_everybody_writes_it_runs_errands_again(directory: Path) -> None:
    def naive(session: perdure.Session, world: World, scenario: Scenario) -> None:
        turn = next(iter(session.interrupted), None) or session.turn("Run.", id="turn-1")
        with turn:
            turn.append(scenario.calls, id="calls")
            done = {one.get("tool_call_id") for one in session.messages()}
            for call in scenario.calls["tool_calls"]:
                if call["id"] not in done:
                    with calls.effect_context(Effect(".", "t", call["id"], {}), ""):
                        world.happen(call["id"])
                    turn.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})

    times = []
    for number in EFFECTS[:6]:
        errand_runs.clear(SQLITE, directory)
        scenario, death = Scenario("unsafe", "blocking"), Death("effect", number, "after")
        run: Callable[..., Any] = errand_runs.forked
        assert run(SQLITE, directory, scenario, death, agent=naive).code == -signal.SIGKILL
        assert run(SQLITE, directory, scenario, agent=naive).code == 0
        counts = Counter(line.errand for line in errand_runs.happened(directory))
        times.append(max(counts.values()))
    assert max(times) == 2, "it died between an effect and its record"
