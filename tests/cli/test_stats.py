"""`perdure stats`: exact counts, and what is counted."""

from collections import Counter
from pathlib import Path

import pytest

import perdure
from tests.cli.support import damage, fill, invoke, objects


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def test_everything_is_counted_exactly(path: Path) -> None:
    (found,) = objects(invoke(path, "stats", "--json"))
    kinds: Counter[str] = Counter()
    with perdure.open(path) as store:
        for name in ("claim-4711", "gone", "empty-handed"):
            kinds.update(record.kind for record in store.records(name))
        kinds.update(record.kind for record in store.records("what-if", after=5))
        guarantees = store.guarantees()
    assert list(found) == [
        "store",
        "sessions",
        "messages",
        "records",
        "bytes",
        "largest",
        "interrupted",
        "guarantees",
    ]
    assert found["store"] == f"sqlite:{path}"
    assert found["sessions"] == {"live": 3, "deleted": 1, "branches": 1, "damaged": 0}
    assert found["messages"] == kinds["message"] == 8
    assert found["records"] == dict(kinds)
    assert found["guarantees"] == guarantees.as_data()


def test_bytes_are_those_of_headers_and_bodies(path: Path) -> None:
    import apsw

    (found,) = objects(invoke(path, "stats", "--json"))
    db = apsw.Connection(str(path))
    size = db.execute("select sum(octet_length(header) + octet_length(body)) from entry").get
    db.close()
    assert found["bytes"] == size == sum(one["bytes"] for one in found["largest"])
    assert found["largest"][0]["session"] == "claim-4711"
    assert found["largest"][0]["records"] == 18


def test_interrupted_turns_are_named(path: Path) -> None:
    (found,) = objects(invoke(path, "stats", "--json"))
    claim, branch = found["interrupted"]
    assert (claim["session"], claim["position"], claim["correlation_id"]) == (
        "claim-4711",
        17,
        "req-11",
    )
    assert (branch["session"], branch["position"], branch["correlation_id"]) == (
        "what-if",
        2,
        "req-9",
    )


def test_people_are_told_what_is_counted(path: Path) -> None:
    done = invoke(path, "stats")
    assert done.exit_code == 0
    shown = done.stdout
    assert "  sessions    3 (1 branch), 1 deleted\n" in shown
    assert "  messages    8\n" in shown
    assert "  interrupted 2 turns\n              claim-4711, begun at 17 (req-11)\n" in shown
    assert "stored records survive power loss" in shown
    assert "Every record in the store is counted" in shown
    assert max(map(len, shown.splitlines()[1:])) < 81


def test_an_empty_store_counts_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    perdure.open(path).close()
    (found,) = objects(invoke(path, "stats", "--json"))
    assert found["sessions"] == {"live": 0, "deleted": 0, "branches": 0, "damaged": 0}
    assert (found["records"], found["bytes"], found["largest"]) == ({}, 0, [])
    assert invoke(path, "stats").exit_code == 0


def test_damage_is_said_and_the_rest_is_counted(path: Path) -> None:
    damage(path, "update entry set body = 'x' where stream = :place and position = 3")
    done = invoke(path, "stats", "--json")
    assert done.exit_code == 1
    assert "not fully counted: run `perdure verify`" in done.stderr
    (found,) = objects(done)
    assert found["sessions"]["damaged"] == 2  # A branch of it can not tell its open turns.
    assert found["messages"] == 7
    assert invoke(path, "stats").stdout.count("2 damaged") == 1


def test_a_damaged_head_does_not_hide_the_others(path: Path) -> None:
    damage(path, "update head set labels = 'x' where id = :place", "empty-handed")
    (found,) = objects(invoke(path, "stats", "--json"))
    assert found["sessions"] == {"live": 2, "deleted": 1, "branches": 1, "damaged": 1}
