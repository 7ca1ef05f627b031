"""An agent over a wrapped client is replayed without a request being made."""

import asyncio
from contextlib import suppress
from typing import Any

import openai
import pytest

import perdure
from perdure.adapters.openai import wrap
from perdure.errors import ReplayBlockedError
from perdure.testing import ModelServer

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
CALL = '[[tool weather {"city": "Oslo"}]]'


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def agent_of(bare: openai.OpenAI, *, first: str = "one", temperature: float = 0.0) -> Any:
    def agent(session: perdure.Session) -> list[Any]:
        client: Any = wrap(bare, session)
        chat, responses = client.chat.completions.create, client.responses.create
        system = {"role": "system", "content": "Be kind."}
        found = [chat(model="m", messages=[system, user(first)], temperature=temperature)]
        usage = {"include_usage": True}
        chunks = chat(model="m", messages=[user("[[len 30]]")], stream=True, stream_options=usage)
        found.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        found.append(responses(model="m", input="three").output_text)
        found.append([event.type for event in responses(model="m", input="4", stream=True)][-1])
        reply = chat(model="m", messages=[user(CALL)], tools=TOOLS)
        call = reply.choices[0].message.tool_calls[0].id
        result = {"role": "tool", "tool_call_id": call, "content": "rain"}
        found.append(chat(model="m", messages=[result], tools=TOOLS))
        with session.turn("five"):
            found.append(chat(model="m", messages=[]))
            found.append(chat(model="m", messages=[user("six")]))
        return found

    return agent


def test_every_kind_of_call_is_served(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    returned = agent_of(bare)(session)
    made, position = len(server.requests), session.position
    replay = perdure.replay(session, agent_of(bare))
    assert replay.check().returned == returned
    assert replay.outputs == session.messages()
    assert replay.served == ["m"] * made
    assert (len(server.requests), session.refresh()) == (made, position)
    changed = perdure.replay(session, agent_of(bare, first="other")).divergence
    assert changed is not None
    assert (changed.path, changed.given) == ("$.message.content", "other")
    warmer = perdure.replay(session, agent_of(bare, temperature=0.5)).divergence
    assert warmer is not None
    assert warmer.path == "$.digest"
    assert len(server.requests) == made


def test_an_error_of_the_api_is_raised_again(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    def agent(session: perdure.Session) -> str:
        client: Any = wrap(bare, session)
        for attempt in range(3):
            try:
                reply = client.chat.completions.create(model="m", messages=[user("one")])
                return f"{attempt}: {reply.choices[0].message.content}"
            except openai.RateLimitError as error:
                session.note(f"{type(error).__name__}: {error}")
        return "never"

    server.fault(status=429)
    returned = agent(session)
    assert returned.startswith("1: ")
    made = len(server.requests)
    assert perdure.replay(session, agent).check().returned == returned
    assert len(server.requests) == made


def test_a_client_that_is_not_wrapped_is_refused(
    session: perdure.Session, server: ModelServer
) -> None:
    def agent(session: perdure.Session) -> None:
        fresh = openai.OpenAI(base_url=server.url, api_key="test", max_retries=0)
        with session.turn("one") as turn, fresh as client:
            turn.append(client.chat.completions.create(model="m", messages=[user("one")]))

    agent(session)
    made = len(server.requests)
    replay = perdure.replay(session, agent)
    assert not replay.identical
    assert replay.refused
    assert len(server.requests) == made


@pytest.mark.parametrize("stream", [False, True])
def test_async_clients_are_served(server: ModelServer, *, stream: bool) -> None:
    async def work() -> None:
        async with (
            openai.AsyncOpenAI(base_url=server.url, api_key="test") as bare,
            perdure.open_async("memory:") as store,
        ):

            async def agent(session: perdure.AsyncSession) -> list[Any]:
                client: Any = wrap(bare, session)
                found = await client.chat.completions.create(
                    model="m", messages=[user("one")], stream=stream
                )
                if not stream:
                    return [found]
                chunks = [chunk async for chunk in found]
                return ["".join(one.choices[0].delta.content or "" for one in chunks)]

            session = await store.session("s")
            returned = await agent(session)
            made = len(server.requests)
            replay = await perdure.replay(session, agent)
            assert replay.check().returned == returned
            assert len(server.requests) == made

    asyncio.run(work())


def test_a_client_of_a_live_session_is_refused_to_a_replayed_agent(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    client: Any = wrap(bare, session)

    def agent(_session: perdure.Session) -> None:
        with suppress(ReplayBlockedError):
            client.chat.completions.create(model="m", messages=[user("Hello.")])
        with suppress(ReplayBlockedError):
            client.responses.create(model="m", input="Hello.")

    replay = perdure.replay(session, agent)
    assert len(replay.refused) == 2
    assert (session.refresh(), len(server.requests)) == (0, 0)
    agent(session)
    assert len(server.requests) == 2
    assert len(session) == 4
