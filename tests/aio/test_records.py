"""Records by position and by kind, from either end: only what is asked for is read."""

from collections.abc import Iterator
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Entry
from perdure.errors import NotFoundError, UsageError
from tests.support import said


class CountingBackend(MemoryBackend):
    """Counts the entries that it returns."""

    entries = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        for entry in super().read(stream, **options):
            self.entries += 1
            yield entry


async def long_session(backend: MemoryBackend, count: int) -> perdure.AsyncSession:
    store = perdure.open_async(ThreadedBackend(backend))
    session = await store.session("c")
    for number in range(0, count, 10):
        await session.append(*(said(f"{each}") for each in range(number, number + 10)))
        await session.note(number)
    return session


async def positions(records: Any) -> list[int]:
    return [record.position async for record in records]


async def test_one_record_is_read_by_its_position() -> None:
    backend = CountingBackend()
    session = await long_session(backend, 2000)
    for position in (1, 777, session.position):
        backend.entries = 0
        record = await session.record(position)
        assert (record.position, backend.entries) == (position, 1)
    assert (await session.record(11)).content.data == 0  # type: ignore[attr-defined]
    assert (await session.record(10)).kind == "message"


@pytest.mark.parametrize("position", [-1, 0, 4, 2**70])
async def test_no_record_is_at_another_position(position: int) -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        await session.append(said("one"), said("two"), said("three"))
        with pytest.raises(NotFoundError, match="from 1 to 3"):
            await session.record(position)
        with pytest.raises(UsageError):
            await session.record("1")  # type: ignore[arg-type]


async def test_records_are_selected_by_kind() -> None:
    session = await long_session(MemoryBackend(), 30)
    assert await positions(session.records(kinds=["note"])) == [11, 22, 34]
    assert await positions(session.records(kinds=["note"], reverse=True)) == [34, 22, 11]
    assert await positions(session.records(kinds={"note"}, after=11, limit=1)) == [22]
    assert await positions(session.records(kinds=["note"], reverse=True, after=11)) == [34, 22]
    assert await positions(session.records(kinds=["value"])) == []


@pytest.mark.parametrize("count", [300, 3000])
async def test_a_limit_bounds_what_is_read(count: int) -> None:
    backend = CountingBackend()
    session = await long_session(backend, count)
    backend.entries = 0
    assert await positions(session.records(reverse=True, limit=1)) == [session.position]
    assert backend.entries <= 2
    backend.entries = 0
    assert await positions(session.records(limit=3, after=50)) == [51, 52, 53]
    assert backend.entries <= 16  # A batch is read whole: it is all or nothing.
    backend.entries = 0
    assert await positions(session.records(limit=0)) == []
    assert backend.entries == 0


async def test_both_directions_give_the_same_records() -> None:
    session = await long_session(MemoryBackend(), 400)
    branch = await session.branch("b", at=250)
    await branch.append(said("in the branch"))
    for each in (session, branch):
        forward = [record async for record in each.records()]
        backward = [record async for record in each.records(reverse=True)]
        assert backward == forward[::-1]
        assert len(forward) == each.position
        some = [record async for record in each.records(limit=130, reverse=True)]
        assert some == backward[:130]
        assert [await each.record(position) for position in (1, 251)] == [forward[0], forward[250]]


async def test_bad_filters_are_refused() -> None:
    session = await long_session(MemoryBackend(), 100)
    for options in (
        {"kinds": "note"},
        {"kinds": ["no such kind"]},
        {"limit": -1},
        {"limit": "1"},
        {"after": None},
        {"reverse": True, "on_damage": print},
    ):
        with pytest.raises(UsageError):
            await positions(session.records(**options))
