"""P35, quick: a sample of the table, and proof that its judge sees what must not happen."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure.core.effects import plans, results
from perdure.core.effects.calls import CallOutcome
from perdure.core.turn_records import TurnPlace
from perdure.sync import tools
from perdure.sync.turn import Turn
from tests.promises import p35_requests
from tests.promises.kinds import SQLITE
from tests.promises.promise import Promise, sample
from tests.promises.request_forms import FORMS
from tests.promises.request_judge import Table
from tests.promises.requests import CTRL_C, DISTURBANCES, KILL, MODEL, TOOL, Scenario

pytestmark = [pytest.mark.durability, pytest.mark.slow]

EXPLICIT, RUN = FORMS[0], FORMS[2]


@pytest.mark.parametrize("promise", p35_requests.PROMISES, ids=lambda promise: promise.key)
def test_a_request_that_is_tried_again_is_done_once(promise: Promise) -> None:
    assert sample(promise, seed=1, seconds=3.0, least=30) >= 30


def table(directory: Path, form: Any = RUN, policy: str = "unsafe") -> Table:
    opener, clear = SQLITE.opener(directory), partial(SQLITE.clear, directory)
    return Table(form, Scenario("one by one", policy), directory, opener, clear)


def failures(rows: Table, kind: str, where: str = "") -> list[str]:
    """Return what is found where something of a kind happens at some points."""
    every = [one for one in rows.disturbances() if one.kind == kind and one.what.startswith(where)]
    assert every
    return [failure for failure in map(rows.failure, every) if failure]


def test_everything_happens_at_many_points(directory: Path) -> None:
    rows = table(directory, EXPLICIT)
    kinds = Counter(one.kind for one in rows.disturbances())
    assert kinds.keys() == DISTURBANCES.keys() - {"cancel"}, "a task is cancelled in a loop only"
    assert min(kinds[KILL], kinds[CTRL_C]) >= 60
    names = {one.what for one in rows.disturbances()}
    assert {"commit, before", "commit, after", "model, chunk", "shown"} < names
    assert {"tool charge, before", "tool mail, after"} < names


def test_nothing_is_found_where_nothing_is_wrong(directory: Path) -> None:
    rows = table(directory)
    assert [*failures(rows, MODEL), *failures(rows, TOOL), *failures(rows, KILL, "tool")] == []


def test_a_failed_turn_that_stays_ended_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(directory)
    ended = property(lambda place: "completed" if place.end else "")
    monkeypatch.setattr(TurnPlace, "outcome", ended)
    assert all("it does not end" in one for one in failures(rows, MODEL))


def test_an_unsafe_tool_that_runs_again_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(directory)
    monkeypatch.setattr(plans, "_RERUN_POLICIES", ("read_only", "idempotent", "unsafe"))
    assert any("took effect 2 times" in one for one in failures(rows, KILL, "tool"))


def test_an_interruption_that_counts_as_an_outcome_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(directory, policy="idempotent")
    for module in (results, tools):
        monkeypatch.setattr(module, "may_run_again", lambda *_: False)
    assert any("unknown" in one for one in failures(rows, CTRL_C, "tool"))


def test_an_outcome_that_is_invented_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(directory)
    invented = CallOutcome("succeeded", "charged 5")
    monkeypatch.setattr(plans, "CallOutcome", lambda *_, **__: invented)
    assert any("did not take effect" in one for one in failures(rows, KILL, "tool charge, before"))


def test_a_completed_turn_that_does_something_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(directory)
    monkeypatch.setattr(Turn, "ended", False)
    assert any("the third run" in one for one in failures(rows, MODEL))
