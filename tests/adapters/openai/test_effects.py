"""The wrapped client's calls are effects: listed, stored once, and no append more than before."""

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import openai
import pytest

import perdure
from perdure.adapters.openai import wrap
from perdure.backends.memory import MemoryBackend
from perdure.journal.records import EffectIntent, Tools
from perdure.testing import ModelServer

CALL = '[[tool weather {"city": "Oslo"}]]'
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


def say(client: openai.OpenAI, text: str, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="m", messages=messages, **more)


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def test_a_call_is_listed_with_its_answer_and_its_usage(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    reply = say(client, "one")
    (effect,) = session.effects.list(kind="model")
    assert (effect.tool, effect.state, effect.arguments) == ("m", "succeeded", None)
    assert effect.result == session.last_message
    assert effect.result["content"] == reply.choices[0].message.content
    assert effect.usage["total_tokens"] == reply.usage.total_tokens
    assert effect.duration > 0
    assert kinds(session) == [
        "turn.begun",
        "message",
        "effect.intent",
        "message",
        "effect.outcome",
        "turn.completed",
    ]
    session.verify()


def test_the_items_of_a_response_are_its_result(
    client: openai.OpenAI, session: perdure.Session
) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
    tools: Any = [tool]
    reply = client.responses.create(model="m", input=f"{CALL}{CALL}", tools=tools)
    (effect,) = session.effects.list()
    assert [one["type"] for one in effect.result] == ["function_call"] * len(reply.output)
    assert len(reply.output) > 1
    assert reply.usage is not None
    assert effect.usage["total_tokens"] == reply.usage.total_tokens


def test_streams_are_effects_too(client: openai.OpenAI, session: perdure.Session) -> None:
    for _ in say(client, "[[len 40]]", stream=True, stream_options={"include_usage": True}):
        pass
    (effect,) = session.effects.list()
    assert effect.state == "succeeded"
    assert effect.result == session.last_message
    assert effect.usage["total_tokens"] > 0


def test_a_call_makes_no_append_more_and_stores_the_answer_once(
    bare: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    append = MemoryBackend.append

    def counting(self: Any, given: Any) -> Any:
        appends.extend(entry.records for one in given for entry in one.entries)
        return append(self, given)

    monkeypatch.setattr(MemoryBackend, "append", counting)
    session = perdure.open("memory:").session("s")
    client = wrap(bare, session)
    answer = say(client, "[[len 400]]").choices[0].message.content
    assert appends == [3, 2, 1]  # The input with the intent, the reply with the outcome, the end.
    stored = "".join(str(record.content) for record in session.records())
    assert stored.count(answer) == 1


def test_what_is_sent_is_what_was_recorded_whatever_happens_to_the_callers_objects(
    bare: openai.OpenAI, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, messages = deepcopy(TOOLS), [{"role": "user", "content": "one"}]
    append = MemoryBackend.append

    def meddling(self: Any, given: Any) -> Any:
        tools[0]["function"]["name"] = "pay"
        messages[0]["content"] = "another"
        return append(self, given)

    monkeypatch.setattr(MemoryBackend, "append", meddling)
    session = perdure.open("memory:").session("s")
    given: Any = messages
    wrap(bare, session).chat.completions.create(model="m", messages=given, tools=tools)
    body = server.requests[-1].body
    assert body["tools"] == TOOLS
    assert body["messages"] == [{"role": "user", "content": "one"}]
    (recorded,) = [r.content for r in session.records() if isinstance(r.content, Tools)]
    assert recorded.tools == TOOLS
    assert tools != TOOLS


def test_an_error_of_the_api_is_a_failed_call(
    client: openai.OpenAI, session: perdure.Session, server: ModelServer
) -> None:
    server.fault(status=429)
    with pytest.raises(openai.RateLimitError):
        say(client, "one")
    with session.turn("two"):
        server.fault(status=429)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=[])
        client.chat.completions.create(model="m", messages=[])
    found = session.effects.list(kind="model")
    assert [(one.state, one.error) for one in found] == [
        ("failed", "RateLimitError"),
        ("failed", "RateLimitError"),
        ("succeeded", ""),
    ]
    assert session.effects.unknown() == []
    session.verify()


def test_a_resumed_call_is_the_same_effect(bare: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    first = perdure.open(path).session("s")
    reply = say(wrap(bare, first), CALL, tools=TOOLS)  # The process dies with an open call.
    again = perdure.open(path).session("s")
    client = wrap(bare, again)
    assert say(client, CALL, tools=TOOLS) == reply
    call = reply.choices[0].message.tool_calls[0]
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    client.chat.completions.create(model="m", messages=[result], tools=TOOLS)
    assert [one.state for one in again.effects.list()] == ["succeeded", "succeeded"]


def test_one_in_flight_at_death_is_repeated(bare: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    first = perdure.open(path).session("s")
    turn = first.turn({"role": "user", "content": "one"})
    turn.begin_model_call("m", {"a": 1})
    turn.__enter__()  # The process dies while it waits.
    again = perdure.open(path).session("s")
    with again.interrupted[0] as turn:
        asked = turn.begin_model_call("m", {"a": 1})
        turn.append({"role": "assistant", "content": "1"}, reply_to=asked)
    assert [one.state for one in again.effects.list()] == ["repeated", "succeeded"]
    intents = [r.content for r in again.records() if isinstance(r.content, EffectIntent)]
    assert intents[1].retry_of > 0
    assert intents[0].identity == intents[1].identity


def test_async_calls_are_the_same(server: ModelServer) -> None:
    async def work() -> None:
        async with (
            openai.AsyncOpenAI(base_url=server.url, api_key="test") as bare,
            perdure.open_async("memory:") as store,
        ):
            session = await store.session("s")
            client = wrap(bare, session)
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "one"}]
            )
            stream = await client.responses.create(model="m", input="two", stream=True)
            async for _ in stream:
                pass
            found = await session.effects.list(kind="model")
            assert [one.state for one in found] == ["succeeded", "succeeded"]
            assert all(one.usage for one in found)

    asyncio.run(work())
