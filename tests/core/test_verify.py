"""Reading back what was written: what a user can switch up."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import perdure
from perdure.backends.digests import digest_of
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    HistoryReplacedError,
    NotFoundError,
    PayloadError,
)
from perdure.journal import chain
from perdure.journal.chain import PendingRecord
from perdure.journal.kinds import KINDS
from perdure.journal.records import Note
from perdure.testing.faults import BackendWrapper
from tests.support import contents, said


class Lying(MemoryBackend):
    """Says *stored* and stores something else, from the second append on."""

    def __init__(self, lie: Callable[["Lying"], None]) -> None:
        super().__init__()
        self.lie = lie
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = super().append(appends)
        self.calls += 1
        if self.calls > 1:
            self.lie(self)
        return outcomes

    @property
    def entries(self) -> list[Entry]:
        return self._streams["s"].entries


def lose(store: Lying) -> None:
    store.entries.pop()


def alter(store: Lying) -> None:
    store.entries[-1] = store.entries[-1]._replace(body=b"other")


def forget_head(store: Lying) -> None:
    store._streams["s"].digest = "other"


@pytest.mark.parametrize("lie", [lose, alter, forget_head])
def test_a_store_that_does_not_keep_what_it_stored_is_found_out_at_once(
    lie: Callable[[Lying], None],
) -> None:
    session = perdure.open(Lying(lie), verify_writes=True).session("s")
    session.append(said("first"))
    with pytest.raises(DamagedError, match=r"'s' entry [23]"):
        session.append(said("a"), said("b"))
    careless = perdure.open(Lying(lie)).session("s")
    careless.append(said("first"))
    careless.append(said("a"), said("b"))


class Meddled(BackendWrapper):
    """A store in which another process does something right after an append was stored."""

    def __init__(self, backend: Backend, meddle: Callable[[perdure.Store], None]) -> None:
        super().__init__(backend)
        self._meddle = meddle
        self._is_meddling = False
        self.calls = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = super().append(appends)
        self.calls += 1
        if self.calls > 1 and not self._is_meddling:
            self._is_meddling = True
            self._meddle(perdure.open(self))
        return outcomes


def delete(store: perdure.Store) -> None:
    store.delete("s")


def delete_and_create(store: perdure.Store) -> None:
    store.delete("s")
    store.session("s").append(said("new"))
    store.delete("s")
    store.session("s").append(said("newer"))


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
@pytest.mark.parametrize("meddle", [delete, delete_and_create])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_session_that_is_deleted_before_it_is_read_back_is_not_damaged(
    tmp_path: Path, kind: str, meddle: Callable[[perdure.Store], None], *, is_async: bool
) -> None:
    backend = Meddled(open_kind(kind, tmp_path), meddle)
    if is_async:
        assert asyncio.run(append_async(backend)) == 3
    else:
        session = perdure.open(backend, verify_writes=True).session("s")
        session.append(said("first"))
        assert session.append(said("a"), said("b")) == 3, "it was stored, and then deleted"
        with pytest.raises(ConflictError):
            session.append(said("c"))
        with pytest.raises(NotFoundError):
            session.append(said("c"))


def open_kind(kind: str, folder: Path) -> Backend:
    if kind == "memory":
        return MemoryBackend()
    return SqliteBackend(folder / "a.db") if kind == "sqlite" else FilesBackend(folder / "a")


async def append_async(backend: Backend) -> int:
    store = perdure.open_async(ThreadedBackend(backend), verify_writes=True)
    session = await store.session("s")
    await session.append(said("first"))
    return await session.append(said("a"), said("b"))


def test_a_session_that_another_process_continues_before_it_is_read_back_is_not_damaged() -> None:
    def append(store: perdure.Store) -> None:
        store.session("s").append(said("theirs"))

    session = perdure.open(Meddled(MemoryBackend(), append), verify_writes=True).session("s")
    session.append(said("first"))
    assert session.append(said("a"), said("b")) == 3
    session.refresh()
    assert contents(session) == ["first", "a", "b", "theirs"]


def test_a_store_that_is_put_back_before_it_is_read_back_has_another_history() -> None:
    backend = MemoryBackend()

    def put_back(_: perdure.Store) -> None:
        stream = backend._streams["s"]
        del stream.entries[1:]
        stream.digest = digest_of(stream.entries[0].header)

    session = perdure.open(Meddled(backend, put_back), verify_writes=True).session("s")
    session.append(said("first"))
    with pytest.raises(HistoryReplacedError) as caught:
        session.append(said("a"), said("b"))
    assert (caught.value.position, caught.value.head) == (3, 1)


def test_an_honest_store_passes(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "a.db", verify_writes=True) as store:
        session = store.session("s")
        with session.turn("question") as turn:
            turn.append(said("answer", "assistant"), said("more", "assistant"))
        session.set("plan", {"step": 1})
        assert contents(store.session("s")) == ["question", "answer", "more"]


LONG = 32 * 2**20  # Bytes; twice what a record may have.


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
def test_a_body_longer_than_any_record_is_named_and_not_read(kind: str, tmp_path: Path) -> None:
    """Stored by other hands, with a valid chain: a process need not have the memory for it."""
    paths = {"memory": "memory:", "sqlite": f"{tmp_path}/a.db", "files": f"files:{tmp_path}/a"}
    with perdure.open(paths[kind]) as store:
        session = store.session("s")
        session.append(said("a"), said("b"))
        _add_note(store, session, 10)
        assert session.refresh() == 3
        assert len(list(store.records("s"))) == 3
        _add_note(store, session, LONG)
        tracemalloc.start()
        try:
            _require_named(store)
            assert tracemalloc.get_traced_memory()[1] < LONG // 8
        finally:
            tracemalloc.stop()


def _add_note(store: perdure.Store, session: perdure.Session, size: int) -> None:
    past, note = session._replica.history, Note(data="")
    draft = PendingRecord(f".{size}", note, b'{"data":"%b"}' % (b"x" * size))
    time = chain.timestamp(0)
    entry, _ = chain.link_entry(past.stream, past.tip, [draft], time=time, cipher=past.cipher)
    store._backend.append([Append("s", [entry], previous=past.tip.digest or "")])


def _require_named(store: perdure.Store) -> None:
    damage: list[DamagedError] = []
    assert [record.position for record in store.records("s", on_damage=damage.append)] == [1, 2, 3]
    assert [error.position for error in damage] == [4]
    for read in (
        lambda: store.session("s"),
        lambda: list(store.records("s")),
    ):
        with pytest.raises(PayloadError, match="longer than") as caught:
            read()
        assert caught.value.position == 4
    copied = perdure.copy(store._backend, MemoryBackend())
    assert [(problem.kind, problem.position) for problem in copied.problems] == [("damaged", 4)]


# Values that no writer makes, with a valid chain.


SHELLS: dict[str, Any] = {kind: SimpleNamespace(kind=kind) for kind in KINDS}
"""What linking needs of a record's content."""


def forge(content: bytes, kind: str, edit: Callable[[list[Any]], None] | None = None) -> Backend:
    """Return a store whose session `s` ends with a record of any payload, and any header."""
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"), said("b"))
    past, draft = session._replica.history, PendingRecord(".forged", SHELLS[kind], content)
    time = chain.timestamp(0)
    entry, _ = chain.link_entry(past.stream, past.tip, [draft], time=time, cipher=past.cipher)
    if edit is not None:
        header = json.loads(entry.header)
        edit(header)
        entry = entry._replace(header=msgspec.json.encode(header))
    backend.append([Append("s", [entry], previous=past.tip.digest or "")])
    return backend


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("messages.retracted", b'{"positions":[1],"count":-1}'),
        ("messages.retracted", b'{"positions":[-1],"count":1}'),
        ("messages.retracted", b'{"ranges":[[1,-2]],"count":1}'),
        ("message", b'{"message":{"role":"user","content":"c"},"tokens":-1}'),
        ("note", b'{"data":1,"previous":-1}'),
        ("note", b'{"data":1,"sources":[-1]}'),
        ("erased", b'{"ranges":[[-1,2]]}'),
        ("pinned", b'{"message":-2}'),
        ("summary", b'{"text":"c","first":-1,"last":1}'),
        ("value", b'{"key":"k","version":-1,"form":"full"}'),
        ("compacted", b'{"first":-1,"digest":"","state_version":1,"facts":{},"recent":{}}'),
    ],
)
def test_a_negative_number_is_damage_when_it_is_read(kind: str, payload: bytes) -> None:
    backend = forge(payload, kind)
    with pytest.raises(PayloadError, match=rf"'s' entry 3 .* not an? {kind} record"):
        perdure.open(backend).session("s").verify()


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        ("messages.retracted", b'{"positions":[1],"count":2,"last_message":2}', "has 1 messages"),
        ("messages.retracted", b'{"positions":[1],"count":9,"last_message":2}', "has 1 messages"),
        ("messages.retracted", b'{"positions":[3],"count":1,"last_message":2}', "'positions'"),
        ("note", b'{"data":1,"previous":3}', "'previous' refers"),
        ("note", b'{"data":1,"sources":[1,9]}', "'sources' refers"),
        ("erased", b'{"ranges":[[1,3]]}', "'ranges' refers"),
        ("pinned", b'{"message":4}', "'message' refers"),
        ("turn.completed", b'{"turn":"t","begun":7}', "'begun' refers"),
        (
            "effect.intent",
            b'{"identity":"i","tool":"x","arguments":{},"key":"k","digest":"d","turn":"t","begun_after":3}',
            "'begun_after' refers",
        ),
        ("value", b'{"key":"k","version":2,"form":"delta","previous":1}', "does not exist"),
    ],
)
def test_a_record_that_contradicts_those_before_it_is_found_by_verify(
    kind: str, payload: bytes, reason: str
) -> None:
    backend = forge(payload, kind)
    with pytest.raises(DamagedError, match=reason):
        perdure.open(backend).session("s").verify()


def test_a_record_that_agrees_with_those_before_it_is_not_damage() -> None:
    """The twin of the two above."""
    for kind, payload in (
        ("messages.retracted", b'{"positions":[1],"count":1,"last_message":2}'),
        ("messages.retracted", b'{"ranges":[[1,99]],"count":2}'),
        ("note", b'{"data":1,"previous":2,"sources":[1,2]}'),
        ("pinned", b'{"message":2}'),
        ("value", b'{"key":"k","version":1,"form":"full"}'),
    ):
        perdure.open(forge(payload, kind)).session("s").verify()


TIME, KEY, RECORDS = 5, 6, 8  # fields of a header


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda header: header.__setitem__(TIME, "yesterday"), "its time does not parse"),
        (lambda header: header.__setitem__(TIME, "2026-11-18"), "in the form of headers"),
        (lambda header: header.__setitem__(TIME, "2026-11-18T10:00:00.000000+01:00"), "form"),
        (lambda header: header.__setitem__(KEY, "key-1"), "it names a key"),
        (lambda header: header[RECORDS][0].append("key-1"), "names a key, and"),
        (lambda header: header[RECORDS][0].__setitem__(1, "mine"), "not perdure's own"),
    ],
)
def test_a_header_with_values_that_no_writer_makes_is_found_by_verify(
    edit: Callable[[list[Any]], None], reason: str
) -> None:
    backend = forge(b'{"data":1}', "note", edit)
    with pytest.raises(ChainError, match=rf"'s' entry 3 .*{reason}"):
        perdure.open(backend).session("s").verify()
