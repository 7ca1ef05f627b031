"""Agents, messages and tools of the application's own classes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseTextChatMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import BaseStreamTool
from pydantic import BaseModel

from perdure.errors import UsageError
from perdure.testing import ModelServer
from tests.frameworks.agentchat.place import Build, Place
from tests.frameworks.agentchat.scripts import TASKS
from tests.frameworks.agentchat.teams import World, critic


class Verdict(BaseModel):
    """What a structured answer says."""

    limit: int


class Ruling(BaseTextChatMessage):  # type: ignore[misc]
    """A message of the application's own."""

    type: Literal["Ruling"] = "Ruling"
    limit: int = 0


class Weighed(BaseAgentEvent):  # type: ignore[misc]
    """An event of the application's own."""

    type: Literal["Weighed"] = "Weighed"
    content: str

    def to_text(self) -> str:
        return self.content


class Judge(BaseChatAgent):  # type: ignore[misc]
    """An agent of the application's own, which answers with messages of its own, and charges."""

    def __init__(
        self, name: str, world: World, say: Callable[[str], Any], *named: Any, limit: int = 0
    ) -> None:
        super().__init__(name, "judges")
        self._world, self._say, self._named, self._limit = world, say, named, limit

    @property
    def produced_message_types(self) -> Any:
        return self._named

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Any:
        self._world.ledger.charge(len(messages))
        inner = [Weighed(content="both sides", source=self.name)] if Weighed in self._named else []
        return Response(chat_message=self._say(self.name), inner_messages=inner)

    async def on_reset(self, cancellation_token: Any) -> None:
        pass


def structured(name: str) -> Any:
    return StructuredMessage[Verdict](content=Verdict(limit=5000), source=name)


def ruling(name: str) -> Any:
    return Ruling(content="At most 5000.", limit=5000, source=name)


def plain(name: str) -> Any:
    return TextMessage(content="At most 5000.", source=name)


def judge(say: Callable[[str], Any], *named: Any) -> Build:
    return lambda world: Judge("judge", world, say, *named)


def chaired(say: Callable[[str], Any], *named: Any) -> Build:
    def build(world: World) -> Any:
        members = [Judge("judge", world, say, *named), critic(world)]
        return RoundRobinGroupChat(members, max_turns=2, custom_message_types=[*named])

    return build


async def cut_at_the_end(place: Place, build: Build, **options: Any) -> None:
    """Leave a run behind that has done everything except for saying so."""
    async with place.durable(build, **options) as durable:

        async def dying(*_: Any) -> None:
            raise RuntimeError("the process died")

        durable._keeping.finish = dying
        with pytest.raises(RuntimeError, match="the process died"):
            await durable.run(task=TASKS[0])


@pytest.mark.parametrize("build", [judge, chaired])
@pytest.mark.parametrize(
    ("say", "named"),
    [(structured, [StructuredMessage[Verdict]]), (ruling, [Ruling]), (ruling, [Ruling, Weighed])],
)
def test_messages_of_own_classes_are_said_and_come_back_from_the_record(
    build: Callable[..., Build], say: Callable[[str], Any], named: list[Any], place: Place
) -> None:
    async def go() -> None:
        async with place.durable(build(say, *named), session="whole") as durable:
            wanted = (await durable.run(task=TASKS[0])).messages
        charged = len(place.ledger.lines)
        await cut_at_the_end(place, build(say, *named))
        async with place.durable(build(say, *named)) as durable:
            found = (await durable.run()).messages
        assert [type(one) for one in found] == [type(one) for one in wanted]
        assert [one.content for one in found] == [one.content for one in wanted]
        assert say("judge").content in [one.content for one in found]
        assert len(place.ledger.lines) == 2 * charged == 2

    asyncio.run(go())


def test_an_agent_that_names_no_class_is_heard_and_can_name_it_later(place: Place) -> None:
    """What it says works without perdure as well; only the record needs to know the class."""

    async def go() -> None:
        async with place.durable(judge(ruling, TextMessage), session="whole") as durable:
            assert isinstance((await durable.run(task=TASKS[0])).messages[-1], Ruling)
        await cut_at_the_end(place, judge(ruling, TextMessage))
        charged = len(place.ledger.lines)
        async with place.durable(judge(ruling, TextMessage)) as durable:
            assert durable.interrupted == TASKS[0]
            with pytest.raises(UsageError, match="not known, Ruling: name it in"):
                await durable.run()
        async with place.durable(judge(ruling, Ruling)) as durable:
            assert isinstance((await durable.run()).messages[-1], Ruling)
        assert len(place.ledger.lines) == charged

    asyncio.run(go())


class Changed:
    """Holds a class that has the name of another, and other fields."""

    class Ruling(BaseTextChatMessage):  # type: ignore[misc]
        type: Literal["Ruling"] = "Ruling"
        reason: str


def test_a_stored_message_that_does_not_fit_its_class_is_refused(place: Place) -> None:
    async def go() -> None:
        await cut_at_the_end(place, judge(ruling, Ruling))
        charged = len(place.ledger.lines)
        async with place.durable(judge(ruling, Changed.Ruling)) as durable:
            with pytest.raises(UsageError, match="holds a Ruling that does not fit the class"):
                await durable.run()
        assert len(place.ledger.lines) == charged

    asyncio.run(go())


def test_two_classes_of_one_name_are_refused(place: Place) -> None:
    async def go() -> None:
        with pytest.raises(UsageError, match="two classes of messages are called 'Ruling'"):
            async with place.durable(judge(ruling, Ruling, Changed.Ruling)):
                pass

    asyncio.run(go())


def test_a_task_of_an_own_class_is_gone_on_with(place: Place) -> None:
    async def go() -> None:
        task, build = ruling("user"), judge(plain, TextMessage)
        async with place.durable(build) as durable:
            durable._keeping.finish = None
            with pytest.raises(TypeError):
                await durable.run(task=task)
        async with place.durable(build) as durable:
            assert durable.interrupted == "At most 5000."
            with pytest.raises(UsageError, match="not known, Ruling"):
                await durable.run()
            assert (await durable.run(task=task)).messages[0] is task

    asyncio.run(go())


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_structured_result_of_one_agent_is_kept_under_its_id(place: Place) -> None:
    def build(world: World) -> Any:
        return AssistantAgent("judge", world.client, output_content_type=Verdict)

    async def go() -> None:
        with ModelServer() as server:
            place.server = server
            async with place.durable(build) as durable:
                first = await durable.run(task=TASKS[0], id="request-9")
            async with place.durable(build) as durable:
                again = await durable.run(task=TASKS[0], id="request-9")
            assert again == first
            assert isinstance(again.messages[-1].content, Verdict)
            assert len(place.prompts) == 1

    asyncio.run(go())


class Amount(BaseModel):
    """What the tool is given."""

    amount: int


class Telling(BaseStreamTool[Amount, Any, str]):  # type: ignore[misc]
    """A tool that tells of what it does, in events of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(Amount, str, "charge", "Charge an amount.")
        self._world = world

    async def run(self, args: Amount, cancellation_token: Any) -> str:
        return self._world.ledger.charge(args.amount)

    async def run_stream(self, args: Amount, cancellation_token: Any) -> AsyncGenerator[Any, None]:
        yield Weighed(content=f"{args.amount} is enough", source="charge")
        yield self._world.ledger.charge(args.amount)


def test_events_of_a_tool_s_own_are_told(place: Place) -> None:
    def build(world: World) -> Any:
        return AssistantAgent("clerk", world.client, tools=[Telling(world)])

    async def go() -> None:
        async with place.durable(build) as durable:
            told = (await durable.run(task=TASKS[0])).messages
        assert len(place.ledger.lines) == len([one for one in told if isinstance(one, Weighed)]) > 0
        assert "charged" in told[-1].content

    asyncio.run(go())
