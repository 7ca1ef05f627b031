"""Save and load a team's state between runs, including parts that the package does not save.

A running team is never asked for its state: a run cannot continue from it.
"""

from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.teams import GraphFlow, SelectorGroupChat
from autogen_core.memory import ListMemory, MemoryContent

from perdure.adapters.agentchat import introspection
from perdure.adapters.agentchat.introspection import TeamNode

# `state` is the package's own; `parts` has what it leaves out, by path. It is stored.
TeamState = dict[str, Any]


async def save_state(root: TeamNode) -> TeamState:
    """Return the state of a team that is not running."""
    return {"state": await root.component.save_state(), "parts": await _save_parts(root)}


async def load_state(root: TeamNode, state: TeamState) -> None:
    """Load a state into a team that is not running, whatever its state was before."""
    await _reset_managers(root)
    await root.component.load_state(state["state"])
    # After the package's: its `load_state` changes some of the same objects.
    await _load_parts(root, state["parts"])


async def save_reply_state(node: TeamNode) -> TeamState:
    """Return the state of an opaque agent after a reply."""
    parts = await _save_parts(node)
    parts.get(node.path, {}).pop("agent", None)  # Saved below, beside the parts.
    return {**await _save_agent(node.component), "parts": parts}


async def load_reply_state(node: TeamNode, state: TeamState) -> None:
    """Restore an agent to its state after a reply."""
    await _reset_managers(node)
    await _load_agent(node.component, state)
    await _load_parts(node, state.get("parts", {}))


async def _reset_managers(root: TeamNode) -> None:
    for node in root.all:
        if introspection.is_team(node):
            await _reset_manager(node.component)


async def _save_parts(root: TeamNode) -> dict[str, TeamState]:
    by_path = {node.path: await _save_part(node) for node in root.all}
    return {path: part for path, part in by_path.items() if part}


async def _load_parts(root: TeamNode, parts: Mapping[str, TeamState]) -> None:
    for node in root.all:
        if part := parts.get(node.path):
            await _load_part(node, part)


async def _reset_manager(team: Any) -> None:
    """Reset leftovers of a failed run in a team's manager that are not part of its state."""
    manager = await introspection.manager_of(team)
    # A speaker that was interrupted would be waited for in the next run.
    manager._active_speakers.clear()  # noqa: SLF001
    if manager._termination_condition is not None:  # noqa: SLF001
        await manager._termination_condition.reset()  # noqa: SLF001


async def _save_part(node: TeamNode) -> TeamState:
    """Return the state of an agent or a team that the package does not save."""
    component = node.component
    if isinstance(component, GraphFlow):
        manager = await introspection.manager_of(component)
        # The package does not save these, and a cycle depends on them.
        groups = manager._triggered_activation_groups  # noqa: SLF001
        return {
            "triggered": {
                name: sorted(speakers) for name, speakers in sorted(groups.items()) if speakers
            }
        }
    if isinstance(component, SelectorGroupChat):
        manager = await introspection.manager_of(component)
        return {"context": await manager._model_context.save_state()}  # noqa: SLF001
    if isinstance(component, SocietyOfMindAgent):
        return {"context": await component.model_context.save_state()}
    if isinstance(component, MessageFilterAgent):
        return {"wrapped": await node.members[0].component.save_state()}
    if isinstance(component, AssistantAgent):
        return await _save_assistant(component)
    return {"agent": await _save_agent(component)} if node.opaque else {}


async def _save_assistant(agent: Any) -> TeamState:
    states = [await bench.save_state() for bench in introspection.workbenches(agent)]
    # A state with only empty tool states is dropped; one without `tools` is kept.
    workbenches = [
        state if any((state.get("tools") or {"": 1}).values()) else None for state in states
    ]
    notes = [
        [note.model_dump(mode="json") for note in memory.content]
        for memory in agent._memory or ()  # noqa: SLF001
        if isinstance(memory, ListMemory)
    ]
    return {
        **({"workbenches": workbenches} if any(workbenches) else {}),
        **({"memory": notes} if notes else {}),
    }


async def _load_part(node: TeamNode, part: TeamState) -> None:
    component = node.component
    if isinstance(component, GraphFlow):
        manager = await introspection.manager_of(component)
        groups = {name: set(speakers) for name, speakers in part["triggered"].items()}
        manager._triggered_activation_groups = groups  # noqa: SLF001
    elif isinstance(component, SelectorGroupChat):
        # The team's `load_state` appended its thread to the existing context: replace that.
        manager = await introspection.manager_of(component)
        await manager._model_context.load_state(part["context"])  # noqa: SLF001
    elif isinstance(component, SocietyOfMindAgent):
        await component.model_context.load_state(part["context"])
    elif isinstance(component, MessageFilterAgent):
        await node.members[0].component.load_state(part["wrapped"])
    elif isinstance(component, AssistantAgent):
        # Not strict: workbenches and memories may have been added since.
        for bench, state in zip(
            introspection.workbenches(component), part.get("workbenches", ()), strict=False
        ):
            if state is not None:
                await bench.load_state(state)
        memories = [memory for memory in component._memory or () if isinstance(memory, ListMemory)]  # noqa: SLF001
        for memory, notes in zip(memories, part.get("memory", ()), strict=False):
            memory.content = [MemoryContent.model_validate(note) for note in notes]
    else:
        await _load_agent(component, part["agent"])


async def _save_agent(agent: Any) -> TeamState:
    """Return an agent's state and its model context's, which some agents do not save."""
    context = getattr(agent, "model_context", None)
    if context is None or getattr(type(agent), "save_state", None) is AssistantAgent.save_state:
        return {"agent": await agent.save_state()}
    return {"agent": await agent.save_state(), "context": await context.save_state()}


async def _load_agent(agent: Any, state: TeamState) -> None:
    await agent.load_state(state["agent"])
    if "context" in state:
        await agent.model_context.load_state(state["context"])
