"""Run a team's tools as effects: a recording workbench replaces an agent's own.

Each call is one effect, with the events that its tool streams. A tool that is itself an agent or a
team is not: the calls of its members are recorded. Everything else is passed on to the wrapped
workbench.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_core import CancellationToken
from autogen_core.tools import (
    FunctionTool,
    StaticStreamWorkbench,
    TextResultContent,
    ToolResult,
    Workbench,
)

from perdure.adapters.agentchat import introspection
from perdure.adapters.agentchat.messages import MessageLoader
from perdure.adapters.agentchat.run_log import RunLog, collecting_failures
from perdure.errors import (
    EffectError,
    PerdureError,
    ToolFailureError,
    UnknownOutcomeError,
    UnstoredResultError,
)


class DurableWorkbench(Workbench):  # type: ignore[misc]
    """A workbench that wraps another one, for one agent."""

    component_type = "workbench"

    def __init__(
        self,
        inner: Any,
        scope: str,
        run_log: RunLog,
        *,
        runners: frozenset[str],
        messages: MessageLoader,
    ) -> None:
        self._inner = inner
        self._scope = scope
        self._run_log = run_log
        self._runners = runners  # Names of the tools that are agents or teams.
        self._messages = messages

    async def list_tools(self) -> Any:
        return await self._inner.list_tools()

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> Any:
        # The events have no reader here, and are recorded all the same.
        *_, result = [
            event async for event in self.stream_call(name, arguments, cancellation_token, call_id)
        ]
        return result

    async def stream_call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the events of a tool call, and last its result.

        A tool that is an agent or a team is not one effect: its own calls are.
        """
        if name in self._runners:
            failed: dict[str, str] = {}
            with collecting_failures(failed):
                async for event in self._stream(name, arguments, token, call_id):
                    is_error = isinstance(event, ToolResult) and event.is_error
                    yield await self._swallowed(event, failed) if is_error else event
            return

        events_and_result: list[Any] = []

        async def run(recorded: dict[str, Any]) -> dict[str, Any]:
            passed = None if arguments is None else recorded
            try:
                *rest, last = [event async for event in self._stream(name, passed, token, call_id)]
            except PerdureError:
                raise
            except Exception as error:  # noqa: BLE001 - some workbenches return it, others raise it
                rest, last = [], _error_result(name, str(error))
            events = [
                event for event in rest if isinstance(event, BaseAgentEvent | BaseChatMessage)
            ]
            events_and_result[:] = [*events, last]
            outcome: dict[str, Any] = {"result": last.model_dump(mode="json")}
            if events:
                outcome["events"] = [event.dump() for event in events]
            if last.is_error:  # The package makes a result of the tool's exception.
                raise ToolFailureError(last.to_text(), outcome)
            return outcome

        # Live events are passed on as they are; only replayed ones are rebuilt from the record.
        for event in await self._outcome(
            name, arguments or {}, call_id or "", run, events_and_result
        ):
            yield event

    async def _swallowed(self, result: Any, failed: dict[str, str]) -> Any:
        """Record model failures behind a tool's error result; return the result."""
        try:
            data = result.model_dump(mode="json")
            recorded = await self._run_log.record_swallowed(self._scope, failed, data)
        except Exception as error:  # noqa: BLE001 - see `_outcome`
            return _error_result(result.name, str(error))
        return ToolResult.model_validate(recorded)

    async def _outcome(
        self, name: str, arguments: Mapping[str, Any], call_id: str, run: Any, live: list[Any]
    ) -> list[Any]:
        """Return the events and the result of a call, live or recorded."""
        # An exception here would leave the agent waiting forever: it is returned as a result, and
        # an error that must end the run is raised by the next model call.
        try:
            outcome = await self._run_log.use(
                self._scope, name, id=f"tool:{call_id}", arguments=arguments, run=run
            )
        except ToolFailureError as error:  # Of `run`, which was called just now.
            outcome = error.result
        except UnknownOutcomeError as error:
            return [
                _error_result(name, f"Error: the outcome of this call is unknown. {error.reason}")
            ]
        except UnstoredResultError as error:  # Too large, or not text that UTF-8 can encode.
            told = f"The call succeeded. Its result of type {error.type} could not be stored."
            return [ToolResult(name=name, result=[TextResultContent(content=told)])]
        except EffectError as error:
            if error.result is None:  # It could not be stored, or there is none.
                return [_error_result(name, error.reason)]
            outcome = error.result
        except Exception as error:  # noqa: BLE001 - see above
            return [_error_result(name, str(error))]
        if live:  # `run` was called just now.
            return live
        if "reconciled" in outcome:
            return [await self._reconciled(name, outcome["reconciled"])]
        events = self._messages.load(outcome.get("events", ()))
        return [*events, ToolResult.model_validate(outcome["result"])]

    async def _reconciled(self, name: str, result: Any) -> Any:
        """Return the result of a reconciled call, formatted by its tool."""
        tools = [tool for tool in introspection.tools_of(self._inner) if tool.name == name]
        text = tools[0].return_value_as_string(result) if tools else str(result)
        return ToolResult(name=name, result=[TextResultContent(content=text)])

    async def _stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        # Other workbenches are called without streaming.
        options = {"name": name, "arguments": arguments, "cancellation_token": token}
        if isinstance(self._inner, StaticStreamWorkbench):
            async for event in self._inner.call_tool_stream(**options, call_id=call_id):
                yield event
        else:
            yield await self._inner.call_tool(**options, call_id=call_id)

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def reset(self) -> None:
        await self._inner.reset()

    async def save_state(self) -> Any:
        return await self._inner.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        await self._inner.load_state(state)


class DurableStreamWorkbench(DurableWorkbench, StaticStreamWorkbench):  # type: ignore[misc]
    """A durable workbench whose tools stream events while they run."""

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        async for event in self.stream_call(name, arguments, cancellation_token, call_id):
            yield event


def durable_workbench(
    inner: Any, scope: str, run_log: RunLog, *, runners: frozenset[str], messages: MessageLoader
) -> Any:
    """Return a durable workbench for a workbench."""
    streams = isinstance(inner, StaticStreamWorkbench)
    kind = DurableStreamWorkbench if streams else DurableWorkbench
    return kind(inner, scope, run_log, runners=runners, messages=messages)


def with_caller_context(tool: FunctionTool) -> Any:
    """Return a tool's function that sees `perdure.current_effect()`; None if it already does.

    The package runs blocking functions in a thread without their caller's context.
    """
    function = tool._func  # noqa: SLF001 - behind the version check of `introspection`
    if asyncio.iscoroutinefunction(function):
        return None

    async def run(**arguments: Any) -> Any:
        return await asyncio.to_thread(functools.partial(function, **arguments))

    return run


def _error_result(name: str, text: str) -> Any:
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)
