"""Signal handlers that raise in an event loop, at every place of a store in turn.

The loop goes on: a callback that is interrupted is only logged, and its work must be completed.
"""

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.aio.group_commit import AsyncBatcher, StallDetector
from perdure.aio.session import AsyncSession
from perdure.aio.store import AsyncStore
from perdure.backends import interrupt_safety
from perdure.backends.interrupt_safety import AsyncWakeSignal
from perdure.errors import ConflictError, UnavailableError
from tests.backends.interrupting import Interrupt, interrupted_in_loop
from tests.support import said

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 20.0  # Seconds; an interrupt may delay a write by less than one.

# Which places are visited: each so many.
STEPS = {"memory": 3, "sqlite": 2, "files": 3, "postgres": 11}


@pytest.fixture(params=STEPS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "postgres":
        return f"{request.getfixturevalue('postgres_store')}&connections=2"
    return "memory:" if kind == "memory" else f"{kind}:{tmp_path}/store"


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208


async def say(session: AsyncSession, text: str) -> None:
    """Append a message, whatever an interrupt left undecided."""
    while True:
        with contextlib.suppress(ConflictError, UnavailableError):
            await session.append(said(text), id=text)
            return


def visit(
    address: str, step: int, work: Callable[[AsyncStore, AsyncSession, int], Awaitable[object]]
) -> int:
    """Interrupt work at one place after the other; both sessions must be usable after each."""

    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store = perdure.open_async(address)
        sessions = [await store.session(name) for name in ("a", "b")]
        for session in sessions:
            await say(session, "first")
        reached, number = True, 0

        async def interrupted() -> None:
            with contextlib.suppress(ConflictError, UnavailableError):
                await work(store, sessions[0], number)

        while reached:
            number += 1
            reached = await interrupted_in_loop(1 + (number - 1) * step, interrupted, PATIENCE)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(say(session, f"after {number}") for session in sessions))
        async with asyncio.timeout(PATIENCE):
            for session in sessions:
                await session.verify()
                texts = [message["content"] for message in await session.messages()]
                assert len(texts) == len({*texts})
                assert {f"after {each}" for each in range(1, number + 1)} <= {*texts}
            await store.close()
        return number - 1

    before = descriptors()
    count = asyncio.run(main())
    assert descriptors() <= before
    return count


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_write_that_is_interrupted_anywhere_leaves_no_task_waiting(
    kind: str, address: str
) -> None:
    async def append(_: AsyncStore, session: AsyncSession, number: int) -> None:
        await session.append(said(f"interrupted {number}"))

    assert visit(address, STEPS[kind], append) > 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_opening_reading_and_closing_that_are_interrupted_anywhere_leave_nothing_open(
    kind: str, address: str
) -> None:
    async def use(_: AsyncStore, __: AsyncSession, number: int) -> None:
        async with perdure.open_async(address) as other:
            session = await other.session("b")
            await session.append(said(f"interrupted {number}"))
            assert [one async for one in other.sessions()]

    assert visit(address, 61 * STEPS[kind], use) > 5


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, times: int = 1) -> None:
    """Have a callback raise before its first line, as a signal handler can."""
    method, left = getattr(owner, name), times

    def interrupted(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise Interrupt
        return method(*args)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.slow
def test_a_check_for_stalls_that_is_interrupted_anywhere_is_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store = perdure.open_async("memory:")
        session = await store.session("a")
        reached, number = True, 0

        async def check() -> None:
            store._committer.stalls._check()

        while reached:
            number += 1
            await say(session, f"before {number}")
            reached = await interrupted_in_loop(number, check, PATIENCE)
            with monkeypatch.context() as patch:
                interrupt(patch, AsyncBatcher, "on_done")
                async with asyncio.timeout(PATIENCE):
                    await say(session, f"after {number}")
        await store.close()
        return number

    assert asyncio.run(main()) > 10


def test_checks_for_stalls_that_are_interrupted_one_after_the_other_are_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        store = perdure.open_async("memory:")
        session = await store.session("a")
        interrupt(monkeypatch, AsyncBatcher, "on_done")
        interrupt(monkeypatch, StallDetector, "_check", times=3)
        async with asyncio.timeout(PATIENCE):
            await say(session, "text")
            await store.close()

    asyncio.run(main())


def test_ends_of_a_sleep_that_are_interrupted_one_after_the_other_are_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(PATIENCE):
            await AsyncWakeSignal().sleep(0.001)

    monkeypatch.setattr(interrupt_safety, "RECHECK_INTERVAL", 0.01)
    interrupt(monkeypatch, AsyncWakeSignal, "_end_sleep", times=3)
    asyncio.run(main())
