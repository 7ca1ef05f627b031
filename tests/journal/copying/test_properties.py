"""Whatever a store holds and wherever a copy dies: in the end the copy is the same store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend
from perdure.testing import Crash
from tests.journal.copying.breaking import Counted, Dying
from tests.journal.copying.stores import (
    KINDS,
    Action,
    act,
    obey,
    opened,
    scripts,
    settled,
    shown,
    stored,
)

QUICK = {"sqlite": 3, "files": 3, "memory": 10}


@contextmanager
def two_stores(one: str, two: str) -> Iterator[tuple[Backend, Backend]]:
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(TemporaryDirectory())) for _ in range(2)]
        yield (
            stack.enter_context(opened(one, folders[0])),
            stack.enter_context(opened(two, folders[1])),
        )


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("two", KINDS)
def test_a_copy_between_any_two_stores_is_the_same_store(one: str, two: str) -> None:
    @settings(max_examples=min(QUICK[one], QUICK[two]), deadline=None, database=None)
    @given(scripts, scripts)
    def check(script: list[Action], later: list[Action]) -> None:
        with two_stores(one, two) as (source, target):
            act(perdure.open(source), script)
            copied = perdure.copy(source, target)
            assert copied.complete
            assert shown(target) == shown(source)
            act(perdure.open(source), later)
            second = settled(source, target)
            assert shown(target) == shown(source)
            entries = [entry for found in shown(source).values() for entry in found.entries]
            assert second.verified == sum(entry.records for entry in entries)
            assert perdure.copy(source, target).records == 0

    check()


# Everything in a few steps: branches of branches, long sessions, deletions of each kind.
EVERYTHING = [
    Action("batch", 0, 4),
    Action("turn", 1, 1),
    Action("branch", 0, 1),
    Action("say", 2, 2),
    Action("many", 3, 1),
    Action("label", 3, 1),
    Action("value", 0, 1),
    Action("branch", 1, 2),
    Action("cut turn", 0, 9),
    Action("say", 5, 5),
    Action("delete", 5, 1),
]
LATER = [
    Action("batch", 4, 4),
    Action("delete", 4, 2),
    Action("delete", 3, 2),
    Action("say", 2, 1),
    Action("many", 0, 2),
    Action("say", 5, 6),
]


def died(source: Backend, target: Backend, nth: int, *, side: str, after: bool) -> bool:
    """Copy until one of the two dies; say whether it did before the copy was over."""
    one = Dying(source, nth, after=after) if side == "source" else source
    two = Dying(target, nth, after=after) if side == "target" else target
    try:
        return not perdure.copy(one, two, final=True).complete
    except Crash:
        return True


@pytest.mark.parametrize(
    ("side", "after"), [("source", False), ("target", False), ("target", True)]
)
def test_a_copy_that_is_killed_at_any_call_goes_on_where_it_stopped(
    side: str, *, after: bool
) -> None:
    source = MemoryBackend()
    act(perdure.open(source), EVERYTHING)
    early = MemoryBackend()
    assert perdure.copy(source, early).complete
    act(perdure.open(source), LATER)
    wanted = stored(source)
    deaths = nth = 0
    while True:
        nth += 1
        target = Counted(MemoryBackend())
        perdure.copy(early, target)  # It was begun before the deletions.
        obey(target, perdure.copy(source, target, dry_run=True))
        if not died(source, target, nth, side=side, after=after):
            break
        deaths += 1
        there = {(name, entry.position) for name in wanted for entry in target.read(name)}
        target.sent.clear()
        assert perdure.copy(source, target, final=True).complete
        assert not there & set(target.sent), "nothing is copied twice"
        assert stored(target.backend) == wanted
    assert deaths > (5 if after else 30)


@settings(max_examples=6, deadline=None, database=None)
@given(scripts, st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_copy_that_is_killed_again_and_again_ends_as_the_same_store(
    script: list[Action], deaths: list[int]
) -> None:
    with two_stores("sqlite", "files") as (source, target):
        act(perdure.open(source), script)
        for number, nth in enumerate(deaths):
            died(source, target, nth, side="target", after=number % 2 == 1)
        assert perdure.copy(source, target, final=True).complete
        assert shown(target) == shown(source)
