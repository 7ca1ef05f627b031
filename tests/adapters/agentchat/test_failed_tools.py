"""A tool that fails: it is recorded as failed, and its error is the same in a run that resumes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import BaseStreamTool, FunctionTool, StaticWorkbench
from pydantic import BaseModel

from tests.adapters.agentchat.place import Place, cut, without_repeats
from tests.adapters.agentchat.scripts import TASKS
from tests.adapters.agentchat.teams import World, clerk, critic

DECLINED = "the card was declined " * 150  # Longer than the reason that is recorded.


def charge(amount: int) -> str:
    """Charge an amount."""
    raise ValueError(f"{DECLINED}: {amount}")


class Amount(BaseModel):
    """The arguments of the tool."""

    amount: int


class StreamTool(BaseStreamTool[Amount, Any, str]):  # type: ignore[misc]
    """A tool that fails after an event."""

    def __init__(self) -> None:
        super().__init__(Amount, str, "charge", "Charge an amount.")

    async def run(self, args: Amount, cancellation_token: Any) -> str:
        return charge(args.amount)

    async def run_stream(self, args: Amount, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        yield TextMessage(content=f"trying {args.amount}", source="charge")
        yield charge(args.amount)


class RaisingWorkbench(StaticWorkbench):  # type: ignore[misc]
    """A workbench that raises its tools' errors."""

    async def call_tool(self, name: str, arguments: Any = None, *_: Any, **__: Any) -> Any:
        return charge(**arguments)


FAILING: dict[str, Callable[[], dict[str, Any]]] = {
    "function": lambda: {"tools": [charge]},
    "stream": lambda: {"tools": [StreamTool()]},
    "workbench": lambda: {"workbench": RaisingWorkbench([FunctionTool(charge, "Charge.")])},
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_tool_that_raises_is_recorded_as_failed(kind: str, place: Place) -> None:
    """Without an error the call is recorded as succeeded: see the next test."""

    def build(world: World) -> Any:
        options = {"reflect_on_tool_use": True, **FAILING[kind]()}
        member = AssistantAgent("clerk", world.client, system_message="I am clerk.", **options)
        return RoundRobinGroupChat([member, critic(world)], max_turns=3)

    async def go() -> None:
        async with place.durable(build, session="whole") as durable:
            whole = (await durable.run(task=TASKS[0])).messages
            effects = await durable._session.effects.list(kind="tool")
        assert effects
        assert {effect.state for effect in effects} == {"failed"}
        assert all(effect.reason.startswith("the card was declined") for effect in effects)
        wanted = place.prompts

        await cut(place, build)
        async with place.durable(build) as durable:
            resumed = (await durable.run()).messages
            again = await durable._session.effects.list(kind="tool")
        assert [effect.state for effect in again] == [effect.state for effect in effects]
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages() == place.messages("whole")
        assert [one.to_text() for one in resumed] == [one.to_text() for one in whole]

    asyncio.run(go())


def test_a_tool_that_returns_is_recorded_as_succeeded(place: Place) -> None:
    async def go() -> None:
        async with place.durable(clerk) as durable:
            await durable.run(task=TASKS[0])
            effects = await durable._session.effects.list(kind="tool")
        assert effects
        assert {effect.state for effect in effects} == {"succeeded"}

    asyncio.run(go())
