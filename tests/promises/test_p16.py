"""P16, a seeded sample: sessions behave as the model, on every store alike."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure.core import dropped_ids, history, view
from perdure.core.batch import JointPlan
from perdure.core.plans import Plan
from perdure.core.state.conversation import ConversationState
from perdure.core.state.session_state import SessionState
from perdure.core.view import newer_records
from perdure.errors import CompactedError, DamagedError
from perdure.sync.session import Session
from tests.promises import p16_machine as machine

pytestmark = [pytest.mark.durability, pytest.mark.slow]


def test_sessions_in_memory_behave_as_the_model(tmp_path: Path) -> None:
    logs = machine.run(machine.opener("memory", tmp_path), seed=1, runs=100)
    happened = Counter(word for log in logs for line in log for word in line.split()[-1:])
    # So many runs, because hypothesis draws from the constants that it finds in the code: how often
    # something happens changes with them.
    assert happened["ConflictError"] > 10, "handles met each other"
    assert happened["DivergenceError"] > 5, "ids were used again"
    assert happened["deleted"] > 10, "sessions ended"
    text = str(logs)
    for kind in ("messages.retracted", "messages.replaced", "view: ", "compacted from", "'fields'"):
        assert text.count(kind) > 10, kind


def test_sessions_on_sqlite_behave_as_the_model(tmp_path: Path) -> None:
    machine.run(machine.opener("sqlite", tmp_path), seed=2, runs=10)


def test_sessions_in_files_behave_as_the_model(tmp_path: Path) -> None:
    machine.run(machine.opener("files", tmp_path), seed=4, runs=10)


def test_the_same_is_seen_on_all_stores() -> None:
    trials = list(machine.compared(3, runs=6))
    assert [trial.failure for trial in trials if trial.failure] == []
    assert len(trials) >= 3 * 6


def leave_one_out(past: Any, settings: Any, position: int) -> Any:
    return newer_records(past, settings, position + 1)


BREAKAGES: dict[str, tuple[Any, str, Any]] = {
    "messages commute": (Plan, "invalidated_by", lambda *_: False),
    "retracted messages stay": (ConversationState, "is_hidden", lambda *_: False),
    "the notes of a topic are not linked": (history, "previous_note", lambda _: 0),
    "a view leaves out a record": (view, "newer_records", leave_one_out),
    "a part of a batch commutes": (JointPlan, "invalidated_by", lambda *_: False),
    "a compaction forgets ids": (dropped_ids, "encode_pages", lambda _: []),
    "a compaction carries nothing": (SessionState, "cited_positions", lambda _: set()),
    "the last message is forgotten": (Session, "last_message", property(lambda _: None)),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_machine_notices_that(
    breakage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, broken = BREAKAGES[breakage]
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, CompactedError, DamagedError)):
        machine.run(machine.opener("memory", tmp_path), seed=1, runs=40)
