"""P30 where it needs no clock: syncs, stored bytes, what is read, and what is imported."""

from pathlib import Path

import pytest

from benchmarks import imports, reading, speed, storage
from benchmarks.workload import json_size, turns
from tests.promises import p30_cost

pytestmark = pytest.mark.durability


def test_an_append_that_nobody_shares_takes_one_sync(tmp_path: Path) -> None:
    # Twenty turns stay below the log's first checkpoint, which syncs twice more.
    assert p30_cost.lone(tmp_path, 20) == [1] * 20


def test_64_threads_share_their_syncs(tmp_path: Path) -> None:
    found = p30_cost.by_threads(tmp_path)
    assert 0 < found.each <= speed.SYNCS_MAX, found


def test_64_tasks_share_their_syncs(tmp_path: Path) -> None:
    found = p30_cost.by_tasks(tmp_path)
    assert 0 < found.each <= speed.SYNCS_MAX, found


def test_a_session_of_many_turns_stores_little_more_than_its_messages(tmp_path: Path) -> None:
    found = storage.one_session(tmp_path / "one.db", 400)
    assert found.json_bytes < found.file_bytes <= found.bound, found


def test_many_sessions_store_little_more_than_their_messages(tmp_path: Path) -> None:
    found = storage.interleaved(tmp_path / "many.db", 1_000, 64)
    assert found.json_bytes < found.file_bytes <= found.bound, found


@pytest.mark.slow
def test_a_long_session_is_opened_and_read_with_as_little_as_a_short_one(tmp_path: Path) -> None:
    for records in (1_000, 20_000):
        reading.build(tmp_path / f"{records}.db", records)
    short, long = (reading.count(tmp_path / f"{records}.db") for records in (1_000, 20_000))
    for what in reading.Reads._fields:
        assert getattr(short, what).entries > 0
        assert not reading.differs(getattr(short, what), getattr(long, what)), what


def test_a_difference_in_what_is_read_is_noticed() -> None:
    few, many = reading.Count(10, 1_000, 1), reading.Count(300, 1_000, 1)
    assert "entries" in reading.differs(few, many)
    assert "bytes" in reading.differs(few, few._replace(bytes=1_000_000))
    assert "heads" in reading.differs(few, few._replace(heads=2))


def test_importing_perdure_imports_no_driver_no_event_loop_and_no_command_line() -> None:
    assert imports.unwanted() == []


def test_the_workload_is_the_same_for_the_same_seed_and_as_large_as_it_says() -> None:
    assert turns(50) == turns(50)
    assert turns(50) != turns(50, seed=1)
    many = turns(1_500)
    assert abs(sum(map(json_size, many)) / len(many) - 1_949) < 100
    assert {len(turn) for turn in many} == {2, 3, 4}
