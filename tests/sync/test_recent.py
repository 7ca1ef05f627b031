# Generated from aio/test_recent.py by scripts/generate_sync.py: do not edit.
"""The most recently changed session first, where a backend knows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import UnsupportedError, UsageError
from tests.support import said


def fill(store: perdure.Store) -> None:
    for name in ("b", "a", "c"):
        store.session(name).append(said("x"))
    store.session("a").label("marked")
    store.session("d").append(said("x"))
    store.delete("d")


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db"])
def test_the_most_recently_changed_session_comes_first(address: str, tmp_path: Path) -> None:
    with perdure.open(address.format(tmp_path)) as store:
        fill(store)
        assert [head.id for head in store.sessions(recent=True)] == ["a", "c", "b"]
        heads = store.sessions(recent=True, deleted=True)
        assert [head.id for head in heads] == ["d", "a", "c", "b"]
        heads = store.sessions(recent=True, deleted=True, prefix="d")
        assert [head.id for head in heads] == ["d"]
        assert [head.id for head in store.sessions(recent=True, prefix="c")] == ["c"]
        heads = store.sessions(recent=True, labels=["marked"])
        assert [head.id for head in heads] == ["a"]


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db"])
def test_after_can_not_be_given_with_recent(address: str, tmp_path: Path) -> None:
    with perdure.open(address.format(tmp_path)) as store:
        fill(store)
        with pytest.raises(UsageError, match="`after` cannot continue the order by last change"):
            _ = list(store.sessions(recent=True, after="a"))


class Forgetful(MemoryBackend):
    capabilities = frozenset()


def test_a_store_that_does_not_know_says_what_to_do_instead() -> None:
    text = "memory: cannot list sessions by last change: list them by id"
    with perdure.open(Forgetful()) as store:
        with pytest.raises(UnsupportedError, match=text):
            _ = list(store.sessions(recent=True))
        assert list(store.sessions()) == []


def test_a_choice_that_means_something_else_is_refused() -> None:
    with perdure.open("memory:") as store:
        fill(store)
        for recent in (True, False):
            with pytest.raises(UsageError, match=r"write \['marked'\]"):
                _ = list(store.sessions(recent=recent, labels="marked"))
            with pytest.raises(UsageError, match="must be a list of str, not NoneType"):
                _ = list(store.sessions(recent=recent, labels=None))  # type: ignore[arg-type]
            for prefix in (3, "\ud800"):
                with pytest.raises(UsageError):
                    _ = list(store.sessions(recent=recent, prefix=prefix))  # type: ignore[arg-type]
        session = store.session("a")
        with pytest.raises(UsageError, match="after"):
            _ = list(session.records(after="b"))  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db", "files:{}/store"])
def test_a_listed_session_says_when_it_was_changed(address: str, tmp_path: Path) -> None:
    times = iter([1_700_000_000.25, 1_700_000_100.5, 1_600_000_000.0])
    with perdure.open(address.format(tmp_path), clock=lambda: next(times)) as store:
        store.session("a").append(said("x"))
        store.session("b").append(said("x"))
        store.session("a").append(said("y"))  # By a clock that was set back.
        changed = {head.id: head.changed for head in store.sessions()}
    assert changed == {
        "a": datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC),
        "b": datetime(2023, 11, 14, 22, 15, 0, 500_000, tzinfo=UTC),
    }
