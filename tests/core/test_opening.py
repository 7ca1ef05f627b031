"""Opening a session: from the snapshot that its head names, or refused if there is none."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Backend, Entry, Head
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.core.state import session_state
from perdure.errors import ChainError, DamagedError
from perdure.journal import chain
from perdure.journal.chain import EMPTY_CHAIN, StreamIdentity
from perdure.journal.cipher import PlainCipher
from perdure.testing.faults import BackendWrapper
from tests.promises import p03_openings
from tests.support import contents, said

USUAL = session_state.SNAPSHOT_EVERY


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 8)


class AlteredHead(BackendWrapper):
    """Shows other heads than the store has."""

    def __init__(self, backend: Backend, alter: Callable[[Head], Head]) -> None:
        super().__init__(backend)
        self._alter = alter

    def streams(self, **filters: Any) -> Iterator[Head]:
        """Yield the heads, altered."""
        return map(self._alter, self.backend.streams(**filters))


def fill(backend: Backend, name: str = "s", count: int = 30) -> list[int]:
    """Write messages and values, and return the positions of the snapshots."""
    session = perdure.open(backend).session(name)
    for number in range(count):
        session.append(said(f"{name} {number}"))
        session.set("count", number)
    return [record.position for record in session.records() if record.kind == "snapshot"]


def opened(backend: Backend, snapshot: int) -> perdure.Session:
    """Open the session as if its head named another snapshot."""
    altered = AlteredHead(backend, lambda head: head._replace(snapshot=snapshot))
    return perdure.open(altered).session("s")


def test_a_head_names_the_newest_snapshot() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    (head,) = backend.streams()
    assert head.snapshot == places[-1]
    session = perdure.open(backend).session("s")
    assert session._replica.state.snapshot == places[-1]
    session.append(said("more"))
    assert next(backend.streams()).snapshot == places[-1]


def test_an_older_snapshot_or_none_gives_the_same_state() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    right = perdure.open(backend).session("s")
    for place in (*places, 0):
        session = opened(backend, place)
        assert session._replica.state.facts() == right._replica.state.facts()
        assert session._replica.state.snapshot == places[-1]
        assert contents(session) == contents(right)


def test_only_verify_reports_an_older_snapshot() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    with pytest.raises(DamagedError, match="another snapshot than the newest"):
        opened(backend, places[-2]).verify()
    opened(backend, 0).verify()
    opened(backend, places[-1]).verify()


def test_a_head_that_names_another_record_is_refused_wherever_it_is() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    last = next(backend.streams()).position
    for position in {*range(1, last + 1)}.difference(places):
        with pytest.raises(ChainError, match="names a snapshot here") as caught:
            opened(backend, position)
        assert caught.value.position == position


class AlteredHeader(BackendWrapper):
    """Shows another header of the entry at a position."""

    def __init__(self, backend: Backend, position: int, alter: Callable[[bytes], bytes]) -> None:
        super().__init__(backend)
        self._position = position
        self._alter = alter

    def read(self, stream: str, **how: Any) -> Iterator[Entry]:
        """Yield the entries, one of them altered."""
        for entry in self.backend.read(stream, **how):
            is_altered = entry.position == self._position
            yield entry._replace(header=self._alter(entry.header)) if is_altered else entry


@pytest.mark.parametrize(
    "old_new", [(b"[1,", b"[2,"), (b"]]]", b"]],5]"), (b'"plain"', b'"plaim"')]
)
def test_an_altered_header_is_damage_and_not_a_newer_version(old_new: tuple[bytes, bytes]) -> None:
    backend = MemoryBackend()
    (*_, snapshot) = fill(backend, count=35)
    last = next(backend.streams()).position
    for position in range(snapshot, last + 1):
        altered = AlteredHeader(backend, position, lambda header: header.replace(*old_new))
        with pytest.raises(ChainError, match="it is not the entry") as caught:
            perdure.open(altered).session("s")
        assert caught.value.position == position


def test_a_head_that_names_a_dropped_snapshot_is_refused() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    backend.drop("s", before=places[1])
    with pytest.raises(ChainError, match="it is missing") as caught:
        opened(backend, places[0])
    assert caught.value.position == places[0]


@pytest.mark.parametrize("value", ["position + 1", "-1", "'x'", "x'00'"])
def test_a_damaged_column_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "s.db"
    backend = SqliteBackend(path)
    fill(backend)
    backend.close()
    db = apsw.Connection(str(path))
    db.execute(f"update head set snapshot = {value}")  # noqa: S608 - of this test
    db.close()
    with perdure.open(path) as store, pytest.raises(DamagedError):
        store.session("s")


def relink(entries: list[Entry], stream: StreamIdentity) -> list[Entry]:
    """Return the same records as entries of another stream, with a chain of their own."""
    relinked, tip, cipher = [], EMPTY_CHAIN, PlainCipher()
    for entry in entries:
        linked = chain.verify_entry(stream.session, entry)
        drafts = [chain.decode_record(stream.session, item, cipher) for item in linked.records]
        time = linked.header.time
        new, tip = chain.link_entry(stream, tip, drafts, time=time, cipher=cipher)
        relinked.append(new)
    return relinked


@pytest.mark.parametrize(
    ("session", "tenant", "reason"),
    [("t", "", "another session"), ("s", "acme", "another tenant")],
)
@pytest.mark.parametrize("name", ["the newest snapshot", "none"])
def test_a_snapshot_of_another_session_or_tenant_is_refused(
    session: str, tenant: str, reason: str, name: str
) -> None:
    backend = MemoryBackend()
    (*_, place) = fill(backend)
    entries = relink([*backend.read("s")], StreamIdentity(session, "x" * 22, tenant))
    other = MemoryBackend()
    snapshot = 0 if name == "none" else place
    other.append([Append("s", entries, snapshot=snapshot)])
    altered = AlteredHead(other, lambda head: head)
    altered.tenant = "globex"
    with pytest.raises(ChainError, match=reason) as caught:
        perdure.open(altered).session("s")
    assert caught.value.position >= place - 1


def test_a_branch_names_only_snapshots_of_its_own() -> None:
    backend = MemoryBackend()
    places = fill(backend)
    branch = perdure.open(backend).session("s").branch("b")
    heads = {head.stream: head.snapshot for head in backend.streams()}
    assert heads == {"b": 0, "s": places[-1]}
    for number in range(10):
        branch.append(said(str(number)))
    own = [record.position for record in branch.records() if record.kind == "snapshot"][-1]
    heads = {head.stream: head.snapshot for head in backend.streams()}
    assert heads == {"b": own, "s": places[-1]}
    again = perdure.open(backend).session("b")
    assert contents(again) == contents(branch)
    again.verify()


class Interrupted(BackendWrapper):
    """Does something once, after the first listing of heads."""

    def __init__(self, backend: Backend, action: Callable[[], object]) -> None:
        super().__init__(backend)
        self._actions = [action]

    def streams(self, **filters: Any) -> Iterator[Head]:
        """Yield the heads, after which another process acts."""
        heads = [*self.backend.streams(**filters)]
        while self._actions:
            self._actions.pop()()
        return iter(heads)


@pytest.mark.parametrize("action", ["compact", "delete"])
def test_a_session_that_another_process_changes_meanwhile_is_opened(action: str) -> None:
    backend = MemoryBackend()
    fill(backend, count=33)
    other = perdure.open(backend)
    acts: dict[str, Callable[[], object]] = {
        "compact": lambda: other.session("s").compact(keep=1),
        "delete": lambda: other.delete("s"),
    }
    session = perdure.open(Interrupted(backend, acts[action])).session("s")
    assert contents(session) == contents(perdure.open(backend).session("s"))
    session.append(said("next"))
    session.verify()


def test_copies_compactions_and_deletions_move_it() -> None:
    backend = MemoryBackend()
    fill(backend)
    with perdure.open(backend) as store:
        session = store.session("s")
        copy = session.copy("c")
        session.compact(keep=3)
        for name in ("s", "c"):
            head = next(backend.streams(prefix=name))
            (*_, place) = [
                r.position for r in store.session(name).records() if r.kind == "snapshot"
            ]
            assert head.snapshot == place
            store.session(name).verify()
        copy.close()
        store.delete("s")
        assert next(backend.streams(prefix="s")).snapshot == 0
        store.session("s").append(said("again"))
        store.session("s").verify()


# What it costs, with the usual limits.


@pytest.fixture
def _usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", USUAL)


@pytest.mark.usefixtures("_usual")
@pytest.mark.parametrize("seed", [1, 2])
def test_opening_a_session_of_1000_records_reads_little(seed: int) -> None:
    assert p03_openings.trial(seed, 1_000, turns=40).failure == ""


@pytest.mark.usefixtures("_usual")
def test_a_longer_tail_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_state, "OPENING_BYTES", 80_000)
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 200)
    assert "entries" in p03_openings.trial(1, 1_000, turns=40).failure


@pytest.mark.usefixtures("_usual")
def test_large_bodies_are_not_read_but_the_last_message() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    size = 300_000
    for number in range(20):
        session.append(said(f"{number}" + "x" * size))
        session.set("count", number)
    counting = p03_openings.Counting(backend)
    again = perdure.open(counting).session("s")
    assert counting.bytes < size + p03_openings.BYTES
    assert again.last_message == session.last_message
    session.append(said("short"))
    counting = p03_openings.Counting(backend)
    perdure.open(counting).session("s")
    assert counting.bytes < p03_openings.BYTES


@pytest.mark.usefixtures("_usual")
def test_a_snapshot_with_many_keys_is_long_and_rare() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    for number in range(3_000):
        session.set(f"key {number}", number)
    sizes = [entry.size for entry in backend.read("s") if b'"snapshot"' in entry.header]
    assert sizes == sorted(sizes)
    assert sizes[-1] > p03_openings.BYTES
    assert sum(sizes) < sum(entry.size for entry in backend.read("s")) / 2
    session.verify()


@pytest.mark.usefixtures("_usual")
def test_the_first_messages_are_those_that_opening_has_read() -> None:
    backend = MemoryBackend()
    fill(backend, count=10)
    counting = p03_openings.Counting(backend)
    session = perdure.open(counting).session("s")
    opened = counting.entries
    assert contents(session)[-5:] == [f"s {number}" for number in range(5, 10)]
    assert counting.entries == opened
    assert session.messages(last=3) == session.messages()[-3:]
    assert counting.entries > opened, "they are not kept for a second time"


@pytest.mark.usefixtures("_usual")
def test_the_first_messages_end_with_what_this_process_wrote() -> None:
    backend = MemoryBackend()
    fill(backend, count=10)
    session = perdure.open(backend).session("s")
    session.append(said("mine"))
    assert contents(session)[-2:] == ["s 9", "mine"]


def test_an_async_open_is_one_call_of_the_worker(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "s.db") as store:
        store.session("s").append(said("hello"))
    calls: list[str] = []

    class Recorded(SqliteBackend):
        def read(self, *args: Any, **options: Any) -> Iterator[Entry]:
            calls.append("read")
            return super().read(*args, **options)

        def streams(self, **options: Any) -> Iterator[Head]:
            calls.append("streams")
            return super().streams(**options)

        def tail(self, *args: Any, **options: Any) -> Any:
            calls.append("tail")
            return super().tail(*args, **options)

    async def resume() -> list[Any]:
        backend = ThreadedBackend(Recorded(tmp_path / "s.db"))
        async with perdure.open_async(backend) as store:
            session = await store.resume("s")
            return [*await session.messages()]

    assert asyncio.run(resume()) == [said("hello")]
    assert calls[-2:] == ["tail", "streams"], "the messages are there; is the store still the same?"
