"""One append is one entry: ranges of positions, what binds a stream, erased and unknown records."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Backend, Entry
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.core import plans
from perdure.core.plans import Plan
from perdure.core.state import session_state
from perdure.errors import (
    ChainError,
    ConflictError,
    DamagedError,
    NotFoundError,
    UnsupportedError,
    UsageError,
    VersionError,
)
from perdure.journal import chain, codec
from perdure.journal.chain import PendingRecord
from perdure.journal.records import Content, EmptiedContent, Erased, Note, UnknownContent
from tests.support import contents, said

Opener = Callable[[str], Backend]


@pytest.fixture(params=["memory", "sqlite", "files"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    kinds: dict[str, Opener] = {
        "memory": lambda _: MemoryBackend(),
        "sqlite": lambda name: SqliteBackend(tmp_path / f"{name}.db"),
        "files": lambda name: FilesBackend(tmp_path / name),
    }
    return kinds[request.param]


def move(source: Backend, target: Backend, names: dict[str, str]) -> None:
    """Put streams into another store under other names, with nothing recomputed."""
    for head in source.streams():
        entries = [*source.read(head.stream)]
        target.append([Append(names[head.stream], entries, head.labels)])


# Ranges.


def test_an_append_of_several_records_is_one_entry() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"), said("b"), said("c"))
    with session.turn("question") as turn:
        turn.append(said("answer", "assistant"))
    assert [(entry.position, entry.records) for entry in backend.read("s")] == [
        *((1, 3), (4, 2), (6, 1), (7, 1))
    ]
    assert [record.position for record in session.records()] == list(range(1, 8))
    session.verify()


@pytest.mark.parametrize("at", range(1, 9))
def test_a_branch_may_begin_within_an_entry(at: int, opener: Opener) -> None:
    backend = opener("store")
    store = perdure.open(backend)
    parent = store.session("parent")
    texts = ["a", "b", "c", "d", "e", "f", "g", "h"]
    parent.append(*map(said, texts[:5]))
    parent.append(*map(said, texts[5:]))
    branch = parent.branch("branch", at=at)
    branch.append(said("x"), said("y"))
    parent.append(said("later"))
    for session in (branch, perdure.open(backend).session("branch")):
        assert contents(session) == [*texts[:at], "x", "y"]
        assert session.verify().position == at + 3
    assert [record.position for record in branch.records()] == list(range(1, at + 4))
    assert [record.position for record in branch.records(reverse=True)] == list(
        range(at + 3, 0, -1)
    )
    twig = branch.branch("twig", at=at + 2)
    assert contents(twig) == [*texts[:at], "x"]
    target = opener("target")
    assert perdure.copy(backend, target).complete
    assert contents(perdure.open(target).session("twig")) == [*texts[:at], "x"]


class Counted(MemoryBackend):
    """Counts the entries that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def read(self, stream: str, **how: Any) -> Iterator[Entry]:
        for entry in super().read(stream, **how):
            self.entries += 1
            yield entry


@pytest.mark.parametrize("position", [1, 7, 300, 1000])
def test_a_record_is_read_by_its_position_with_at_most_two_entries(position: int) -> None:
    backend = Counted()
    session = perdure.open(backend).session("s")
    for first in range(0, 1000, 4):
        session.append(*(said(str(first + number)) for number in range(4)))
    backend.entries = 0
    record = session.record(position)
    assert record.position == position
    assert backend.entries <= 2


def test_records_after_a_position_within_an_entry_are_those_after_it() -> None:
    session = perdure.open(MemoryBackend()).session("s")
    session.append(*(said(str(number)) for number in range(5)))
    session.append(said("5"))
    assert [record.position for record in session.records(after=3)] == [4, 5, 6]
    assert [record.position for record in session.records(after=3, reverse=True)] == [6, 5, 4]
    assert [record.position for record in session.records(after=2, limit=2)] == [3, 4]


# Sizes.


def test_an_append_that_is_too_large_says_how_to_split_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "RECORDS_MAX", 10)
    session = perdure.open(MemoryBackend()).session("s")
    session.append(*(said(str(number)) for number in range(10)))
    with pytest.raises(UsageError, match="in several calls"):
        session.append(*(said(str(number)) for number in range(11)))
    monkeypatch.setattr(plans, "ENTRY_MAX", 50_000)
    session.append(said("x " * 20_000))
    with pytest.raises(UsageError, match="in several calls"):
        session.append(said("x " * 15_000), said("y " * 15_000))
    assert len(session) == 11
    session.verify()


def test_callers_that_share_an_append_are_not_refused_because_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "RECORDS_MAX", 6)
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("first"))
    refused: list[int] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        for part in range(20):
            size = 7 if part == number else 4
            try:
                session.append(*(said(f"{number}.{part}.{one}") for one in range(size)))
            except UsageError:
                refused.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(refused) == list(range(8))
    assert len(contents(session)) == 1 + 8 * 19 * 4
    assert max(entry.records for entry in backend.read("s")) <= 6
    session.verify()


# What binds a stream.


@pytest.mark.parametrize("lengths", [(1, 1), (3, 700), (300, 300), (1, 600), (2000, 2000)])
def test_exchanged_streams_are_refused_at_opening(lengths: tuple[int, int], opener: Opener) -> None:
    source = MemoryBackend()
    store = perdure.open(source)
    for name, length in zip(("alice", "bob"), lengths, strict=True):
        session = store.session(name)
        for first in range(0, length, 50):
            session.append(*(said(f"{name} {n}") for n in range(first, min(first + 50, length))))
    target = opener("target")
    move(source, target, {"alice": "bob", "bob": "alice"})
    for name in ("alice", "bob"):
        with pytest.raises(ChainError, match="belongs to another session"):
            perdure.open(target).session(name)
    kept = opener("kept")
    move(source, kept, {"alice": "alice", "bob": "bob"})
    assert len(perdure.open(kept).session("alice")) == lengths[0]


class OfTenant(MemoryBackend):
    """A store that shows the streams of one tenant."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self.tenant = tenant


@pytest.mark.parametrize("length", [1, 600])
def test_a_stream_that_was_moved_to_another_tenant_is_refused(length: int) -> None:
    source, target = OfTenant("acme"), OfTenant("other")
    session = perdure.open(source).session("s")
    for number in range(length):
        session.append(said(str(number)))
    move(source, target, {"s": "s"})
    with pytest.raises(ChainError, match="belongs to another tenant"):
        perdure.open(target).session("s")
    with pytest.raises(UnsupportedError, match="tenant"):
        perdure.copy(source, OfTenant("other"))
    same = OfTenant("acme")
    assert perdure.copy(source, same).complete
    assert len(perdure.open(same).session("s")) == length


def test_ids_of_callers_are_in_no_header() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"), said("b"), id="customer-jane")
    session.note({"x": 1}, id="note-jane")
    with session.turn("question", id="turn-jane") as turn:
        turn.append(said("answer", "assistant"), id="answer-jane")
    with session.batch(id="batch-jane") as batch:
        batch.append(said("c"))
    assert session.append(said("a"), said("b"), id="customer-jane") == 2
    again = perdure.open(backend).session("s")
    assert again.note({"x": 1}, id="note-jane") == 3
    ids = [record.id for record in again.records() if "jane" in record.id]
    assert len(ids) == 6
    for entry in backend.read("s"):
        assert b"jane" not in entry.header
        for _, own, *_ in json.loads(entry.header)[8]:
            assert own.startswith(".")
            assert len(own) == 23


# Erased records.


def empty(backend: MemoryBackend, position: int) -> None:
    """Overwrite the body of a record with spaces, and touch nothing else."""
    stream = backend._streams["s"]
    number = stream.covering(position)
    entry = stream.entries[number]
    sizes = [record[2] for record in json.loads(entry.header)[8]]
    start, body = sum(sizes[: position - entry.position]), bytearray(entry.body or b"")
    size = sizes[position - entry.position]
    body[start : start + size] = b" " * size
    stream.entries[number] = entry._replace(body=bytes(body))


def write(session: perdure.Session, content: Content) -> int:
    record_id = session._replica.new_id()
    position: int = session._handle.write(
        Plan("note", "", lambda batch: batch.add_content(record_id, content))
    )
    return position


@pytest.fixture
def erasable() -> tuple[MemoryBackend, perdure.Session]:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"), said("b"), said("c"), id="abc")
    session.append(said("d"))
    return backend, session


def test_an_emptied_body_that_no_record_names_is_damage(
    erasable: tuple[MemoryBackend, perdure.Session],
) -> None:
    backend, session = erasable
    empty(backend, 2)
    for read in (session.verify, session.messages, lambda: session.record(2)):
        with pytest.raises(ChainError, match=r"entry 2 .* no record says that it was erased"):
            read()
    with pytest.raises(ChainError, match="entry 2"):
        perdure.open(backend).session("s")
    damage: list[DamagedError] = []
    rest = [record.position for record in session.records(on_damage=damage.append)]
    assert rest == [1, 3, 4]
    assert [error.position for error in damage] == [2]


@pytest.mark.parametrize("position", [1, 2, 4])
def test_an_erased_record_counts_as_if_it_had_never_had_an_effect(
    erasable: tuple[MemoryBackend, perdure.Session], position: int
) -> None:
    backend, other = erasable
    eraser = perdure.open(backend).session("s")
    write(eraser, Erased(ranges=((position, position),), reason="requested"))
    empty(backend, position)
    left = ["a", "b", "c", "d"]
    del left[position - 1]
    other.refresh()
    for session in (other, perdure.open(backend).session("s")):
        assert contents(session) == left
        assert len(session) == 3
        assert [part["content"] for part in session.messages(format="openai.chat")] == left
        records = [*session.records()]
        assert [record.position for record in records] == [1, 2, 3, 4, 5]
        assert records[position - 1].content == EmptiedContent()
        assert session.record(position).kind == "message"
        session.verify()
    reopened = perdure.open(backend).session("s")
    for number in range(300):
        reopened.note(number)
    again = perdure.open(backend).session("s")
    assert again._replica.state.erasures.ranges == ((position, position),)
    assert contents(again) == left
    again.verify()
    with pytest.raises(NotFoundError):
        again.retract(position)
    copy = again.copy("copy")
    assert contents(copy) == left
    copy.verify()


@pytest.mark.parametrize("at", [1, 3, 4, 5])
def test_a_branch_from_before_an_erasure_knows_of_it(
    erasable: tuple[MemoryBackend, perdure.Session], at: int
) -> None:
    backend, session = erasable
    earlier = session.branch("earlier", at=3)
    for stream in (session, earlier):
        write(stream, Erased(ranges=((1, 1),)))
    empty(backend, 1)
    store = perdure.open(backend)
    assert contents(store.session("earlier")) == ["b", "c"]
    branch = store.session("s").branch("branch", at=at)
    twig = branch.branch("twig", at=max(at - 1, 1))
    expected = ["b", "c", "d"][: at - 1]
    for opened in (branch, perdure.open(backend).session("branch")):
        assert contents(opened) == expected
        opened.verify()
    branch.append(said("e"))
    assert contents(perdure.open(backend).session("branch")) == [*expected, "e"]
    left = expected[: max(at - 2, 0)]
    assert contents(twig) == contents(perdure.open(backend).session("twig")) == left
    kinds = [record.kind for record in twig.records()]
    assert kinds.count("erased") == 1


def test_a_write_made_without_seeing_an_erasure_conflicts(
    erasable: tuple[MemoryBackend, perdure.Session],
) -> None:
    backend, _ = erasable
    late, later = (perdure.open(backend).session("s") for _ in range(2))
    eraser = perdure.open(backend).session("s")
    write(eraser, Erased(ranges=((2, 2),)))
    empty(backend, 2)
    with pytest.raises(ConflictError, match="an erased record came first"):
        late.append(said("late"))
    eraser.append(said("e"))
    eraser.set("plan", 1)
    with pytest.raises(ConflictError, match="a value record came first"):
        later.set("plan", 2)
    later.refresh()
    assert contents(later) == ["a", "c", "d", "e"]
    perdure.open(backend).delete("s")
    again = perdure.open(backend).session("s")
    again.append(said("x"), said("y"))
    write(again, Erased(ranges=((10, 10),)))
    empty(backend, 10)
    with pytest.raises(ConflictError):
        later.append(said("late"))
    with pytest.raises(NotFoundError, match="deleted"):
        later.append(said("late"))


@pytest.mark.parametrize("position", [1, 2, 4])
def test_salvage_does_not_report_an_erased_body(
    erasable: tuple[MemoryBackend, perdure.Session], position: int
) -> None:
    backend, session = erasable
    write(session, Erased(ranges=((position, position),)))
    empty(backend, position)
    empty(backend, 3)
    store, damage = perdure.open(backend), list[DamagedError]()
    records = {record.position: record for record in store.records("s", on_damage=damage.append)}
    assert sorted(records) == [1, 2, 4, 5]
    assert records[position].content == EmptiedContent()
    assert [error.position for error in damage] == [3], "nothing says that this one was erased"
    with pytest.raises(ChainError, match=r"entry 3 .* no record says that it was erased"):
        list(store.records("s"))


def test_salvage_finds_erasures_beyond_damage(
    erasable: tuple[MemoryBackend, perdure.Session],
) -> None:
    backend, session = erasable
    write(session, Erased(ranges=((2, 2),)))
    session.append(said("e"))
    empty(backend, 2)
    entries = backend._streams["s"].entries
    entries[1] = entries[1]._replace(body=b"other")
    damage: list[DamagedError] = []
    found = [
        record.position for record in perdure.open(backend).records("s", on_damage=damage.append)
    ]
    assert found == [1, 2, 3, 5, 6]
    assert [error.position for error in damage] == [4]


def test_an_erased_snapshot_is_read_over(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 3)
    for number in range(3):
        session.append(said(str(number)))
    (position,) = [record.position for record in session.records() if record.kind == "snapshot"]
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 1000)
    write(session, Erased(ranges=((1, 1), (position, position))))
    empty(backend, 1)
    empty(backend, position)
    session = perdure.open(backend).session("s")
    assert contents(session) == ["1", "2"]
    session.verify()


# What a newer version wrote.


def append_raw(session: perdure.Session, backend: Backend, kind: str, payload: bytes) -> None:
    """Append a record of any kind with a valid chain, as a newer perdure would."""

    class Newer(Note, frozen=True, kw_only=True):
        pass

    Newer.kind = kind
    past = session._replica.history
    draft = PendingRecord(".newer-record-of-22-ch", Newer(data=1), payload)
    entry, _ = chain.link_entry(
        past.stream, past.tip, [draft], time=chain.timestamp(0), cipher=past.cipher
    )
    backend.append([Append("s", [entry], previous=past.tip.digest or "")])


def test_a_field_that_is_not_known_is_a_newer_version_and_not_damage() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"))
    append_raw(session, backend, "note", b'{"data":1,"mood":"fine"}')
    with pytest.raises(VersionError, match=r"a field 'mood' .* upgrade"):
        perdure.open(backend).session("s")
    with pytest.raises(VersionError, match="a field 'mood'"):
        codec.decode("note", b'{"data":1,"mood":"fine"}')
    with pytest.raises(DamagedError):
        codec.decode("note", b'{"data":1,"topic":7}')


def test_a_kind_that_may_be_skipped_is_skipped_and_shown() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"))
    append_raw(session, backend, "~clock", b'{"drift":0.5}')
    again = perdure.open(backend).session("s")
    again.append(said("b"))
    assert contents(again) == ["a", "b"]
    assert [record.kind for record in again.records()] == ["message", "~clock", "message"]
    assert again.record(2).content == UnknownContent(data={"drift": 0.5})
    again.verify()


@pytest.mark.parametrize("kind", ["heads", "checkpoint", "clock"])
def test_another_kind_that_is_not_known_is_a_newer_version(kind: str) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.append(said("a"))
    append_raw(session, backend, kind, b"{}")
    with pytest.raises(VersionError, match=kind):
        perdure.open(backend).session("s")


@pytest.mark.parametrize("number", [2**53 - 1, 2**53, -(2**53), 2**64 + 1, -(10**400)])
def test_integers_that_other_languages_would_round_are_stored_as_text(number: int) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    session.note({"number": number})
    (entry,) = backend.read("s")
    assert (b'{"$int":"%d"}' % number in (entry.body or b"")) == (abs(number) > 2**53 - 1)
    assert session.record(1).content.data == {"number": number}  # type: ignore[attr-defined]
    session.set("value", [number])
    assert perdure.open(backend).session("s").get("value") == [number]
