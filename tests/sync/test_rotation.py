# Generated from aio/test_rotation.py by scripts/generate_sync.py: do not edit.
"""Keys are rotated: no record changes, nothing becomes unreadable, wherever it is interrupted."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.addresses import open_backend
from perdure.backends.memory import MemoryBackend
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


def fill(store: perdure.Store, count: int = 3) -> None:
    for number in range(count):
        session = store.session(f"s{number}")
        session.append(said(f"hello {number}"))
        session.label("vip")


def texts(store: perdure.Store) -> list[str]:
    return [
        message["content"]
        for info in store.sessions(labels=["vip"])
        for message in store.session(info.id).messages()
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
def test_a_rotation_changes_every_key_and_no_record(address: str, new: bytes | None) -> None:
    with perdure.open(address, keys=KEY) as store:
        fill(store)
    with closing(open_backend(address)) as backend:
        before, (old, _) = sessions_of(backend), wrapping_keys(backend)
    seen: list[object] = []
    with perdure.open(address, keys=KEY) as store:
        progress = store.rotate_keys(new, on_progress=seen.append)
        assert (progress.seen, progress.wrapped, seen[-1]) == (3, 3, progress)
        assert texts(store) == HELLOS
    with closing(open_backend(address)) as backend:
        assert sessions_of(backend) == before
        current, used = wrapping_keys(backend)
        assert len(current) == 1
        assert used == {*current}
        assert current != old
        for name in sealing.run(backend, key_store.list_names())[0]:
            assert len([*backend.read(name)]) == 1  # The old form of the key was dropped.
    with perdure.open(address, keys=new or KEY) as store:
        assert texts(store) == HELLOS
    if new:
        store = perdure.open(address, keys=KEY)
        with pytest.raises(WrongKeyError):
            store.session("s0")
        store.close()


def test_another_process_reads_writes_and_begins_sessions_meanwhile(address: str) -> None:
    with perdure.open(address, keys=KEY) as other, perdure.open(address, keys=KEY) as store:
        fill(store)
        held = other.session("s0")
        store.rotate_keys()
        held.append(said("more"))  # Its data key is the same.
        assert texts(other) == ["hello 0", "more", "hello 1", "hello 2"]
        other.session("new").append(said("x"))  # It still knew the old wrapping key.
        assert [m["content"] for m in store.session("new").messages()] == ["x"]
        assert store.verify().problems == ()
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


def test_a_session_that_begins_at_any_moment_of_a_rotation_can_be_read() -> None:
    for at in range(1, 14):
        backend = MemoryBackend()
        fill(perdure.open(backend, keys=KEY))
        # Opened before: it has the old wrapping key.
        other = perdure.open(backend, keys=KEY)
        other.session("s0")

        def begin(store: perdure.Store = other) -> None:
            store.session("new").append(said("x"))

        slow: Any = Meanwhile(backend, at, begin)
        perdure.open(slow, keys=KEY).rotate_keys()
        again = perdure.open(backend, keys=KEY)
        assert again.verify().problems == ()
        current, used = wrapping_keys(backend)
        assert used == {*current}


@pytest.mark.parametrize("new", [None, OTHER_KEY], ids=["same master", "new master"])
def test_a_rotation_that_dies_at_any_write_is_continued(new: bytes | None) -> None:
    deaths = 0
    for at in range(1, 16):
        for after in (False, True):
            backend = MemoryBackend()
            fill(perdure.open(backend, keys=KEY))
            before = sessions_of(backend)
            dying: Any = sealing.Dying(backend, at, after=after)
            key = KEY
            try:
                perdure.open(dying, keys=KEY).rotate_keys(new)
                key = new or KEY
            except sealing.DeathError:
                deaths += 1
                try:
                    perdure.open(backend, keys=KEY).session("s0")
                except WrongKeyError:
                    assert new is not None
                    key = new
            store = perdure.open(backend, keys=key)
            assert texts(store) == HELLOS
            store.rotate_keys(new)
            assert len(wrapping_keys(backend)[0]) == 1
            again = perdure.open(backend, keys=new or KEY)
            assert texts(again) == HELLOS
            assert sessions_of(backend) == before
    assert deaths > 10


def test_a_master_key_that_is_away_leaves_the_store_as_it_was() -> None:
    class Away:
        def wrap(self, key: bytes, *, store: str) -> bytes:
            raise perdure.UnavailableError("kms", "it did not respond")

        def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
            raise perdure.UnavailableError("kms", "it did not respond")

    backend = MemoryBackend()
    store = perdure.open(backend, keys=KEY)
    fill(store)
    before = wrapping_keys(backend)
    with pytest.raises(perdure.UnavailableError):
        store.rotate_keys(Away())
    assert wrapping_keys(backend) == before
    assert texts(perdure.open(backend, keys=KEY)) == HELLOS


def test_a_plain_store_has_nothing_to_rotate() -> None:
    store = perdure.open("memory:")
    with pytest.raises(UsageError, match="without keys"):
        store.rotate_keys()
    store.close()
