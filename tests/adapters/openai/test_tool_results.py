"""Results of `session.run_tool_calls` are stored once, passed as messages or not."""

import asyncio
from contextlib import nullcontext
from typing import Any

import openai
import pytest

import perdure
from perdure.adapters.openai import wrap
from perdure.journal.records import Note
from perdure.testing import ModelServer
from tests.adapters.openai.scripts import CHAT_TOOL

QUESTION = '[[tool look_up {"id": 17}]][[tool look_up {"id": 18}]] Where are my orders?'
CONVERSATION = ["user", "assistant", "tool", "tool", "assistant"]


def look_up(id: int) -> str:
    return f"order {id} is on its way"


def roles(session: perdure.Session) -> list[str]:
    return [message["role"] for message in session.messages()]


def user() -> Any:
    return {"role": "user", "content": QUESTION}


def ask(client: openai.OpenAI, messages: list[Any]) -> Any:
    reply = client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
    return reply.choices[0].message


def following(passed: str, message: Any, results: list[Any]) -> list[Any]:
    """Return the messages of the second call."""
    return {"none": [], "results": results, "whole": [user(), message, *results]}[passed]


@pytest.mark.parametrize("passed", ["none", "results", "whole"])
@pytest.mark.parametrize("in_turn", [False, True])
def test_results_are_stored_once(
    client: openai.OpenAI, session: perdure.Session, passed: str, *, in_turn: bool
) -> None:
    with session.turn(QUESTION) if in_turn else nullcontext():
        message = ask(client, [] if in_turn else [user()])
        results = session.run_tool_calls(message, [look_up])
        assert not ask(client, following(passed, message, results)).tool_calls
    assert roles(session) == CONVERSATION
    assert session.interrupted == ()


@pytest.mark.parametrize("passed", ["none", "results", "whole"])
def test_results_are_stored_once_after_an_error_and_a_restart(
    bare: openai.OpenAI, session: perdure.Session, server: ModelServer, passed: str
) -> None:
    """The second handle is a process that begins anew, after one that died behind its tools."""
    with perdure.open("memory:") as store:
        first = store.session("s")
        message = ask(wrap(bare, first), [user()])
        first.run_tool_calls(message, [look_up])
        again = store.session("s")
        client = wrap(bare, again)
        message = ask(client, [user()])
        results = again.run_tool_calls(message, [look_up])
        assert not ask(client, following(passed, message, results)).tool_calls
        assert roles(again) == CONVERSATION
        assert len(server.requests) == 2, "the first reply is recorded"


@pytest.mark.parametrize("passed", ["none", "results", "whole"])
def test_results_are_stored_once_in_a_loop(server: ModelServer, passed: str) -> None:
    async def go() -> None:
        bare = openai.AsyncOpenAI(base_url=server.url, api_key="test", max_retries=0)
        async with perdure.open_async("memory:") as store, bare:
            session = await store.session("s")
            create = wrap(bare, session).chat.completions.create
            reply = await create(model="m", messages=[user()], tools=[CHAT_TOOL])
            message = reply.choices[0].message
            results = await session.run_tool_calls(message, [look_up])
            messages = following(passed, message, results)
            await create(model="m", messages=messages, tools=[CHAT_TOOL])
            assert [one["role"] for one in await session.messages()] == CONVERSATION

    asyncio.run(go())


def test_a_result_that_differs_from_the_stored_one_is_noted(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    message = ask(client, [user()])
    first, second = session.run_tool_calls(message, [look_up])
    ask(client, [{**first, "content": "lost"}, second])
    assert roles(session) == CONVERSATION
    assert "lost" not in str(session.messages())
    (note,) = [one.content for one in session.records() if isinstance(one.content, Note)]
    assert note.data["calls"] == [first["tool_call_id"]]


def test_a_call_without_results_leaves_the_turn_open(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    message = ask(client, [user()])
    with pytest.raises(perdure.UsageError, match="calls without a result"):
        ask(client, [])
    assert session.current_turn is not None
    assert not ask(client, session.run_tool_calls(message, [look_up])).tool_calls
    assert roles(session) == CONVERSATION
