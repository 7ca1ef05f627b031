"""The agents and teams that are killed and resumed, each built as a program would build it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage, TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

import perdure

MODEL = "gpt-4o-mini-2024-07-18"


def nothing() -> None:
    """Nobody is killed."""


class Client(OpenAIChatCompletionClient):  # type: ignore[misc]
    """The real client; it says when an answer has come."""

    def __init__(self, url: str, answered: Callable[[], None] = nothing) -> None:
        super().__init__(model=MODEL, base_url=url, api_key="test", max_retries=0)
        self._answered = answered

    async def create(self, *args: Any, **options: Any) -> Any:
        result = await super().create(*args, **options)
        self._answered()
        return result


class Ledger:
    """The outside world: a file in which each line is money that was really charged."""

    def __init__(
        self,
        path: Path,
        before: Callable[[], None] = nothing,
        after: Callable[[], None] = nothing,
    ) -> None:
        self._path, self._before, self._after = path, before, after

    @property
    def lines(self) -> list[Any]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]

    def charge(self, amount: int) -> str:
        """Charge an amount."""
        key = perdure.current_effect().key
        self._before()
        if not any(line["key"] == key for line in self.lines):
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "amount": amount}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._after()
        return f"charged {amount}"

    def find_out(self, effect: perdure.Effect) -> perdure.Happened | perdure.DidNotHappen:
        """Look whether a charge took place, as the policy `reconcile` wants it."""
        for line in self.lines:
            if line["key"] == effect.key:
                assert line["amount"] == effect.arguments["amount"]
                return perdure.Happened(f"charged {line['amount']}")
        return perdure.DidNotHappen()


class World(NamedTuple):
    """What a team is built of."""

    client: Client
    ledger: Ledger


def clerk(world: World, name: str = "clerk", **options: Any) -> AssistantAgent:
    tools = [world.ledger.charge]
    options = {"reflect_on_tool_use": True, **options}
    return AssistantAgent(
        name, world.client, tools=tools, system_message=f"I am {name}.", **options
    )


def critic(world: World, name: str = "critic", **options: Any) -> AssistantAgent:
    return AssistantAgent(name, world.client, system_message=f"I am {name}.", **options)


def single(world: World) -> Any:
    return clerk(world, max_tool_iterations=3)


def streaming(world: World) -> Any:
    return clerk(world, model_client_stream=True)


def round_robin(world: World) -> Any:
    stop = MaxMessageTermination(5) | TextMentionTermination("never said")
    return RoundRobinGroupChat([clerk(world), critic(world)], termination_condition=stop)


def selector(world: World) -> Any:
    members = [clerk(world), critic(world), critic(world, "lawyer")]
    stop = MaxMessageTermination(5)
    return SelectorGroupChat(members, world.client, termination_condition=stop)


def swarm(world: World) -> Any:
    members = [
        clerk(world, handoffs=["critic", "lawyer"]),
        critic(world, handoffs=["clerk"]),
        critic(world, "lawyer", handoffs=["clerk", "critic"]),
    ]
    return Swarm(members, termination_condition=MaxMessageTermination(9))


def graph(world: World) -> Any:
    """A line with a way back: what is not approved is written again."""
    writer, reviewer, filer = (
        clerk(world, "writer"),
        critic(world, "reviewer"),
        critic(world, "filer"),
    )
    builder = DiGraphBuilder()
    builder.add_node(writer).add_node(reviewer).add_node(filer)
    builder.add_edge(writer, reviewer)
    builder.add_edge(reviewer, writer, condition=lambda one: "REVISE" in one.to_model_text())
    builder.add_edge(reviewer, filer, condition=lambda one: "APPROVE" in one.to_model_text())
    builder.set_entry_point(writer)
    stop = MaxMessageTermination(12)
    members = builder.get_participants()
    return GraphFlow(members, builder.build(), termination_condition=stop)


def nested(world: World) -> Any:
    stop = MaxMessageTermination(3)
    inner = RoundRobinGroupChat(
        [clerk(world), critic(world)], termination_condition=stop, name="office"
    )
    outer = MaxMessageTermination(6)
    return RoundRobinGroupChat([inner, critic(world, "lawyer")], termination_condition=outer)


def society(world: World) -> Any:
    inner = RoundRobinGroupChat([clerk(world), critic(world)], max_turns=2)
    mind = SocietyOfMindAgent("mind", inner, world.client)
    return RoundRobinGroupChat([mind, critic(world, "lawyer")], max_turns=3)


def magentic(world: World) -> Any:
    return MagenticOneGroupChat([clerk(world), critic(world)], world.client, max_turns=6)


def agent_tool(world: World) -> Any:
    """An assistant one of whose tools is another, which charges."""
    tool = AgentTool(clerk(world, "expert"), return_value_as_last_message=True)
    boss = AssistantAgent("boss", world.client, tools=[tool], reflect_on_tool_use=True)
    return RoundRobinGroupChat([boss, critic(world)], max_turns=3)


class Counting(BaseChatAgent):  # type: ignore[misc]
    """An agent of the application's own: it charges when it replies, and counts."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        super().__init__(name, "counts")
        self._ledger, self._count = ledger, 0

    @property
    def produced_message_types(self) -> Any:
        return (TextMessage,)

    async def on_messages(self, messages: Any, cancellation_token: Any) -> Any:
        self._count += 1
        said = f"{self._ledger.charge(self._count)}, heard {len(messages)}"
        return Response(chat_message=TextMessage(content=said, source=self.name))

    async def on_reset(self, cancellation_token: Any) -> None:
        self._count = 0

    async def save_state(self) -> Any:
        return {"count": self._count}

    async def load_state(self, state: Any) -> None:
        self._count = state["count"]


def custom(world: World) -> Any:
    return RoundRobinGroupChat([critic(world), Counting("charge", world.ledger)], max_turns=4)


def several(text: str) -> Any:
    """A task of several messages, with what only the application knows of them."""
    return [
        TextMessage(content=text, source="user", metadata={"tenant": "acme"}),
        TextMessage(content="Be brief.", source="ana"),
    ]


def handed(text: str) -> Any:
    """A task that says who is to begin with it, who would not be asked else."""
    return HandoffMessage(content=text, source="user", target="lawyer")


# How a task is given to a team, where it is not a text.
GIVEN: dict[str, Callable[[str], Any]] = {"several": several, "handed": handed}

TEAMS: dict[str, Callable[[World], Any]] = {
    "single": single,
    "streaming": streaming,
    "round_robin": round_robin,
    "selector": selector,
    "swarm": swarm,
    "graph": graph,
    "nested": nested,
    "society": society,
    "magentic": magentic,
    "agent_tool": agent_tool,
    "custom": custom,
    "several": round_robin,
    "handed": swarm,
}
