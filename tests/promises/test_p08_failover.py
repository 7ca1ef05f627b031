"""A failover of a Redis cluster in each way: nothing is lost, or every loss is reported."""

import random

import pytest

from tests.backends.redis.cluster import Cluster
from tests.promises.p08_failover import Writer, failover

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_failover_loses_nothing_or_says_so(redis_cluster: Cluster, *, confirmed: bool) -> None:
    trial = failover(redis_cluster, random.Random(1), confirmed=confirmed)
    assert not trial.failure, trial
    assert (": 0 lost" in trial.what) == confirmed, trial


def test_a_loss_without_a_report_and_a_doubled_message_are_caught() -> None:
    writer = Writer.__new__(Writer)
    writer.acknowledged, writer.reports, writer.failure = ["a", "b"], 0, ""
    assert [*writer.wrong(["a", "b"], confirmed=True)] == []
    assert [*writer.wrong(["a"], confirmed=False)] != []
    assert [*writer.wrong(["a", "b", "b"], confirmed=True)] != []
    writer.reports = 1
    assert [*writer.wrong(["a"], confirmed=False)] == []
    assert [*writer.wrong(["a"], confirmed=True)] != []
