"""Tasks of P29: five hundred on one event loop, each cancelled at an await that is drawn."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Generator
from typing import Any

import perdure
from perdure.errors import ConflictError, UnavailableError

TASKS = 500
SESSIONS = 20
AWAITS = 12  # Cancelled at the latest here; an append has fewer awaits than this.


class CancelledAt:
    """Awaits a coroutine, and cancels the task at its nth await, as a timeout would."""

    def __init__(self, work: Coroutine[Any, Any, None], nth: int) -> None:
        self._work = work
        self._nth = nth

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        count = 0
        while True:
            try:
                waiting = next(steps)
            except StopIteration:
                return
            count += 1
            task = asyncio.current_task()
            if count == self._nth and task is not None:
                task.cancel()
            try:
                yield waiting
            except asyncio.CancelledError as error:
                try:
                    waiting = steps.throw(error)
                except StopIteration:
                    return
                # What it does about it takes time as well, such as recording a failed turn.
                yield waiting


async def use(address: str, seed: int) -> list[tuple[str, str]]:
    """Run the tasks; return what was acknowledged, as (session, text)."""
    draw = random.Random(seed)
    acked: list[tuple[str, str]] = []
    async with perdure.open_async(address) as store:
        sessions = [await store.session(f"s{number}") for number in range(SESSIONS)]
        tasks = [
            asyncio.create_task(
                _work(draw.choice(sessions), f"t{number}", draw.randint(1, AWAITS), acked)
            )
            for number in range(TASKS)
        ]
        await asyncio.gather(*tasks)
        for session in sessions:
            await _say(session, f"{session.id} is usable")
            await session.verify()
    return acked


async def _work(
    session: perdure.AsyncSession, text: str, nth: int, acked: list[tuple[str, str]]
) -> None:
    """Say something, cancelled on the way; then say it again, as somebody who got no answer."""
    with contextlib.suppress(asyncio.CancelledError):
        await CancelledAt(_all(session, text, acked), nth)
    await _say(session, text)
    acked.append((session.id, text))
    assert text in [message["content"] for message in await session.messages()]


async def _all(session: perdure.AsyncSession, text: str, acked: list[tuple[str, str]]) -> None:
    await _say(session, text)
    acked.append((session.id, text))
    await session.set(text, {"text": text})
    assert await session.get(text) == {"text": text}
    with contextlib.suppress(ConflictError):
        async with session.turn({"role": "user", "content": f"turn of {text}"}) as turn:
            await turn.append({"role": "user", "content": f"answer to {text}"})
    await session.messages(last=3)


async def _say(session: perdure.AsyncSession, text: str) -> None:
    while True:
        try:
            await session.append({"role": "user", "content": text}, id=text)
        except (ConflictError, UnavailableError):
            continue
        return
