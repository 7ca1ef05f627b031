"""The same promises for code in an event loop, and those about cancelling."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import ConflictError, NotFoundError, UsageError
from tests.support import said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def test_a_session_is_resumed_exactly(path: Path) -> None:
    async def first() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            async with session.turn("question", correlation_id="req-9") as turn:
                await turn.append(said("answer", "assistant"))
            await session.set("plan", {"step": 1})
            await session.note("n")
            await session.label("vip")

    async def second() -> None:
        async with perdure.open_async(path) as store:
            session = await store.resume("s")
            assert await session.messages() == [said("question"), said("answer", "assistant")]
            assert (len(session), session.last_message) == (2, said("answer", "assistant"))
            assert (await session.get("plan"), session.interrupted) == ({"step": 1}, ())
            assert [head.id async for head in store.sessions(labels=["vip"])] == ["s"]
            kinds = [record.kind async for record in session.records()]
            assert kinds[:2] == ["turn.begun", "message"]
            assert (await session.verify()).position == session.position
            with pytest.raises(NotFoundError):
                await store.resume("unknown")

    asyncio.run(first())
    asyncio.run(second())


def test_branches_deletes_and_interrupted_turns(path: Path) -> None:
    async def main() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            await session.append(said("a"))
            branch = await session.branch("b")
            await branch.turn("open").__aenter__()
            with pytest.raises(perdure.InUseError):
                await store.delete("s")
            again = await store.session("b")
            (turn,) = again.interrupted
            async with turn:
                await turn.append(said("done", "assistant"))
            await store.delete("b")
            await store.delete("s")
            assert [head async for head in store.sessions()] == []

    asyncio.run(main())


def test_tasks_that_share_a_session_never_race(path: Path) -> None:
    async def main() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            await asyncio.gather(*(session.append(said(str(n))) for n in range(200)))
            other = await store.session("s")
            assert sorted(int(m["content"]) for m in await other.messages()) == [*range(200)]
            await other.verify()

    asyncio.run(main())


def test_a_task_that_was_cancelled_leaves_the_session_usable(path: Path) -> None:
    async def main() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            for delay in (0, 0, 0.0001, 0.001, 0.003):
                task = asyncio.create_task(session.append(said(f"cancelled after {delay}")))
                await asyncio.sleep(delay)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await session.append(said("next"))
            other = await store.session("s")
            messages = await other.messages()
            assert sum(message == said("next") for message in messages) == 5
            assert messages == await session.messages()
            await other.verify()

    asyncio.run(main())


def test_a_turn_whose_task_is_cancelled_has_failed(path: Path) -> None:
    async def main() -> None:
        async with perdure.open_async(path) as store:
            session, inside = await store.session("s"), asyncio.Event()

            async def talk() -> None:
                async with session.turn("question"):
                    inside.set()
                    await asyncio.sleep(300)

            task = asyncio.create_task(talk())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            records: list[Any] = [record async for record in session.records()]
            assert records[-1].kind == "turn.failed"
            assert records[-1].content.error == "CancelledError"

    asyncio.run(main())


def test_conflicts_and_closed_handles_are_told(path: Path) -> None:
    async def main() -> None:
        store = perdure.open_async(path)
        one, two = await store.session("s"), await store.session("s")
        await one.append(said("a"))
        with pytest.raises(ConflictError):
            await two.append(said("b"))
        await two.append(said("b"))
        await one.close()
        with pytest.raises(UsageError, match="is closed"):
            await one.append(said("c"))
        assert not store.closed
        await store.close()
        assert store.closed
        await store.close()
        with pytest.raises(UsageError, match="closed"):
            await two.append(said("d"))

    asyncio.run(main())


def test_both_colours_share_one_file(path: Path) -> None:
    async def main() -> None:
        async with perdure.open_async(path) as store:
            await (await store.session("s")).append(said("from a task"))

    with perdure.open(path) as store:
        session = store.session("s")
        session.append(said("from a thread"))
        asyncio.run(main())
        session.refresh()
        assert session.last_message == said("from a task")


def test_a_turn_that_is_left_is_interrupted_and_can_be_entered_again(path: Path) -> None:
    async def go() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            charged = []
            charge = session.tool(lambda: charged.append(1), name="charge")
            async with session.turn("Pay.") as turn:
                await charge.keyed("call-1", in_turn=True)()
                await turn.suspend()
            assert (session.current_turn, turn.ended) == (None, False)
            (again,) = session.interrupted
            async with again:
                await charge.keyed("call-1", in_turn=True)()
            assert (session.interrupted, charged) == ((), [1])

    asyncio.run(go())
