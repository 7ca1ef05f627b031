"""Run the tools of an agent as effects: a tool's invoker is replaced by a recording one.

The replacement stays: outside of a durable run it calls the tool directly. So agents and tools can
be shared by concurrent runs, of any session or of none.
"""

import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agents import (
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    ItemHelpers,
    LocalShellTool,
    ShellTool,
    default_tool_error_function,
)
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.tool import resolve_function_tool_failure_error_function

from perdure.errors import UnsupportedError

if TYPE_CHECKING:
    from perdure.adapters.openai_agents.run import DurableRun

# The run that the current task belongs to.
current_run: ContextVar["DurableRun | None"] = ContextVar("perdure_openai_agents_run", default=None)

# The tools, each an agent, that the current task runs inside of, by their calls: "" in the run.
current_scope: ContextVar[str] = ContextVar("perdure_openai_agents_scope", default="")

_UNRECORDED = (ComputerTool, LocalShellTool, ApplyPatchTool)


def record_tool(tool: Any) -> None:
    """Make a tool one whose calls are effects in a durable run; UnsupportedError if it cannot be.

    Tools that the provider runs are left as they are.
    """
    if isinstance(tool, FunctionTool | CustomTool):
        if not isinstance(tool.on_invoke_tool, RecordingInvoker):
            tool.on_invoke_tool = RecordingInvoker(tool, tool.on_invoke_tool)
    elif isinstance(tool, _UNRECORDED) or (isinstance(tool, ShellTool) and tool.executor):
        raise UnsupportedError(
            f"the tool {tool.name!r} acts on this machine, and its calls cannot be recorded",
            "use a function tool in its place, or run the agent with Runner.run",
        )


class RecordingInvoker:
    """Calls a tool as an effect of the run that the current task belongs to, if there is one."""

    def __init__(self, tool: Any, inner: Callable[..., Any]) -> None:
        self._tool = tool
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # The SDK marks invokers with attributes.

    def __agents_bind_function_tool__(self, tool: Any) -> "RecordingInvoker":
        """Return the invoker of a copy of the tool. Called by the SDK."""
        bind = getattr(self._inner, "__agents_bind_function_tool__", None)
        return RecordingInvoker(tool, bind(tool) if callable(bind) else self._inner)

    async def __call__(self, context: Any, arguments: str) -> Any:
        run = current_run.get()
        if run is None:
            return await _resolved(self._inner(context, arguments))
        if getattr(self._tool, "_is_agent_tool", False):
            return await self._run_agent(run, context, arguments)

        failures: list[Exception] = []

        async def call(**_: Any) -> Any:
            # What the tool itself runs is no part of the run, but of this one effect.
            token = current_run.set(None)
            try:
                return self._output(
                    context, await _resolved(self._raw(context)(context, arguments))
                )
            except Exception as error:
                failures.append(error)
                raise
            finally:
                current_run.reset(token)

        result = await run.call_tool(self._tool.name, context, call, scope=current_scope.get())
        if failures and self._failure_function(context) is None:
            raise failures[0]  # The agent asked for it: no error of this tool becomes a result.
        return result

    async def _run_agent(self, run: "DurableRun", context: Any, arguments: str) -> Any:
        """Run a tool that is an agent: the calls of that agent are effects, and the tool is not."""
        before = current_scope.get()
        recorded = None if before else run.recorded_output(context.tool_call_id)
        if recorded is not None:
            return load_output(recorded)
        token = current_scope.set(f"{before}/{context.tool_call_id}")
        try:
            result = await self._inner(context, arguments)
        finally:
            current_scope.reset(token)
        scope_id = get_agent_tool_state_scope(context)
        nested = peek_agent_tool_run_result(context.tool_call, scope_id=scope_id)
        if not before and not getattr(nested, "interruptions", None):  # It does not wait.
            output = self._output(context, result)
            call_id = context.tool_call_id
            item = {"type": "function_call_output", "call_id": call_id, "output": output}
            await run.store_output(item)
        return result

    def _raw(self, context: Any) -> Callable[..., Any]:
        """Return the function to call: one that raises, where the SDK would make up a text."""
        function = self._failure_function(context)
        if function is None or function is default_tool_error_function:
            raw: Callable[..., Any] = getattr(self._inner, "_invoke_tool_impl", self._inner)
            return raw
        return self._inner

    def _output(self, context: Any, result: Any) -> Any:
        """Return a result as the model gets it: a text, or a list of texts, images and files."""
        tool = self._tool
        if not isinstance(tool, FunctionTool):
            return result if isinstance(result, str) else str(result)
        item = ItemHelpers.tool_call_output_item(
            context.tool_call,
            result,
            output_json_schema=tool.output_json_schema,
            output_type_adapter=tool._output_type_adapter,  # noqa: SLF001 - as the SDK itself does
        )
        return item["output"]

    def _failure_function(self, context: Any) -> Any:
        if not isinstance(self._tool, FunctionTool):
            return default_tool_error_function
        return resolve_function_tool_failure_error_function(self._tool, context)


async def _resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def load_output(output: Any) -> Any:
    """Return a recorded output as the result of a tool: a text, or the contents it consists of."""
    text = output if isinstance(output, str) else json.dumps(output, separators=(",", ":"))
    if not text.startswith('[{"type":"input_'):
        return text
    try:
        parts = json.loads(text)
        return [{**part, "type": part["type"].removeprefix("input_")} for part in parts]
    except (ValueError, TypeError, KeyError, AttributeError):
        return text


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call by name; as a text under "input" if they are no object."""
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        return {"input": arguments}
    return parsed if isinstance(parsed, dict) else {"input": arguments}
