"""P8 with stores that are put back, a seeded sample: nothing is acknowledged on a lost history."""

from collections import Counter

import pytest

from tests.promises.p08_rollbacks import PLACES, PostgresPlace, in_folder, rollback

pytestmark = pytest.mark.durability


@pytest.mark.parametrize("name", PLACES)
def test_handles_of_a_store_that_was_put_back_are_refused_and_go_on_when_they_accept(
    name: str,
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 41):
        trial, found = in_folder(name, seed)
        assert not trial.failure, f"{trial.what}: {trial.failure}"
        counts.update(found)
    assert counts["refused"] > 20, f"it is no trial when nobody is refused: {counts}"
    assert counts["done"] > 5, f"nor when everybody is: {counts}"


def test_so_are_those_on_a_server(postgres_url: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 21):
        trial, found = rollback(seed, PostgresPlace(postgres_url))
        assert not trial.failure, f"{trial.what}: {trial.failure}"
        counts.update(found)
    assert counts["refused"] > 10


@pytest.mark.parametrize("name", PLACES)
def test_stores_that_compare_positions_alone_are_caught(name: str) -> None:
    failures = [in_folder(name, seed, blind=True)[0].failure for seed in range(1, 21)]
    assert any("changed the store" in failure for failure in failures)
    assert any("in the end: ChainError" in failure for failure in failures), "nobody can open it"
