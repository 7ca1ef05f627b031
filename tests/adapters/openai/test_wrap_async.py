"""The wrapper around an `AsyncOpenAI`: the same, awaited. What is not tried here has no colour."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

import perdure
from perdure.adapters.openai import wrap
from perdure.testing import ModelServer

Test = Callable[[Any, perdure.AsyncSession], Coroutine[Any, Any, None]]


@asynccontextmanager
async def made(server: ModelServer) -> AsyncIterator[tuple[Any, perdure.AsyncSession]]:
    async with (
        openai.AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0) as bare,
        perdure.open_async("memory:") as store,
    ):
        session = await store.session("s")
        yield wrap(bare, session), session


def run(server: ModelServer, test: Test) -> None:
    async def main() -> None:
        async with made(server) as (client, session):
            await test(client, session)

    asyncio.run(main())


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def kinds(session: perdure.AsyncSession) -> list[str]:
    found = [record.kind async for record in session.records()]
    return [kind for kind in found if not kind.startswith(("effect.", "message.chunk"))]


def test_every_kind_of_call_is_recorded(server: ModelServer) -> None:
    async def test(client: Any, session: perdure.AsyncSession) -> None:
        assert isinstance(client, openai.AsyncOpenAI)
        await client.chat.completions.create(model="m", messages=[user("1")])
        await client.with_options(timeout=9).responses.create(model="m", input="2")
        streamed: Any = client
        stream = await streamed.chat.completions.create(
            model="m", messages=[user("3")], stream=True
        )
        async with stream:
            assert len([chunk async for chunk in stream]) > 3
        async with client.chat.completions.stream(model="m", messages=[user("4")]) as helper:
            assert (await helper.get_final_completion()).choices
        async with client.responses.stream(model="m", input="5") as helper:
            assert (await helper.get_final_response()).output_text
        assert await kinds(session) == ["turn.begun", "message", "message", "turn.completed"] * 5

    run(server, test)
    sent = [one.body.get("messages") or one.body["input"] for one in server.requests]
    assert [len(one) for one in sent] == [1, 3, 5, 7, 9]


def test_a_failure_is_a_failed_turn_and_a_cancelled_call_as_well(server: ModelServer) -> None:
    async def test(client: Any, session: perdure.AsyncSession) -> None:
        server.fault(status=500)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=[user("hello")])
        server.fault("hang")
        call = asyncio.create_task(client.responses.create(model="m", input="hello"))
        while len(server.requests) < 2:  # noqa: ASYNC110 - the server is in other threads
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await kinds(session)).count("turn.failed") == 2
        await client.chat.completions.create(model="m", messages=[user("hello")])
        assert len(session) == 2

    run(server, test)


def test_a_stream_that_is_closed_early_leaves_what_was_said(server: ModelServer) -> None:
    async def test(client: Any, session: perdure.AsyncSession) -> None:
        text = [user("hello [[len 20]]")]
        async with client.chat.completions.stream(model="m", messages=text) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    break
        assert (await kinds(session))[-1] == "turn.abandoned"
        stream = await client.chat.completions.create(model="m", messages=text, stream=True)
        await anext(stream)
        await client.chat.completions.create(model="m", messages=text)
        with pytest.raises(perdure.UsageError, match="read it to its end first"):
            await anext(stream)
        server.fault("disconnect", after_chunks=3)
        with pytest.raises(openai.APIConnectionError):
            async for _ in await client.responses.create(model="m", input="hello", stream=True):
                pass
        async for _ in await client.responses.create(model="m", input="hello", stream=True):
            pass
        assert server.requests[-1].body == server.requests[-2].body
        assert (await kinds(session))[-1] == "turn.completed"

    run(server, test)


def test_tasks_have_each_their_own_turn(server: ModelServer) -> None:
    async def test(client: Any, session: perdure.AsyncSession) -> None:
        async def one(number: int) -> str:
            async with session.turn(f"number {number}", id=f"t{number}") as turn:
                await asyncio.sleep(0.01)
                assert session.current_turn is turn
                reply = await client.chat.completions.create(model="m", messages=[])
            return str(reply.choices[0].message.content)

        replies = await asyncio.gather(*(one(number) for number in range(3)))
        assert session.current_turn is None
        asked = len(server.requests)
        assert await asyncio.gather(*(one(number) for number in range(3))) == replies
        assert len(server.requests) == asked

    run(server, test)


def test_a_blocking_session_is_refused(session: perdure.Session, server: ModelServer) -> None:
    async def test(client: Any, other: perdure.AsyncSession) -> None:
        with pytest.raises(perdure.UsageError, match=r"needs a session of perdure.open\(...\)"):
            wrap(openai.OpenAI(api_key="test"), other)

    run(server, test)
