"""Several records in one commit: all of them or none, repeatable by an id."""

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import (
    ConflictError,
    DivergenceError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def kinds(session: perdure.AsyncSession) -> list[str]:
    return [record.kind async for record in session.records()]


async def test_the_records_of_a_batch_are_stored_together_when_its_block_ends() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        await session.append(user("before"))
        async with session.batch() as batch:
            batch.append(user("one"), user("two"))
            batch.set("count", 1)
            batch.note({"seen": True}, author="ops")
            batch.label("vip")
            batch.pin(1)
            assert session.position == 1
            assert batch.positions == range(0)
        assert batch.positions == range(2, 8)
        assert (
            await kinds(session)
            == [*("message", "message", "message", "value", "note", "labels", "pinned")][:7]
        )
        assert await session.get("count") == 1
        assert "vip" in session.labels
        again = await store.session("c")
        assert len(again) == 3


async def test_a_block_that_raises_stores_nothing() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end writes
            async with session.batch() as batch:
                batch.append(user("one"))
                raise ZeroDivisionError
        assert (session.position, batch.positions) == (0, range(0))
        await session.append(user("afterwards"))
        assert len(session) == 1


async def test_one_part_that_is_refused_refuses_all() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(NotFoundError):  # noqa: PT012 - the block's end writes
            async with session.batch() as batch:
                batch.append(user("one"))
                batch.set("count", 1)
                batch.delete("unknown")
        assert session.position == 0
        assert await session.get("count") is None
        with pytest.raises(UsageError):  # noqa: PT012 - the block's end writes
            async with session.batch() as batch:
                batch.append(user("one"))
                batch.set("a set", {1, 2})
        assert session.position == 0


async def test_later_parts_see_earlier_ones() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        document = {"text": "word " * 400, "step": 1}
        async with session.batch() as batch:
            batch.set("plan", document)
            batch.set("plan", {**document, "step": 2})
            batch.set("gone", 1)
            batch.delete("gone")
        assert session.values.version("plan") == 2
        assert await session.get("plan") == {**document, "step": 2}
        assert await session.get("plan", version=1) == document
        assert session.values.keys() == ["plan"]


async def test_a_batch_expects_a_position() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    session, other = await store.session("c"), await store.session("c")
    async with session.batch(expect=0) as batch:
        batch.note("first")
    await other.note("in between")
    with pytest.raises(ConflictError) as caught:
        async with session.batch(expect=1) as batch:
            batch.note("second")
    assert (caught.value.position, caught.value.head) == (1, 2)
    async with session.batch(expect=session.position) as batch:
        batch.note("second")
    with pytest.raises(ConflictError):
        async with session.batch(expect=99) as batch:
            batch.note("third")


async def test_a_batch_conflicts_if_one_of_its_parts_does() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    session, other = await store.session("c"), await store.session("c")
    await other.append(user("hello"))
    async with session.batch() as batch:  # Notes and labels commute with messages.
        batch.note("a")
        batch.label("b")
    assert batch.positions == range(2, 4)
    await other.refresh()
    await other.set("count", 7)
    await session.refresh()
    await other.set("count", 8)
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        async with session.batch() as batch:
            batch.note("c")
            batch.set("count", 9)
    assert await session.get("count") == 8


async def test_a_repeated_batch_changes_nothing() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    session = await store.session("c")
    for _ in range(3):
        async with session.batch(id="req-1") as batch:
            batch.append(user("hello"))
            batch.set("count", 1)
        assert batch.positions == range(1, 4)
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    async with again.batch(id="req-1", expect=0) as batch:
        batch.append(user("hello"))
        batch.set("count", 1)
    assert (batch.positions, again.position) == (range(1, 4), 3)
    assert await kinds(again) == ["message", "value", "batch"]
    with pytest.raises(DivergenceError):  # noqa: PT012 - the block's end writes
        async with again.batch(id="req-1") as batch:
            batch.append(user("hello"))
            batch.set("count", 2)
    await again.note("mine", id="n-1")
    with pytest.raises(DivergenceError):
        async with again.batch(id="n-1") as batch:
            batch.note("mine")
    with pytest.raises(DivergenceError):
        await again.note("mine", id="req-1")
    assert again.position == 4


async def test_a_turn_ends_together_with_a_value() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        async with session.turn("hello", id="r1") as turn:
            async with turn.batch() as batch:
                batch.append({"role": "assistant", "content": "hi"})
                batch.set("count", 1)
                batch.complete()
            assert turn.ended
        assert await kinds(session) == [
            *("turn.begun", "message", "message", "value", "turn.completed")
        ]
        assert not session.interrupted
        async with session.turn("more") as turn, turn.batch() as batch:
            batch.append({"role": "assistant", "content": "yes"})
        assert turn.ended
        records = [record.content async for record in session.records(after=5)]
        assert {content.turn for content in records if content.kind == "message"} == {turn.id}  # type: ignore[attr-defined]


async def test_a_completed_batch_takes_nothing_more() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(UsageError, match="ended"):  # noqa: PT012 - the block's end writes
            async with session.turn("hello") as turn, turn.batch() as batch:
                batch.complete()
                batch.note("too late")
        assert await kinds(session) == ["turn.begun", "message", "turn.failed"]


async def test_a_batch_is_used_in_its_block_and_once() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        batch = session.batch()
        with pytest.raises(UsageError, match="enter it"):
            batch.note("early")
        async with batch:
            batch.note("in time")
        with pytest.raises(UsageError, match="has ended"):
            batch.note("late")
        with pytest.raises(UsageError, match="entered once"):
            async with batch:
                pass
        async with session.batch() as empty:
            pass
        assert (empty.positions, session.position) == (range(0), 1)


@pytest.mark.parametrize("arguments", [{"id": ""}, {"id": 5}, {"id": ".x"}, {"expect": "1"}])
async def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any]) -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(UsageError):
            session.batch(**arguments)


async def test_a_batch_that_is_too_large_is_refused() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        with pytest.raises(UsageError, match="split it"):  # noqa: PT012 - the block's end writes
            async with session.batch() as batch:
                batch.note("x " * 4_500_000)
                batch.note("y " * 4_500_000)
        assert session.position == 0
        await session.note("small")
        assert session.position == 1


async def test_a_batch_is_replayed() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")

        async def agent(session: perdure.AsyncSession) -> range:
            async with session.turn("hello") as turn, turn.batch(id="b-1") as batch:
                batch.append({"role": "assistant", "content": "hi"})
                batch.set("count", 1)
                batch.complete()
            return batch.positions

        recorded = await agent(session)
        replayed = await perdure.replay(session, agent)
        assert replayed.identical, replayed.divergence
        assert replayed.returned == recorded


async def test_records_of_several_sessions_are_stored_together() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    session, user_state = await store.session("s-1"), await store.session("user-17")
    await user_state.set("visits", 1)
    async with store.batch() as batch:
        writer = await batch.session(session)
        writer.append(user("hello"))
        other = await batch.session(user_state)
        other.set("visits", 2)
        (await batch.session("app", expect=0)).note("seen")
        assert session.position == 0
    assert (writer.positions, other.positions) == (range(1, 2), range(2, 3))
    # The handles have caught up: their next writes are no conflict.
    await session.append({"role": "assistant", "content": "hi"})
    assert await user_state.set("visits", 3) == 3
    assert await kinds(await store.session("app")) == ["note"]


async def test_a_conflict_in_one_session_stores_nothing_in_the_others() -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    one, two = await store.session("1"), await store.session("2")
    await (await store.session("2")).append(user("another writer"))
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        async with store.batch() as batch:
            (await batch.session(one)).append(user("a"))
            (await batch.session(two)).append(user("b"))
    assert (one.position, await one.refresh()) == (0, 0)
    await two.refresh()
    async with store.batch() as batch:
        (await batch.session(one)).append(user("a"))
        (await batch.session(two)).append(user("b"))
    assert (one.position, two.position) == (1, 2)


async def test_a_race_at_the_commit_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    store = perdure.open_async(ThreadedBackend(backend))
    one, two = await store.session("1"), await store.session("2")
    append_together = MemoryBackend.append_together

    def late(self: MemoryBackend, appends: Any) -> Any:
        monkeypatch.undo()
        perdure.open(backend).session("2").note("first")
        return append_together(self, appends)

    monkeypatch.setattr(MemoryBackend, "append_together", late)
    with pytest.raises(ConflictError):  # noqa: PT012 - the block's end writes
        async with store.batch() as batch:
            (await batch.session(one)).append(user("a"))
            (await batch.session(two)).append(user("b"))
    assert (await one.refresh(), await two.refresh()) == (0, 1)


async def test_a_store_batch_that_raises_stores_nothing_and_ends() -> None:
    async with perdure.open_async("memory:") as store:
        one = await store.session("1")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end writes
            async with store.batch() as batch:
                writer = await batch.session(one)
                writer.append(user("a"))
                raise ZeroDivisionError
        assert await one.refresh() == 0
        with pytest.raises(UsageError, match="has ended"):
            writer.note("late")
        with pytest.raises(UsageError, match="not open"):
            await batch.session(one)
        with pytest.raises(UsageError, match="already"):  # noqa: PT012 - the second call
            async with store.batch() as batch:
                await batch.session(one)
                await batch.session("1")


async def test_a_repeated_store_batch_changes_nothing() -> None:
    async with perdure.open_async("memory:") as store:
        for _ in range(2):
            async with store.batch() as batch:
                one = await batch.session("1", id="r-1")
                one.append(user("a"))
                two = await batch.session("2", id="r-1")
                two.set("count", 1)
            assert (one.positions, two.positions) == (range(1, 3), range(1, 3))


async def test_files_cannot_write_to_several_sessions_together(tmp_path: Path) -> None:
    async with perdure.open_async(f"files:{tmp_path / 'store'}") as store:
        with pytest.raises(UnsupportedError, match=r"session\.batch"):
            store.batch()
