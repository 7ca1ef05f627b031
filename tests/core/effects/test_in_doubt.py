"""A call whose intent was in doubt was not made; it is made when it is tried again."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Outcome
from perdure.core.effects.calls import DidNotHappen, Effect, Happened
from perdure.errors import UnavailableError, UnknownOutcomeError
from perdure.testing import Flaky

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "charge", "arguments": '{"amount":5}'},
        }
    ],
}


class Weather:
    """Fails for as long as it is bad."""

    def __init__(self) -> None:
        self.bad = False

    def __call__(self, _number: int) -> bool:
        return self.bad


@pytest.fixture
def weather() -> Weather:
    return Weather()


@pytest.fixture(params=[False, True], ids=["not stored", "stored"])
def session(request: pytest.FixtureRequest, weather: Weather) -> perdure.Session:
    backend = Flaky(MemoryBackend(), fail=weather, after_commit=request.param)
    return perdure.open(backend).session("s")


@pytest.fixture
def calls() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def charge(calls: list[tuple[str, int]]) -> Callable[[int], str]:
    def charge(amount: int) -> str:
        calls.append((perdure.current_effect().key, amount))
        return f"charged {amount}"

    return charge


def states(session: perdure.Session) -> list[str]:
    return [one.state for one in session.effects.list()]


def test_a_models_call_is_made_when_the_store_is_back(
    session: perdure.Session, weather: Weather, charge: Any, calls: list[Any]
) -> None:
    with session.turn("Pay.") as turn:
        turn.append(CALL)
        weather.bad = True
        for _ in range(2):
            with pytest.raises(UnavailableError):
                session.run_tool_calls(None, [charge])
        assert calls == []
        weather.bad = False
        (told,) = session.run_tool_calls(None, [charge])
        assert told["content"] == "charged 5"
    assert len(calls) == 1
    assert states(session)[-1] == "succeeded"
    assert session.effects.unknown() == []
    assert {one.key for one in session.effects.list()} == {calls[0][0]}
    session.verify()


def test_a_direct_call_that_is_tried_again_is_the_same_call(
    session: perdure.Session, weather: Weather, charge: Any, calls: list[Any]
) -> None:
    with session.turn("Pay."):
        tool = session.tool(charge)
        tool(5)
        weather.bad = True
        with pytest.raises(UnavailableError):
            tool(5)
        weather.bad = False
        tool(5)
        tool(5)
    assert len(calls) == 3
    assert session.effects.unknown() == []
    assert len({one.identity for one in session.effects.list()}) == 3
    session.verify()


def test_a_direct_call_that_ran_and_is_tried_again_is_the_same_call(
    session: perdure.Session, weather: Weather, calls: list[Any]
) -> None:
    def charge(amount: int) -> str:
        calls.append(amount)
        weather.bad = len(calls) == 1
        return f"charged {amount}"

    with session.turn("Pay."):
        tool = session.tool(charge)
        with pytest.raises(UnavailableError):
            tool(5)
        weather.bad = False
        assert tool(5) == "charged 5"  # As it was recorded, when the store was back.
        assert calls == [5]
        tool(5)
    assert calls == [5, 5]
    assert states(session) == ["succeeded", "succeeded"]


def test_a_direct_call_that_ran_in_a_loop_and_is_tried_again_is_the_same_call(
    weather: Weather, calls: list[Any]
) -> None:
    async def charge(amount: int) -> str:
        calls.append(amount)
        weather.bad = len(calls) == 1
        return f"charged {amount}"

    async def run() -> None:
        backend = ThreadedBackend(Flaky(MemoryBackend(), fail=weather))
        async with perdure.open_async(backend) as store:
            session = await store.session("s")
            async with session.turn("Pay."):
                tool = session.tool(charge)
                with pytest.raises(UnavailableError):
                    await tool(5)
                weather.bad = False
                assert await tool(5) == "charged 5"

    asyncio.run(run())
    assert calls == [5]


class Interfering(MemoryBackend):
    """Somebody else writes at the very moment that the store fails."""

    left = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        if not self.left:
            return super().append(appends)
        self.left, last = self.left - 1, self.left == 1
        if last:
            perdure.open(self).session("s").note("I was first")
        raise UnavailableError("the store", "made to fail")


@pytest.mark.parametrize(("policy", "times"), [("unsafe", 1), ("read_only", 2)])
def test_a_call_that_ran_and_could_not_be_recorded_follows_its_policy(
    policy: Any, times: int, calls: list[Any]
) -> None:
    backend = Interfering()
    session = perdure.open(backend).session("s")

    def charge() -> str:
        calls.append(("", 5))
        backend.left = 2 if len(calls) == 1 else 0  # An append is tried twice.
        return "charged"

    with session.turn("Pay."):
        tool = session.tool(charge, effect=policy).keyed("once")
        with pytest.raises(UnavailableError):
            tool()
        if policy == "unsafe":
            with pytest.raises(UnknownOutcomeError):
                tool()
        else:
            assert tool() == "charged"
    assert len(calls) == times
    assert states(session)[-1] == ("unknown" if policy == "unsafe" else "succeeded")
    session.verify()


def test_a_reconciled_call_that_was_not_made_is_made(
    session: perdure.Session, weather: Weather, charge: Any, calls: list[Any]
) -> None:
    def look(_: Effect) -> Happened | DidNotHappen:
        raise AssertionError("nothing was done, and nobody need find out")

    with session.turn("Pay."):
        tool = session.tool(charge, effect="reconcile", reconcile=look)
        weather.bad = True
        with pytest.raises(UnavailableError):
            tool(5)
        weather.bad = False
        assert tool(5) == "charged 5"
    assert len(calls) == 1


def test_a_call_that_is_cancelled_before_it_ran_can_be_made(calls: list[Any]) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Gate(MemoryBackend):
        def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
            entered.set()
            assert go_on.wait(60)
            return super().append(appends)

    async def charge(amount: int) -> str:
        calls.append(amount)
        return f"charged {amount}"

    go_on.set()

    async def main() -> None:
        async with perdure.open_async(ThreadedBackend(Gate())) as store:
            session = await store.session("s")
            async with session.turn("Pay.") as turn:
                await turn.append(CALL)
                entered.clear()
                go_on.clear()
                task = asyncio.create_task(session.run_tool_calls(None, [charge]))
                while not entered.is_set():  # noqa: ASYNC110 - it is set in another thread
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.sleep(0.001)
                go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert calls == []
                (told,) = await session.run_tool_calls(None, [charge])
                assert told["content"] == "charged 5"
            assert calls == [5]
            assert await session.effects.unknown() == []
            await session.verify()

    asyncio.run(main())
