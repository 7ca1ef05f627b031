"""The tutorial's script in all its forms, and the same with tools, as a process may run it again.

A script says three things to the model, and begins where the process before it stopped.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import openai
from pydantic import BaseModel

import perdure
from perdure.adapters.openai import wrap

Item = dict[str, Any]

SYSTEM: Item = {"role": "system", "content": "You are a clerk."}
INPUTS = [
    "Hello, how are you?",
    '[[tool look_up {"id": 17}]][[tool look_up {"id": 18}]] Where are my orders?',
    '[[say {"steps": ["one two three", "four five six", "seven eight nine"]}]] Thanks.',
]
CHAT_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}},
    },
}
RESPONSES_TOOL: Any = {"type": "function", "strict": False, **CHAT_TOOL["function"]}


class Steps(BaseModel):
    """What `parse` is asked for."""

    steps: list[str]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def look_up(arguments: str) -> str:
    return f"looked up {arguments}"


def left(records: Iterable[perdure.Record]) -> list[str]:
    """Return what is still to be said: a turn that was not finished is said again."""
    return INPUTS[sum(record.kind == "turn.completed" for record in records) :]


def chat_results(message: Any) -> list[Item]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": look_up(call.function.arguments)}
        for call in message.tool_calls or ()
    ]


def item_results(response: Any) -> list[Item]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": look_up(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


def rebuilt(chunks: list[Any]) -> Any:
    """Return the message of a streamed completion, as the SDK's own accumulator has it."""
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state: Any = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    return state.current_completion_snapshot.choices[0].message


Ask = Callable[[list[Item]], list[Item]]


def plain(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        reply = client.chat.completions.create(model="m", messages=news, tools=[CHAT_TOOL])
        return chat_results(reply.choices[0].message)

    return ask


def instructed(client: Any) -> Ask:
    """Give the instructions with every call, as scripts do."""

    def ask(news: list[Item]) -> list[Item]:
        reply = client.chat.completions.create(model="m", messages=[SYSTEM, *news])
        return chat_results(reply.choices[0].message)

    return ask


def parsed(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        reply = client.chat.completions.parse(model="m", messages=news, response_format=Steps)
        message = reply.choices[0].message
        assert message.tool_calls or isinstance(message.parsed, Steps)
        return chat_results(message)

    return ask


def streamed(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        stream = client.chat.completions.create(
            model="m",
            messages=news,
            tools=[CHAT_TOOL],
            stream=True,
            stream_options={"include_usage": True},
        )
        return chat_results(rebuilt(list(stream)))

    return ask


def helped(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        with client.chat.completions.stream(model="m", messages=news) as stream:
            kinds = {event.type for event in stream}
            assert "chunk" in kinds
            return chat_results(stream.get_final_completion().choices[0].message)

    return ask


def responses(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        return item_results(client.responses.create(model="m", input=news, tools=[RESPONSES_TOOL]))

    return ask


def responses_streamed(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        last = None
        for event in client.responses.create(model="m", input=news, stream=True):
            last = event
        assert last is not None
        return item_results(last.response)

    return ask


def responses_helped(client: Any) -> Ask:
    def ask(news: list[Item]) -> list[Item]:
        with client.responses.stream(model="m", input=news) as stream:
            for _ in stream:
                pass
            return item_results(stream.get_final_response())

    return ask


FORMS: dict[str, Callable[[Any], Ask]] = {
    "plain": plain,
    "instructed": instructed,
    "parsed": parsed,
    "streamed": streamed,
    "helped": helped,
    "responses": responses,
    "responses_streamed": responses_streamed,
    "responses_helped": responses_helped,
}


class Hooks:
    """What a child does at certain places: nothing, or die."""

    def sending(self) -> None: ...

    def received(self) -> None: ...

    def chunk(self) -> None: ...


def http_client(hooks: Hooks) -> Any:
    return openai.DefaultHttpxClient(
        verify=False,  # Loading certificates takes longer than the script.
        event_hooks={
            "request": [lambda _: hooks.sending()],
            "response": [lambda _: hooks.received()],
        },
    )


def run(form: str, url: str, path: Path, hooks: Hooks, *, every: float = 0.5) -> None:
    """Say what is left to be said, each in a turn that the wrapper begins and ends."""
    with (
        openai.OpenAI(base_url=url, api_key="test", http_client=http_client(hooks)) as bare,
        perdure.open(path) as store,
    ):
        session = store.session("claim-4711")
        ask = FORMS[form](wrap(counted(bare, hooks), session, flush_every=every))
        for text in left(session.records()):
            results = ask([user(text)])
            while results:
                results = ask(results)


def run_by_id(form: str, url: str, path: Path, hooks: Hooks, *, every: float = 0.5) -> None:
    """Say everything from the beginning, in turns with ids: what was answered is not asked."""
    with (
        openai.OpenAI(base_url=url, api_key="test", http_client=http_client(hooks)) as bare,
        perdure.open(path) as store,
    ):
        session = store.session("claim-4711")
        ask = FORMS[form](wrap(counted(bare, hooks), session, flush_every=every))
        for number, text in enumerate(INPUTS):
            with session.turn(text, id=f"turn-{number}"):
                results = ask([])
                while results:
                    results = ask(results)


def counted(client: openai.OpenAI, hooks: Hooks) -> openai.OpenAI:
    """Let the hooks know of every chunk: the SDK asks the client to make each."""
    make = client._process_response_data

    def process(**arguments: Any) -> Any:
        hooks.chunk()
        return make(**arguments)

    client.__dict__["_process_response_data"] = process
    return client


async def _run_async(url: str, path: Path, hooks: Hooks, *, stream: bool) -> None:
    async def sending(_: object) -> None:
        hooks.sending()

    async def received(_: object) -> None:
        hooks.received()

    http = openai.DefaultAsyncHttpxClient(
        verify=False, event_hooks={"request": [sending], "response": [received]}
    )
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="test", http_client=http) as bare,
        perdure.open_async(path) as store,
    ):
        session = await store.session("claim-4711")
        client: Any = wrap(bare, session, flush_every=0)
        for text in left([record async for record in session.records()]):
            news = [user(text)]
            while news:
                if stream:
                    chunks = []
                    async for chunk in await client.chat.completions.create(
                        model="m", messages=news, tools=[CHAT_TOOL], stream=True
                    ):
                        hooks.chunk()
                        chunks.append(chunk)
                    news = chat_results(rebuilt(chunks))
                else:
                    reply = await client.chat.completions.create(
                        model="m", messages=news, tools=[CHAT_TOOL]
                    )
                    news = chat_results(reply.choices[0].message)


def run_async(form: str, url: str, path: Path, hooks: Hooks) -> None:
    asyncio.run(_run_async(url, path, hooks, stream=form == "streamed"))


def run_explicit(form: str, url: str, path: Path, hooks: Hooks) -> None:
    """The script without the wrapper, as an application writes it."""
    with (
        openai.OpenAI(base_url=url, api_key="test", http_client=http_client(hooks)) as bare,
        perdure.open(path) as store,
    ):
        client: Any = counted(bare, hooks)
        session = store.session("claim-4711")
        for text in left(session.records()):
            for turn in turns(session, text):
                answer(client, session, turn, stream=form == "streamed")


def turns(session: perdure.Session, text: str) -> Iterator[perdure.Turn]:
    with session.interrupted[-1] if session.interrupted else session.turn(text) as turn:
        yield turn


def answer(client: Any, session: perdure.Session, turn: perdure.Turn, *, stream: bool) -> None:
    """Ask until there are no calls; a turn that had got its answer needs nothing."""
    while True:
        last = session.last_message or {}
        if last.get("role") == "assistant" and not last.get("tool_calls"):
            return
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": look_up(call["function"]["arguments"]),
            }
            for call in last.get("tool_calls") or ()
        ]
        if results:  # All or none: a process that finds some of them could not tell.
            turn.append(*results)
        messages = session.messages(format="openai.chat", max_tokens=8_000)
        reply = client.chat.completions.create(model="m", messages=messages, stream=stream)
        if stream:
            for _ in turn.stream(reply, flush_every=0):
                pass
        else:
            turn.append(reply)
