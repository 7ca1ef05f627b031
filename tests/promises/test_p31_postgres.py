"""P31 on Postgres, a sample: weak servers are refused, and a lazy one loses nothing of ours."""

import random

import pytest

from tests.backends.postgres.server_keeper import running
from tests.promises.p31_postgres import LAZILY, LAZY, LOGGED, WEAK, lost_rows, unlogged, weak

pytestmark = pytest.mark.durability


@pytest.mark.parametrize("setting", WEAK)
def test_a_weak_server_is_refused_or_accepted_by_name(setting: str) -> None:
    trial = weak(setting)
    assert not trial.failure, trial


@pytest.mark.parametrize("table", LOGGED)
def test_a_table_that_a_crash_empties_is_refused_until_it_is_logged(table: str) -> None:
    trial = unlogged(table)
    assert not trial.failure, trial


@pytest.mark.slow
def test_a_server_that_commits_lazily_loses_nothing_of_ours() -> None:
    draw = random.Random(1)
    with running(*LAZY) as server:
        for lost in LAZILY * 3:
            trial = lost(server, draw)
            assert not trial.failure, trial
        # The server may write its log down just before it is killed, but not each time.
        assert any(lost_rows(server, draw) for _ in range(5)), "the control: inserts are lost"
