"""The Full command: it counts, accumulates, tells failures, and never spoils earlier results."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promises import full
from tests.promises.promise import Promise, Trial

pytestmark = pytest.mark.durability


def promise(number: str, *failures: str, store: str = "") -> Promise:
    """Return a promise with a trial for each failure, "" being none."""

    def trials(seed: int, deadline: float) -> Iterator[Trial]:
        yield from (Trial(f"trial of {seed}", failure) for failure in failures)

    return Promise(number, "it holds", 4, trials, store)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def run(results: Path, *promises: Promise, words: tuple[str, ...] = ()) -> int:
    given = ["--minutes", "1", "--seed", "7", "--results", str(results), *words]
    return full.main(given, list(promises))


def test_counts_accumulate_over_runs(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, promise("P98", "", "")) == 0
    assert run(results, promise("P98", "", ""), words=("--seed", "8")) == 0
    found = json.loads(results.read_text())["P98"]
    assert (found["trials"], found["failures"], found["seeds"]) == (4, 0, [7, 8])
    said = capsys.readouterr().out
    assert "seed 8" in said
    assert "< 7.5e-01" in said, "the bound is three in four"


def test_a_failure_is_told_with_its_seed_and_makes_the_run_fail(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results, promise("P98", "", "it broke"), promise("P99", "")) == 1
    assert "P98 FAILED, seed 7: trial of 7: it broke" in capsys.readouterr().out
    found = json.loads(results.read_text())
    assert (found["P98"]["failures"], found["P99"]["failures"]) == (1, 0)


def test_an_earlier_failure_stays_in_the_results(results: Path) -> None:
    assert run(results, promise("P98", "it broke")) == 1
    assert run(results, promise("P98", "")) == 0, "this run had none"
    assert json.loads(results.read_text())["P98"]["failures"] == 1


def test_trials_that_break_down_count_as_a_failure_and_the_others_go_on(results: Path) -> None:
    def broken(seed: int, deadline: float) -> Iterator[Trial]:
        yield Trial("first")
        raise RuntimeError("broken")

    assert run(results, Promise("P97", "", 1, broken), promise("P98", "")) == 1
    found = json.loads(results.read_text())
    assert (found["P97"]["trials"], found["P97"]["failures"]) == (2, 1)
    assert found["P98"]["trials"] == 1


def test_an_interrupted_run_keeps_its_counts(results: Path) -> None:
    def interrupted(seed: int, deadline: float) -> Iterator[Trial]:
        yield Trial("first")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(results, Promise("P97", "", 1, interrupted))
    assert json.loads(results.read_text())["P97"]["trials"] == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"P98": 3}',
        '{"P98": {"trials": -1, "failures": 0, "seconds": 0, "seeds": []}}',
    ],
)
def test_a_results_file_that_is_none_is_refused_and_left_alone(
    results: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_text(content)
    assert run(results, promise("P98", "")) == 2
    assert "holds no results" in capsys.readouterr().err
    assert results.read_text() == content


def test_only_what_is_asked_for_is_tried(results: Path) -> None:
    both = (promise("P98", ""), promise("P99", ""))
    assert run(results, *both, words=("--only", "P99")) == 0
    assert json.loads(results.read_text()).keys() == {"P99"}
    with pytest.raises(SystemExit, match="no trials for"):
        run(results, *both, words=("--only", "P42"))


def test_each_kind_of_store_is_counted_by_itself(results: Path) -> None:
    both = (promise("P98", "", store="one"), promise("P98", "", "it broke", store="two"))
    assert run(results, *both, words=("--only", "P98")) == 1
    found = json.loads(results.read_text())
    assert {key: (one["trials"], one["failures"]) for key, one in found.items()} == {
        "P98-one": (1, 0),
        "P98-two": (2, 1),
    }
    assert run(results, *both, words=("--only", "P98-one")) == 0
    assert json.loads(results.read_text())["P98-two"]["trials"] == 2


def test_a_seed_that_is_not_given_is_made_up_and_told(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--minutes", "0.01", "--results", str(results)]
    assert full.main(words, [promise("P98", "")]) == 0
    seed = json.loads(results.read_text())["P98"]["seeds"][0]
    assert f"seed {seed}," in capsys.readouterr().out


def test_modules_with_a_promise_are_found_by_their_names() -> None:
    found = {promise.key for promise in full.promises(Path(full.__file__).parent)}
    for number in ("P1", "P2", "P3", "P4", "P5", "P6", "P8", "P11", "P12", "P28", "P29", "P32"):
        assert {f"{number}-sqlite", f"{number}-files"} <= found, number
