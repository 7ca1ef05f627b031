"""The clients of providers as models of an agent, against the model server."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import openai
import pytest

import perdure
from perdure.models import ClientModel, anthropic_messages, openai_chat, openai_responses
from perdure.testing import ModelServer

MARKS = '[[say Let me see.]] [[tool look_up {"number": 17}]] [[then]] [[say On its way.]]'


def look_up(number: int) -> str:
    """Look up an order."""
    return f"order {number}"


def anthropic_client(server: ModelServer) -> Any:
    """Return a client with the wire format of Anthropic's SDK, which is no test requirement."""

    def create(**request: Any) -> Any:
        headers = {"x-api-key": "test", "content-type": "application/json"}
        body = json.dumps(request).encode()
        sent = Request(f"{server.url}/messages", body, headers)  # noqa: S310 - loopback
        with urlopen(sent) as reply:  # noqa: S310
            return json.load(reply)

    return SimpleNamespace(messages=SimpleNamespace(create=create))


def make_model(kind: str, server: ModelServer) -> ClientModel:
    client = openai.OpenAI(base_url=server.url, api_key="test")
    if kind == "anthropic":
        return anthropic_messages(anthropic_client(server), "m")
    return openai_chat(client, "m") if kind == "openai.chat" else openai_responses(client, "m")


def text_of(answer: dict[str, Any]) -> str:
    content = answer["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


@pytest.mark.parametrize("kind", ["openai.chat", "openai.responses", "anthropic"])
def test_an_agent_speaks_the_format_of_its_client(kind: str) -> None:
    with ModelServer() as server, perdure.open("memory:") as store:
        session, model = store.session("s"), make_model(kind, server)
        assert model.format == kind
        agent = perdure.Agent(session, model, [look_up], instructions="Be kind.")
        answer = agent.run("r1", MARKS)
        assert text_of(answer) == "On its way."
        assert agent.run("r1", MARKS) == answer
        assert len(server.requests) == 2
        body = server.requests[-1].body
        assert "order 17" in json.dumps(body)
        assert "Be kind." in json.dumps(body)
        assert "Look up an order." in json.dumps(body["tools"])
        perdure.replay(
            session,
            lambda again: perdure.Agent(again, model, [look_up], instructions="Be kind.").run(
                "r1", MARKS
            ),
        ).check()
        assert len(server.requests) == 2


@pytest.mark.parametrize("kind", ["openai.chat", "openai.responses", "anthropic"])
def test_a_refusal_is_the_answer(kind: str) -> None:
    with ModelServer() as server, perdure.open("memory:") as store:
        agent = perdure.Agent(store.session("s"), make_model(kind, server))
        assert "I cannot help with that." in json.dumps(agent.run("r1", "[[refuse]]"))


def test_a_session_may_change_its_provider_between_two_turns() -> None:
    with ModelServer() as server, perdure.open("memory:") as store:
        session = store.session("s")
        for kind in ("openai.chat", "openai.responses", "anthropic", "openai.chat"):
            agent = perdure.Agent(session, make_model(kind, server), [look_up])
            assert text_of(agent.run(f"{kind} {len(session)}", MARKS)) == "On its way."
        assert len(server.requests) == 8


@pytest.mark.parametrize("make", [openai_chat, openai_responses])
def test_an_async_client_is_awaited(make: Any) -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            client = openai.AsyncOpenAI(base_url=server.url, api_key="test")
            agent = perdure.AsyncAgent(await store.session("s"), make(client, "m"), [look_up])
            assert text_of(await agent.run("r1", MARKS)) == "On its way."
            await client.close()

    with ModelServer() as server:
        asyncio.run(main())


def test_an_async_client_needs_an_async_agent() -> None:
    with ModelServer() as server, perdure.open("memory:") as store:
        client = openai.AsyncOpenAI(base_url=server.url, api_key="test")
        agent = perdure.Agent(store.session("s"), openai_chat(client, "m"))
        with pytest.raises(perdure.UsageError, match="needs open_async"):
            agent.run("r1", "Hello.")


def test_an_error_of_the_api_is_raised_and_the_same_id_continues() -> None:
    with ModelServer() as server, perdure.open("memory:") as store:
        client = openai.OpenAI(base_url=server.url, api_key="test", max_retries=0)
        agent = perdure.Agent(store.session("s"), openai_chat(client, "m"), [look_up])
        server.fault(status=500, at=2)
        with pytest.raises(openai.InternalServerError):
            agent.run("r1", MARKS)
        assert text_of(agent.run("r1", MARKS)) == "On its way."
        assert len(server.requests) == 3
