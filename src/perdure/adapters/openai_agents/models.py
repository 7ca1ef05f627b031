"""Record what models answer: the methods of a model are replaced by recording ones.

The replacement stays: outside of a durable run it asks the model directly. So a model can be shared
by concurrent runs, of any session or of none. A model keeps its class, which the SDK looks at.
"""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelProvider, RunHooks

from perdure.adapters.openai_agents.items import Item
from perdure.adapters.openai_agents.run import DurableRun
from perdure.adapters.openai_agents.tools import current_run, current_scope, record_tool

_MARK = "_perdure_records"

NAME_MAX = 128  # characters of a model's name in the record


def record_model(model: Any) -> Any:
    """Return a model whose answers are recorded in a durable run: the same object."""
    if getattr(model, _MARK, False):
        return model
    name = str(getattr(model, "model", "") or type(model).__name__)[:NAME_MAX]
    get, stream = model.get_response, model.stream_response

    async def get_response(*args: Any, **options: Any) -> Any:
        run = current_run.get()
        if run is None:
            return await get(*args, **options)
        request = _request(args, options)
        scope = run.scope_of(current_scope.get(), request["input"])
        return await run.ask(scope, name, request, lambda: get(*args, **options))

    async def stream_response(*args: Any, **options: Any) -> AsyncIterator[Any]:
        run = current_run.get()
        if run is None:
            events = stream(*args, **options)
        else:
            request = _request(args, options)
            scope = run.scope_of(current_scope.get(), request["input"])
            events = run.stream(scope, name, request, lambda: stream(*args, **options))
        async for event in events:
            yield event

    model.get_response, model.stream_response = get_response, stream_response
    setattr(model, _MARK, True)
    return model


def _request(args: tuple[Any, ...], options: dict[str, Any]) -> Item:
    """Return what identifies a request, and make the tools that it offers effects."""
    names = ("system_instructions", "input", "model_settings", "tools")
    given = {**dict(zip(names, args, strict=False)), **options}
    tools = given.get("tools") or []
    for tool in tools:
        record_tool(tool)
    return {
        "instructions": given.get("system_instructions"),
        "input": given.get("input"),
        "tools": [tool.name for tool in tools],
    }


class RecordingProvider(ModelProvider):  # type: ignore[misc]
    """A provider whose models record their answers."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def get_model(self, model_name: str | None) -> Any:
        return record_model(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()


class RecordingHooks(RunHooks):  # type: ignore[misc]
    """Hooks of a run that see who speaks, and record the models and tools that agents bring."""

    def __init__(self, run: DurableRun, inner: Any) -> None:
        self._run = run
        self._inner = inner

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        record_agent(agent)
        await self._pass("on_agent_start", context, agent)

    async def on_llm_start(self, context: Any, agent: Any, system: Any, input: Any) -> None:
        self._run.agent, self._run.expected_input = agent.name, input
        await self._pass("on_llm_start", context, agent, system, input)

    async def on_llm_end(self, *args: Any) -> None:
        await self._pass("on_llm_end", *args)

    async def on_agent_end(self, *args: Any) -> None:
        await self._pass("on_agent_end", *args)

    async def on_handoff(self, *args: Any, **options: Any) -> None:
        await self._pass("on_handoff", *args, **options)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        record_tool(tool)
        await self._pass("on_tool_start", context, agent, tool)

    async def on_tool_end(self, *args: Any) -> None:
        await self._pass("on_tool_end", *args)

    async def _pass(self, name: str, *args: Any, **options: Any) -> None:
        if self._inner is not None:
            await getattr(self._inner, name)(*args, **options)


def record_agent(agent: Any, seen: set[int] | None = None) -> None:
    """Make the model and tools of an agent recording ones, and those of agents that it uses."""
    seen = set() if seen is None else seen
    if id(agent) in seen:
        return
    seen.add(id(agent))
    if isinstance(agent.model, Model):
        record_model(agent.model)
    for tool in agent.tools:
        record_tool(tool)
        inner = getattr(tool, "_agent_instance", None)
        if inner is not None:
            record_agent(inner, seen)
    for target in agent.handoffs:
        if isinstance(target, Agent):
            record_agent(target, seen)
