"""Agents drawn from a seed, for blocking and for async sessions, and changes to them.

An agent is a list of deeds. Whatever it is told goes into what it says next, so that another result
is another message. One interpreter runs both colours: what a blocking session answers is there at
once.
"""

import asyncio
import contextvars
import inspect
import random
import socket
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, NamedTuple

from perdure.adapters.openai import wrap

WORDS = ("claim", "receipt", "règlement", "支払い", "🧾", "refund", "x" * 200)
KINDS = ("say", "call", "fail", "issued", "ask", "set", "note", "outer", "gather")


class Deed(NamedTuple):
    """One thing that an agent does: which, with what, and by which version of its tool."""

    kind: str
    word: str = ""
    numbers: tuple[int, ...] = ()
    version: str = ""


class Script(NamedTuple):
    """An agent: turns, each a prompt and deeds. With a client, it also talks to a model server."""

    turns: tuple[tuple[str, tuple[Deed, ...]], ...]


class World:
    """Everything outside of the agent. `ledger` is what really happened there."""

    def __init__(self, url: str = "") -> None:
        self.ledger: list[Any] = []
        self.url = url
        self.client: Any = None

    def charge(self, amount: int) -> dict[str, Any]:
        self.ledger.append(amount)
        return {"charged": amount, "number": len(self.ledger)}

    def refuse(self, amount: int) -> None:
        self.ledger.append(("refused", amount))
        raise ValueError(f"refused {amount}, number {len(self.ledger)}")

    def answer(self, messages: list[Any], word: str) -> dict[str, Any]:
        self.ledger.append(word)
        text = f"{word} after {len(messages)}, number {len(self.ledger)}"
        return {"text": text, "usage": {"total_tokens": len(text)}}

    def reach(self, word: str) -> None:
        """Reach out, as an agent should not that is replayed."""
        if word == "socket":
            with socket.socket() as made:
                made.bind(("127.0.0.1", 0))
        else:
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def draw(rng: random.Random, *, served: bool) -> Script:
    """Return an agent; one that is `served` has a model server to talk to."""
    kinds = [*KINDS, *(["chat", "stream", "response"] if served else [])]
    turns = []
    for number in range(rng.randint(1, 3)):
        deeds = [_deed(rng, rng.choice(kinds)) for _ in range(rng.randint(1, 5))]
        turns.append((f"{rng.choice(WORDS)} {number}", (*deeds, _deed(rng, "say"))))
    return Script(tuple(turns))


def _deed(rng: random.Random, kind: str) -> Deed:
    count = rng.randint(2, 5) if kind in ("issued", "gather", "outer") else 1
    numbers = tuple(rng.sample(range(1_000), count))
    return Deed(kind, rng.choice(WORDS), numbers, rng.choice(("", "1")))


CHANGES = {
    "say": ("word",),
    "call": ("number", "version"),
    "fail": ("number", "version"),
    "issued": ("number", "version"),
    "ask": ("word", "version"),
    "set": ("number",),
    "note": ("word",),
    "outer": ("number", "version"),
    "gather": ("number", "version"),
    "chat": ("word",),
    "stream": ("word",),
    "response": ("word",),
}


def changed(script: Script, turn: int, number: int, what: str) -> Script:
    """Return an agent that does one thing differently; a number of -1 is the turn's prompt."""
    prompt, deeds = script.turns[turn]
    if number < 0:
        prompt += "!"
    else:
        deed = deeds[number]
        if what == "word":
            deed = deed._replace(word=f"{deed.word}!")
        elif what == "number":
            deed = deed._replace(numbers=(deed.numbers[0] + 1_000, *deed.numbers[1:]))
        elif what == "version":
            deed = deed._replace(version="2")
        else:
            deed = Deed("reach", what)
        deeds = (*deeds[:number], deed, *deeds[number + 1 :])
    return Script((*script.turns[:turn], (prompt, deeds), *script.turns[turn + 1 :]))


def drive(steps: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Entered:
    """A turn of either colour, for `async with`."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn

    async def __aenter__(self) -> Any:
        blocking = hasattr(self._turn, "__enter__")
        return self._turn.__enter__() if blocking else await self._turn.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        if hasattr(self._turn, "__exit__"):
            self._turn.__exit__(*error)
        else:
            await self._turn.__aexit__(*error)


class Running:
    """An agent at work in a session. `places` are the positions before each of its deeds."""

    def __init__(self, session: Any, world: World, script: Script) -> None:
        self._session = session
        self._world = world
        self._script = script
        self._heard = sha256()
        self.places: dict[tuple[int, int], int] = {}

    async def run(self) -> str:
        for number, (prompt, deeds) in enumerate(self._script.turns):
            self.places[number, -1] = self._session.position
            async with Entered(self._session.turn(prompt)) as turn:
                for place, deed in enumerate(deeds):
                    self.places[number, place] = self._session.position
                    self._hear(await getattr(self, f"_{deed.kind}")(turn, deed))
            self._hear(await settled(self._session.get("plan")))
        return self._heard.hexdigest()

    def _hear(self, told: object) -> None:
        self._heard.update(repr(told).encode())

    def _tool(self, deed: Deed, name: str = "charge") -> Any:
        return self._session.tool(getattr(self._world, name), version=deed.version)

    async def _say(self, turn: Any, deed: Deed) -> None:
        text = f"{deed.word} {self._heard.hexdigest()}"
        await settled(turn.append({"role": "assistant", "content": text}))

    async def _call(self, _turn: Any, deed: Deed) -> Any:
        return await settled(self._tool(deed)(deed.numbers[0]))

    async def _fail(self, turn: Any, deed: Deed) -> None:
        try:
            await settled(self._tool(deed, "refuse")(deed.numbers[0]))
        except ValueError as error:
            await settled(turn.append({"role": "assistant", "content": f"Sorry: {error}"}))

    async def _issued(self, turn: Any, deed: Deed) -> Any:
        calls = [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": "charge", "arguments": f'{{"amount": {number}}}'},
            }
            for number in deed.numbers
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        await settled(turn.append(message))
        return await settled(self._session.run_tool_calls(message, [self._tool(deed)]))

    async def _ask(self, turn: Any, deed: Deed) -> None:
        ask = self._session.model(self._world.answer, version=deed.version)
        messages = await settled(self._session.messages(format="openai.chat"))
        reply = await settled(ask(messages, deed.word))
        await settled(turn.append({"role": "assistant", "content": reply["text"]}))

    async def _set(self, _turn: Any, deed: Deed) -> Any:
        text = deed.word * 3
        return await settled(self._session.set("plan", {"text": text, "n": [*deed.numbers]}))

    async def _note(self, _turn: Any, deed: Deed) -> Any:
        return await settled(self._session.note({"word": deed.word}))

    async def _outer(self, _turn: Any, deed: Deed) -> Any:
        """Call a tool that calls others, and writes."""
        inner = self._tool(deed)

        async def work(numbers: list[int]) -> int:
            found = [await settled(inner(number)) for number in numbers]
            await settled(self._session.set("inside", found))
            return sum(one["charged"] for one in found)

        def blocking(numbers: list[int]) -> Any:
            return drive(work(numbers))

        is_async = inspect.iscoroutinefunction(self._session.set)
        outer = self._session.tool(
            work if is_async else blocking, name="outer", version=deed.version
        )
        return await settled(outer([*deed.numbers]))

    async def _gather(self, _turn: Any, deed: Deed) -> Any:
        tool = self._tool(deed)
        if inspect.iscoroutinefunction(self._session.set):
            return await asyncio.gather(*(tool(number) for number in deed.numbers))
        with ThreadPoolExecutor(3) as pool:
            begun = [
                pool.submit(contextvars.copy_context().run, tool, number) for number in deed.numbers
            ]
        return [future.result() for future in begun]

    async def _reach(self, _turn: Any, deed: Deed) -> None:
        self._world.reach(deed.word)

    async def _chat(self, _turn: Any, deed: Deed) -> str:
        messages: Any = [{"role": "user", "content": deed.word}]
        create = wrap(self._world.client, self._session).chat.completions.create
        reply = await settled(create(model="m", messages=messages))
        return str(reply.choices[0].message.content)

    async def _stream(self, _turn: Any, deed: Deed) -> str:
        messages: Any = [{"role": "user", "content": deed.word}]
        create = wrap(self._world.client, self._session).chat.completions.create
        chunks: Any = await settled(create(model="m", messages=messages, stream=True))
        if hasattr(chunks, "__next__"):
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def _response(self, _turn: Any, deed: Deed) -> str:
        create = wrap(self._world.client, self._session).responses.create
        return str((await settled(create(model="m", input=deed.word))).output_text)
