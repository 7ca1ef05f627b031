"""The loop that makes a model's tool calls, each once. Its twin is in `toolbox_async`."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from threading import Semaphore
from typing import Any

from perdure import saying
from perdure.effects import effecting, tool_jobs, tools
from perdure.effects.effecting import Called
from perdure.effects.tool import Tool
from perdure.effects.tool_jobs import Job
from perdure.effects.tools import Given, Spec, Telling
from perdure.errors import ApprovalPendingError, EffectError, UnknownOutcomeError
from perdure.handle import Handle
from perdure.plans import require_int

Tools = Mapping[str, "Tool | Callable[..., Any]"] | Sequence["Tool | Callable[..., Any]"]


def run_tool_calls(
    handle: Handle, message: object | None, offered: Tools, *, parallel: int
) -> list[dict[str, Any]]:
    """Make the calls of a message, or all that are open, and return what the model is told."""
    require_int(parallel, "parallel")
    running = tools.running_turn(handle, "run_tool_calls")
    jobs = handle.run(tool_jobs.jobs(handle.replica, running.ownership.turn, message))
    box = _by_name(handle, offered)
    if parallel <= 1 or len(jobs) <= 1:
        return [_run(handle, job, box) for job in jobs]
    from concurrent.futures import ThreadPoolExecutor  # It brings `logging` along.

    slots, threads = None, min(parallel, len(jobs))
    if any(tool.spec.approval for tool in box.values()):
        # Those that wait for an approval have threads, but do not keep the others from running.
        slots, threads = Semaphore(parallel), len(jobs)
    with ThreadPoolExecutor(threads, "perdure tools") as pool:
        started = [pool.submit(copy_context().run, _run, handle, job, box, slots) for job in jobs]
    found = [future.exception() or future.result() for future in started]
    return answers(found)


def answers(found: Sequence[dict[str, Any] | BaseException]) -> list[dict[str, Any]]:
    """Return what the model is told, or raise the first error; those that wait come last."""
    errors = [one for one in found if isinstance(one, BaseException)]
    pending = [one for one in errors if isinstance(one, ApprovalPendingError)]
    if len(pending) != len(errors):
        raise next(one for one in errors if not isinstance(one, ApprovalPendingError))
    if pending:
        stream, tool, approval, store, _ = pending[0].args
        ids = tuple(one.approval for one in pending)
        raise ApprovalPendingError(stream, tool, approval, store, ids)
    return [one for one in found if not isinstance(one, BaseException)]


def _by_name(handle: Handle, offered: Tools) -> dict[str, Tool]:
    named = offered.items() if isinstance(offered, Mapping) else [("", one) for one in offered]
    found: dict[str, Tool] = {}
    for name, one in named:
        spec = one.spec if isinstance(one, Tool) else tools.require_spec(Spec(one, name, "unsafe"))
        # Whichever session a tool was made in, the call is one of this session.
        found[name or spec.name] = Tool(handle, spec)
    return found


def _run(
    handle: Handle, job: Job, box: Mapping[str, Tool], slots: Semaphore | None = None
) -> dict[str, Any]:
    """Make one call, when there is a slot. Whatever becomes of it, the model is told."""
    if slots is not None:
        with slots:
            return _make(handle, job, box, slots)
    return _make(handle, job, box, None)


def _make(
    handle: Handle, job: Job, box: Mapping[str, Tool], slots: Semaphore | None
) -> dict[str, Any]:
    tell = Telling(job.answer)
    tool = box.get(job.issued.call.name)
    problem = job.problem(box)
    if tool is None or problem:
        return _say(handle, tell, problem, failed=True)
    spec, arguments = tool.spec, job.issued.arguments
    packed, digest = effecting.encoded(handle.replica, arguments)
    failed = False
    call = Called(job.identity, spec.name, packed, digest, spec.policy, spec.version, spec.actor)
    try:
        result = tool.make(call, Given(arguments, (), arguments), tell, slots)
    except Exception as error:
        # What was recorded of the call, the model was told with it, and goes on.
        if tell.stored is None and not isinstance(error, UnknownOutcomeError | EffectError):
            raise
        result, failed = str(error), True
    if tell.stored is None:  # It was served from the record, where nobody had told the model.
        return _say(handle, tell, tools.text_of(result), failed=failed)
    return tell.stored


def _say(handle: Handle, tell: Telling, text: str, *, failed: bool) -> dict[str, Any]:
    running = tools.running_turn(handle, "run_tool_calls")
    said = tell.build(text, failed=failed)
    handle.write(saying.say_taken(handle.replica, [said], turn=running.ownership))
    return said.message
