"""A durable run: one turn of a session, in which the SDK's Runner runs an agent.

A run that a crash or an error cut off is run again from its beginning by the same Runner. Recorded
responses and outcomes are returned to it, in order, so it reaches the point where it was and
continues from there. A run that has ended is replayed in the same way, and nothing is written.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from perdure import AsyncSession, AsyncTurn, Effect, Happened
from perdure.adapters.digests import json_digest
from perdure.adapters.openai_agents.approvals import RecordedDecisions
from perdure.adapters.openai_agents.items import Item, is_opaque, is_output, is_same_item
from perdure.adapters.openai_agents.replies import (
    RunRecord,
    StoredItem,
    StoredResponse,
    dump_response,
    dump_streamed,
)
from perdure.adapters.openai_agents.tools import load_output, parse_arguments
from perdure.adapters.tool_policies import ToolPolicy, name_parameters
from perdure.errors import (
    DivergenceError,
    EffectError,
    UnknownOutcomeError,
    UnstoredResultError,
    UsageError,
)
from perdure.formats.intake import IncomingMessage
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.journal.records import Message

AGENT_KEY = "openai_agents.agent"  # The value that holds the name of the agent that speaks now.

ORIGIN = "openai_agents"  # Origin of the messages of a run.

KEY_MAX = 400  # bytes of a call's key; longer ones are hashed

ASIDE = "aside"  # Scope of requests by the application's own code in a run, such as guardrails.

DIGEST_LENGTH = 32  # hexadecimal digits

_GUARDRAILS = ("InputGuardrailTripwireTriggered", "OutputGuardrailTripwireTriggered")


class DurableRun:
    """One run, from `PerdureSession.run`. Its turn is entered by the caller."""

    def __init__(
        self,
        session: AsyncSession,
        turn: AsyncTurn,
        record: RunRecord,
        *,
        policies: Mapping[str, ToolPolicy],
        answered: int = 0,
    ) -> None:
        self.session = session
        self.turn = turn
        self.history: list[Item] | None = None
        """The items before the run, for the SDK's first look at the session."""
        self.expected_input: Any = None
        """The input, as an object, of the run's own next request."""
        self.agent = ""
        """The name of the agent that the model speaks for."""
        self.input: Any = None
        """The input of the Runner: of the caller, or as recorded."""
        self.decisions: RecordedDecisions | None = None
        self.options: dict[str, Any] = {}
        """The options of the Runner."""
        self.lease: Any = None
        self.provider: Any = None
        """The provider of models, if it was created for the run."""
        self._policies = policies
        self._responses = record.responses[answered:]
        self._calls: dict[str, Item] = {}
        for response in record.responses:
            self._note_calls(response.items)
        outputs = [stored.item for stored in record.items if is_output(stored.item)]
        self._outputs = {item["call_id"]: item["output"] for item in outputs}
        self._running: set[str] = set()  # Calls that have not returned here, or never will.
        self._unconfirmed = [*record.items]  # Items that the SDK has not added to the session yet.

    # Models

    def scope_of(self, scope: str, given: Any) -> str:
        """Return the scope of a request: another than the run's own for what a guardrail asks."""
        return scope or ("" if given is self.expected_input else ASIDE)

    async def ask(
        self, scope: str, model: str, request: Item, get: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return a model's response: the recorded one, or a new one once it is durable."""
        if scope:
            return await self._ask_nested(scope, model, request, get)
        recorded = self._next_response(model, request)
        if recorded is not None:
            return recorded.load()
        call = self.turn.begin_model_call(model, request)
        try:
            if (replayed := call.recorded()) is not None:
                return await self._replay(replayed, call)
            response = await get()
            await self._store(dump_response(response, model), call)
        except BaseException as error:
            call.failed(error)
            raise
        return response

    async def stream(
        self, scope: str, model: str, request: Item, get: Callable[[], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        """Yield the events of a streamed response. The last one comes once it is durable."""
        recorded = None if scope else self._next_response(model, request)
        if scope:
            recorded = await self._stream_nested(scope, model, request, get)
        if recorded is not None:
            for event in recorded.events():
                yield event
            return
        call = self.turn.begin_model_call(model, request)
        output: list[Any] = []
        try:
            if (replayed := call.recorded()) is not None:
                await self._replay(replayed, call)
                for event in StoredResponse(replayed.messages, replayed.meta).events():
                    yield event
                return
            async for event in get():
                kind = getattr(event, "type", "")
                if kind == "response.output_item.done":
                    output.append(event.item)
                elif kind == "response.completed":
                    await self._store(dump_streamed(event.response, output, model), call)
                yield event
        except BaseException as error:
            call.failed(error)
            raise

    def _next_response(self, model: str, request: Item) -> StoredResponse | None:
        if self._responses:
            return self._responses.pop(0)
        if self.turn.ended:
            digest = json_digest([model, request], length=DIGEST_LENGTH)
            hint = "run it with the code that it was recorded with, or choose another id"
            raise DivergenceError(self.session.id, self.turn.id, "an ended run", digest, hint)
        return None

    async def _store(self, response: StoredResponse, call: Any) -> None:
        items, meta = response
        if not items:  # A message is needed to hold it; an empty response is asked for again.
            call.withdraw()
            return
        *rest, last = items
        position = await self.turn.append(
            *rest, IncomingMessage(last, meta), author=self.agent, origin=ORIGIN, reply_to=call
        )
        self._note_calls(items)
        first = position - len(items) + 1
        self._unconfirmed += [StoredItem(item, first + at) for at, item in enumerate(items)]

    async def _replay(self, replayed: Any, call: Any) -> Any:
        """Return the recorded response of a session that is replayed: see `perdure.replay`."""
        if replayed.error:
            raise EffectError(self.session.id, call.call.tool, replayed.error, replayed.reason)
        response = StoredResponse(replayed.messages, replayed.meta)
        await self._store(response, call)
        return response.load()

    def _note_calls(self, items: Sequence[Item]) -> None:
        self._calls.update({item["call_id"]: item for item in items if "call_id" in item})

    async def _ask_nested(
        self, scope: str, model: str, request: Item, get: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Ask for an agent that is a tool: its items are no messages of the session."""
        live: list[Any] = []

        async def ask(request: str) -> list[Any]:  # noqa: ARG001 - its digest is recorded
            live.append(await get())
            return [*dump_response(live[0], model)]

        asked = json_digest([scope, request], length=DIGEST_LENGTH)
        stored = await self.session.model(ask, name=model, actor=scope)(request=asked)
        return live[0] if live else StoredResponse(*stored).load()

    async def _stream_nested(
        self, scope: str, model: str, request: Item, get: Callable[[], AsyncIterator[Any]]
    ) -> StoredResponse:
        async def ask(request: str) -> list[Any]:  # noqa: ARG001 - its digest is recorded
            output: list[Any] = []
            async for event in get():
                kind = getattr(event, "type", "")
                if kind == "response.output_item.done":
                    output.append(event.item)
                elif kind == "response.completed":
                    return [*dump_streamed(event.response, output, model)]
            raise RuntimeError("the model's stream ended without a response")

        asked = json_digest([scope, request], length=DIGEST_LENGTH)
        stored = await self.session.model(ask, name=model, actor=scope)(request=asked)
        return StoredResponse(*stored)

    # Tools

    async def call_tool(
        self,
        name: str,
        context: Any,
        function: Callable[..., Awaitable[Any]],
        *,
        scope: str,
    ) -> Any:
        """Make a call once, or return its recorded outcome, as the model gets it."""
        policy = self._policies.get(name, "unsafe")
        call = self._calls.get(context.tool_call_id)
        if scope or call is None:
            return await self._call_nested(name, context, function, policy, scope or ASIDE)
        tool = self._durable(name, function, policy)
        self._running.add(context.tool_call_id)
        [answer] = await self.session.run_tool_calls(call, {name: tool})
        self._running.discard(context.tool_call_id)
        if not any(is_same_item(answer, stored.item) for stored in self._unconfirmed):
            self._unconfirmed.append(StoredItem(answer, 0))
        return load_output(answer["output"])

    def recorded_output(self, call_id: str) -> Any:
        """Return the output of a call of this run, as the model gets it; None without one."""
        return self._outputs.get(call_id)

    async def store_output(self, item: Item) -> None:
        """Store the output of a tool that is an agent: only the calls of that agent are effects."""
        position = await self.turn.append(item, origin=ORIGIN)
        self._unconfirmed.append(StoredItem(item, position))

    def _durable(self, name: str, function: Any, policy: ToolPolicy, actor: str = "") -> Any:
        if callable(policy):
            return self.session.tool(
                function,
                effect="reconcile",
                name=name,
                actor=actor or self.agent,
                reconcile=_reconciling(policy),
            )
        return self.session.tool(function, effect=policy, name=name, actor=actor or self.agent)

    async def _call_nested(
        self,
        name: str,
        context: Any,
        function: Callable[..., Awaitable[Any]],
        policy: ToolPolicy,
        scope: str,
    ) -> Any:
        key = f"{scope}/{context.tool_call_id}"
        if len(key.encode()) > KEY_MAX:
            key = sha256(key.encode()).hexdigest()
        arguments = parse_arguments(context.tool_arguments)
        name_parameters(function, arguments)
        tool = self._durable(name, function, policy, scope)
        try:
            output = await tool.keyed(key, in_turn=True)(**arguments)
        except UnknownOutcomeError as error:
            return f"{INTERRUPTED_NOTICE} ({error.reason})"
        except UnstoredResultError as error:
            return f"The call succeeded. Its result, a {error.type}, could not be stored."
        except EffectError as error:
            return f"Error: {error.error}: {error.reason}"
        return output

    # Items

    async def confirm(self, items: Sequence[Item]) -> None:
        """Take items that the SDK adds to the session: most are stored already.

        An item that the SDK changed takes the place of the stored one.
        """
        new: list[Item] = []
        for item in items:
            stored = self._take(item) or await self._find_output(item)
            if stored is None:
                new.append(item)
            elif stored.item != item and not self.turn.ended:
                await self._replace(stored, item)
        if not new:
            return
        if self.turn.ended:
            digest = json_digest(new, length=DIGEST_LENGTH)
            raise DivergenceError(self.session.id, self.turn.id, "an ended run", digest)
        await self.turn.append(*new, origin=ORIGIN, opaque=any(map(is_opaque, new)))

    def _take(self, item: Item) -> StoredItem | None:
        """Return the stored version of an item, and count it as confirmed."""
        indexes = range(len(self._unconfirmed))
        same = [at for at in indexes if self._unconfirmed[at].item == item]
        same += [at for at in indexes if is_same_item(self._unconfirmed[at].item, item)]
        return self._unconfirmed.pop(same[0]) if same else None

    async def _find_output(self, item: Item) -> StoredItem | None:
        """Return the output that perdure stored for a call that the SDK canceled."""
        if "output" in item and item.get("call_id") in self._running:
            self._running.discard(item["call_id"])
            async for record in self.session.records(kinds=[Message.kind], reverse=True):
                content = record.content
                if isinstance(content, Message) and is_same_item(content.message, item):
                    return StoredItem(content.message, record.position)
                if record.position <= self.turn.branch_point:
                    break
        return None

    async def _replace(self, stored: StoredItem, item: Item) -> None:
        position = stored.position or await self._position(stored.item)
        await self.session.replace(position, position, item)

    async def _position(self, item: Item) -> int:
        async for record in self.session.records(kinds=[Message.kind], reverse=True):
            if isinstance(record.content, Message) and record.content.message == item:
                return record.position
        raise UsageError("an item of the run was taken back meanwhile: run the input again")

    # The end

    def decided_state(self, result: Any) -> Any:
        """Return the state to continue with, if all decisions that the run needs are recorded."""
        if not result.interruptions or self.decisions is None:
            return None
        return self.decisions.apply(result)

    async def finish(self, result: Any) -> None:
        """End the run as the Runner did: complete, or waiting for approvals."""
        if self.turn.ended:
            await self._exit()
        elif result.interruptions:
            await self.turn.suspend()
        else:
            name = result.last_agent.name
            changed = await self.session.get(AGENT_KEY) != name
            async with self.turn.batch() as batch:
                if changed:
                    batch.set(AGENT_KEY, name)
                batch.complete()
            await self._exit()

    async def leave(self, error: BaseException) -> None:
        """Leave a run that raised: it stays open, to be continued by the same call.

        A guardrail ends it. Items that the SDK withholds then are taken back.
        """
        if self.turn.ended:
            await self._exit()
        elif type(error).__name__ in _GUARDRAILS:
            withheld = [stored.position for stored in self._unconfirmed if stored.position]
            if withheld:
                await self.session.retract(*withheld, reason="a guardrail was triggered")
            await self.turn.__aexit__(type(error), error, None)
        else:
            await self.turn.suspend()

    async def close(self) -> None:
        """Release what the run held. Called once, at its end."""
        if self.provider is not None:
            await self.provider.aclose()
        if self.lease is not None:
            await self.lease.release()

    async def _exit(self) -> None:
        await self.turn.__aexit__(None, None, None)


def _reconciling(function: Callable[[Effect], Any]) -> Callable[[Effect], Any]:
    """Return a reconcile function whose result is a text, as a recorded output is."""

    async def reconcile(effect: Effect) -> Any:
        if [*effect.arguments] == ["_"]:  # No valid identifiers: they were recorded as `**_`.
            effect = effect._replace(arguments=effect.arguments["_"])
        answer = function(effect)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, Happened) or isinstance(answer.result, str | list):
            return answer
        return Happened(str(answer.result))

    return reconcile
