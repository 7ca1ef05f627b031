"""P14: replay is deterministic: the same outputs, no tool executed, the first difference reported.

Agents are drawn, run, and run again on their record: as they were, with one thing changed, on a
record in which a result was changed, and reaching for what is refused. Every replay is a trial.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import openai

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append
from perdure.core.replay import record
from perdure.core.settings import settings_of
from perdure.journal import chain, codec
from perdure.journal.chain import EMPTY_CHAIN, PendingRecord, StreamIdentity
from perdure.journal.records import EffectOutcome
from perdure.sync.store import Store
from perdure.testing import ModelServer
from tests.promises.p14_agents import CHANGES, Running, Script, World, changed, draw, drive
from tests.promises.promise import Promise, Trial, in_time

SERVED_EVERY = 6  # Agents; talking to a server takes longer than all the rest.
ASYNC_EVERY = 3
REACHING_EVERY = 12
CHANGED = 3  # Changes that are tried on each agent.


class Recorded:
    """An agent and the session that it was recorded in."""

    def __init__(self, script: Script, world: World, *, is_async: bool) -> None:
        self.script = script
        self.world = world
        self.is_async = is_async
        self.places: dict[tuple[int, int], int] = {}
        self.returned = ""
        self.messages = b""
        self.positions: dict[int, str] = {}

    def trials(self, rng: random.Random, number: int) -> Iterator[Trial]:
        """Record the agent, and replay it in every way."""
        if self.is_async:
            yield from asyncio.run(self._all_async(rng, number))
            return
        client = openai.OpenAI(base_url=self.world.url or "http://127.0.0.1", api_key="test")
        with perdure.open("memory:") as store, client as self.world.client:
            session = store.session("s")
            running = Running(session, self.world, self.script)
            self.returned, self.places = drive(running.run()), running.places
            self._known(list(session.records()), session.messages())
            for what, script, place in self._ways(rng, number):
                before = len(self.world.ledger), session.position
                replay = perdure.replay(session, self._agent(script))
                after = len(self.world.ledger), session.refresh()
                yield Trial(what, self._judged(what, replay, place) or _moved(before, after))
            yield from self._tampered(rng, session)

    async def _all_async(self, rng: random.Random, number: int) -> list[Trial]:
        found = []
        client = openai.AsyncOpenAI(base_url=self.world.url or "http://127.0.0.1", api_key="test")
        async with perdure.open_async("memory:") as store, client as self.world.client:
            session = await store.session("s")
            running = Running(session, self.world, self.script)
            self.returned, self.places = await running.run(), running.places
            records = [record async for record in session.records()]
            self._known(records, await session.messages())
            for what, script, place in self._ways(rng, number):
                before = len(self.world.ledger), session.position

                async def agent(face: perdure.AsyncSession, script: Script = script) -> str:
                    return await Running(face, self.world, script).run()

                replay = await perdure.replay(session, agent)
                after = len(self.world.ledger), await session.refresh()
                found.append(
                    Trial(what, self._judged(what, replay, place) or _moved(before, after))
                )
        return found

    def _known(self, records: list[Any], messages: Any) -> None:
        self.positions = {record.position: record.kind for record in records}
        self.messages = msgspec.json.encode([*messages])

    def _agent(self, script: Script) -> Any:
        return lambda session: drive(Running(session, self.world, script).run())

    def _ways(
        self, rng: random.Random, number: int
    ) -> Iterator[tuple[str, Script, tuple[int, int] | None]]:
        yield "unchanged", self.script, None
        yield "unchanged again", self.script, None
        for _ in range(CHANGED):
            turn = rng.randrange(len(self.script.turns))
            deeds = self.script.turns[turn][1]
            deed = rng.randrange(-1, len(deeds))
            what = "prompt" if deed < 0 else rng.choice(CHANGES[deeds[deed].kind])
            kind = "" if deed < 0 else f" of {deeds[deed].kind}"
            yield f"another {what}{kind}", changed(self.script, turn, deed, what), (turn, deed)
        if number % REACHING_EVERY == 0:
            what = rng.choice(("socket", "process"))
            self.world.reach(what)  # It works outside of a replay.
            deed = rng.randrange(len(self.script.turns[0][1]))
            yield f"reaching: {what}", changed(self.script, 0, deed, what), None

    def _judged(self, what: str, replay: perdure.Replay, place: tuple[int, int] | None) -> str:
        """Say what is wrong with a replay."""
        if what.startswith("reaching"):
            return "" if replay.refused and not replay.identical else "it was not refused"
        if replay.refused or replay.ended:
            return f"refused {replay.refused}, ended {replay.ended!r}"
        if place is None:
            return self._same(replay)
        found = replay.divergence
        if found is None:
            return "the difference was not found"
        return self._is_first(place, found)

    def _same(self, replay: perdure.Replay) -> str:
        if not replay.identical:
            return f"it departed at {replay.divergence}"
        if msgspec.json.encode(replay.outputs) != self.messages:
            return "other messages came out"
        return "" if replay.returned == self.returned else "the agent returned something else"

    def _is_first(self, place: tuple[int, int], found: Any) -> str:
        """Say whether a difference was not found at the first record of the deed that changed.

        Of calls that run side by side, it may be any. A prompt comes with the beginning of a turn.
        """
        first = self.places[place] + 1
        after = [at for at in self.places.values() if at >= first]
        last = min(after, default=max(self.positions))
        kind = "" if place[1] < 0 else self.script.turns[place[0]][1][place[1]].kind
        allowed = range(first, first + 2)
        if kind in ("gather", "issued"):
            allowed = range(first, last + 1)
        if found.position in allowed:
            return ""
        return f"it was found at {found.position}, not {allowed.start}: {found}"

    def _tampered(self, rng: random.Random, session: perdure.Session) -> Iterator[Trial]:
        """Change a result in a copy of the record: what the agent makes of it shows it."""
        handle = session._handle
        steps = handle.run(record.read_steps(handle.replica))
        inner = {
            call.identity for call in record.calls_by_identity(steps).values() if call.intent.parent
        }  # A tool that does not run does not look at what it had called.
        results = [
            step
            for step in steps
            if isinstance(step.content, EffectOutcome)
            and step.content.result is not None
            and step.content.identity not in inner
        ]
        if not results:
            return
        wrong = rng.choice(results)
        drafts = []
        for step in steps:
            content = step.content
            if step is wrong:
                content = msgspec.structs.replace(content, result=_other(content))
            drafts.append(PendingRecord(step.id, content, codec.encode(content)))
        settings = settings_of(None, time.time, verify_writes=False)
        stream = StreamIdentity("s", settings.token(), settings.tenant)
        time_ = settings.now()
        entry, _ = chain.link_entry(stream, EMPTY_CHAIN, drafts, time=time_, cipher=settings.cipher)
        backend = MemoryBackend()
        backend.append([Append("s", [entry])])
        with Store(backend, settings) as store:
            found = perdure.replay(store.session("s"), self._agent(self.script)).divergence
        what = f"another result of {wrong.content.subject.partition(':')[0]}"
        if found is None:
            yield Trial(what, "the difference was not found")
            return
        late = wrong.position < found.position
        yield Trial(what, "" if late else f"found at {found.position}, not after {wrong.position}")


def _other(content: Any) -> Any:
    result = content.result
    if isinstance(result, dict):
        name = "text" if "text" in result else "charged"
        return {**result, name: "another"}
    return -1


def _moved(before: tuple[int, int], after: tuple[int, int]) -> str:
    return "" if before == after else f"something was called or written: {before}, {after}"


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Draw agents, and replay each in several ways."""
    rng = random.Random(seed)
    with ModelServer() as server:
        number = 0
        while in_time(deadline):
            served = number % SERVED_EVERY == 0
            script = draw(rng, served=served)
            world = World(server.url if served else "")
            found = Recorded(script, world, is_async=number % ASYNC_EVERY == 0)
            asked = len(server.requests)
            made = 0
            for trial in found.trials(rng, number):
                if trial.what == "unchanged":
                    made = len(server.requests) - asked
                yield trial._replace(what=f"agent {number}, {trial.what}")
            if len(server.requests) - asked != made:
                yield Trial(f"agent {number}", "a replay asked the model server")
            number += 1


PROMISE = Promise(
    "P14",
    "Replay gives the same to the byte, calls nothing, and tells the first difference",
    10_000,
    trials,
)
