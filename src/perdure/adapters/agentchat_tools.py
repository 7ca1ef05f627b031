"""Tools of a team as effects: a workbench that records calls stands in the place of an agent's."""

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

from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_journal import Journal, within
from perdure.adapters.agentchat_messages import Messages
from perdure.errors import EffectError, UnknownOutcomeError


class DurableWorkbench(Workbench):  # type: ignore[misc]
    """A workbench in the place of another, for one agent."""

    component_type = "workbench"

    def __init__(
        self,
        inner: Any,
        scope: str,
        journal: Journal,
        *,
        through: frozenset[str],
        messages: Messages,
    ) -> None:
        self._inner = inner
        self._scope = scope
        self._journal = journal
        self._through = through
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
        *_, result = [
            one async for one in self.calling(name, arguments, cancellation_token, call_id)
        ]
        return result

    async def calling(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        """Yield what a call of a tool tells, and last its result.

        A tool that is an agent or a team is not one effect: what it does is.
        """
        if name in self._through:
            failed: dict[str, str] = {}
            with within(failed):
                async for one in self._stream(name, arguments, token, call_id):
                    passed = isinstance(one, ToolResult) and one.is_error
                    yield await self._passed_over(one, failed) if passed else one
            return

        told: list[Any] = []

        async def run() -> dict[str, Any]:
            *rest, last = [one async for one in self._stream(name, arguments, token, call_id)]
            events = [one for one in rest if isinstance(one, BaseAgentEvent | BaseChatMessage)]
            told[:] = [*events, last]
            result: dict[str, Any] = last.model_dump(mode="json")
            return {
                "result": result,
                **({"events": [one.dump() for one in events]} if events else {}),
            }

        # What the tool told just now is handed on as it is; only from the record it is made again.
        for one in await self._outcome(name, arguments or {}, call_id or "", run, told):
            yield one

    async def _passed_over(self, told: Any, failed: dict[str, str]) -> Any:
        try:
            said = told.model_dump(mode="json")
            found = await self._journal.pass_over(self._scope, failed, said)
        except Exception as error:  # noqa: BLE001 - see `_outcome`
            return _failed(told.name, str(error))
        return ToolResult.model_validate(found)

    async def _outcome(
        self, name: str, arguments: Mapping[str, Any], call_id: str, run: Any, told: list[Any]
    ) -> list[Any]:
        # An exception here would leave the agent waiting for ever: it is told as a result, and
        # what must end the run is raised by the next call of a model.
        try:
            found = await self._journal.use(
                self._scope, name, id=f"tool:{call_id}", arguments=arguments, run=run
            )
            if told:
                return told
        except UnknownOutcomeError as error:
            return [_failed(name, f"Error: the outcome of this call is unknown. {error.reason}")]
        except EffectError as error:
            return [_failed(name, error.reason)]
        except Exception as error:  # noqa: BLE001 - see above
            return [_failed(name, str(error))]
        if "reconciled" in found:
            return [await self._reconciled(name, found["reconciled"])]
        events = self._messages.load(found.get("events", ()))
        return [*events, ToolResult.model_validate(found["result"])]

    async def _reconciled(self, name: str, result: Any) -> Any:
        tools = [tool for tool in tree.tools_of(self._inner) if tool.name == name]
        text = tools[0].return_value_as_string(result) if tools else str(result)
        return ToolResult(name=name, result=[TextResultContent(content=text)])

    async def _stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken | None,
        call_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        given = {"name": name, "arguments": arguments, "cancellation_token": token}
        if isinstance(self._inner, StaticStreamWorkbench):
            async for one in self._inner.call_tool_stream(**given, call_id=call_id):
                yield one
        else:
            yield await self._inner.call_tool(**given, call_id=call_id)

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
    """The same for a workbench whose tools tell what they do while they do it."""

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        async for one in self.calling(name, arguments, cancellation_token, call_id):
            yield one


def durable(
    inner: Any, scope: str, journal: Journal, *, through: frozenset[str], messages: Messages
) -> Any:
    """Return what stands in the place of a workbench."""
    streams = isinstance(inner, StaticStreamWorkbench)
    kind = DurableStreamWorkbench if streams else DurableWorkbench
    return kind(inner, scope, journal, through=through, messages=messages)


def in_context(tool: FunctionTool) -> Any:
    """Return a tool's function such that it finds `perdure.current_effect()`, or None if it does.

    The package runs blocking functions in a thread that knows nothing of their caller.
    """
    function = tool._func  # noqa: SLF001 - behind the version check of `agentchat_tree`
    if asyncio.iscoroutinefunction(function):
        return None

    async def run(**arguments: Any) -> Any:
        return await asyncio.to_thread(functools.partial(function, **arguments))

    return run


def _failed(name: str, text: str) -> Any:
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)
