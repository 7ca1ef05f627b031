"""The loop that makes a model's tool calls, each once. Its twin is in `toolbox`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure import boxing, effecting, saying, tools
from perdure.boxing import Job
from perdure.effecting import Called
from perdure.errors import EffectError, UnknownOutcomeError
from perdure.handle_async import AsyncHandle
from perdure.intake import Taken
from perdure.tool_async import AsyncTool
from perdure.tools import Given, Spec

Tools = Mapping[str, "AsyncTool | Callable[..., Any]"] | Sequence["AsyncTool | Callable[..., Any]"]


async def run_tool_calls(
    handle: AsyncHandle, message: object | None, offered: Tools, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all that are open, and return what the model is told."""
    running = tools.running_turn(handle, "run_tool_calls")
    jobs = await handle.run(boxing.jobs(handle.replica, running.ownership.turn, message))
    box = _by_name(handle, offered)
    limit = asyncio.Semaphore(max(parallel, 1))

    async def run(job: Job) -> dict[str, Any]:
        async with limit:
            return await _run(handle, job, box)

    return [*await asyncio.gather(*map(run, jobs))]


def _by_name(handle: AsyncHandle, offered: Tools) -> dict[str, AsyncTool]:
    named = offered.items() if isinstance(offered, Mapping) else [("", one) for one in offered]
    found: dict[str, AsyncTool] = {}
    for name, one in named:
        tool = one
        if not isinstance(tool, AsyncTool):
            tool = AsyncTool(handle, tools.require_spec(Spec(tool, name, "unsafe")))
        found[name or tool.name] = tool
    return found


async def _run(handle: AsyncHandle, job: Job, box: Mapping[str, AsyncTool]) -> dict[str, Any]:
    """Make one call. Whatever becomes of it, the model is told."""
    told: list[dict[str, Any]] = []

    def tell(text: str) -> Taken:
        told.append(job.answer(text))
        return Taken(told[-1], {})

    tool = box.get(job.issued.call.name)
    problem = job.problem(box)
    if tool is None or problem:
        running = tools.running_turn(handle, job.issued.call.name)
        plan = saying.say_taken(handle.replica, [tell(problem)], turn=running.ownership)
        await handle.write(plan)
        return told[-1]
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = effecting.encoded(handle.replica, arguments)
    call = Called(job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor)
    try:
        await tool.make(call, Given(arguments, (), arguments), tell)
    except (UnknownOutcomeError, EffectError):
        pass  # The model was told so when it was recorded.
    except Exception as error:
        if not told:
            raise
        del error  # The model was told, and goes on.
    return told[-1] if told else job.answer("")
