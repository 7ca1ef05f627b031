"""P8, a seeded sample of the hard case: one session is written to, branched and deleted at once."""

from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest

import perdure
from tests.promises.kinds import FILES, SQLITE
from tests.promises.p08_lifecycles import PARENT, judge, lifecycle
from tests.promises.p08_processes import Done

pytestmark = [pytest.mark.durability, pytest.mark.slow]


def test_branches_keep_their_past_whoever_deletes_dies_or_begins_anew() -> None:
    happened: Counter[str] = Counter()
    wanted = ("append done", "branch done", "delete done", "delete InUseError")
    for seed, kind in zip(range(1, 41), cycle((SQLITE, SQLITE, SQLITE, FILES)), strict=False):
        trial, counts = lifecycle(seed, kind)
        assert not trial.failure, f"{trial.what}: {trial.failure}"
        happened.update(counts)
        if seed >= 4 and all(happened[one] > 3 for one in wanted):
            return
    pytest.fail(f"it is no trial without all of {wanted}: {happened}")


def done(what: str, outcome: object, **facts: object) -> Done:
    return Done("x", what, 1, 2, outcome, facts)


def a_store(path: Path) -> perdure.Store:
    """A parent with two messages and a branch, and nothing wrong with it."""
    store = perdure.open(path)
    parent = store.session(PARENT)
    parent.append({"role": "user", "content": "", "id": "one", "saw": 0})
    parent.append({"role": "user", "content": "", "id": "two", "saw": 1})
    parent.branch("child", at=1)
    return store


GOOD = [
    done("append", 1, id="one"),
    done("append", 2, id="two"),
    done("branch", ["one"], name="child", at=1),
]


def test_the_judge_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    a_store(tmp_path / "store.db").close()
    assert list(judge(tmp_path / "store.db", GOOD)) == []


@pytest.mark.parametrize(
    ("observed", "verdict"),
    [
        ([done("append", 9, id="three")], "acknowledged at 9, and is not there"),
        ([done("branch", ["one"], name="other", at=1)], "does not open"),
        ([done("branch", ["one", "two"], name="child", at=2)], "lost something"),
        ([done("delete branch", "done", name="child")], "was deleted, and is there"),
    ],
)
def test_the_judge_misses_what_was_acknowledged(
    tmp_path: Path, observed: list[Done], verdict: str
) -> None:
    a_store(tmp_path / "store.db").close()
    assert any(verdict in found for found in judge(tmp_path / "store.db", [*GOOD, *observed]))


def test_the_judge_sees_a_deletion_that_nobody_was_told_of(tmp_path: Path) -> None:
    with a_store(tmp_path / "store.db") as store:
        store.delete("child")
        store.delete(PARENT)
        store.session(PARENT).append({"role": "user", "content": "", "id": "three", "saw": 0})
    found = list(judge(tmp_path / "store.db", GOOD[:2]))
    assert any("nobody says so" in one for one in found)
