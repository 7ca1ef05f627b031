"""P8 and P9, a seeded sample: one history for all who share a session."""

import pytest

from tests.promises.kinds import FILES, SQLITE, Kind
from tests.promises.p08_checker import Stored, digests, faults
from tests.promises.p08_histories import history
from tests.promises.p08_processes import FOREVER, Done

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kind"),
    [(1, SQLITE), (2, SQLITE), (3, FILES), (4, SQLITE), (5, SQLITE), (6, FILES)],
    ids=str,
)
def test_processes_that_share_a_session_write_one_history(seed: int, kind: Kind) -> None:
    trial = history(seed, kind, appends=400)
    assert not trial.failure, f"{trial.what}: {trial.failure}"


@pytest.mark.slow
def test_writers_that_ignore_conflicts_are_caught_with_a_stale_view() -> None:
    # Whether writers meet in one history is a matter of luck; in none of several it is not.
    seeds = range(1, 81)
    assert any(
        "stale view" in history(seed, SQLITE, appends=300, blind=True).failure for seed in seeds
    )


def appended(who: str, own: str, begin: int, outcome: int | str) -> Done:
    end = FOREVER if outcome == "unknown" else begin + 1
    return Done(who, "append", begin, end, outcome, {"id": own})


def looked(begin: int, ids: list[str]) -> Done:
    facts = {"digest": digests(ids)[-1]}
    return Done("r", "read", begin, begin + 1, len(ids), facts)


FINAL = [Stored(1, "a", 0), Stored(2, "b", 1)]
APPENDED = [appended("w1", "a", 0, 1), appended("w2", "b", 10, 2)]


def test_the_checker_accepts_what_can_be() -> None:
    reads = [looked(5, ["a"]), looked(20, ["a", "b"])]
    lost = appended("w3", "c", 12, "unknown")
    assert list(faults([*APPENDED, *reads, lost], FINAL)) == []


@pytest.mark.parametrize(
    ("observed", "final", "fault"),
    [
        ([appended("w3", "c", 12, 3)], FINAL, "acknowledged 1 times and is there 0"),
        ([appended("w3", "c", 12, "unknown")], [*FINAL, Stored(3, "c", 2), Stored(4, "c", 3)], "2"),
        ([appended("w3", "c", 12, "conflict")], [*FINAL, Stored(3, "c", 2)], "is there 1"),
        ([], [*FINAL, Stored(3, "c", 2)], "nobody sent it"),
        ([], [FINAL[0], Stored(2, "b", 0)], "stale view"),
        ([], [FINAL[0], Stored(3, "b", 1)], "stands at 3"),
        ([looked(20, ["b"])], FINAL, "no beginning"),
        ([looked(20, ["a"])], FINAL, "found 1, after 2"),
        ([looked(5, ["a", "b"])], FINAL, "found 1, after 2"),
        ([looked(30, ["a", "b"]), looked(40, ["a"])], FINAL, "found 1, after 2"),
    ],
)
def test_the_checker_finds_what_can_not_be(
    observed: list[Done], final: list[Stored], fault: str
) -> None:
    assert any(fault in found for found in faults([*APPENDED, *observed], final))
