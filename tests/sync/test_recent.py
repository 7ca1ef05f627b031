"""The most recently changed session first: one promise of both stores, where a backend knows."""

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import UnsupportedError, UsageError
from tests.support import said, store_in_memory


def fill(store: perdure.Store) -> None:
    for name in ("b", "a", "c"):
        store.session(name).append(said("x"))
    store.session("a").label("marked")
    store.session("d").append(said("x"))
    store.delete("d")


def test_the_most_recently_changed_session_comes_first() -> None:
    store, _ = store_in_memory()
    fill(store)
    assert [head.stream for head in store.sessions(recent=True)] == ["a", "c", "b"]
    found = store.sessions(recent=True, deleted=True)
    assert [head.stream for head in found] == ["d", "a", "c", "b"]
    assert [head.stream for head in store.sessions(recent=True, prefix="c")] == ["c"]
    assert [head.stream for head in store.sessions(recent=True, labels=["marked"])] == ["a"]


def test_the_same_holds_in_an_event_loop(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "store.db") as store:
        fill(store)

    async def scenario() -> None:
        async with perdure.open_async(tmp_path / "store.db") as store:
            assert [head.stream async for head in store.sessions(recent=True)] == ["a", "c", "b"]
            found = store.sessions(recent=True, deleted=True, prefix="d")
            assert [head.stream async for head in found] == ["d"]
            with pytest.raises(UsageError, match="`after` is an id"):
                _ = [head async for head in store.sessions(recent=True, after="a")]

    asyncio.run(scenario())


def test_after_can_not_be_given_with_recent() -> None:
    store, _ = store_in_memory()
    with pytest.raises(UsageError, match="`after` is an id"):
        list(store.sessions(recent=True, after="a"))


class Forgetful(MemoryBackend):
    capabilities = frozenset()


def test_a_store_that_does_not_know_says_what_to_do_instead() -> None:
    store = perdure.open(Forgetful())
    with pytest.raises(UnsupportedError, match=r"memory: cannot list sessions by last change: list them by id"):
        list(store.sessions(recent=True))
    assert list(store.sessions()) == []

    async def scenario() -> None:
        async with perdure.open_async(ThreadedBackend(Forgetful())) as store:
            with pytest.raises(UnsupportedError, match="list them by id"):
                _ = [head async for head in store.sessions(recent=True)]

    asyncio.run(scenario())


def test_a_choice_that_means_something_else_is_refused() -> None:
    store, _ = store_in_memory()
    fill(store)
    for recent in (True, False):
        with pytest.raises(UsageError, match=r"write \['marked'\]"):
            [*store.sessions(recent=recent, labels="marked")]
        with pytest.raises(UsageError, match="must be a list of str, not NoneType"):
            [*store.sessions(recent=recent, labels=None)]  # type: ignore[arg-type]
        for prefix in (3, "\ud800"):
            with pytest.raises(UsageError):
                [*store.sessions(recent=recent, prefix=prefix)]  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="after"):
        [*store.session("a").records(after="b")]  # type: ignore[arg-type]
