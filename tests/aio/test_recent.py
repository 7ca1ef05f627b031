"""The most recently changed session first, where a backend knows."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import UnsupportedError, UsageError
from tests.support import said


async def fill(store: perdure.AsyncStore) -> None:
    for name in ("b", "a", "c"):
        await (await store.session(name)).append(said("x"))
    await (await store.session("a")).label("marked")
    await (await store.session("d")).append(said("x"))
    await store.delete("d")


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db"])
async def test_the_most_recently_changed_session_comes_first(address: str, tmp_path: Path) -> None:
    async with perdure.open_async(address.format(tmp_path)) as store:
        await fill(store)
        assert [head.id async for head in store.sessions(recent=True)] == ["a", "c", "b"]
        heads = store.sessions(recent=True, deleted=True)
        assert [head.id async for head in heads] == ["d", "a", "c", "b"]
        heads = store.sessions(recent=True, deleted=True, prefix="d")
        assert [head.id async for head in heads] == ["d"]
        assert [head.id async for head in store.sessions(recent=True, prefix="c")] == ["c"]
        heads = store.sessions(recent=True, labels=["marked"])
        assert [head.id async for head in heads] == ["a"]


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db"])
async def test_after_can_not_be_given_with_recent(address: str, tmp_path: Path) -> None:
    async with perdure.open_async(address.format(tmp_path)) as store:
        await fill(store)
        with pytest.raises(UsageError, match="`after` cannot continue the order by last change"):
            _ = [head async for head in store.sessions(recent=True, after="a")]


class Forgetful(MemoryBackend):
    capabilities = frozenset()


async def test_a_store_that_does_not_know_says_what_to_do_instead() -> None:
    text = "memory: cannot list sessions by last change: list them by id"
    async with perdure.open_async(ThreadedBackend(Forgetful())) as store:
        with pytest.raises(UnsupportedError, match=text):
            _ = [head async for head in store.sessions(recent=True)]
        assert [head async for head in store.sessions()] == []


async def test_a_choice_that_means_something_else_is_refused() -> None:
    async with perdure.open_async("memory:") as store:
        await fill(store)
        for recent in (True, False):
            with pytest.raises(UsageError, match=r"write \['marked'\]"):
                _ = [head async for head in store.sessions(recent=recent, labels="marked")]
            with pytest.raises(UsageError, match="must be a list of str, not NoneType"):
                _ = [head async for head in store.sessions(recent=recent, labels=None)]  # type: ignore[arg-type]
            for prefix in (3, "\ud800"):
                with pytest.raises(UsageError):
                    _ = [head async for head in store.sessions(recent=recent, prefix=prefix)]  # type: ignore[arg-type]
        session = await store.session("a")
        with pytest.raises(UsageError, match="after"):
            _ = [record async for record in session.records(after="b")]  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db", "files:{}/store"])
async def test_a_listed_session_says_when_it_was_changed(address: str, tmp_path: Path) -> None:
    times = iter([1_700_000_000.25, 1_700_000_100.5, 1_600_000_000.0])
    async with perdure.open_async(address.format(tmp_path), clock=lambda: next(times)) as store:
        await (await store.session("a")).append(said("x"))
        await (await store.session("b")).append(said("x"))
        await (await store.session("a")).append(said("y"))  # By a clock that was set back.
        changed = {head.id: head.changed async for head in store.sessions()}
    assert changed == {
        "a": datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC),
        "b": datetime(2023, 11, 14, 22, 15, 0, 500_000, tzinfo=UTC),
    }
