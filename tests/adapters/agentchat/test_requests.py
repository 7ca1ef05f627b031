"""P35 for agents of AgentChat: a run that is tried again under its id ends, and is done once.

The rows are those of `tests/promises/p35_requests`: some of them, or with PERDURE_KILLS=all each.
"""

import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_core import FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    RequestUsage,
)

import perdure
from perdure.adapters.agentchat import persist
from tests.promises import places
from tests.promises.kinds import SQLITE
from tests.promises.request_judge import Table
from tests.promises.requests import (
    DISTURBANCES,
    REQUEST,
    SCENARIOS,
    TEXT,
    Answer,
    Form,
    Scenario,
    World,
)

pytestmark = [pytest.mark.durability, pytest.mark.timeout(3_600)]

KILLS = os.environ.get("PERDURE_KILLS", "1")


class Client(ChatCompletionClient):  # type: ignore[misc]
    """A client whose model is that of a world."""

    component_type = "model"

    def __init__(self, world: World) -> None:
        self._world = world

    async def create(self, messages: Sequence[Any], **_: Any) -> Any:
        results = [
            {"role": "tool", "content": one.content}
            for message in messages
            if isinstance(message, FunctionExecutionResultMessage)
            for one in message.content
        ]
        message = self._world.complete(results)
        calls = [
            FunctionCall(call["id"], call["function"]["arguments"], call["function"]["name"])
            for call in message.get("tool_calls", ())
        ]
        return CreateResult(
            finish_reason="function_calls" if calls else "stop",
            content=calls or message["content"],
            usage=RequestUsage(1, 1),
            cached=False,
        )

    async def create_stream(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError
        yield

    async def close(self) -> None:
        pass

    def actual_usage(self) -> Any:
        return RequestUsage(0, 0)

    total_usage = actual_usage

    def count_tokens(self, *_: Any, **__: Any) -> int:
        return 0

    remaining_tokens = count_tokens
    capabilities: Any = None

    @property
    def model_info(self) -> Any:
        abilities = ("vision", "json_output", "structured_output", "multiple_system_messages")
        info = dict.fromkeys(abilities, False)
        return {**info, "function_calling": True, "family": ModelFamily.UNKNOWN}


async def agentchat(session: perdure.AsyncSession, world: World) -> AsyncIterator[Any]:
    agent = AssistantAgent(
        "clerk",
        Client(world),
        tools=world.async_tools(),
        max_tool_iterations=4,
        reflect_on_tool_use=False,
    )
    policy: Any = world.scenario.policy
    async with persist(session, agent, tools={"charge": policy, "mail": policy}) as durable:
        stream = durable.run_stream(task=TEXT, id=REQUEST)
        try:
            async for event in stream:
                if isinstance(event, TaskResult):
                    yield Answer(event.messages[-1].content)
                else:
                    yield event
        finally:
            await stream.aclose()


FORM = Form("AgentChat", agentchat, is_async=True)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_run_that_is_tried_again_is_done_once(kind: str, scenario: Scenario) -> None:
    with places.fast_directory() as directory:
        table = Table(FORM, scenario, directory, *_store(directory))
        rows = [one for one in table.disturbances() if one.kind == kind]
        assert rows
        random.Random(str(scenario)).shuffle(rows)
        for row in rows if KILLS == "all" else rows[: 2 * int(KILLS)]:
            assert table.failure(row) == "", f"{table}: {row}"


def _store(directory: Path) -> tuple[Any, Any]:
    return SQLITE.opener(directory), partial(SQLITE.clear, directory)


def test_the_model_asks_for_both_tools() -> None:
    with places.fast_directory() as directory:
        table = Table(FORM, SCENARIOS[0], directory, *_store(directory))
    assert table.reference.answer == "Done: charged 5; mailed to ann"
    calls = [call for one in table.reference.messages for call in one.get("tool_calls") or ()]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"amount": 5},
        {"to": "ann"},
    ]
