"""The ways to write a program that does a request once: each is a row of the table.

To add a form: a generator that does the request `REQUEST` in a session and yields the pieces of
the answer, if it streams, and last the `Answer`; and the same for an event loop.
"""

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import openai

import perdure
from perdure.adapters.openai import wrap
from tests.promises.requests import REQUEST, SCENARIOS, SESSION, TEXT, Answer, Form, World

# The HTTP package that the SDK itself uses: other versions use a different one.
http: Any = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]

TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("charge", "mail")
]


def durable(session: Any, world: World, *, is_async: bool = False) -> list[Any]:
    functions = world.async_tools() if is_async else world.tools()
    return [session.tool(function, effect=world.scenario.policy) for function in functions]


# A turn that is entered, with a loop in it that streams.


def explicit(session: perdure.Session, world: World) -> Iterator[Any]:
    with session.turn(TEXT, id=REQUEST) as turn:
        while turn.answer() is None:
            if not session.run_tool_calls(None, durable(session, world)):
                chunks = world.stream(session.messages(format="openai.chat"))
                yield from turn.stream(chunks, flush_every=0)
    yield Answer((turn.answer() or {})["content"])


async def explicit_async(session: perdure.AsyncSession, world: World) -> AsyncIterator[Any]:
    async def chunks(messages: Any) -> AsyncIterator[Any]:
        for chunk in world.stream(messages):
            yield chunk

    async with session.turn(TEXT, id=REQUEST) as turn:
        while await turn.answer() is None:
            if not await session.run_tool_calls(None, durable(session, world, is_async=True)):
                messages = await session.messages(format="openai.chat")
                async for chunk in turn.stream(chunks(messages), flush_every=0):
                    yield chunk
    yield Answer((await turn.answer() or {})["content"])


# `session.run`, with a model whose answers are recorded.


def run(session: perdure.Session, world: World) -> Iterator[Any]:
    ask = session.model(world.complete, name="m")

    def agent(turn: perdure.Turn) -> None:
        while turn.answer() is None:
            if not session.run_tool_calls(None, durable(session, world)):
                turn.append(ask(session.messages(format="openai.chat")))

    yield Answer(session.run(REQUEST, agent, TEXT)["content"])


async def run_async(session: perdure.AsyncSession, world: World) -> AsyncIterator[Any]:
    async def complete(messages: Any) -> Any:
        return world.complete(messages)

    ask = session.model(complete, name="m")

    async def agent(turn: perdure.AsyncTurn) -> None:
        while await turn.answer() is None:
            if not await session.run_tool_calls(None, durable(session, world, is_async=True)):
                await turn.append(await ask(await session.messages(format="openai.chat")))

    yield Answer((await session.run(REQUEST, agent, TEXT))["content"])


# An agent, whose loop is not the program's.


def agent(session: perdure.Session, world: World) -> Iterator[Any]:
    loop = perdure.Agent(
        session, lambda messages, _: world.complete(messages), durable(session, world)
    )
    yield Answer(loop.run(REQUEST, TEXT)["content"])


async def agent_async(session: perdure.AsyncSession, world: World) -> AsyncIterator[Any]:
    async def model(messages: Any, _: Any) -> Any:
        return world.complete(messages)

    loop = perdure.AsyncAgent(session, model, durable(session, world, is_async=True))
    yield Answer((await loop.run(REQUEST, TEXT))["content"])


# The wrapped client of OpenAI, in a turn with an id, streamed.


def _events(world: World, request: Any) -> Iterator[bytes]:
    for chunk in world.stream(json.loads(request.content)["messages"]):
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


class Events(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc]
    """A stream of events, for both kinds of client."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        return self._source

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._source:
            yield event


def _respond(world: World, request: Any) -> Any:
    headers = {"content-type": "text/event-stream"}
    return http.Response(200, headers=headers, stream=Events(_events(world, request)))


def wrapped(session: perdure.Session, world: World) -> Iterator[Any]:
    transport = http.MockTransport(lambda request: _respond(world, request))
    web = http.Client(transport=transport)
    bare = openai.OpenAI(api_key="test", http_client=web, max_retries=0)
    client = wrap(bare, session, flush_every=0)
    with session.turn(TEXT, id=REQUEST):
        while True:
            with client.chat.completions.stream(model="m", messages=[], tools=TOOLS) as stream:
                yield from stream
                message = stream.get_final_completion().choices[0].message
            if not session.run_tool_calls(message, durable(session, world)):
                break
    yield Answer(message.content or "")


async def wrapped_async(session: perdure.AsyncSession, world: World) -> AsyncIterator[Any]:
    transport = http.MockTransport(lambda request: _respond(world, request))
    web = http.AsyncClient(transport=transport)
    bare = openai.AsyncOpenAI(api_key="test", http_client=web, max_retries=0)
    client = wrap(bare, session, flush_every=0)
    async with session.turn(TEXT, id=REQUEST):
        while True:
            asked = client.chat.completions.stream(model="m", messages=[], tools=TOOLS)
            async with asked as stream:
                async for event in stream:
                    yield event
                message = (await stream.get_final_completion()).choices[0].message
            if not await session.run_tool_calls(message, durable(session, world, is_async=True)):
                break
    yield Answer(message.content or "")


FORMS = [
    Form("explicit", explicit),
    Form("explicit", explicit_async, is_async=True),
    Form("run", run),
    Form("run", run_async, is_async=True),
    Form("agent", agent),
    Form("agent", agent_async, is_async=True),
    Form("wrapped", wrapped),
    Form("wrapped", wrapped_async, is_async=True),
]


def warm_up() -> None:
    """Do once, before thousands of processes are forked, what each would otherwise do again.

    The SDK and perdure import modules lazily, and the SDK's models are built at their first use.
    """
    for name in ("anyio._backends._asyncio", "perdure.aio.agent", "perdure.aio.verify"):
        import_module(name)
    with tempfile.TemporaryDirectory() as directory, perdure.open("memory:") as store:
        for form in (agent, wrapped):
            session = store.session(f"{SESSION} {form.__name__}")
            assert [*form(session, World(Path(directory), SCENARIOS[0]))]
