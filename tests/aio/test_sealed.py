"""Encrypted stores: six outcomes that differ, and nothing in the clear."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Backend
from perdure.errors import (
    ChainError,
    ErasedError,
    MissingKeyError,
    NotFoundError,
    PayloadError,
    PerdureError,
    UnsupportedError,
    UsageError,
    WrongKeyError,
)
from perdure.journal import key_store
from tests import sealing
from tests.sealing import KEY, OTHER_KEY
from tests.support import said

pytest.importorskip("cryptography")


@pytest.fixture(params=["sqlite", "files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"{request.param}:{tmp_path}/store"


async def fill(address: str) -> None:
    async with perdure.open_async(address, keys=KEY) as store:
        session = await store.session("s")
        for text in ("one", "two", "three"):
            await session.append(said(text))


def nothing(_: Backend) -> None:
    pass


def remove_key(backend: Backend) -> None:
    sealing.remove(backend, sealing.data_keys(backend, "s")[0])


def remove_all_keys(backend: Backend) -> None:
    (head,) = backend.streams(prefix=key_store.keys_stream(""))
    sealing.remove(backend, head.stream)


def destroy_key(backend: Backend) -> None:
    for name in sealing.data_keys(backend, "s"):
        assert sealing.run(backend, key_store.destroy(name, reason="asked", time=sealing.TIME))


def alter(backend: Backend) -> None:
    forger = sealing.Forger(backend, "s")
    body = forger.bodies[1][0]
    forger.bodies[1][0] = body[:-1] + bytes([body[-1] ^ 1])
    sealing.replace(backend, "s", forger.entries())


# What happened to the store, the key that it is opened with, and what opening the session says.
OUTCOMES: dict[str, tuple[Callable[[Backend], None], bytes | None, type[PerdureError]]] = {
    "wrong key": (nothing, OTHER_KEY, WrongKeyError),
    "no key": (nothing, None, MissingKeyError),
    "missing key": (remove_key, KEY, MissingKeyError),
    "missing keys": (remove_all_keys, KEY, MissingKeyError),
    "erased": (destroy_key, KEY, ErasedError),
    "altered": (alter, KEY, PayloadError),
}


@pytest.mark.parametrize("case", OUTCOMES)
async def test_each_reason_why_a_session_cannot_be_read_is_an_error_of_its_own(
    address: str, case: str
) -> None:
    await fill(address)
    happen, key, expected = OUTCOMES[case]
    with closing(open_backend(address)) as backend:
        happen(backend)
    store = perdure.open_async(address, keys=key)
    with pytest.raises(expected) as caught:
        await store.resume("s")
    await store.close()
    assert type(caught.value) is expected


async def test_a_torn_session_and_an_empty_one_are_two_more(address: str) -> None:
    await fill(address)
    torn: Any = sealing.Torn(open_backend(address))
    async with perdure.open_async(ThreadedBackend(torn), keys=KEY) as store:
        with pytest.raises(ChainError, match="the head points to it, but it is missing"):
            await store.resume("s")
        with pytest.raises(NotFoundError) as caught:
            await store.resume("other")
        assert not isinstance(caught.value, ErasedError)


async def test_without_keys_nothing_is_written_to_a_sealed_store(address: str) -> None:
    await fill(address)
    with closing(open_backend(address)) as backend:
        before = [(head.stream, head.position) for head in backend.streams()]
    async with perdure.open_async(address) as store:
        session = await store.session("new")
        with pytest.raises(MissingKeyError, match="opened without keys"):
            await session.append(said("plain"))
        with pytest.raises(MissingKeyError):
            await store.delete("s")
        with pytest.raises(MissingKeyError):
            _ = [info.id async for info in store.sessions()]
    with closing(open_backend(address)) as backend:
        assert [(head.stream, head.position) for head in backend.streams()] == before


async def test_with_keys_plain_records_are_refused(address: str) -> None:
    await fill(address)
    async with perdure.open_async("memory:") as plain:
        session = await plain.session("s")
        for _ in range(3):
            await session.append(said("plain"))
        source: Any = getattr(plain._backend, "_backend", plain._backend)
        entries = [*source.read("s")]
    with closing(open_backend(address)) as backend:
        sealing.replace(backend, "s", entries)
    store = perdure.open_async(address, keys=KEY)
    with pytest.raises(PayloadError, match="not encrypted"):
        await store.resume("s")
    await store.close()


async def test_a_store_with_plain_sessions_is_not_sealed_by_opening_it(address: str) -> None:
    async with perdure.open_async(address) as store:
        await (await store.session("s")).append(said("plain"))
    store = perdure.open_async(address, keys=KEY)
    with pytest.raises(UsageError, match="not encrypted"):
        await store.session("s")
    await store.close()
    async with perdure.open_async(address) as store:
        assert len(await store.session("s")) == 1


async def test_labels_and_fields_are_found_though_they_are_encrypted(address: str) -> None:
    async with perdure.open_async(address, keys=KEY) as store:
        for number in range(3):
            session = await store.session(f"s{number}")
            await session.describe(customer=f"c-{number % 2}", amount=number)
            await session.label("vip" if number else "x" * 64)
        chosen = [
            (info.id, info.fields["amount"])
            async for info in store.sessions(where={"customer": "c-0"})
        ]
        assert chosen == [("s0", 0), ("s2", 2)]
        vip = store.sessions(labels=["vip"], where={"customer": "c-1"})
        assert [(info.id, info.labels) async for info in vip] == [("s1", frozenset({"vip"}))]
        with pytest.raises(UnsupportedError, match="encrypted"):
            _ = [info.id async for info in store.sessions(where={"amount": (1, 2)})]
        with pytest.raises(UnsupportedError, match="encrypted"):
            _ = [info.id async for info in store.sessions(order="amount")]
        assert (await store.verify()).problems == ()


async def test_a_listing_never_shows_keys(address: str) -> None:
    await fill(address)
    async with perdure.open_async(address, keys=KEY) as store:
        await (await store.session("t")).append(said("x"))
        await store.delete("t")
        assert [info.id async for info in store.sessions()] == ["s"]
        assert [info.id async for info in store.sessions(deleted=True)] == ["s", "t"]
        assert (await store.verify()).sessions == 2


async def test_keys_can_be_in_another_store(address: str, tmp_path: Path) -> None:
    place = tmp_path / "keys.db"
    async with perdure.open_async(address, keys=KEY, key_store=place) as store:
        await (await store.session("s")).append(said("one"))
        await (await store.session("t")).append(said("two"))
    async with perdure.open_async(address, keys=KEY, key_store=place) as store:
        assert [message["content"] for message in await (await store.session("s")).messages()] == [
            "one"
        ]
    with closing(open_backend(address)) as backend:
        assert [head.stream for head in backend.streams(prefix="\x01")] == [key_store.SEAL]
    store = perdure.open_async(address, keys=KEY)
    with pytest.raises(MissingKeyError, match="in another store"):
        await store.session("s")
    await store.close()
    store = perdure.open_async(address, keys=KEY, key_store=tmp_path / "empty.db")
    with pytest.raises(MissingKeyError, match="no keys of this store"):
        await store.session("s")
    await store.close()
    with pytest.raises(UsageError, match="give keys= too"):
        perdure.open_async(address, key_store=place)


async def test_a_key_store_is_not_given_if_the_keys_are_in_the_store(
    address: str, tmp_path: Path
) -> None:
    await fill(address)
    store = perdure.open_async(address, keys=KEY, key_store=tmp_path / "keys.db")
    with pytest.raises(UsageError, match="in the store itself"):
        await store.session("s")
    await store.close()


async def test_a_process_that_dies_at_any_write_leaves_nothing_unreadable() -> None:
    """Also between making a key and storing the entry that names it."""
    deaths = 0
    for at in range(1, 40):
        for after in (False, True):
            backend = MemoryBackend()
            dying: Any = sealing.Dying(backend, at, after=after)
            store = perdure.open_async(ThreadedBackend(dying), keys=KEY)
            acknowledged = []
            try:
                for name in ("a", "b"):
                    session = await store.session(name)
                    for text in ("one", "two"):
                        await session.append(said(text))
                        acknowledged.append((name, text))
                branch = await (await store.session("a")).branch("c")
                await branch.append(said("one"))
                await store.delete("b")
                acknowledged = [item for item in acknowledged if item[0] != "b"]
            except sealing.DeathError:
                deaths += 1
            again = perdure.open_async(ThreadedBackend(backend), keys=KEY)
            assert (await again.verify()).problems == ()
            stored = [
                (info.id, message["content"])
                async for info in again.sessions()
                for message in await (await again.session(info.id)).messages()
            ]
            assert {*acknowledged} <= {*stored} | {("b", "one"), ("b", "two")}
    assert deaths > 20
