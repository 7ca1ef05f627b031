"""Damage to single entries: what is raised, what can still be read, and what is named."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Entry
from perdure.errors import ChainError, DamagedError, NotFoundError, VersionError
from perdure.journal import chain, codec
from perdure.journal import kinds as kinds_module
from perdure.journal import records as records_module
from perdure.journal.chain import PendingRecord, entry_digest
from tests.support import said, store_in_memory

COUNT = 300
Alter = Callable[[Entry], Entry]


def in_header(old: bytes, new: bytes) -> Alter:
    return lambda entry: entry._replace(header=entry.header.replace(old, new, 1))


ALTERATIONS: dict[str, Alter] = {
    "body": lambda entry: entry._replace(body=(entry.body or b"").replace(b"user", b"usex", 1)),
    "id": in_header(b'"message",".', b'"message",".~'),
    "time": in_header(b"Z", b"z"),
    "kind": in_header(b'"message"', b'"massage"'),
    "format": in_header(b"[1,", b"[2,"),
    "suite": in_header(b'"plain"', b'"plaim"'),
    "length": lambda entry: entry._replace(
        header=entry.header.replace(b",%d," % len(entry.body or b""), b",%d," % 99999)
    ),
    "previous": lambda entry: entry._replace(header=entry.header.replace(b',"', b',"0', 3)),
    "garbage": lambda entry: entry._replace(header=b"x"),
}


@pytest.fixture
def store() -> tuple[perdure.Store, MemoryBackend]:
    store, backend = store_in_memory()
    session = store.session("s")
    for number in range(COUNT):
        session.append(said(str(number)))
    return store, backend


def alter(backend: MemoryBackend, position: int, change: Alter) -> None:
    entries = backend._streams["s"].entries
    altered = change(entries[position - 1])
    assert altered != entries[position - 1]
    entries[position - 1] = altered


@pytest.mark.parametrize("position", [1, 2, 5, 127, 128, 129, 290, COUNT + 1])
@pytest.mark.parametrize("what", ALTERATIONS)
def test_one_altered_entry_is_named_and_nothing_else_is_lost(
    store: tuple[perdure.Store, MemoryBackend], what: str, position: int
) -> None:
    opened, backend = store
    before = [record.position for record in opened.records("s")]
    alter(backend, position, ALTERATIONS[what])
    damage: list[DamagedError] = []
    left = [record.position for record in opened.records("s", on_damage=damage.append)]
    assert left == [number for number in before if number != position]
    assert {error.position for error in damage} == {position}
    with pytest.raises(DamagedError) as caught:
        list(opened.records("s"))
    assert caught.value.position == position


@pytest.mark.parametrize("what", ALTERATIONS)
def test_opening_or_reading_a_session_with_an_altered_entry_raises(
    store: tuple[perdure.Store, MemoryBackend], what: str
) -> None:
    opened, backend = store
    assert len(opened.session("s").messages()) == COUNT
    for position in (COUNT + 1, COUNT - 5, 3):
        alter(backend, position, ALTERATIONS[what])
        with pytest.raises((DamagedError, VersionError)):
            opened.session("s").messages()
        with pytest.raises((DamagedError, VersionError)):
            opened.session("s").verify()


def test_a_record_of_a_newer_perdure_is_not_taken_for_damage(
    store: tuple[perdure.Store, MemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, _ = store
    opened.session("s").note("from the future")
    monkeypatch.delitem(kinds_module.KINDS, "note")
    with pytest.raises(VersionError, match="upgrade"):
        list(opened.records("s", on_damage=lambda _: None))


def test_a_missing_entry_is_named(store: tuple[perdure.Store, MemoryBackend]) -> None:
    opened, backend = store
    del backend._streams["s"].entries[99]
    with pytest.raises(ChainError, match="entry 100"):
        list(opened.records("s"))


def test_a_damaged_branch_is_read_with_its_past() -> None:
    store, backend = store_in_memory()
    parent = store.session("s")
    parent.append(said("a"), said("b"))
    child = parent.branch("child", at=2)
    child.append(said("c"))
    alter(backend, 1, ALTERATIONS["body"])
    with pytest.raises(ChainError):
        child.messages()
    damage: list[DamagedError] = []
    kinds = [record.kind for record in store.records("child", on_damage=damage.append)]
    assert kinds == ["message", "branched", "message"]
    assert [error.position for error in damage] == [1]


def test_reading_an_unknown_session_is_not_an_empty_one() -> None:
    store, _ = store_in_memory()
    with pytest.raises(NotFoundError):
        list(store.records("unknown", on_damage=lambda _: None))


def test_a_lost_label_is_found_by_verify() -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    session.label("vip")
    session.verify()
    backend._streams["s"].labels = frozenset()
    with pytest.raises(DamagedError, match="labels of its head"):
        session.verify()


@pytest.mark.parametrize("lost", [[3], [3, 4], [3, 4, 5, 8]])
def test_what_stands_between_missing_entries_is_read(
    store: tuple[perdure.Store, MemoryBackend], lost: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    with perdure.open(path) as opened:
        for number in range(10):
            opened.session("s").note(number)
    db = apsw.Connection(str(path))
    db.executemany("delete from entry where position = ?", [(position,) for position in lost])
    db.close()
    damage: list[DamagedError] = []
    with perdure.open(path) as opened:
        left = [record.position for record in opened.records("s", on_damage=damage.append)]
    assert left == [position for position in range(1, 11) if position not in lost]
    assert damage[0].position == 3


@pytest.mark.parametrize("column", ["labels = 'nonsense'", "name = 'other'", "position = 0"])
def test_a_damaged_head_is_told_of_and_its_entries_are_read(column: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with perdure.open(path) as opened:
        for number in range(10):
            opened.session("s").note(number)
    db = apsw.Connection(str(path))
    db.execute(f"update head set {column}")  # noqa: S608 - constants
    db.close()
    damage: list[DamagedError] = []
    with perdure.open(path) as opened:
        left = [record.position for record in opened.records("s", on_damage=damage.append)]
        with pytest.raises(DamagedError):
            opened.session("s")
    assert left == [*range(1, 11)]
    assert damage


def test_a_session_that_only_a_newer_perdure_can_read_is_not_called_damaged() -> None:
    store, backend = store_in_memory()
    store.session("s").note("new")
    alter(backend, 1, in_header(b"[1,", b"[2,"))
    backend._streams["s"].digest = entry_digest(backend._streams["s"].entries[0])
    with pytest.raises(VersionError, match="upgrade"):
        list(store.records("s", on_damage=lambda _: None))


def test_a_branch_of_a_second_life_is_read_without_being_opened() -> None:
    store, _ = store_in_memory()
    store.session("a").append(said("a first life"))
    store.delete("a")
    store.session("a").append(said("a second one"))
    store.session("a").branch("b").append(said("what if"))
    records = [*store.records("b")]
    assert records == [*store.session("b").records()]
    assert [record.kind for record in records] == ["deleted", "message", "branched", "message"]


@pytest.mark.parametrize("position", [-1, 0, 9])
def test_a_record_that_names_no_position_of_its_history_is_damage(position: int) -> None:
    """Written with a valid chain, as no perdure would: a pin of a message that is not there."""
    store, backend = store_in_memory()
    session = store.session("s")
    session.append(said("a"))
    past, pinned = session._replica.history, records_module.Pinned(message=position)
    draft = PendingRecord(".pin", pinned, codec.encode(pinned))
    time = chain.timestamp(0)
    entry, _ = chain.link_entry(past.stream, past.tip, [draft], time=time, cipher=past.cipher)
    (outcome,) = backend.append([Append("s", [entry], previous=past.tip.digest or "")])
    assert outcome.status == "stored"
    with pytest.raises(DamagedError, match=r"no such position|not a pinned record"):
        store.session("s").messages(format="openai.chat")
