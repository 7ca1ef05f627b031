"""The lineage of a damaged session: it ends, whatever the rows say, and says what is wrong."""

from collections.abc import Iterator

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append
from perdure.errors import DamagedError
from perdure.journal import chain, codec
from perdure.journal.chain import ChainTip, PendingRecord, StreamIdentity
from perdure.journal.cipher import PlainCipher
from perdure.journal.records import Branched
from tests.support import said, store_in_memory


@pytest.fixture
def looped() -> Iterator[perdure.Store]:
    """A store where the rows of a session are those of its own branch."""
    store, backend = store_in_memory()
    parent = store.session("a")
    parent.append(said("one"), said("two"))
    parent.branch("a/b").append(said("three"))
    backend._streams["a"] = backend._streams["a/b"]
    yield store
    store.close()


@pytest.mark.parametrize("name", ["a", "a/b"])
def test_a_lineage_that_contains_itself_is_damage(looped: perdure.Store, name: str) -> None:
    damage: list[DamagedError] = []
    records = list(looped.records(name, on_damage=damage.append))
    assert "contain itself" in "".join(error.reason for error in damage)
    assert {record.kind for record in records} <= {"branched", "message"}
    with pytest.raises(DamagedError):
        list(looped.records(name))
    with pytest.raises(DamagedError):
        looped.session(name)


def test_a_store_with_such_a_lineage_is_not_copied_as_if_it_were_whole(
    looped: perdure.Store,
) -> None:
    copied = perdure.copy(looped._backend, MemoryBackend())
    assert "a" in {problem.session for problem in copied.problems}


def test_a_branch_of_a_branch_is_read_with_all_of_its_past() -> None:
    """The twin: a lineage of three streams, each of which begins before its branch."""
    store, _ = store_in_memory()
    session = store.session("a")
    for number in range(3):
        session.append(said(str(number)))
        session = session.branch(f"branch-{number}")
    assert len(list(store.records("branch-2"))) == 6


@pytest.mark.parametrize("at", [-(2**63), 0, 1, 3, 2**62])
def test_a_branch_that_does_not_follow_its_parent_is_damage(at: int) -> None:
    """Written with a valid chain, as no perdure would."""
    store, backend = store_in_memory()
    store.session("a").append(said("one"), said("two"))
    (last,) = backend.read("a")
    branched = Branched(parent="a", stream=chain.verify_entry("a", last).header.stream, at=at)
    draft = PendingRecord(".1", branched, codec.encode(branched))
    entry, _ = chain.link_entry(
        StreamIdentity("b", "stream"),
        ChainTip(2, chain.entry_digest(last)),
        [draft],
        time=chain.timestamp(0),
        cipher=PlainCipher(),
    )
    backend.append([Append("b", [entry])])
    for read in (lambda: store.session("b"), lambda: list(store.records("b"))):
        with pytest.raises(DamagedError, match=r"does not continue|not a branched record"):
            read()
