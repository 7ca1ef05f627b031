"""Notes with a topic: the newest one is known, and a writer can say which one it has seen."""

from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from tests.support import said


async def data(notes: Any) -> list[Any]:
    return [record.content.data async for record in notes]


async def test_the_notes_of_a_topic_are_read_newest_first() -> None:
    backend = MemoryBackend()
    session = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for number in range(300):  # Beyond a snapshot.
        await session.note(number, topic="odd" if number % 2 else "even")
        await session.append(said("between"))
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for each in (session, again):
        assert await data(each.notes("odd", limit=3)) == [299, 297, 295]
        assert await data(each.notes("even")) == list(range(298, -1, -2))
        assert await data(each.notes("unknown")) == []
        assert await data(each.notes("odd", limit=0)) == []


async def test_a_note_expects_the_newest_one_of_its_topic() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    one, two = await store.session("c"), await store.session("c")
    first = await one.note("a", topic="t", expect=0)
    with pytest.raises(ConflictError) as caught:
        await two.note("b", topic="t", expect=0)
    assert (caught.value.position, caught.value.head) == (0, first)
    assert await data(two.notes("t")) == ["a"]  # It has been refreshed.
    await two.note("another topic", topic="u", expect=0)
    second = await two.note("b", topic="t", expect=first)
    await one.note("no expectation", topic="t")
    with pytest.raises(ConflictError):
        await one.note("c", topic="t", expect=second)
    assert await data(one.notes("t")) == ["no expectation", "b", "a"]


async def test_a_repeated_note_of_a_topic_is_stored_once() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        await session.note("before", topic="t")
        position = await session.note("a", topic="t", id="n-1", expect=1)
        await session.note("after", topic="t")
        assert await session.note("a", topic="t", id="n-1", expect=1) == position
        with pytest.raises(DivergenceError):
            await session.note("b", topic="t", id="n-1")
        with pytest.raises(DivergenceError):
            await session.note("a", topic="another", id="n-1")
        assert await data(session.notes("t")) == ["after", "a", "before"]


async def test_notes_of_a_topic_in_a_batch() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        async with session.batch() as batch:
            batch.note("a", topic="t", expect=0)
            batch.note("b", topic="t")
        assert await data(session.notes("t")) == ["b", "a"]
        branch = await session.branch("b")
        await branch.note("c", topic="t", expect=2)
        assert await data(branch.notes("t")) == ["c", "b", "a"]
        assert await data(session.notes("t")) == ["b", "a"]


@pytest.mark.parametrize(
    "options", [{"topic": 5}, {"topic": "a\n"}, {"expect": 0}, {"topic": "t", "expect": -1}]
)
async def test_bad_topics_are_refused(options: dict[str, Any]) -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(UsageError):
            await session.note("x", **options)
        assert session.position == 0


async def test_a_record_is_found_by_its_id() -> None:
    backend = MemoryBackend()
    session = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for number in range(400):
        await session.append(said(f"{number}"), id=f"m-{number}")
    async with session.turn("hello", id="t-1"):
        pass
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for each in (session, again):
        for number in (0, 200, 399):
            record = await each.find(f"m-{number}")
            assert record.content.message == said(f"{number}")  # type: ignore[attr-defined]
            assert record == await each.record(record.position)
        assert (await each.find("t-1")).kind == "turn.begun"
        with pytest.raises(NotFoundError, match="m-400"):
            await each.find("m-400")
        with pytest.raises(UsageError):
            await each.find("")
