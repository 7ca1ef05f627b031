"""P32, quick: a sample of stores that break, and proof that a tool without an intent is seen."""

import random
from pathlib import Path
from typing import Any

import pytest

from perdure.core.effects import calls
from perdure.core.effects.calls import Effect
from perdure.errors import UnavailableError
from perdure.sync.tools import Tool
from tests.promises import p32_broken
from tests.promises.errands import Scenario
from tests.promises.kinds import FILES, KINDS, Kind, Sqlite
from tests.promises.p32_broken import Broken, Ran, Trouble
from tests.promises.promise import Promise, sample
from tests.promises.spoiler import Fault

pytestmark = [pytest.mark.durability, pytest.mark.slow]

NOTHING = Fault(0, "", "EIO")
UNSAFE = Scenario("unsafe", "blocking")


@pytest.mark.parametrize("promise", p32_broken.PROMISES, ids=lambda promise: promise.key)
def test_no_tool_runs_without_a_durable_intent(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=1.5, least=12) >= 12


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_broken_store_stops_the_agent_at_once(kind: Kind, directory: Path) -> None:
    trouble = Trouble(kind, directory, UNSAFE)
    error = UnavailableError("the store", "made to")
    trouble.wrap(lambda backend: Broken(backend, 6, error, stores=False))
    assert len([one for one in trouble.log if isinstance(one, Ran)]) == 2, "one, and one more"
    assert trouble.judge(random.Random(1)) == ""


def test_a_store_that_does_not_sync_is_seen(directory: Path) -> None:
    trouble = Trouble(Sqlite("off"), directory, UNSAFE)
    trouble.wrap(lambda backend: backend)
    assert "not on the disk" in trouble.judge(random.Random(1))


def test_files_that_are_not_synced_are_seen(directory: Path) -> None:
    trouble = Trouble(FILES, directory, UNSAFE)
    trouble.wrap(lambda backend: backend)
    first = next(number for number, one in enumerate(trouble.log) if isinstance(one, Ran))
    later = [one for one in trouble.log[first:] if isinstance(one, Ran) or one.op != "sync"]
    trouble.log[first:] = later
    assert "not on the disk" in trouble.judge(random.Random(1))


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
    trouble = Trouble(FILES, directory, UNSAFE)
    trouble.spoil(NOTHING, repaired_after=0)
    assert "without an intent" in trouble.judge(random.Random(1))
