"""Objects that belong to the caller and change between the record and the call."""

import asyncio
from typing import Any

import pytest
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_core.tools import ToolResult

import perdure
from perdure.adapters.agentchat.model_client import DurableClient
from perdure.adapters.agentchat.run_log import RunLog
from perdure.adapters.agentchat.workbench import DurableWorkbench
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend

USAGE = RequestUsage(prompt_tokens=1, completion_tokens=1)
ANSWER = CreateResult(finish_reason="stop", content="yes", usage=USAGE, cached=False)


class Meddled(MemoryBackend):
    """A store that takes its time; meanwhile `meddle` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Any = lambda: None

    def append(self, appends: Any) -> Any:
        self.meddle()
        return super().append(appends)


class Inner:
    """A model client and a workbench that keep what they get."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def create(self, messages: Any, **options: Any) -> Any:
        self.got.append((messages[0].content, options))
        return ANSWER

    async def create_stream(self, messages: Any, **options: Any) -> Any:
        self.got.append((messages[0].content, options))
        yield ANSWER

    async def call_tool(self, **options: Any) -> Any:
        self.got.append(options["arguments"])
        return ToolResult(name="pay", result=[])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_model_is_sent_what_was_digested(*, streaming: bool) -> None:
    message = UserMessage(content="Is this right?", source="user")
    extra = {"stop": ["a"]}
    inner, backend = Inner(), Meddled()

    def meddle() -> None:
        message.content = "Is this wrong?"
        extra["stop"].append("b")

    async def run() -> None:
        async with perdure.open_async(ThreadedBackend(backend)) as store:
            session = await store.session("s")
            log = RunLog(session, {})
            client = DurableClient(inner, "agent", log)
            async with session.turn("Go."):
                log.begin((), {})
                backend.meddle = meddle
                if streaming:
                    async for _ in client.create_stream([message], extra_create_args=extra):
                        pass
                else:
                    await client.create([message], extra_create_args=extra)

    asyncio.run(run())
    assert message.content == "Is this wrong?"
    assert inner.got == [("Is this right?", {"extra_create_args": {"stop": ["a"]}})]


@pytest.mark.parametrize("arguments", [{"to": ["bob"]}, None])
def test_a_tool_is_called_with_what_was_recorded(arguments: Any) -> None:
    inner, backend = Inner(), Meddled()

    async def run() -> Any:
        async with perdure.open_async(ThreadedBackend(backend)) as store:
            session = await store.session("s")
            log = RunLog(session, {})
            unused: Any = None  # Loads events of recorded calls.
            bench = DurableWorkbench(inner, "agent", log, runners=frozenset(), messages=unused)
            async with session.turn("Go."):
                log.begin((), {})
                backend.meddle = lambda: arguments and arguments["to"].append("eve")
                await bench.call_tool("pay", arguments, call_id="c1")
            return await session.effects.list()

    (effect,) = asyncio.run(run())
    assert inner.got == [effect.arguments or None]
    assert effect.arguments == ({} if arguments is None else {"to": ["bob"]})
