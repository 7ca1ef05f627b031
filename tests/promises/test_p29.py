"""P29, a seeded sample: fork-, thread- and async-safe."""

import asyncio
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

import perdure
from perdure.sync import group_commit
from tests.promises import p29_concurrency as concurrency
from tests.promises import p29_fork, p29_tasks
from tests.promises.kinds import FILES, KINDS, SQLITE, Kind
from tests.promises.promise import Trial

pytestmark = pytest.mark.durability


def require(trial: Trial) -> None:
    assert not trial.failure, f"{trial.what}: {trial.failure}"


each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kind"), [(1, SQLITE), (2, SQLITE), (1, FILES)], ids=["1", "2", "files"]
)
def test_threads_lose_and_repeat_nothing(seed: int, kind: Kind, directory: Path) -> None:
    require(concurrency.thread_trial(seed, kind, directory))


@pytest.mark.slow
@each_kind
def test_cancelled_tasks_lose_and_repeat_nothing(kind: Kind, directory: Path) -> None:
    with mock.patch.object(p29_tasks, "TASKS", 200 if kind is SQLITE else 60):
        require(concurrency.task_trial(1, kind, directory))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_an_interrupted_leader_leaves_the_others_a_typed_error(seed: int, directory: Path) -> None:
    require(concurrency.interrupt_trial(seed, KINDS[seed % 2], directory))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize(
    ("scenario", "kind"),
    [*((scenario, SQLITE) for scenario in p29_fork.SCENARIOS), ("busy", FILES), ("storm", FILES)],
    ids=str,
)
def test_both_sides_of_a_fork_go_on(scenario: str, kind: Kind, directory: Path) -> None:
    seed = p29_fork.SCENARIOS.index(scenario)
    require(concurrency.fork_trial(seed, kind, directory))


def test_a_task_is_cancelled_at_the_await_that_was_asked_for() -> None:
    """The twin: a cancellation that never comes would prove nothing."""
    passed: list[int] = []

    async def work() -> None:
        for number in range(5):
            passed.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await p29_tasks.CancelledAt(work(), 3)

    asyncio.run(main())
    assert passed == [0, 1, 2]


def test_what_was_lost_or_repeated_is_seen(tmp_path: Path) -> None:
    """The twin: the judge finds a loss and a repetition."""
    address = SQLITE.address(tmp_path)
    with perdure.open(address) as store:
        store.session("a").append(
            {"role": "user", "content": "one"}, {"role": "user", "content": "one"}
        )
    assert concurrency.missing_or_repeated(address, [("a", "two")]) == [
        "a: lost ['two']",
        "a: repeated",
    ]


def test_a_deadlock_is_seen() -> None:
    """The twin: the watchdog barks."""
    forever = threading.Lock()
    forever.acquire()
    with (
        mock.patch.object(concurrency, "WATCHDOG", 0.2),
        mock.patch("faulthandler.dump_traceback"),
    ):
        assert concurrency.in_threads([forever.acquire]) == ["deadlock: see the stacks above"]  # type: ignore[list-item]
    forever.release()


def test_followers_that_are_left_alone_are_seen(directory: Path) -> None:
    """The twin: were the leader's interrupt raised in every thread, the trial would fail."""

    def failure(seed: int) -> str:
        SQLITE.clear(directory)
        return concurrency.interrupt_trial(seed, SQLITE, directory).failure

    with mock.patch.object(group_commit, "copy_for_waiter", lambda error: error):
        # Whether somebody waits for the one that is interrupted is a matter of luck.
        assert any("threads were interrupted" in failure(seed) for seed in range(30))
