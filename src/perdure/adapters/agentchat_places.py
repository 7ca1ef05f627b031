"""Put recording models, tools and people into a team, in the places of its own."""

from collections.abc import Callable
from typing import Any

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.teams import MagenticOneGroupChat, SelectorGroupChat
from autogen_core.tools import FunctionTool

from perdure.adapters import agentchat_agents as agents
from perdure.adapters import agentchat_tools as tools
from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_journal import Journal
from perdure.adapters.agentchat_messages import Messages
from perdure.adapters.agentchat_model import DurableClient
from perdure.adapters.agentchat_tree import Node, Places
from perdure.errors import UsageError

CLIENT = "_model_client"
BENCHES = "_workbench"


async def stand_in(root: Node, journal: Journal, places: Places, messages: Messages) -> None:
    """Have everything that a team asks and does recorded; `places` takes it back."""
    for name in ("run", "run_stream"):
        places.put(root.component, name, _kept(getattr(root.component, name), journal))
    done: set[int] = set()
    for node in root.seen:
        if id(node.component) not in done:  # An agent can be the tool of several.
            done.add(id(node.component))
            await _stand_in(node, journal, places, messages)


def _kept(run: Callable[..., Any], journal: Journal) -> Callable[..., Any]:
    """Return a team's own way of running, for the one that keeps it and nobody else."""

    def kept(*args: Any, **options: Any) -> Any:
        if not journal.active:
            reason = "what a team that is kept does of itself would not be recorded"
            raise UsageError(f"{reason}: use run or run_stream of what persist() returned")
        return run(*args, **options)

    return kept


async def _stand_in(node: Node, journal: Journal, places: Places, messages: Messages) -> None:
    found, path = node.component, node.path
    if node.opaque:
        places.put(found, "on_messages_stream", agents.replying(node, journal, messages))
    elif isinstance(found, SelectorGroupChat | MagenticOneGroupChat):
        manager = await tree.manager_of(found)
        client = DurableClient(getattr(manager, CLIENT), f"{path}:manager", journal)
        places.put(manager, CLIENT, client)
        places.put(found, CLIENT, client)  # For a manager that is made anew.
    elif isinstance(found, AssistantAgent):
        places.put(found, CLIENT, DurableClient(getattr(found, CLIENT), path, journal))
        _stand_in_for_tools(found, path, journal, places, messages)
    elif isinstance(found, SocietyOfMindAgent):
        places.put(found, CLIENT, DurableClient(getattr(found, CLIENT), path, journal))
    elif isinstance(found, UserProxyAgent):
        places.put(found, "input_func", agents.asking(found, path, journal))
        places.put(found, "_is_async", True)  # noqa: FBT003 - an attribute, whatever its value


def _stand_in_for_tools(
    agent: Any, path: str, journal: Journal, places: Places, messages: Messages
) -> None:
    through = frozenset(tool.name for tool in tree.runners(agent))
    benches = tree.workbenches(agent)
    for tool in [tool for bench in benches for tool in tree.tools_of(bench)]:
        function = tools.in_context(tool) if isinstance(tool, FunctionTool) else None
        if function is not None:
            places.put(tool, "_func", function)
    standing = [
        tools.durable(bench, path, journal, through=through, messages=messages) for bench in benches
    ]
    places.put(agent, BENCHES, standing)
