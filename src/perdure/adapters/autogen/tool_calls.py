"""Run the agents' tools, code, human input and speaker selection as effects."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import wraps
from types import SimpleNamespace
from typing import Any

from perdure import Session
from perdure.adapters.autogen.agent_state import ChatAgents
from perdure.adapters.autogen.context import ChatContext, ToolContext, current_chat, current_tool
from perdure.adapters.autogen.openings import is_storable
from perdure.adapters.autogen.recorder import MessageRecorder
from perdure.errors import (
    EffectError,
    PerdureError,
    UnknownOutcomeError,
    UnstoredResultError,
    UsageError,
)
from perdure.journal.codec import to_text

# By tool name: an effect, or the options of `session.tool`.
ToolPolicies = Mapping[str, str | Mapping[str, Any]]

CODE_TOOL = "code"  # Name of code execution in `tools=` and in the record.

ERROR_MAX = 2_000  # Characters of an error's text; equals the recorded part, so replays match.

INSTRUCTIONS_KEY = "autogen:instructed"  # Key beside a tool's result: instructions that it changed.


class ToolError(Exception):
    """An error raised by a tool, as the framework reports it to the model."""


class ChatEffects:
    """Makes a chat's functions durable; reports errors of the session to the recorder."""

    def __init__(
        self,
        session: Session,
        chat: ChatContext,
        recorder: MessageRecorder,
        agents: ChatAgents,
        policies: ToolPolicies,
    ) -> None:
        self._session = session
        self._chat = chat
        self._recorder = recorder
        self._agents = agents
        self._policies = {name: _policy_options(name, policy) for name, policy in policies.items()}
        for name, options in self._policies.items():
            session.tool(_storable_result, name=name, **options)  # UsageError if they are invalid.

    def tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a tool that runs once per call of a chat; outside chats it runs as before."""
        options = self._policies.get(name, {"effect": "unsafe"})
        if inspect.iscoroutinefunction(function):
            return self._async_tool(name, function, options)
        durable = self._session.tool(self._tracking_changes(name, function), name=name, **options)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._chat.is_running or not _accepts(function, args, kwargs):
                return function(*args, **kwargs)
            return self._execute(name, lambda: durable(*args, **kwargs))

        return call

    def _async_tool(
        self, name: str, function: Callable[..., Any], options: dict[str, Any]
    ) -> Callable[..., Any]:
        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if not self._chat.is_running or not _accepts(function, args, kwargs):
                return await function(*args, **kwargs)
            # Created for each call: it awaits the function in the loop of this call.
            tracked = self._tracking_changes(name, _await_in_loop(function))
            durable = self._session.tool(tracked, name=name, **options)
            return await asyncio.to_thread(self._execute, name, lambda: durable(*args, **kwargs))

        return call

    def _tracking_changes(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with a storable result, including changes it makes to agents' state."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # A replayed call does not run: without these changes later prompts would differ.
            instructions, variables = self._agents.instructions(), self._agents.variables
            values = variables.current()
            result = _storable_result(function(*args, **kwargs), name)
            updated = self._agents.instructions()
            new_instructions = {
                name: text for name, text in updated.items() if text != instructions[name]
            }
            new_variables = variables.changed(values)
            if not new_instructions and not new_variables:
                return result
            return {
                INSTRUCTIONS_KEY: new_instructions,
                "variables": new_variables,
                "result": result,
            }

        return call

    def _execute(self, name: str, call: Callable[[], Any]) -> Any:
        self._recorder.proceed()
        # Set again, because a worker thread need not inherit the context.
        tokens = current_chat.set(self._chat), current_tool.set(ToolContext(self._chat, name))
        try:
            return self._apply_changes(call())
        except UnknownOutcomeError as error:  # An answer, so that the model can react to it.
            return f"UNKNOWN: {error.reason} Find out before it is called again."
        except UnstoredResultError as error:
            return f"The call succeeded. Its result of type {error.type} could not be stored."
        except EffectError as error:
            raise ToolError(error.reason) from error
        except PerdureError as error:
            # The framework would report it to the model and continue without a record.
            self._recorder.error = error
            raise
        except Exception as error:
            raise ToolError(str(error)[:ERROR_MAX]) from error
        finally:
            current_chat.reset(tokens[0])
            current_tool.reset(tokens[1])

    def _apply_changes(self, result: Any) -> Any:
        """Return a tool's result; apply the recorded changes to agents' state."""
        if not isinstance(result, dict) or INSTRUCTIONS_KEY not in result:
            return result
        self._agents.set_instructions(result[INSTRUCTIONS_KEY])
        self._agents.variables.assign(result.get("variables", {}))
        return result["result"]

    def ask(self, name: str, function: Callable[[], Any], **arguments: Any) -> Any:
        """Return the recorded answer of a person or a choice, or ask for it.

        A question without a recorded answer had no effect, so it may be asked again, as a model is.
        """
        if not self._chat.is_running:
            return function()
        self._recorder.proceed()
        return self._session.model(lambda **_: function(), name=name)(**arguments)

    async def a_ask(self, name: str, function: Callable[[], Any], **arguments: Any) -> Any:
        """Do the same as `ask`, for a function to be awaited."""
        if not self._chat.is_running:
            return await function()
        self._recorder.proceed()
        wait = _await_in_loop(function)
        model = self._session.model(lambda **_: wait(), name=name)
        return await asyncio.to_thread(lambda: model(**arguments))


def require_supported_result(name: str, function: Callable[..., Any]) -> None:
    """Raise UsageError if a tool's annotation says that it hands over to another agent."""
    result = getattr(function, "__annotations__", {}).get("return")
    _refuse_handoff(name, getattr(result, "__name__", result))


def _refuse_handoff(name: str, result: object) -> None:
    if result == "ReplyResult":  # By name: older versions do not have the class.
        reason = f"the tool {name!r} hands over to another agent, which is not supported"
        raise UsageError(f"{reason}: return a text, and use a GroupChat without a pattern")


def _storable_result(result: Any, name: str = "") -> Any:
    """Return a storable result; other values become text, as in the framework."""
    _refuse_handoff(name, type(result).__name__)
    return result if is_storable(result) else to_text(result, str)


def _await_in_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for another thread that awaits the async one in this thread's event loop.

    So the store does not block the loop, and the async function stays with its resources.
    """
    loop = asyncio.get_running_loop()

    def wait(*args: Any, **kwargs: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop)
        try:
            return future.result()
        except CancelledError as error:  # Not a failure: its outcome is unknown.
            raise asyncio.CancelledError from error

    wait.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wait


def _policy_options(name: str, policy: object) -> dict[str, Any]:
    if isinstance(policy, str):
        return {"effect": policy}
    if not isinstance(policy, Mapping):
        reason = f"give the effect of {name!r} as a str, or as the options of session.tool"
        raise UsageError(f"{reason}, not {type(policy).__name__}", "$.tools")
    return dict(policy)


def _accepts(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function accepts these arguments; the framework reports mismatches."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def durable_code_blocks(effects: ChatEffects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a durable version of an agent's `execute_code_blocks`: pairs of language and code."""
    durable = effects.tool(
        CODE_TOOL, _with_list_result(lambda blocks: run([tuple(block) for block in blocks]))
    )

    def call(code_blocks: Any) -> tuple[Any, ...]:
        result = durable(code_blocks=[list(block) for block in code_blocks])
        return (1, result) if isinstance(result, str) else tuple(result)

    return call


def durable_executor(effects: ChatEffects, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a durable version of a code executor's `execute_code_blocks`."""
    block_types: list[Any] = []

    def run_data(blocks: list[dict[str, Any]]) -> list[Any]:
        result = run([block_types[0](**block) for block in blocks])
        return [result.exit_code, result.output]

    durable = effects.tool(CODE_TOOL, _with_list_result(run_data))

    def call(code_blocks: Any) -> Any:
        # The record holds plain dicts: the executor gets back the block class it was called with.
        block_types[:] = [type(block) for block in code_blocks]
        blocks = [{"code": block.code, "language": block.language} for block in code_blocks]
        result = durable(code_blocks=blocks)
        code, output = (1, result) if isinstance(result, str) else result
        return SimpleNamespace(exit_code=code, output=output)

    return call


def _with_list_result(run: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    """Return a function with a storable result and a recorded `code_blocks` argument."""

    def code(code_blocks: list[Any]) -> list[Any]:
        return [*run(code_blocks)]

    return code
