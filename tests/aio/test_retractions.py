"""Messages that are taken back or replaced: conversations leave them out, the records stay."""

import random
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.core.state import session_state
from perdure.errors import ConflictError, DivergenceError, NotFoundError, UsageError
from tests.support import said


async def texts(session: perdure.AsyncSession, **options: Any) -> list[str]:
    return [message["content"] for message in await session.messages(**options)]


async def numbered(backend: MemoryBackend, count: int) -> perdure.AsyncSession:
    session = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for number in range(1, count + 1):
        await session.append(said(f"{number}"))
    return session


async def test_retracted_messages_are_left_out_and_their_records_stay() -> None:
    backend = MemoryBackend()
    session = await numbered(backend, 6)
    await session.retract(2, 3, reason="a typo")
    await session.retract(6)
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for each in (session, again):
        assert await texts(each) == ["1", "4", "5"]
        assert await texts(each, last=2) == ["4", "5"]
        assert await texts(each, format="openai.chat", max_messages=2) == ["4", "5"]
        assert (len(each), each.last_message) == (3, said("5"))
        kinds = [record.kind async for record in each.records()]
        assert kinds == ["message"] * 6 + ["messages.retracted"] * 2
        await each.verify()
    await session.append(said("7"))
    assert await texts(session) == ["1", "4", "5", "7"]


async def test_everything_can_be_retracted() -> None:
    backend = MemoryBackend()
    session = await numbered(backend, 5)
    other = await perdure.open_async(ThreadedBackend(backend)).session("c")
    await session.retract(range(1, 100))
    await other.refresh()
    for each in (session, other):
        assert (await texts(each), len(each), each.last_message) == ([], 0, None)
    await session.append(said("new"))
    assert (await texts(session), session.last_message) == (["new"], said("new"))


async def test_a_replacement_stands_where_the_messages_were() -> None:
    backend = MemoryBackend()
    session = await numbered(backend, 6)
    other = await perdure.open_async(ThreadedBackend(backend)).session("c")
    await session.replace(2, 4, said("two"), said("three"))
    await other.refresh()
    again = await perdure.open_async(ThreadedBackend(backend)).session("c")
    for each in (session, other, again):
        assert await texts(each) == ["1", "two", "three", "5", "6"]
        assert await texts(each, last=3) == ["three", "5", "6"]
        assert await texts(each, max_messages=4) == ["two", "three", "5", "6"]
        assert (len(each), each.last_message) == (5, said("6"))
        await each.verify()
    # A replacement is replaced with its place, and can be retracted by its own positions.
    await session.replace(1, 5, said("one to five"))
    assert await texts(session) == ["one to five", "6"]
    await session.replace(6, 6, said("six"))
    assert (await texts(session), session.last_message) == (["one to five", "six"], said("six"))
    await session.retract(session.position - 1)
    assert (await texts(session), session.last_message) == (["one to five"], said("one to five"))


async def test_positions_without_a_message_are_not_found() -> None:
    session = await numbered(MemoryBackend(), 3)
    await session.note("n")
    await session.retract(2)
    for position in (0, -1, 2, 4, 5, 99):
        with pytest.raises(NotFoundError, match=f"a message at {position}"):
            await session.retract(position)
        with pytest.raises(NotFoundError):
            await session.retract(1, position)
    with pytest.raises(NotFoundError):
        await session.replace(4, 9, said("x"))
    for bad in ((), ("1",), (range(3, 1),), (range(1, 9, 2),), (True,)):
        with pytest.raises(UsageError):
            await session.retract(*bad)
    for first, last in ((2, 1), (0, 1), ("1", 2)):
        with pytest.raises(UsageError):
            await session.replace(first, last, said("x"))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await session.replace(1, 1)
    assert await texts(session) == ["1", "3"]


async def test_a_repeated_call_changes_nothing() -> None:
    session = await numbered(MemoryBackend(), 5)
    position = await session.retract(2, id="r")
    assert await session.retract(2, id="r") == position
    with pytest.raises(DivergenceError):
        await session.retract(3, id="r")
    replaced = await session.replace(3, 4, said("x"), id="s")
    assert await session.replace(3, 4, said("x"), id="s") == replaced
    with pytest.raises(DivergenceError):
        await session.replace(3, 4, said("y"), id="s")
    assert await texts(session) == ["1", "x", "5"]


async def test_a_writer_that_has_not_seen_a_retraction_conflicts() -> None:
    backend = MemoryBackend()
    session = await numbered(backend, 3)
    other = await perdure.open_async(ThreadedBackend(backend)).session("c")
    await session.retract(3)
    with pytest.raises(ConflictError):
        await other.append(said("in view of 3"))
    assert await texts(other) == ["1", "2"]
    await session.replace(1, 2, said("x"))
    with pytest.raises(ConflictError):
        await other.retract(2)
    assert await texts(other) == ["x"]


async def test_calls_go_with_their_message() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        await session.append(said("hello"))
        await session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        with pytest.raises(UsageError, match="without a result"):
            await session.replace(1, 2, said("x"))
        await session.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
        await session.append(said("thanks", "assistant"))
        for format in ("openai.chat", "openai.responses", "anthropic", "gemini"):
            assert len(await session.messages(format=format)) > 1
        await session.retract(3)  # The result alone: the call is shown as interrupted.
        window = await session.messages(format="openai.chat")
        assert [message["role"] for message in window] == ["user", "assistant", "tool", "assistant"]
        await session.retract(2)
        assert await texts(session, format="openai.chat") == ["hello", "thanks"]


async def test_instructions_pins_and_summaries_follow() -> None:
    async with perdure.open_async("memory:") as store:
        session = await store.session("c")
        await session.append({"role": "system", "content": "old rules " * 9})
        for number in range(10):
            async with session.turn(f"question {number} " * 9) as turn:
                await turn.append(said(f"answer {number} " * 9, "assistant"))
        await session.pin(3)
        await session.summarize(lambda _: "short", keep_turns=2)
        assert "short" in str(await session.messages(max_messages=9))
        await session.replace(1, 1, {"role": "system", "content": "new rules"})
        window = str(await session.messages(max_messages=30))
        assert "new rules" in window
        assert "old rules" not in window
        assert "short" not in window  # It summarized what was replaced.
        await session.retract(3)
        assert "question 0" not in str(await session.messages(max_messages=30))
        await session.summarize(lambda _: "shorter", keep_turns=1)
        assert "shorter" in str(await session.messages(max_messages=9))


async def test_a_branch_has_what_was_left_at_its_beginning() -> None:
    session = await numbered(MemoryBackend(), 6)
    await session.retract(2)
    branch = await session.branch("b")
    await session.retract(3)
    await branch.replace(4, 5, said("x"))
    assert await texts(branch) == ["1", "3", "x", "6"]
    assert await texts(session) == ["1", "4", "5", "6"]
    assert await texts(await session.branch("earlier", at=6)) == list("123456")


@pytest.mark.parametrize("seed", range(12))
async def test_any_history_shows_what_a_list_would(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 16)
    draw = random.Random(seed)
    backend = MemoryBackend()
    session = await perdure.open_async(ThreadedBackend(backend)).session("c")
    other = await perdure.open_async(ThreadedBackend(backend)).session("c")
    model: list[tuple[int, str]] = []  # The place and the text of each message.
    for step in range(60):
        choice = draw.random()
        if choice < 0.5 or not model:
            position = await session.append(said(f"{step}"))
            model.append((position, f"{step}"))
        elif choice < 0.7:
            first = draw.choice(model)[0]
            last = first + draw.randrange(6)
            await session.retract(range(first, last + 1))
            model = [item for item in model if not first <= item[0] <= last]
        else:
            first = draw.choice(model)[0]
            last = first + draw.randrange(6)
            last = min(last, session.position)
            await session.replace(first, last, said(f"{step}a"), said(f"{step}b"))
            index = sum(place < first for place, _ in model)
            model = [item for item in model if not first <= item[0] <= last]
            model[index:index] = [(last, f"{step}a"), (last, f"{step}b")]
        if step % 7 == 0:
            session = await perdure.open_async(ThreadedBackend(backend)).session("c")
        await other.refresh()
        for each in (session, other):
            assert await texts(each) == [text for _, text in model]
            assert len(each) == len(model)
            assert each.last_message == (said(model[-1][1]) if model else None)
    await session.verify()
