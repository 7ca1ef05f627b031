"""Patch a team's models, tools and people with recording ones."""

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


async def stand_in(root: Node, run_log: Journal, patches: Places, messages: Messages) -> None:
    """Patch a team so that everything it asks and does is recorded; `patches` undoes it."""
    for name in ("run", "run_stream"):
        patches.put(root.component, name, _kept(getattr(root.component, name), run_log))
    done: set[int] = set()
    for node in root.observed:
        if id(node.component) not in done:  # An agent can be a tool of several others.
            done.add(id(node.component))
            await _stand_in(node, run_log, patches, messages)


def _kept(run: Callable[..., Any], run_log: Journal) -> Callable[..., Any]:
    """Return a team's own run method, which raises UsageError unless the durable team calls it."""

    def guarded(*args: Any, **options: Any) -> Any:
        if not run_log.active:
            reason = "a run that a persisted team starts itself would not be recorded"
            raise UsageError(f"{reason}: use run or run_stream of what persist() returned")
        return run(*args, **options)

    return guarded


async def _stand_in(node: Node, run_log: Journal, patches: Places, messages: Messages) -> None:
    component, path = node.component, node.path
    if node.opaque:
        patches.put(component, "on_messages_stream", agents.replying(node, run_log, messages))
    elif isinstance(component, SelectorGroupChat | MagenticOneGroupChat):
        manager = await tree.manager_of(component)
        client = DurableClient(getattr(manager, CLIENT), f"{path}:manager", run_log)
        patches.put(manager, CLIENT, client)
        patches.put(component, CLIENT, client)  # For a manager that is created later.
    elif isinstance(component, AssistantAgent):
        patches.put(component, CLIENT, DurableClient(getattr(component, CLIENT), path, run_log))
        _stand_in_for_tools(component, path, run_log, patches, messages)
    elif isinstance(component, SocietyOfMindAgent):
        patches.put(component, CLIENT, DurableClient(getattr(component, CLIENT), path, run_log))
    elif isinstance(component, UserProxyAgent):
        patches.put(component, "input_func", agents.asking(component, path, run_log))
        patches.put(component, "_is_async", True)  # noqa: FBT003 - an attribute's value


def _stand_in_for_tools(
    agent: Any, path: str, run_log: Journal, patches: Places, messages: Messages
) -> None:
    runners = frozenset(tool.name for tool in tree.runners(agent))
    benches = tree.workbenches(agent)
    for tool in [tool for bench in benches for tool in tree.tools_of(bench)]:
        function = tools.in_context(tool) if isinstance(tool, FunctionTool) else None
        if function is not None:
            patches.put(tool, "_func", function)
    durable_benches = [
        tools.durable(bench, path, run_log, runners=runners, messages=messages) for bench in benches
    ]
    patches.put(agent, BENCHES, durable_benches)
