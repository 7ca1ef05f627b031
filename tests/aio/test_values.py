"""Values outside sessions: what is known of a customer, by whoever asks, in versions."""

import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import ConflictError, NotFoundError, UsageError
from tests.support import said


async def test_values_need_no_conversation() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    known = await store.values("customer-17")
    assert await known.set("name", "Ada") == 1
    assert await known.set("name", "Ada L.") == 2
    assert await known.get("name") == "Ada L."
    assert await known.get("name", version=1) == "Ada"
    assert await known.get("age") is None
    assert await known.get("age", 36) == 36
    await known.set("plan", {"steps": [1, 2]})
    await known.delete("plan")
    assert known.keys() == ["name"]
    assert (known.version("name"), known.version("plan")) == (2, 2)
    history = await known.history("plan")
    assert [(item.version, item.deleted) for item in history] == [(1, False), (2, True)]
    with pytest.raises(NotFoundError):
        await known.delete("plan")
    again = await perdure.open_async(ThreadedBackend(backend)).values("customer-17")
    assert (again.id, await again.get("name")) == ("customer-17", "Ada L.")
    assert repr(again) == "<AsyncValues of 'customer-17': 1 keys>"


async def test_the_same_key_conflicts_and_other_keys_do_not() -> None:
    async with perdure.open_async("memory:") as store:
        mine, theirs = await store.values("c"), await store.values("c")
        await theirs.set("name", "Ada")
        await theirs.set("city", "London")
        await mine.set("age", 36)
        with pytest.raises(ConflictError) as caught:
            await mine.set("name", "Eve")
        assert caught.value.head == 3
        assert await mine.get("name") == "Ada"
        assert await mine.set("name", "Ada L.") == 2
        assert await theirs.get("name") == "Ada"
        await theirs.refresh()
        assert await theirs.get("name") == "Ada L."
        keys = theirs.keys()
        assert [await theirs.get(key) for key in keys] == ["Ada L.", "London", 36]


OTHER = """
import sys, perdure
with perdure.open(sys.argv[1]) as store, store.values("customer-17") as known:
    known.set("seen", known.get("seen", 0) + 1)
"""


async def test_two_processes_share_them(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    async with perdure.open_async(path) as store:
        known = await store.values("customer-17")
        await known.set("seen", 1)
        subprocess.run([sys.executable, "-c", OTHER, path], check=True, timeout=60)  # noqa: ASYNC221 - nothing else runs
        assert await known.get("seen") == 1
        with pytest.raises(ConflictError):
            await known.set("seen", 1)
        assert await known.get("seen") == 2


async def test_a_session_of_the_same_id_has_the_same_values() -> None:
    async with perdure.open_async("memory:") as store:
        await (await store.values("c")).set("name", "Ada")
        session = await store.session("c")
        assert await session.get("name") == await session.values.get("name") == "Ada"
        assert (session.values.id, len(session)) == ("c", 0)
        await session.append(said("hello"))
        await session.values.set("name", "Ada L.")
        assert await session.get("name") == "Ada L."
        assert await (await store.values("c")).get("name") == "Ada L."
        assert [head.id async for head in store.sessions()] == ["c"]
        await store.delete("c")
        assert (await store.values("c")).keys() == []


async def test_closed_values_are_closed() -> None:
    async with perdure.open_async("memory:") as store:
        async with await store.values("c") as known:
            await known.set("name", "Ada")
        with pytest.raises(UsageError, match="closed"):
            await known.get("name")
        with pytest.raises(UsageError, match="closed"):
            await known.get("age")


@pytest.mark.parametrize("id", ["", "a\tb", "x" * 600])
async def test_an_id_must_be_one(id: str) -> None:
    store = perdure.open_async("memory:")
    with pytest.raises(UsageError, match="a session id"):
        await store.values(id)
