"""Keys are rotated: no record changes, nothing becomes unreadable, wherever it is interrupted."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Backend, Entry
from perdure.errors import UsageError, WrongKeyError
from perdure.journal import key_store
from perdure.journal.key_store import WrappedKey, WrappedKeys
from tests import sealing
from tests.sealing import KEY, OTHER_KEY
from tests.support import said

pytest.importorskip("cryptography")


@pytest.fixture(params=["sqlite", "files", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"{request.param}:{tmp_path}/store"


async def fill(store: perdure.AsyncStore, count: int = 3) -> None:
    for number in range(count):
        session = await store.session(f"s{number}")
        await session.append(said(f"hello {number}"))
        await session.label("vip")


async def texts(store: perdure.AsyncStore) -> list[str]:
    return [
        message["content"]
        async for info in store.sessions(labels=["vip"])
        for message in await (await store.session(info.id)).messages()
    ]


HELLOS = ["hello 0", "hello 1", "hello 2"]


def sessions_of(backend: Backend) -> dict[str, list[Entry]]:
    names = [head.stream for head in backend.streams() if not key_store.is_own(head.stream)]
    return {name: [*backend.read(name)] for name in names}


def wrapping_keys(backend: Backend) -> tuple[list[str], set[str]]:
    """Return the wrapping keys of a store, and those that its data keys are wrapped by."""
    (head,) = backend.streams(prefix=key_store.keys_stream(""))
    stored = sealing.run(backend, key_store.get(head.stream, WrappedKeys))
    names, _ = sealing.run(backend, key_store.list_names())
    used = {sealing.run(backend, key_store.get(name, WrappedKey)).content.by for name in names}
    return [key for key, _ in stored.content.wrapping], used


@pytest.mark.parametrize("new", [None, OTHER_KEY], ids=["same master", "new master"])
async def test_a_rotation_changes_every_key_and_no_record(address: str, new: bytes | None) -> None:
    async with perdure.open_async(address, keys=KEY) as store:
        await fill(store)
    with closing(open_backend(address)) as backend:
        before, (old, _) = sessions_of(backend), wrapping_keys(backend)
    seen: list[object] = []
    async with perdure.open_async(address, keys=KEY) as store:
        progress = await store.rotate_keys(new, on_progress=seen.append)
        assert (progress.seen, progress.wrapped, seen[-1]) == (3, 3, progress)
        assert await texts(store) == HELLOS
    with closing(open_backend(address)) as backend:
        assert sessions_of(backend) == before
        current, used = wrapping_keys(backend)
        assert len(current) == 1
        assert used == {*current}
        assert current != old
        for name in sealing.run(backend, key_store.list_names())[0]:
            assert len([*backend.read(name)]) == 1  # The old form of the key was dropped.
    async with perdure.open_async(address, keys=new or KEY) as store:
        assert await texts(store) == HELLOS
    if new:
        store = perdure.open_async(address, keys=KEY)
        with pytest.raises(WrongKeyError):
            await store.session("s0")
        await store.close()


async def test_another_process_reads_writes_and_begins_sessions_meanwhile(address: str) -> None:
    async with (
        perdure.open_async(address, keys=KEY) as other,
        perdure.open_async(address, keys=KEY) as store,
    ):
        await fill(store)
        held = await other.session("s0")
        await store.rotate_keys()
        await held.append(said("more"))  # Its data key is the same.
        assert await texts(other) == ["hello 0", "more", "hello 1", "hello 2"]
        await (await other.session("new")).append(said("x"))  # It still knew the old wrapping key.
        assert [m["content"] for m in await (await store.session("new")).messages()] == ["x"]
        assert (await store.verify()).problems == ()
    with closing(open_backend(address)) as backend:
        current, used = wrapping_keys(backend)
        assert used == {*current}


class Meanwhile(sealing.Proxy):
    """Does something else before a write, counted from 1."""

    def __init__(self, backend: Backend, at: int, work: Any) -> None:
        super().__init__(backend)
        self._left, self._work = at, work

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._work()

    def append(self, appends: Any) -> Any:
        self._count()
        return self.backend.append(appends)

    def append_together(self, appends: Any) -> Any:
        self._count()
        return getattr(self.backend, "append_together")(appends)  # noqa: B009 - a capability

    def drop(self, stream: str, *, before: int) -> None:
        self._count()
        self.backend.drop(stream, before=before)

    def close(self) -> None:
        pass


async def test_a_session_that_begins_at_any_moment_of_a_rotation_can_be_read() -> None:
    for at in range(1, 14):
        backend = MemoryBackend()
        await fill(perdure.open_async(ThreadedBackend(backend), keys=KEY))
        # Opened before: it has the old wrapping key.
        other = perdure.open(backend, keys=KEY)
        other.session("s0")

        def begin(store: perdure.Store = other) -> None:
            store.session("new").append(said("x"))

        slow: Any = Meanwhile(backend, at, begin)
        await perdure.open_async(ThreadedBackend(slow), keys=KEY).rotate_keys()
        again = perdure.open_async(ThreadedBackend(backend), keys=KEY)
        assert (await again.verify()).problems == ()
        current, used = wrapping_keys(backend)
        assert used == {*current}


@pytest.mark.parametrize("new", [None, OTHER_KEY], ids=["same master", "new master"])
async def test_a_rotation_that_dies_at_any_write_is_continued(new: bytes | None) -> None:
    deaths = 0
    for at in range(1, 16):
        for after in (False, True):
            backend = MemoryBackend()
            await fill(perdure.open_async(ThreadedBackend(backend), keys=KEY))
            before = sessions_of(backend)
            dying: Any = sealing.Dying(backend, at, after=after)
            key = KEY
            try:
                await perdure.open_async(ThreadedBackend(dying), keys=KEY).rotate_keys(new)
                key = new or KEY
            except sealing.DeathError:
                deaths += 1
                try:
                    await perdure.open_async(ThreadedBackend(backend), keys=KEY).session("s0")
                except WrongKeyError:
                    assert new is not None
                    key = new
            store = perdure.open_async(ThreadedBackend(backend), keys=key)
            assert await texts(store) == HELLOS
            await store.rotate_keys(new)
            assert len(wrapping_keys(backend)[0]) == 1
            again = perdure.open_async(ThreadedBackend(backend), keys=new or KEY)
            assert await texts(again) == HELLOS
            assert sessions_of(backend) == before
    assert deaths > 10


async def test_a_master_key_that_is_away_leaves_the_store_as_it_was() -> None:
    class Away:
        def wrap(self, key: bytes, *, store: str) -> bytes:
            raise perdure.UnavailableError("kms", "it did not respond")

        def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
            raise perdure.UnavailableError("kms", "it did not respond")

    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend), keys=KEY)
    await fill(store)
    before = wrapping_keys(backend)
    with pytest.raises(perdure.UnavailableError):
        await store.rotate_keys(Away())
    assert wrapping_keys(backend) == before
    assert await texts(perdure.open_async(ThreadedBackend(backend), keys=KEY)) == HELLOS


async def test_a_plain_store_has_nothing_to_rotate() -> None:
    store = perdure.open_async("memory:")
    with pytest.raises(UsageError, match="without keys"):
        await store.rotate_keys()
    await store.close()
