"""The loop that makes a model's tool calls, each once. Its twin is in `toolbox`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure import saying
from perdure.effects import effecting, tool_jobs, tools
from perdure.effects.effecting import Called
from perdure.effects.tool_async import AsyncTool
from perdure.effects.tool_jobs import Job
from perdure.effects.toolbox import answers
from perdure.effects.tools import Given, Spec, Telling
from perdure.errors import EffectError, UnknownOutcomeError
from perdure.handle_async import AsyncHandle
from perdure.plans import require_int

Tools = Mapping[str, "AsyncTool | Callable[..., Any]"] | Sequence["AsyncTool | Callable[..., Any]"]


async def run_tool_calls(
    handle: AsyncHandle, message: object | None, offered: Tools, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all that are open, and return what the model is told."""
    require_int(parallel, "parallel")
    running = tools.running_turn(handle, "run_tool_calls")
    jobs = await handle.run(tool_jobs.jobs(handle.replica, running.ownership.turn, message))
    box = _by_name(handle, offered)
    limit = asyncio.Semaphore(max(parallel, 1))

    async def run(job: Job) -> dict[str, Any]:
        async with limit:
            # With one at a time they are made in order, and each waits for the one before it.
            return await _run(handle, job, box, limit if parallel > 1 else None)

    found = await asyncio.gather(*map(run, jobs), return_exceptions=True)
    return answers(found)


def _by_name(handle: AsyncHandle, offered: Tools) -> dict[str, AsyncTool]:
    named = offered.items() if isinstance(offered, Mapping) else [("", one) for one in offered]
    found: dict[str, AsyncTool] = {}
    for name, one in named:
        spec = (
            one.spec
            if isinstance(one, AsyncTool)
            else tools.require_spec(Spec(one, name, "unsafe"))
        )
        # Whichever session a tool was made in, the call is one of this session.
        found[name or spec.name] = AsyncTool(handle, spec)
    return found


async def _run(
    handle: AsyncHandle, job: Job, box: Mapping[str, AsyncTool], slots: asyncio.Semaphore | None
) -> dict[str, Any]:
    """Make one call. Whatever becomes of it, the model is told."""
    tell = Telling(job.answer)
    tool = box.get(job.issued.call.name)
    problem = job.problem(box)
    if tool is None or problem:
        return await _say(handle, tell, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = effecting.encoded(handle.replica, arguments)
    failed = False
    call = Called(job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor)
    try:
        result = await tool.make(call, Given(arguments, (), arguments), tell, slots)
    except Exception as error:
        # What was recorded of the call, the model was told with it, and goes on.
        if tell.told is None and not isinstance(error, UnknownOutcomeError | EffectError):
            raise
        result, failed = str(error), True
    if tell.told is None:  # It was served from the record, where nobody had told the model.
        return await _say(handle, tell, tools.text_of(result), failed=failed)
    return tell.told


async def _say(handle: AsyncHandle, tell: Telling, text: str, *, failed: bool) -> dict[str, Any]:
    running = tools.running_turn(handle, "run_tool_calls")
    said = tell.say(text, failed=failed)
    await handle.write(saying.say_taken(handle.replica, [said], turn=running.ownership))
    return said.message
