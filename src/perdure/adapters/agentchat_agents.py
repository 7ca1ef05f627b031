"""Record the replies of people and of unknown agent classes in a team."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from autogen_agentchat.base import Response
from autogen_agentchat.messages import ModelClientStreamingChunkEvent as Chunk
from autogen_agentchat.messages import TextMessage

from perdure.adapters import agentchat_state as state
from perdure.adapters.agentchat_journal import Journal
from perdure.adapters.agentchat_messages import Messages
from perdure.adapters.agentchat_model import digest
from perdure.adapters.agentchat_tree import Node
from perdure.errors import EffectError, UnknownOutcomeError


def asking(agent: Any, scope: str, run_log: Journal) -> Any:
    """Return a user proxy's input function that records answers, so no question is asked twice."""
    function, is_async = agent.input_func, agent._is_async  # noqa: SLF001 - see `agentchat_tree`

    async def ask(prompt: str, token: Any = None) -> str:
        async def run() -> dict[str, Any]:
            if is_async:
                return {"said": await function(prompt, token)}
            return {"said": await asyncio.to_thread(function, prompt)}

        # A question without a recorded answer had no effect: it is asked again.
        answer = await run_log.ask(f"{scope}:input", digest((), {"prompt": prompt}), run)
        return str(answer["said"])

    return ask


def replying(node: Node, run_log: Journal, messages: Messages) -> Any:
    """Return an `on_messages_stream` that records each reply of an agent as one effect.

    The agent's state after a reply is recorded with it, because the agent is opaque.
    """
    agent, scope = node.component, node.path
    inner = agent.on_messages_stream

    async def on_messages_stream(
        new_messages: Sequence[Any], token: Any
    ) -> AsyncGenerator[Any, None]:
        events: list[Any] = []

        async def run() -> dict[str, Any]:
            outputs = [
                output
                async for output in inner(new_messages, token)
                if not isinstance(output, Chunk)
            ]
            response = next((output for output in outputs if isinstance(output, Response)), None)
            if response is None:
                raise RuntimeError(f"{agent.name!r} did not produce a final response")
            events[:] = [*(output for output in outputs if output is not response), response]
            return {**_stored(events), "state": await state.after_reply(node)}

        texts = [message.to_model_text() for message in new_messages]
        arguments = {"messages": digest((), {"messages": texts})}
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
            await state.restore_reply(node, recorded["state"])
            events = [*messages.load(recorded["told"]), _response(recorded, messages)]
        for event in events:
            yield event

    return on_messages_stream


def _stored(events: Sequence[Any]) -> dict[str, Any]:
    *rest, response = events
    return {
        "told": [event.dump() for event in rest],
        "inner": [event.dump() for event in response.inner_messages or ()],
        "said": response.chat_message.dump(),
    }


def _response(recorded: Mapping[str, Any], messages: Messages) -> Response:
    [message], inner = messages.load([recorded["said"]]), messages.load(recorded["inner"])
    return Response(chat_message=message, inner_messages=inner)
