"""P28, a seeded sample: clock jumps change nothing but the recorded time."""

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import perdure
from perdure.errors import UsageError
from tests.promises import p28_clocks
from tests.promises.promise import Promise, sample

pytestmark = pytest.mark.durability


@pytest.mark.slow
@pytest.mark.parametrize("promise", p28_clocks.PROMISES, ids=lambda promise: promise.key)
def test_a_mad_clock_changes_nothing_but_times(promise: Promise) -> None:
    sample(promise, seed=1, seconds=4 if promise.store == "sqlite" else 1.5, least=30)


@pytest.mark.parametrize("number", range(len(p28_clocks.BROKEN)))
def test_a_clock_that_tells_no_time_is_refused(number: int) -> None:
    trial = p28_clocks.broken_trial(number, p28_clocks.BROKEN[number])
    assert not trial.failure


@pytest.mark.parametrize("number", range(len(p28_clocks.BROKEN)))
def test_a_broken_clock_stops_turns_branches_and_deletions_too(number: int) -> None:
    clock, broken = p28_clocks.BROKEN[number], False
    good = p28_clocks.even()
    with perdure.open("memory:", clock=lambda: clock() if broken else good()) as store:
        session = store.session("a")
        session.append({"role": "user", "content": "", "a": 1})
        before = [*store.sessions()]
        broken = True
        for call in (
            lambda: session.turn("hello").__enter__(),
            lambda: session.set("k", 1),
            lambda: session.note(1),
            lambda: session.label("red"),
            lambda: session.branch("b"),
            lambda: store.delete("a"),
        ):
            with pytest.raises(UsageError, match="clock"):
                call()
        assert [*store.sessions()] == before
        broken = False
        session.branch("b").append({"role": "user", "content": "", "b": 1})
        session.verify()


def test_the_mad_clock_is_seen_in_the_recorded_times(tmp_path: Path) -> None:
    """The twin: were the clock not used at all, the sample would prove nothing."""
    even, mad = str(tmp_path / "even.db"), str(tmp_path / "mad.db")
    p28_clocks.script(even, p28_clocks.even(), 3)
    p28_clocks.script(mad, p28_clocks.mad(random.Random(1)), 3)
    assert p28_clocks.times(even) == sorted(p28_clocks.times(even))
    assert p28_clocks.times(even) != p28_clocks.times(mad)
    assert p28_clocks.times(mad) != sorted(p28_clocks.times(mad))


def test_a_reader_that_trusts_the_clock_is_found() -> None:
    """The twin: records in order of their times are not what the sample takes for the same."""
    read = perdure.Session.records

    def by_time(session: perdure.Session, **kwargs: Any) -> Any:
        return iter(sorted(read(session, **kwargs), key=lambda record: record.time))

    with (
        mock.patch.object(perdure.Session, "records", by_time),
        pytest.raises(AssertionError, match="differs"),
    ):
        sample(p28_clocks.PROMISES[0], seed=1, seconds=10, least=100_000)
