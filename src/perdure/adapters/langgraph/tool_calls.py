"""Run the tools of a `ToolNode` as effects: each call is made once, or its outcome is "unknown".

The calls of a thread are in a session of their own, `<thread>.tool-calls`, because a turn of the
thread's session would tell the model that the calls of the message before it were interrupted. A
call is identified by the message that requested it, its id, name and arguments. Each attempt is a
turn of the session: the intent is durable before the tool runs, the outcome after. If a node is run
again, by another process or from an earlier checkpoint, a call with a recorded outcome is not made
again. An attempt that raised, or that waits for a human (`interrupt`), is followed by another one.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from hashlib import sha256
from typing import Any

import msgspec
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolNode

import perdure
from perdure.adapters.langgraph.saver import PerdureSaver
from perdure.adapters.langgraph.state_codec import StateCodec
from perdure.errors import (
    ConflictError,
    EffectError,
    ToolFailureError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.formats.tool_calls import INTERRUPTED_NOTICE

WAITS = "waits for the graph"  # The reason of an attempt that raised an interrupt.

ATTEMPTS = 20  # to begin a turn while other processes begin theirs; each is one small commit

Execute = Callable[[Any], Any]


def tool_node(
    saver: PerdureSaver,
    tools: Sequence[Any],
    *,
    effects: str | Mapping[str, str] = "unsafe",
    **options: Any,
) -> Any:
    """Return a `ToolNode` whose calls are recorded in the thread, each made once.

    `effects` is the policy for a call whose process died before its outcome was recorded, for all
    tools or by name: "unsafe" tells the model that the outcome is unknown; "read_only" and
    "idempotent" make it again. Tools that are not named are unsafe. Other options are ToolNode's.
    """
    calls = RecordedToolCalls(saver, effects)
    return ToolNode(tools, wrap_tool_call=calls.run, awrap_tool_call=calls.arun, **options)


class RecordedToolCalls:
    """Wrappers for `ToolNode` and for agents' middleware, as `wrap_tool_call` expects them."""

    def __init__(self, saver: PerdureSaver, effects: str | Mapping[str, str] = "unsafe") -> None:
        policies = [effects] if isinstance(effects, str) else [*effects.values()]
        if unknown := {*policies} - {"unsafe", "read_only", "idempotent"}:
            allowed = "unsafe, read_only or idempotent"
            raise UsageError(f"a tool's effect is {allowed}, not {', '.join(sorted(unknown))}")
        self._saver = saver
        self._effects = effects

    def run(self, request: Any, execute: Execute) -> Any:
        """Make a call, or return what is recorded of it."""
        return _Call(self._saver, request, self._policy(request)).run(lambda: execute(request))

    async def arun(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make a call in an event loop. The tool runs in the loop, its recording beside it."""
        loop = asyncio.get_running_loop()

        def run_in_loop() -> Any:
            # The context of this thread goes with it: `perdure.current_effect()` works in the tool.
            return asyncio.run_coroutine_threadsafe(_awaited(execute(request)), loop).result()

        call = _Call(self._saver, request, self._policy(request))
        return await _in_own_thread(call.run, run_in_loop)

    def _policy(self, request: Any) -> str:
        if isinstance(self._effects, str):
            return self._effects
        return self._effects.get(request.tool_call["name"], "unsafe")


class _Call:
    """One call of a tool by the graph."""

    def __init__(self, saver: PerdureSaver, request: Any, policy: str) -> None:
        config = getattr(request.runtime, "config", None) or {}
        thread_id = config.get("configurable", {}).get("thread_id")
        if thread_id is None:
            raise UsageError("tool calls are recorded in a thread: pass a thread_id")
        self._session: perdure.Session = saver.tool_calls(str(thread_id))
        self._codec = StateCodec(saver.serde)
        self._call = request.tool_call
        self._policy = policy
        self._key = _identity(saver, request, config["configurable"])
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self, execute: Callable[[], Any]) -> Any:
        """Return the result of the newest attempt, or make another if that one settled nothing."""
        name = self._call["name"]
        policy: Any = self._policy
        tool = self._session.tool(self._function(execute), name=name, effect=policy)
        attempt = 0
        while True:
            with self._turn(f"{self._key}.{attempt}"):
                try:
                    tree: Any = tool(**self._call["args"])
                except ToolFailureError:  # It ran now: what it returned or raised is kept.
                    tree = None
                except UnknownOutcomeError:
                    return self._unknown()
                except EffectError as error:  # It ran before, and failed.
                    attempt += error.result is None
                    if error.result is None:
                        continue
                    tree = error.result
            if self._error is not None:
                raise self._error
            return self._recorded(tree) if self._result is None else self._result

    @contextmanager
    def _turn(self, turn_id: str) -> Iterator[None]:
        """Begin the turn of an attempt, or continue that of a process that died."""
        with ExitStack() as stack:
            for last in (*[False] * ATTEMPTS, True):
                try:
                    stack.enter_context(self._session.turn(id=turn_id))
                    break
                except ConflictError:  # Another process began a turn of its own.
                    if last:
                        raise
                    self._session.refresh()
            yield

    def _function(self, execute: Callable[[], Any]) -> Callable[..., Any]:
        def function(**_: Any) -> Any:
            try:
                self._result = result = execute()
            except GraphBubbleUp as error:
                self._error = error
                raise ToolFailureError(WAITS) from error
            tree = self._codec.encode(result, "result")
            if isinstance(result, ToolMessage) and result.status == "error":
                raise ToolFailureError("the tool returned an error", tree)
            return tree

        return function

    def _recorded(self, tree: Any) -> Any:
        """Return a recorded result, as an answer to this call: it may have had another id."""
        result = self._codec.decode(tree)
        update = getattr(result, "update", None)
        lists = update.values() if isinstance(update, Mapping) else [[result]]
        for message in [each for value in lists if isinstance(value, list) for each in value]:
            if isinstance(message, ToolMessage):
                message.tool_call_id = self._call["id"]
        return result

    def _unknown(self) -> ToolMessage:
        call = self._call
        return ToolMessage(
            INTERRUPTED_NOTICE, name=call["name"], tool_call_id=call["id"], status="error"
        )


def _identity(saver: PerdureSaver, request: Any, configurable: Mapping[str, Any]) -> str:
    """Return what identifies a call, also if another process makes it.

    It is the message that requested it, with the call's id, name and arguments. That message must
    be stored before the tool runs, or another process would get another one from the model. With
    durability "exit" it is never stored before the run ends: then it is the newest checkpoint, the
    input of the run, and how many equal calls came before.
    """
    call, thread_id = request.tool_call, str(configurable["thread_id"])
    messages = _messages_of(request.state)
    if configurable.get("__pregel_durability") == "exit":
        checkpoint_id, stored = saver.newest(thread_id)
        run = messages[stored:]
        inputs = [message.content for message in run if message.type == "human"]
        requested = [each for message in run for each in getattr(message, "tool_calls", ())]
        before = requested[: [each["id"] for each in requested].index(call["id"])]
        number = sum(
            (each["name"], each["args"]) == (call["name"], call["args"]) for each in before
        )
        identity = ["exit", checkpoint_id, inputs, number, call["name"], call["args"]]
    else:
        saver.wait_until_stored(thread_id, configurable.get("checkpoint_map", {}))
        requesting = [
            message.id
            for message in reversed(messages)
            if any(each["id"] == call["id"] for each in getattr(message, "tool_calls", ()))
        ]
        # In a state without it, the task is the same if the node is run again.
        message_id = requesting[0] if requesting else configurable.get("checkpoint_ns", "")
        identity = [message_id, call["id"], call["name"], call["args"]]
    return sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:32]


def _messages_of(state: Any) -> list[Any]:
    """Return the messages of a state: it is a list of them, or one of its values is."""
    values: Iterable[Any] = [state]
    if not isinstance(state, list):
        values = state.values() if isinstance(state, Mapping) else vars(state).values()
    lists = [value for value in values if isinstance(value, list)]
    return next((each for each in lists if each and isinstance(each[-1], BaseMessage)), [])


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def _in_own_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a new thread: a pool could be full of calls that wait for each other."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            failure = error
        loop.call_soon_threadsafe(settle, result, failure)

    context = copy_context()
    threading.Thread(target=context.run, args=(run,), name="perdure-tool", daemon=True).start()
    return await future
