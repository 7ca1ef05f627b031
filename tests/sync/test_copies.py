# Generated from aio/test_copies.py by scripts/generate_sync.py: do not edit.
"""Copies of sessions within a store: the same content, and nothing that ties the two."""

from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import DivergenceError, NotFoundError, UsageError
from perdure.journal.records import Copied, Note
from tests.support import said


def listed(store: perdure.Store, **options: Any) -> list[str]:
    return [info.id for info in store.sessions(**options)]


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def test_a_copy_has_the_same_content_at_the_same_positions() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    source = store.session("s")
    for number in range(300):  # Beyond a snapshot and several pages.
        source.append(said(str(number)), id=f"m-{number}")
    source.set("plan", {"n": 1})
    source.note("seen", topic="t")
    source.label("vip")
    copy = source.copy("c")
    again = perdure.open(backend).session("c")
    for each in (copy, again):
        assert each.messages() == source.messages()
        assert each.get("plan") == {"n": 1}
        assert each.labels == {"vip"}
        assert [note.content for note in each.notes("t")] == [Note(data="seen", topic="t")]
    ours = list(copy.records())
    theirs = list(source.records())
    for mine, its in zip(ours, theirs, strict=False):
        assert (mine.position, mine.id, mine.kind, mine.time) == its[:4]
    assert [record.kind for record in ours[len(theirs) :]] == ["copied"]
    content = ours[-1].content
    assert isinstance(content, Copied)
    assert (content.position, content.digest) == (theirs[-1].position, theirs[-1].digest)
    assert copy.verify().records == len(ours)
    assert listed(store) == ["c", "s"]


def test_neither_session_needs_the_other() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    source.append(said("one"))
    copy = source.copy("c")
    copy.append(said("two"))
    source.append(said("another two"))
    store.delete("s")
    assert [message["content"] for message in copy.messages()] == ["one", "two"]
    copy = store.resume("c").copy("d")
    store.delete("c")
    assert [message["content"] for message in copy.messages()] == ["one", "two"]
    copy.verify()


def test_a_copy_knows_the_ids_of_its_source() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    places = [source.append(said(str(n)), id=f"m-{n}") for n in range(300)]
    copy = source.copy("c")
    assert [copy.append(said(str(n)), id=f"m-{n}") for n in range(300)] == places
    with pytest.raises(DivergenceError):
        copy.append(said("other"), id="m-1")


def test_leases_and_branches_are_not_copied() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    source.append(said("one"))
    source.branch("b")
    with source.lease(owner="worker"):
        source.append(said("two"))
        copy = source.copy("c")
        assert copy.lease_holder is None
        assert copy.labels == frozenset()
        copy.append(said("three"))
    assert "omitted" in kinds(copy)
    assert not {"lease.taken", "branch.kept"} & {*kinds(copy)}
    copy.verify()
    store.delete("c")  # No branch needs it.


def test_a_copy_of_a_branch_has_the_shared_past_itself() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    for number in range(300):
        source.append(said(str(number)))
    source.label("parent's")
    branch = source.branch("b", at=280)
    branch.append(said("its own"))
    copy = branch.copy("c")
    assert copy.labels == frozenset()
    store.delete("b")
    store.delete("s")
    copy = store.resume("c")
    assert [message["content"] for message in copy.messages(last=2)] == ["271", "its own"]
    assert copy.verify().snapshots > 1


def test_open_turns_are_abandoned_in_the_copy() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    with source.turn("Go.", id="r-1") as turn:
        turn.append(said("Working.", "assistant"))
        copy = source.copy("c")
    assert copy.find_turn("r-1").state == "abandoned"
    assert copy.interrupted == ()
    assert source.find_turn("r-1").state == "completed"
    assert len(copy) == 2
    copy.verify()


def test_summaries_and_retractions_are_copied() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    for number in range(10):
        with source.turn(f"question {number} " * 20) as turn:
            turn.append(said(f"answer {number} " * 20, "assistant"))
    source.summarize(lambda _messages: "All so far.", keep_turns=2)
    source.append(said("wrong"))
    source.retract(source.position)
    copy = source.copy("c")
    window: dict[str, Any] = {"format": "openai.chat", "max_messages": 6}
    assert copy.messages(**window) == source.messages(**window)
    assert len(copy) == len(source) == 20
    copy.verify()
    copy = copy.copy("d")
    copy.verify()


def test_a_copy_of_a_session_created_again_begins_where_that_begins() -> None:
    store = perdure.open(MemoryBackend())
    store.session("s").append(said("gone"))
    store.delete("s")
    source = store.session("s")
    source.append(said("new"))
    copy = source.copy("c")
    assert [message["content"] for message in copy.messages()] == ["new"]
    copy.verify()


def test_a_copy_needs_an_id_of_its_own() -> None:
    store = perdure.open(MemoryBackend())
    source = store.session("s")
    source.append(said("one"))
    store.session("gone").append(said("two"))
    store.delete("gone")
    for taken, reason in (("s", "exists"), ("gone", "was deleted")):
        with pytest.raises(UsageError, match=reason):
            source.copy(taken)
    with pytest.raises(UsageError):
        source.copy("")


def test_a_copy_of_a_session_without_records_is_a_new_one() -> None:
    store = perdure.open(MemoryBackend())
    copy = store.session("s").copy("c")
    assert (copy.position, len(copy)) == (0, 0)
    assert listed(store) == []
    with pytest.raises(NotFoundError):
        store.resume("c")
