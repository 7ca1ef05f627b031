"""P6 for whole stores, a seeded sample: no check overlooks damage, no copy of it is complete."""

import itertools
import random
from pathlib import Path
from unittest import mock

import pytest

import perdure
from perdure.backends.protocol import Backend
from tests.promises import p06_verdicts as verdicts
from tests.promises import places
from tests.promises.promise import sample

pytestmark = [pytest.mark.durability, pytest.mark.slow]

KINDS = {promise.store: promise for promise in verdicts.PROMISES}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_everything_holds(kind: str) -> None:
    sample(KINDS[kind], seed=7, seconds=3, least=20)


def test_an_undamaged_store_is_intact_and_is_copied(tmp_path: Path) -> None:
    """The twin: the verdicts are not always bad, and every list has something in it."""
    for damaged in (verdicts.DamagedSqlite(tmp_path), verdicts.DamagedFiles(tmp_path)):
        assert all(damaged.good.lists.values()), damaged.good.lists
        assert verdicts.judge(damaged.address, damaged.good, final=True) == ""
        with perdure.open(damaged.address) as store:
            assert store.verify().ok
            assert perdure.copy(store._backend, "memory:", final=True).complete


@pytest.mark.parametrize("checker", ["perdure.sync.verify", "perdure.sync.copy"])
def test_without_the_comparison_damage_is_overlooked(checker: str) -> None:
    """The twin: a store that trusts its lists is found out, by verify and by copy."""

    def trust(_: Backend, *, deep: bool) -> None:
        assert deep in (True, False)

    with places.fast_directory() as directory, mock.patch(f"{checker}.find_problems", trust):
        damaged = verdicts.DamagedSqlite(directory)
        failures: list[tuple[str, str]] = []
        for number in itertools.takewhile(lambda n: n < 300 and not failures, itertools.count()):
            what = damaged.damage(random.Random(number))
            if failure := verdicts.judge(damaged.address, damaged.good, final=False):
                failures.append((what, failure))
    said = "verify says" if checker == "perdure.sync.verify" else "a copy says"
    assert said in failures[0][1]
