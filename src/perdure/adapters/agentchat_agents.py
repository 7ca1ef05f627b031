"""People and agents of other kinds in a team: what they replied is recorded."""

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


def asking(agent: Any, scope: str, journal: Journal) -> Any:
    """Return a user proxy's input function, as one that asks nobody twice."""
    function, awaits = agent.input_func, agent._is_async  # noqa: SLF001 - see `agentchat_tree`

    async def ask(prompt: str, token: Any = None) -> str:
        async def run() -> dict[str, Any]:
            if awaits:
                return {"said": await function(prompt, token)}
            return {"said": await asyncio.to_thread(function, prompt)}

        # A person who was asked and not heard is asked again: nothing happened.
        found = await journal.ask(f"{scope}:input", digest((), {"prompt": prompt}), run)
        return str(found["said"])

    return ask


def replying(node: Node, journal: Journal, messages: Messages) -> Any:
    """Return what makes an agent's replies, each as one effect.

    Its state after a reply is kept with it, as nobody knows what it did.
    """
    agent, scope = node.component, node.path
    inner = agent.on_messages_stream

    async def on_messages_stream(given: Sequence[Any], token: Any) -> AsyncGenerator[Any, None]:
        told: list[Any] = []

        async def run() -> dict[str, Any]:
            heard = [one async for one in inner(given, token) if not isinstance(one, Chunk)]
            response = next((one for one in heard if isinstance(one, Response)), None)
            if response is None:
                raise RuntimeError(f"{agent.name!r} did not produce a final response")
            told[:] = [*(one for one in heard if one is not response), response]
            return {**_stored(told), "state": await state.after_reply(node)}

        said = [one.to_model_text() for one in given]
        asked = {"messages": digest((), {"messages": said})}
        found = None
        while found is None:
            try:
                found = await journal.use(scope, agent.name, id="reply", arguments=asked, run=run)
            except EffectError:
                continue  # It failed, and with it the run, which is being tried again.
            except UnknownOutcomeError as error:
                text = f"Error: the outcome of this agent's reply is unknown. {error.reason}"
                found = {"reconciled": text}
        if "reconciled" in found:
            text = str(found["reconciled"])
            yield Response(chat_message=TextMessage(content=text, source=agent.name))
            return
        if not told:  # It is from the record.
            await state.restore_reply(node, found["state"])
            told = [*messages.load(found["told"]), _response(found, messages)]
        for one in told:
            yield one

    return on_messages_stream


def _stored(told: Sequence[Any]) -> dict[str, Any]:
    *rest, response = told
    return {
        "told": [one.dump() for one in rest],
        "inner": [one.dump() for one in response.inner_messages or ()],
        "said": response.chat_message.dump(),
    }


def _response(found: Mapping[str, Any], messages: Messages) -> Response:
    [said], within = messages.load([found["said"]]), messages.load(found["inner"])
    return Response(chat_message=said, inner_messages=within)
