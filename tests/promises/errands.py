"""An agent that runs errands: eight calls of a model in parallel, and calls of its own.

It is written as its users would write it: what is interrupted is gone on with by running the same
code again. The two colours do the same.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import perdure
from perdure.core.effects.calls import DidNotHappen, Effect, Happened
from perdure.errors import EffectError, UnknownOutcomeError
from tests.promises.world import World

POLICIES = ("unsafe", "idempotent", "reconcile", "read_only", "mixed")
COLOURS = ("blocking", "async")
ISSUED = 8
_NAMES = {"unsafe": "pay", "idempotent": "put", "reconcile": "send", "read_only": "look"}
LONG = "It was a bright cold day in April. " * 100
_PAUSE = 0.0002  # Seconds that an errand takes, so that others run beside it.


class Scenario(NamedTuple):
    """Which policy the tools have, and the colour of the agent."""

    policy: str
    colour: str

    def __str__(self) -> str:
        return f"{self.policy}, {self.colour}"

    @property
    def names(self) -> list[str]:
        """The tools that are called, in order and over again."""
        return [*_NAMES.values()] if self.policy == "mixed" else [_NAMES[self.policy]]

    @property
    def outer(self) -> str:
        """The policy of the tool that calls other tools."""
        return "idempotent" if self.policy == "mixed" else self.policy

    def is_read_only(self, tool: str) -> bool:
        """Whether a tool changes nothing: its calls are recorded after they ran."""
        return tool == _NAMES["read_only"] or (tool == "nest" and self.outer == "read_only")

    def name(self, number: int) -> str:
        return self.names[number % len(self.names)]

    @property
    def calls(self) -> dict[str, Any]:
        """What the model says: eight calls."""
        made = [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {
                    "name": self.name(number),
                    "arguments": f'{{"errand":"issued-{number}"}}',
                },
            }
            for number in range(ISSUED)
        ]
        return {"role": "assistant", "content": None, "tool_calls": made}


EVERY = [Scenario(policy, colour) for policy in POLICIES for colour in COLOURS]
ASKED = "asked"
ERRANDS = [
    *(f"issued-{number}" for number in range(ISSUED)),
    *["direct", "direct", "keyed", "nested", "later", ASKED],
]
INNER = ["nested/1", "nested/2"]


def result(errand: str) -> dict[str, str]:
    """Return what an errand's tool returns; some of it is long, and stored apart."""
    return {"done": errand, "found": LONG if errand.endswith(("1", "6", "keyed")) else ""}


class Errands:
    """The agent's tools, which change the world."""

    def __init__(self, session: Any, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        run = self._run if scenario.colour == "blocking" else self._run_async
        nest = self._nest if scenario.colour == "blocking" else self._nest_async
        self.tools = {
            name: session.tool(run, name=name, **self._declared(policy))
            for policy, name in _NAMES.items()
        }
        self.inner = self.tools[scenario.name(0)]
        self.nested = session.tool(nest, name="nest", **self._declared(scenario.outer))
        ask = self._ask if scenario.colour == "blocking" else self._ask_async
        self.model = session.model(ask, name="model")

    def _declared(self, policy: str) -> dict[str, Any]:
        reconcile = {"reconcile": self._find_out} if policy == "reconcile" else {}
        return {"effect": policy, **reconcile}

    def _run(self, errand: str) -> dict[str, str]:
        time.sleep(_PAUSE)
        self._world.happen(errand)
        return result(errand)

    async def _run_async(self, errand: str) -> dict[str, str]:
        await asyncio.sleep(_PAUSE)
        self._world.happen(errand)
        await asyncio.sleep(0)
        return result(errand)

    def _nest(self, errand: str) -> dict[str, str]:
        for part in (1, 2):
            attempt(partial(self.inner, f"{errand}/{part}"))
        return self._run(errand)

    async def _nest_async(self, errand: str) -> dict[str, str]:
        parts = (attempt_async(partial(self.inner, f"{errand}/{part}")) for part in (1, 2))
        await asyncio.gather(*parts)
        return await self._run_async(errand)

    def _ask(self, question: str) -> dict[str, Any]:
        """Be the model, whose answers are paid for."""
        self._run(ASKED)
        return self._scenario.calls

    async def _ask_async(self, question: str) -> dict[str, Any]:
        await self._run_async(ASKED)
        return self._scenario.calls

    def _find_out(self, effect: Effect) -> Happened | DidNotHappen:
        if self._world.has(effect.key):
            return Happened(result(effect.arguments["errand"]))
        return DidNotHappen()


def attempt(call: Callable[[], object]) -> str:
    """Make a call of the agent's own; return what there is to tell about it."""
    try:
        call()
    except (UnknownOutcomeError, EffectError) as error:
        return f" {type(error).__name__} of {error.tool}."
    return ""


async def attempt_async(call: Callable[[], Any]) -> str:
    """As `attempt`."""
    try:
        await call()
    except (UnknownOutcomeError, EffectError) as error:
        return f" {type(error).__name__} of {error.tool}."
    return ""


def entered(session: Any, text: str, id: str) -> Any:
    """Return a turn to enter: the one that a killed process left, or a new one."""
    found = {turn.id: turn for turn in session.interrupted}
    return found.get(id) or session.turn(text, id=id)


def run(session: perdure.Session, world: World, scenario: Scenario) -> None:
    """Run all errands, or what is left of them."""
    errands = Errands(session, world, scenario)
    tools = errands.tools
    with entered(session, "Run my errands.", "turn-1") as turn:
        if not turn.ended:
            told = attempt(lambda: tools[scenario.name(0)]("direct"))
            turn.append(errands.model("What now?"), id="calls")
            session.run_tool_calls(None, tools, parallel=ISSUED)
            told += attempt(lambda: tools[scenario.name(1)].keyed("once")("keyed"))
            told += attempt(lambda: tools[scenario.name(0)]("direct"))
            told += attempt(lambda: errands.nested("nested"))
            turn.append({"role": "assistant", "content": f"Done.{told}"}, id="end-1")
    with entered(session, "And once more.", "turn-2") as turn:
        if not turn.ended:
            told = attempt(lambda: tools[scenario.name(1)].keyed("once")("keyed"))
            told += attempt(lambda: tools[scenario.name(2)]("later"))
            turn.append({"role": "assistant", "content": f"Done.{told}"}, id="end-2")


async def run_async(session: perdure.AsyncSession, world: World, scenario: Scenario) -> None:
    """As `run`; calls of its own are made at once."""
    errands = Errands(session, world, scenario)
    tools = errands.tools
    async with entered(session, "Run my errands.", "turn-1") as turn:
        if not turn.ended:
            told = await attempt_async(lambda: tools[scenario.name(0)]("direct"))
            await turn.append(await errands.model("What now?"), id="calls")
            await session.run_tool_calls(None, tools, parallel=ISSUED)
            calls = (
                lambda: tools[scenario.name(1)].keyed("once")("keyed"),
                lambda: tools[scenario.name(0)]("direct"),
                lambda: errands.nested("nested"),
            )
            told += "".join(await asyncio.gather(*map(attempt_async, calls)))
            await turn.append({"role": "assistant", "content": f"Done.{told}"}, id="end-1")
    async with entered(session, "And once more.", "turn-2") as turn:
        if not turn.ended:
            told = await attempt_async(lambda: tools[scenario.name(1)].keyed("once")("keyed"))
            told += await attempt_async(lambda: tools[scenario.name(2)]("later"))
            await turn.append({"role": "assistant", "content": f"Done.{told}"}, id="end-2")
