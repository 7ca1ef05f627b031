"""Reading back what was written: what a user can switch up."""

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Entry, Outcome
from perdure.errors import DamagedError, PayloadError
from perdure.journal import chain
from perdure.journal.chain import PendingRecord
from perdure.journal.records import Note
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
    with pytest.raises(DamagedError, match="'s' entry 3"):
        session.append(said("a"), said("b"))
    careless = perdure.open(Lying(lie)).session("s")
    careless.append(said("first"))
    careless.append(said("a"), said("b"))


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
    entries, _ = chain.link_entries(past.stream, past.tip, [draft], time=time, cipher=past.cipher)
    store._backend.append([Append("s", entries)])


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
