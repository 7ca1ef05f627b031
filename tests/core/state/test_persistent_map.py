"""What never changes is cheap to change a copy of, and the fold's effects stay few."""

import random
from pathlib import Path

import pytest

import perdure
from perdure.core.effects.calls import Happened, OutcomeState
from perdure.core.state.effects import EffectsState
from perdure.core.state.persistent_map import PersistentMap
from perdure.journal.records import EffectIntent, EffectOutcome


@pytest.mark.parametrize("removals", [0, 0.3, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_a_dict_of_which_no_state_ever_changes(seed: int, removals: float) -> None:
    draw = random.Random(seed)
    states: list[tuple[PersistentMap[int], dict[str, int]]] = [(PersistentMap(), {})]
    for number in range(600):
        found, model = states[-1]
        key = f"key-{draw.randrange(400)}"
        if draw.random() < removals:
            model = {other: value for other, value in model.items() if other != key}
            states.append((found.without(key), model))
        else:
            states.append((found.put(key, number), {**model, key: number}))
    for found, model in states:
        assert [*found.items()] == [*model.items()] == [*found.to_dict().items()]
        assert [*reversed(found)] == [*reversed(model)]
        assert [found.get(f"key-{n}") for n in range(400)] == [
            model.get(f"key-{n}") for n in range(400)
        ]
        assert [f"key-{n}" in found for n in range(400)] == [
            f"key-{n}" in model for n in range(400)
        ]
        assert len(found) == len(model)
        assert found == model
        assert "other" not in found
        assert found.get("other") is None
        with pytest.raises(KeyError):
            found["other"]


def test_the_root_of_what_is_there_is_copied_and_not_all_of_it() -> None:
    found: PersistentMap[int] = PersistentMap()
    copied = 0
    for number in range(10_000):
        before = found
        found = found.put(f"key-{number}", number)
        copied += len(found._new) if found._old is before._old else len(found._old)
    assert copied < 10_000 * 250


def intent(identity: str, turn: str) -> EffectIntent:
    made = {"tool": "t", "digest": "d", "key": "k", "policy": "unsafe", "arguments": {}}
    return EffectIntent(identity=identity, turn=turn, owner="o", **made)  # type: ignore[arg-type]


def outcome(
    identity: str, effect: str, turn: str, state: OutcomeState = "succeeded"
) -> EffectOutcome:
    return EffectOutcome(effect=effect, identity=identity, state=state, turn=turn)


def states(deeds: EffectsState) -> dict[str, str]:
    return {identity: deed.state for identity, deed in deeds.by_identity.items()}


def test_an_effect_stays_until_its_turn_ends_and_an_open_or_unknown_one_beyond() -> None:
    deeds = EffectsState()
    for number in range(8):
        identity = f"key:t\t{number}"
        deeds = deeds.with_intent(2 * number + 1, f"e{number}", intent(identity, "turn"))
        if number != 5:
            settled = outcome(
                identity, f"e{number}", "turn", "unknown" if number == 6 else "failed"
            )
            deeds = deeds.with_outcome(2 * number + 2, settled, over=False)
    assert len(deeds.by_identity) == 8
    assert EffectsState.of(deeds.by_identity) == deeds
    assert deeds.without_turn("other") == deeds
    assert states(deeds.without_turn("turn")) == {"key:t\t5": "intended", "key:t\t6": "unknown"}


def test_what_is_reconciled_after_its_turn_is_let_go() -> None:
    deeds = EffectsState().with_intent(1, "e", intent("direct:1", "turn"))
    deeds = deeds.with_outcome(2, outcome("direct:1", "e", "turn", "unknown"), over=False)
    deeds = deeds.without_turn("turn")
    assert (states(deeds), deeds.unknown) == ({"direct:1": "unknown"}, 1)
    deeds = deeds.with_outcome(3, outcome("direct:1", "e", "turn", "reconciled"), over=True)
    assert deeds == EffectsState()


def test_a_session_keeps_nothing_of_what_was_reconciled(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with perdure.open(tmp_path / "agents.db") as store:
        session = store.session("s")
        with pytest.raises(KeyboardInterrupt), session.turn("Stop."):
            session.tool(stop)()
        (unknown,) = session.effects.unknown()
        session.effects.reconcile(unknown.id, Happened("stopped"))
        assert session._replica.state.effects == EffectsState()
        assert [(one.state, one.result) for one in session.effects.list()] == [
            ("reconciled", "stopped")
        ]
        session.verify()
        assert store.resume("s")._replica.state.effects == EffectsState()
