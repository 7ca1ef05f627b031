"""An agent that goes on with its errands whatever it is told."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import perdure
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Backend
from tests.promises import errands
from tests.promises.errand_runs import SESSION
from tests.promises.errands import Errands, Scenario
from tests.promises.world import World


class Stubborn:
    """An agent that goes on with the next errand when one fails. `errors` is what it was told."""

    def __init__(self, world: World, scenario: Scenario, told: Callable[[], object]) -> None:
        self._world = world
        self._scenario = scenario
        self._told = told
        self.errors: list[BaseException] = []

    def run(self, open_backend: Callable[[], Backend]) -> None:
        if self._scenario.colour == "blocking":
            self._attempt(lambda: self._run(open_backend))
        else:
            self._attempt(lambda: asyncio.run(self._run_async(open_backend)))

    def _attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is stubborn; a trial looks at them
            self._note(error)

    async def _attempt_async(self, call: Callable[[], Any]) -> None:
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - as above
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.errors.append(error)
        self._told()

    def _run(self, open_backend: Callable[[], Backend]) -> None:
        store = perdure.open(open_backend())
        session = store.session(SESSION)
        for number in (1, 2):
            self._attempt(partial(self._turn, session, f"turn-{number}"))
        self._attempt(store.close)

    def _turn(self, session: perdure.Session, id: str) -> None:
        mine = Errands(session, self._world, self._scenario)
        with errands.entered(session, "Run my errands.", id) as turn:
            for number in range(4):
                tool = mine.tools[self._scenario.name(number)]
                self._attempt(partial(tool, f"{id}-{number}"))
            self._attempt(lambda: turn.append(self._scenario.calls))
            self._attempt(lambda: session.run_tool_calls(None, mine.tools))
            self._attempt(lambda: mine.nested(f"{id}-nested"))

    async def _run_async(self, open_backend: Callable[[], Backend]) -> None:
        store = perdure.open_async(ThreadedBackend(open_backend()))
        session = await store.session(SESSION)
        for number in (1, 2):
            await self._attempt_async(partial(self._turn_async, session, f"turn-{number}"))
        await self._attempt_async(store.close)

    async def _turn_async(self, session: perdure.AsyncSession, id: str) -> None:
        mine = Errands(session, self._world, self._scenario)
        async with errands.entered(session, "Run my errands.", id) as turn:
            tools = [mine.tools[self._scenario.name(number)] for number in range(4)]
            calls = (partial(tool, f"{id}-{number}") for number, tool in enumerate(tools))
            await asyncio.gather(*map(self._attempt_async, calls))
            await self._attempt_async(lambda: turn.append(self._scenario.calls))
            await self._attempt_async(lambda: session.run_tool_calls(None, mine.tools))
            await self._attempt_async(lambda: mine.nested(f"{id}-nested"))
