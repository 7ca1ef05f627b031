# Generated from aio/test_notes.py by scripts/generate_sync.py: do not edit.
"""Notes with a topic: the newest one is known, and a writer can say which one it has seen."""

from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from tests.support import said


def data(notes: Any) -> list[Any]:
    return [record.content.data for record in notes]


def test_the_notes_of_a_topic_are_read_newest_first() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("c")
    for number in range(300):  # Beyond a snapshot.
        session.note(number, topic="odd" if number % 2 else "even")
        session.append(said("between"))
    again = perdure.open(backend).session("c")
    for each in (session, again):
        assert data(each.notes("odd", limit=3)) == [299, 297, 295]
        assert data(each.notes("even")) == list(range(298, -1, -2))
        assert data(each.notes("unknown")) == []
        assert data(each.notes("odd", limit=0)) == []


def test_a_note_expects_the_newest_one_of_its_topic() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    one, two = store.session("c"), store.session("c")
    first = one.note("a", topic="t", expect=0)
    with pytest.raises(ConflictError) as caught:
        two.note("b", topic="t", expect=0)
    assert (caught.value.position, caught.value.head) == (0, first)
    assert data(two.notes("t")) == ["a"]  # It has been refreshed.
    two.note("another topic", topic="u", expect=0)
    second = two.note("b", topic="t", expect=first)
    one.note("no expectation", topic="t")
    with pytest.raises(ConflictError):
        one.note("c", topic="t", expect=second)
    assert data(one.notes("t")) == ["no expectation", "b", "a"]


def test_a_repeated_note_of_a_topic_is_stored_once() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        session.note("before", topic="t")
        position = session.note("a", topic="t", id="n-1", expect=1)
        session.note("after", topic="t")
        assert session.note("a", topic="t", id="n-1", expect=1) == position
        with pytest.raises(DivergenceError):
            session.note("b", topic="t", id="n-1")
        with pytest.raises(DivergenceError):
            session.note("a", topic="another", id="n-1")
        assert data(session.notes("t")) == ["after", "a", "before"]


def test_notes_of_a_topic_in_a_batch() -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with session.batch() as batch:
            batch.note("a", topic="t", expect=0)
            batch.note("b", topic="t")
        assert data(session.notes("t")) == ["b", "a"]
        branch = session.branch("b")
        branch.note("c", topic="t", expect=2)
        assert data(branch.notes("t")) == ["c", "b", "a"]
        assert data(session.notes("t")) == ["b", "a"]


@pytest.mark.parametrize(
    "options", [{"topic": 5}, {"topic": "a\n"}, {"expect": 0}, {"topic": "t", "expect": -1}]
)
def test_bad_topics_are_refused(options: dict[str, Any]) -> None:
    with perdure.open("memory:") as store:
        session = store.session("c")
        with pytest.raises(UsageError):
            session.note("x", **options)
        assert session.position == 0


def test_a_record_is_found_by_its_id() -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("c")
    for number in range(400):
        session.append(said(f"{number}"), id=f"m-{number}")
    with session.turn("hello", id="t-1"):
        pass
    again = perdure.open(backend).session("c")
    for each in (session, again):
        for number in (0, 200, 399):
            record = each.find(f"m-{number}")
            assert record.content.message == said(f"{number}")  # type: ignore[attr-defined]
            assert record == each.record(record.position)
        assert each.find("t-1").kind == "turn.begun"
        with pytest.raises(NotFoundError, match="m-400"):
            each.find("m-400")
        with pytest.raises(UsageError):
            each.find("")
