"""Agents, messages and tools of the application's own classes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import pytest
from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    PerSourceFilter,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseTextChatMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.tools import BaseStreamTool
from pydantic import BaseModel

from perdure.errors import UsageError
from perdure.testing import ModelServer
from tests.adapters.agentchat.place import Build, Place, twice, without_repeats
from tests.adapters.agentchat.scripts import TASKS
from tests.adapters.agentchat.teams import World, critic


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

        durable._saved_runs.finish = dying
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
            with pytest.raises(UsageError, match="of an unknown class, Ruling: name it in"):
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
        with pytest.raises(UsageError, match="two message classes are called 'Ruling'"):
            async with place.durable(judge(ruling, Ruling, Changed.Ruling)):
                pass

    asyncio.run(go())


def test_a_task_of_an_own_class_is_gone_on_with(place: Place) -> None:
    async def go() -> None:
        task, build = ruling("user"), judge(plain, TextMessage)
        async with place.durable(build) as durable:
            durable._saved_runs.finish = None
            with pytest.raises(TypeError):
                await durable.run(task=task)
        async with place.durable(build) as durable:
            assert durable.interrupted == "At most 5000."
            with pytest.raises(UsageError, match="of an unknown class, Ruling"):
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


# Agents that are the package's, and reply in a way of their own.


class Posting(AssistantAgent):  # type: ignore[misc]
    """An assistant that charges when it is asked, and takes a note."""

    def __init__(self, name: str, world: World) -> None:
        self.notes, self.ledger = ListMemory(), world.ledger
        super().__init__(name, world.client, system_message=f"I am {name}.", memory=[self.notes])

    async def on_messages_stream(
        self, messages: Any, cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        count = len(self.notes.content) + 1
        said = f"{self.ledger.charge(count)} for {len(messages)} messages"
        await self.notes.add(MemoryContent(content=said, mime_type="text/plain"))
        async for one in super().on_messages_stream(messages, cancellation_token):
            yield one


class Chairing(SocietyOfMindAgent):  # type: ignore[misc]
    """A team as an agent, which charges when it is asked."""

    def __init__(self, name: str, world: World) -> None:
        inner = [critic(world, "left"), critic(world, "right")]
        super().__init__(name, RoundRobinGroupChat(inner, max_turns=2), world.client)
        self.ledger = world.ledger

    async def on_messages_stream(
        self, messages: Any, cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        self.ledger.charge(len(messages))
        async for one in super().on_messages_stream(messages, cancellation_token):
            yield one


class Filtering(MessageFilterAgent):  # type: ignore[misc]
    """An assistant that hears nobody but the critic, and charges when it is asked."""

    def __init__(self, name: str, world: World) -> None:
        only = MessageFilterConfig(per_source=[PerSourceFilter(source="critic")])
        super().__init__(name, critic(world, "wrapped"), only)
        self.ledger = world.ledger

    async def on_messages_stream(
        self, messages: Any, cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        self.ledger.charge(len(messages))
        async for one in super().on_messages_stream(messages, cancellation_token):
            yield one


class Calling(UserProxyAgent):  # type: ignore[misc]
    """A person, to call whom costs something."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, input_func=lambda _: "Shorter.")
        self.ledger = world.ledger

    async def on_messages_stream(
        self, messages: Any, cancellation_token: Any
    ) -> AsyncGenerator[Any, None]:
        self.ledger.charge(len(messages))
        async for one in super().on_messages_stream(messages, cancellation_token):
            yield one


@pytest.mark.parametrize("kind", [Posting, Chairing, Filtering, Calling])
def test_an_agent_that_replies_in_a_way_of_its_own_does_so_once(kind: Any, place: Place) -> None:
    def build(world: World) -> Any:
        return RoundRobinGroupChat([kind("own", world), critic(world)], max_turns=4)

    async def go() -> None:
        await twice(place, build, "whole")
        wanted, charged = place.prompts, len(place.ledger.lines)
        calls = len(wanted) // 2
        for task in TASKS:
            place.server.fault(status=500, at=len(place.prompts) + calls)
            async with place.durable(build) as durable:
                with pytest.raises(Exception, match="500"):
                    await durable.run(task=task)
            async with place.durable(build) as durable:
                await durable.run()
                effects = await durable._session.effects.list(kind="model")
                assert {effect.tool for effect in effects} == {"RoundRobinGroupChat/critic"}
        assert without_repeats(place.prompts[len(wanted) :]) == wanted
        assert place.messages() == place.messages("whole")
        assert len(place.ledger.lines) == 2 * charged == 8

    asyncio.run(go())


def test_the_tools_of_an_agent_of_which_nothing_is_known_are_its_own(place: Place) -> None:
    class Own(AssistantAgent):  # type: ignore[misc]
        async def on_messages(self, messages: Any, cancellation_token: Any) -> Any:
            return await super().on_messages(messages, cancellation_token)

    class Same(AssistantAgent):  # type: ignore[misc]
        """Whoever only adds something is the package's agent all the same."""

        async def on_reset(self, cancellation_token: Any) -> None:
            await super().on_reset(cancellation_token)

    async def go() -> None:
        given: Any = {"tools": {"charge": "idempotent"}}
        with pytest.raises(UsageError, match="no tool is called 'charge': there are own"):
            async with place.durable(
                lambda world: Own("own", world.client, tools=[world.ledger.charge]), **given
            ):
                pass
        async with place.durable(
            lambda world: Same("same", world.client, tools=[world.ledger.charge]), **given
        ) as durable:
            await durable.run(task=TASKS[0])
            effects = await durable._session.effects.list(kind="tool")
        assert {effect.tool for effect in effects} == {"charge"}

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
