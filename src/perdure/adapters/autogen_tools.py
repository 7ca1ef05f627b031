"""What agents do outside of the conversation, as effects: tools, human input, chosen speakers."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any

from perdure import (
    EffectError,
    PerdureError,
    Session,
    UnknownOutcomeError,
    UsageError,
)
from perdure.adapters.autogen_classes import Asking, Calling, calling, inside
from perdure.adapters.autogen_openings import storable
from perdure.adapters.autogen_record import Recorder
from perdure.adapters.autogen_state import Agents

ERROR_LENGTH = 2_000  # As much of an error's text as the record has: a replay says the same.

INSTRUCTED = "autogen:instructed"  # With a tool's result: instructions that it changed.

Policies = Mapping[str, str | Mapping[str, Any]]


class ToolError(Exception):
    """What a tool raised, as the framework tells the model of it."""


class Effects:
    """Makes functions of a chat durable; tells the recorder what could not be recorded."""

    def __init__(
        self,
        session: Session,
        chat: Asking,
        recorder: Recorder,
        agents: Agents,
        policies: Policies,
    ) -> None:
        self._session = session
        self._chat = chat
        self._recorder = recorder
        self._agents = agents
        self._policies = {name: _options(name, one) for name, one in policies.items()}
        for name, options in self._policies.items():
            session.tool(_plain, name=name, **options)  # It says what is wrong with them.

    def tool(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a tool that runs once for each call of a chat; outside of chats, as before."""
        options = self._policies.get(name, {"effect": "unsafe"})
        if inspect.iscoroutinefunction(function):
            return self._awaited(name, function, options)
        durable = self._session.tool(self._watched(name, function), name=name, **options)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._chat.talking or not _fits(function, args, kwargs):
                return function(*args, **kwargs)
            return self._made(name, lambda: durable(*args, **kwargs))

        return call

    def _awaited(
        self, name: str, function: Callable[..., Any], options: dict[str, Any]
    ) -> Callable[..., Any]:
        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if not self._chat.talking or not _fits(function, args, kwargs):
                return await function(*args, **kwargs)
            watched = self._watched(name, _waiting(function))
            durable = self._session.tool(watched, name=name, **options)
            return await asyncio.to_thread(self._made, name, lambda: durable(*args, **kwargs))

        return call

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose result can be stored, with what it told the agents to be."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, variables = self._agents.instructions(), self._agents.variables
            known = variables.now()
            result = _plain(function(*args, **kwargs), name)
            now = self._agents.instructions()
            told = {name: text for name, text in now.items() if text != before[name]}
            learnt = variables.changed(known)
            if not told and not learnt:
                return result
            return {INSTRUCTED: told, "variables": learnt, "result": result}

        return call

    def _made(self, name: str, call: Callable[[], Any]) -> Any:
        self._recorder.go_on()
        tokens = inside.set(self._chat), calling.set(Calling(self._chat, name))
        try:
            return self._heeded(call())
        except UnknownOutcomeError as error:
            return f"UNKNOWN: {error.reason} Find out before it is called again."
        except EffectError as error:
            raise ToolError(error.reason) from error
        except PerdureError as error:
            # The framework would tell the model of it and go on, without a record.
            self._recorder.broken = error
            raise
        except Exception as error:
            raise ToolError(str(error)[:ERROR_LENGTH]) from error
        finally:
            inside.reset(tokens[0])
            calling.reset(tokens[1])

    def _heeded(self, result: Any) -> Any:
        """Return a tool's result; have agents be what it, or the record of it, told them to be."""
        if not isinstance(result, dict) or INSTRUCTED not in result:
            return result
        self._agents.instruct(result[INSTRUCTED])
        self._agents.variables.put(result.get("variables", {}))
        return result["result"]

    def answer(self, name: str, function: Callable[[], Any], **arguments: Any) -> Any:
        """Return what somebody chose or said; what was recorded of it, or else ask again.

        Whoever was asked and not heard did nothing: it is asked as a model is, again and again.
        """
        if not self._chat.talking:
            return function()
        self._recorder.go_on()
        return self._session.model(lambda **_: function(), name=name)(**arguments)

    async def a_answer(self, name: str, function: Callable[[], Any], **arguments: Any) -> Any:
        """As `answer`, for a function to be awaited."""
        if not self._chat.talking:
            return await function()
        self._recorder.go_on()
        wait = _waiting(function)
        asked = self._session.model(lambda **_: wait(), name=name)
        return await asyncio.to_thread(lambda: asked(**arguments))


def require_result(name: str, function: Callable[..., Any]) -> None:
    """Raise UsageError if a tool says that it hands over to another agent."""
    result = getattr(function, "__annotations__", {}).get("return")
    _require_words(name, getattr(result, "__name__", result))


def _require_words(name: str, result: object) -> None:
    if result == "ReplyResult":
        reason = f"the tool {name!r} hands over to another agent, which is not kept"
        raise UsageError(f"{reason}: have it return a text, and use a GroupChat without a pattern")


def _plain(result: Any, name: str = "") -> Any:
    """Return a result as it can be stored; the framework itself would make a text of others."""
    _require_words(name, type(result).__name__)
    return result if storable(result) else str(result)


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for another thread that waits for an async one in the loop of this one.

    So the store does not hold up the loop, and the async function stays where its resources are.
    """
    loop = asyncio.get_running_loop()

    def wait(*args: Any, **kwargs: Any) -> Any:
        running = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop)
        try:
            return running.result()
        except CancelledError as error:  # It did not fail: nobody knows how far it came.
            raise asyncio.CancelledError from error

    wait.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wait


def _options(name: str, given: object) -> dict[str, Any]:
    if isinstance(given, str):
        return {"effect": given}
    if not isinstance(given, Mapping):
        reason = f"give the effect of {name!r} as a word, or as the options of session.tool"
        raise UsageError(f"{reason}, not {type(given).__name__}", "$.tools")
    return dict(given)


def _fits(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function takes these arguments; the framework tells the model if it does not."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
