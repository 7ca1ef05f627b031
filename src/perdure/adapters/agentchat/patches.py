"""Patch the members of a persisted team, so that its calls and replies are recorded.

`patch_team` replaces models, tools, human input functions and the replies of unknown agent classes
by recording ones; `Patches` restores the originals. Only objects of the given team are changed,
never their classes. `run_log` decides what is recorded and when it is replayed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import ModelClientStreamingChunkEvent as Chunk
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import MagenticOneGroupChat, SelectorGroupChat
from autogen_core.tools import FunctionTool

from perdure.adapters.agentchat import introspection, team_state, workbench
from perdure.adapters.agentchat.introspection import TeamNode
from perdure.adapters.agentchat.messages import MessageLoader, dump_reply, load_reply
from perdure.adapters.agentchat.model_client import DurableClient, request_digest
from perdure.adapters.agentchat.run_log import RunLog
from perdure.errors import EffectError, UnknownOutcomeError, UsageError
from perdure.formats.intake import copy_data

CLIENT_ATTRIBUTE = "_model_client"  # Of assistants, society-of-mind agents and managers.
WORKBENCH_ATTRIBUTE = "_workbench"  # Of assistants.


class Patches:
    """Attributes of objects that are patched, and can be restored."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Set an attribute of an object until `restore`."""
        # An attribute of the class must become visible again, not be copied to the object.
        is_own = name in vars(holder)
        original = vars(holder).get(name)

        def undo() -> None:
            if is_own:
                setattr(holder, name, original)
            else:
                delattr(holder, name)

        setattr(holder, name, value)
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore all attributes, newest patch first."""
        while self._undo:
            self._undo.pop()()


async def patch_team(
    root: TeamNode, run_log: RunLog, patches: Patches, messages: MessageLoader
) -> None:
    """Patch a team so that everything it asks and does is recorded; `patches` undoes it."""
    for name in ("run", "run_stream"):
        patches.put(root.component, name, _guarded_run(getattr(root.component, name), run_log))
    done: set[int] = set()
    for node in root.observed:
        if id(node.component) not in done:  # An agent can be a tool of several others.
            done.add(id(node.component))
            await _patch_node(node, run_log, patches, messages)


def _guarded_run(run: Callable[..., Any], run_log: RunLog) -> Callable[..., Any]:
    """Return a team's own run method, which raises UsageError unless the durable team calls it."""

    def guarded(*args: Any, **options: Any) -> Any:
        if not run_log.active:
            reason = "a run that a persisted team starts itself would not be recorded"
            raise UsageError(f"{reason}: use run or run_stream of what persist() returned")
        return run(*args, **options)

    return guarded


async def _patch_node(
    node: TeamNode, run_log: RunLog, patches: Patches, messages: MessageLoader
) -> None:
    component, path = node.component, node.path
    if node.opaque:
        patches.put(component, "on_messages_stream", recording_replies(node, run_log, messages))
    elif isinstance(component, SelectorGroupChat | MagenticOneGroupChat):
        manager = await introspection.manager_of(component)
        client = DurableClient(getattr(manager, CLIENT_ATTRIBUTE), f"{path}:manager", run_log)
        patches.put(manager, CLIENT_ATTRIBUTE, client)
        patches.put(component, CLIENT_ATTRIBUTE, client)  # For a manager that is created later.
    elif isinstance(component, AssistantAgent | SocietyOfMindAgent):
        client = DurableClient(getattr(component, CLIENT_ATTRIBUTE), path, run_log)
        patches.put(component, CLIENT_ATTRIBUTE, client)
        if isinstance(component, AssistantAgent):
            _patch_tools(component, path, run_log, patches, messages)
    elif isinstance(component, UserProxyAgent):
        # The recording function is async, even where it asks a blocking one.
        patches.put(component, "input_func", recording_input(component, path, run_log))
        patches.put(component, "_is_async", True)  # noqa: FBT003 - an attribute's value


def _patch_tools(
    agent: Any, path: str, run_log: RunLog, patches: Patches, messages: MessageLoader
) -> None:
    # Tools that are agents or teams are patched as members of the tree, not as tools.
    runners = frozenset(tool.name for tool in introspection.runner_tools(agent))
    benches = introspection.workbenches(agent)
    for tool in [tool for bench in benches for tool in introspection.tools_of(bench)]:
        # Otherwise a tool in a thread would not see `perdure.current_effect()`.
        function = workbench.with_caller_context(tool) if isinstance(tool, FunctionTool) else None
        if function is not None:
            patches.put(tool, "_func", function)
    durable_benches = [
        workbench.durable_workbench(bench, path, run_log, runners=runners, messages=messages)
        for bench in benches
    ]
    patches.put(agent, WORKBENCH_ATTRIBUTE, durable_benches)


def recording_input(agent: Any, scope: str, run_log: RunLog) -> Any:
    """Return a user proxy's input function that records answers, so no question is asked twice."""
    function, is_async = agent.input_func, agent._is_async  # noqa: SLF001 - see `introspection`

    async def ask(prompt: str, token: Any = None) -> str:
        async def run() -> dict[str, Any]:
            if is_async:
                return {"answer": await function(prompt, token)}
            return {"answer": await asyncio.to_thread(function, prompt)}

        # A question without a recorded answer had no effect: it is asked again.
        answer = await run_log.ask(f"{scope}:input", request_digest((), {"prompt": prompt}), run)
        return str(answer["answer"])

    return ask


def recording_replies(node: TeamNode, run_log: RunLog, messages: MessageLoader) -> Any:
    """Return an `on_messages_stream` that records each reply of an agent as one effect.

    The agent's state after a reply is recorded with it, because the agent is opaque.
    """
    agent, scope = node.component, node.path
    inner = agent.on_messages_stream

    async def on_messages_stream(
        new_messages: Sequence[Any], token: Any
    ) -> AsyncGenerator[Any, None]:
        events: list[Any] = []

        new_messages = copy_data([*new_messages], objects=True)  # What is digested is what is sent.

        async def run(_: object) -> dict[str, Any]:
            # Chunks are not recorded: the whole message follows them.
            outputs = [
                output
                async for output in inner(new_messages, token)
                if not isinstance(output, Chunk)
            ]
            response = next((output for output in outputs if isinstance(output, Response)), None)
            if response is None:
                raise RuntimeError(f"{agent.name!r} did not produce a final response")
            # The response last, whatever the agent yielded after it.
            events[:] = [*(output for output in outputs if output is not response), response]
            return {**dump_reply(events), "state": await team_state.save_reply_state(node)}

        texts = [message.to_model_text() for message in new_messages]
        arguments = {"messages": request_digest((), {"messages": texts})}
        recorded = None
        while recorded is None:
            try:
                recorded = await run_log.use(
                    scope, agent.name, id="reply", arguments=arguments, run=run
                )
            except EffectError:
                continue  # A recorded failure, of an earlier attempt of this run: try again.
            except UnknownOutcomeError as error:
                text = f"Error: the outcome of this agent's reply is unknown. {error.reason}"
                recorded = {"reconciled": text}
        if "reconciled" in recorded:
            text = str(recorded["reconciled"])
            yield Response(chat_message=TextMessage(content=text, source=agent.name))
            return
        if not events:  # Replayed: `run` was not called.
            await team_state.load_reply_state(node, recorded["state"])
            events = load_reply(recorded, messages)
        for event in events:
            yield event

    return on_messages_stream
