"""The state of a team between two runs: what the package saves, and what it forgets to save.

A team that runs is never asked for its state: what it would say is not a place to go on from.
"""

from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.teams import GraphFlow, SelectorGroupChat
from autogen_core.memory import ListMemory, MemoryContent

from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_tree import Node

State = dict[str, Any]


async def saved(root: Node) -> State:
    """Return the state of a team that does not run."""
    return {"state": await root.component.save_state(), "parts": await _parts(root)}


async def load(root: Node, state: State) -> None:
    """Bring a team that does not run to a state, whatever it had heard before."""
    await _settle_all(root)
    await root.component.load_state(state["state"])
    await _load_parts(root, state["parts"])


async def after_reply(node: Node) -> State:
    """Return the state in which a reply left an agent of which nothing is known."""
    parts = await _parts(node)
    parts.get(node.path, {}).pop("agent", None)
    return {**await _state_of(node.component), "parts": parts}


async def restore_reply(node: Node, state: State) -> None:
    """Bring an agent to the state in which a reply left it."""
    await _settle_all(node)
    await _restore(node.component, state)
    await _load_parts(node, state.get("parts", {}))


async def _settle_all(root: Node) -> None:
    for node in root.all:
        if tree.is_team(node):
            await _settle(node.component)


async def _parts(root: Node) -> dict[str, State]:
    found = {node.path: await _part(node) for node in root.all}
    return {path: part for path, part in found.items() if part}


async def _load_parts(root: Node, parts: Mapping[str, State]) -> None:
    for node in root.all:
        if part := parts.get(node.path):
            await _load_part(node, part)


async def _settle(team: Any) -> None:
    """Take back what a run that failed left in a team's manager, and is not part of a state."""
    manager = await tree.manager_of(team)
    manager._active_speakers.clear()  # noqa: SLF001
    if manager._termination_condition is not None:  # noqa: SLF001
        await manager._termination_condition.reset()  # noqa: SLF001


async def _part(node: Node) -> State:
    """Return what the package does not save of an agent or a team."""
    found = node.component
    if isinstance(found, GraphFlow):
        manager = await tree.manager_of(found)
        groups = manager._triggered_activation_groups  # noqa: SLF001
        return {"triggered": {name: sorted(one) for name, one in sorted(groups.items()) if one}}
    if isinstance(found, SelectorGroupChat):
        manager = await tree.manager_of(found)
        return {"context": await manager._model_context.save_state()}  # noqa: SLF001
    if isinstance(found, SocietyOfMindAgent):
        return {"context": await found.model_context.save_state()}
    if isinstance(found, MessageFilterAgent):
        return {"wrapped": await node.members[0].component.save_state()}
    if isinstance(found, AssistantAgent):
        return await _part_of_assistant(found)
    return {"agent": await _state_of(found)} if node.opaque else {}


async def _part_of_assistant(agent: Any) -> State:
    benches = [await one.save_state() for one in tree.workbenches(agent)]
    told = [one if any((one.get("tools") or {"": 1}).values()) else None for one in benches]
    notes = [
        [one.model_dump(mode="json") for one in memory.content]
        for memory in agent._memory or ()  # noqa: SLF001
        if isinstance(memory, ListMemory)
    ]
    return {
        **({"workbenches": told} if any(told) else {}),
        **({"memory": notes} if notes else {}),
    }


async def _load_part(node: Node, part: State) -> None:
    found = node.component
    if isinstance(found, GraphFlow):
        manager = await tree.manager_of(found)
        groups = {name: set(one) for name, one in part["triggered"].items()}
        manager._triggered_activation_groups = groups  # noqa: SLF001
    elif isinstance(found, SelectorGroupChat):
        manager = await tree.manager_of(found)  # Loading added the thread to what was there.
        await manager._model_context.load_state(part["context"])  # noqa: SLF001
    elif isinstance(found, SocietyOfMindAgent):
        await found.model_context.load_state(part["context"])
    elif isinstance(found, MessageFilterAgent):
        await node.members[0].component.load_state(part["wrapped"])
    elif isinstance(found, AssistantAgent):
        for bench, state in zip(tree.workbenches(found), part.get("workbenches", ()), strict=False):
            if state is not None:
                await bench.load_state(state)
        memories = [one for one in found._memory or () if isinstance(one, ListMemory)]  # noqa: SLF001
        for memory, notes in zip(memories, part.get("memory", ()), strict=False):
            memory.content = [MemoryContent.model_validate(one) for one in notes]
    else:
        await _restore(found, part["agent"])


async def _state_of(agent: Any) -> State:
    """Return an agent's state, with that of its model context, which some do not save."""
    context = getattr(agent, "model_context", None)
    if context is None or getattr(type(agent), "save_state", None) is AssistantAgent.save_state:
        return {"agent": await agent.save_state()}
    return {"agent": await agent.save_state(), "context": await context.save_state()}


async def _restore(agent: Any, state: State) -> None:
    await agent.load_state(state["agent"])
    if "context" in state:
        await agent.model_context.load_state(state["context"])
