"""Run the tool calls of a model's message, each once, and store the results for the model."""

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
    """Make the calls of a message, or all open calls, and return the result messages."""
    require_int(parallel, "parallel")
    running = tools.running_turn(handle, "run_tool_calls")
    jobs = await handle.run(tool_jobs.jobs(handle.replica, running.ownership.turn, message))
    by_name = _by_name(handle, offered)
    limit = asyncio.Semaphore(max(parallel, 1))

    async def run(job: Job) -> dict[str, Any]:
        async with limit:
            # With parallel=1 the slot is kept while a call waits for its approval, so that the
            # calls are made strictly in order.
            return await _run(handle, job, by_name, limit if parallel > 1 else None)

    results = await asyncio.gather(*map(run, jobs), return_exceptions=True)
    return answers(results)


def _by_name(handle: AsyncHandle, offered: Tools) -> dict[str, AsyncTool]:
    items = offered.items() if isinstance(offered, Mapping) else [("", tool) for tool in offered]
    by_name: dict[str, AsyncTool] = {}
    for name, tool in items:
        spec = (
            tool.spec
            if isinstance(tool, AsyncTool)
            else tools.require_spec(Spec(tool, name, "unsafe"))
        )
        # The call belongs to this session, even if the tool was created by another one.
        by_name[name or spec.name] = AsyncTool(handle, spec)
    return by_name


async def _run(
    handle: AsyncHandle, job: Job, by_name: Mapping[str, AsyncTool], slots: asyncio.Semaphore | None
) -> dict[str, Any]:
    """Make one call and return its result message, which is stored whatever the outcome is."""
    reply = Telling(job.answer)
    tool = by_name.get(job.issued.call.name)
    problem = job.problem(by_name)
    if tool is None or problem:
        return await _say(handle, reply, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = effecting.encoded(handle.replica, arguments)
    failed = False
    call = Called(job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor)
    try:
        result = await tool.make(call, Given(arguments, (), arguments), reply, slots)
    except Exception as error:
        # An error that was stored with a message for the model does not stop the agent.
        if reply.stored is None and not isinstance(error, UnknownOutcomeError | EffectError):
            raise
        result, failed = str(error), True
    if reply.stored is None:  # The outcome was recorded earlier, without a message for the model.
        return await _say(handle, reply, tools.text_of(result), failed=failed)
    return reply.stored


async def _say(handle: AsyncHandle, reply: Telling, text: str, *, failed: bool) -> dict[str, Any]:
    running = tools.running_turn(handle, "run_tool_calls")
    message = reply.build(text, failed=failed)
    await handle.write(saying.say_taken(handle.replica, [message], turn=running.ownership))
    return message.message
