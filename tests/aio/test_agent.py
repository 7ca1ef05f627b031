"""An agent continues after anything, and its tools take effect at most once."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.errors import AgentLimitError, ApprovalPendingError, ContextWindowError, UsageError


class ModelDownError(Exception):
    """The model's 500."""


class KilledError(BaseException):
    """The end of the process: no code handles it, and nothing is stored after it."""


class MortalBackend(MemoryBackend):
    """A store whose process dies before or after the append with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.dies_at = -1
        self.stores_last = False

    def append(self, appends: Sequence[Any]) -> Any:
        """Store the appends, unless the process is dead."""
        self.appends += 1
        if 0 <= self.dies_at < self.appends:
            if self.stores_last and self.appends == self.dies_at + 1:
                super().append(appends)
            raise KilledError
        return super().append(appends)


async def open_session(backend: MemoryBackend, id: str = "s") -> perdure.AsyncSession:
    return await perdure.open_async(ThreadedBackend(backend)).session(id)


def calling(*names: str) -> dict[str, Any]:
    calls = [
        {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class World:
    """A model that calls `pay`, then `send`, then answers; and what its tools did."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.asked = 0
        self.fails: dict[str, BaseException] = {}

    def model(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        """Answer by the number of results so far."""
        assert [tool["function"]["name"] for tool in tools] == ["pay", "send"]
        self.asked += 1
        results = [message["content"] for message in messages if message["role"] == "tool"]
        self._fail(f"model {len(results)}")
        return [calling("pay"), calling("send"), said(" and ".join(results))][len(results)]

    def pay(self) -> str:
        """Pay."""
        self._fail("before pay")
        self.ledger.append("pay")
        self._fail("after pay")
        return "paid"

    def send(self) -> str:
        """Send."""
        self._fail("before send")
        self.ledger.append("send")
        self._fail("after send")
        return "sent"

    def _fail(self, point: str) -> None:
        if point in self.fails:
            raise self.fails.pop(point)

    async def run_in(self, backend: MemoryBackend) -> dict[str, Any]:
        """Run the request in a process of its own."""
        session = await open_session(backend)
        return await self.agent(session).run("r1", "Go.")

    def agent(self, session: perdure.AsyncSession, **options: Any) -> perdure.AsyncAgent:
        """Return the agent for a session."""
        return perdure.AsyncAgent(session, self.model, [self.pay, self.send], **options)


async def settle(backend: MemoryBackend, world: World) -> dict[str, str]:
    """Run the request again, and a third time; return its effects and check what must hold."""
    session = await open_session(backend)
    second = await world.agent(session).run("r1", "Go.")
    assert len(world.ledger) == len(set(world.ledger))
    position, asked = session.position, world.asked
    third = await open_session(backend)
    assert await world.agent(third).run("r1", "Go.") == second
    assert (third.position, world.asked) == (position, asked)
    effects = await third.effects.list()
    states = {effect.tool: str(effect.state) for effect in effects if effect.kind == "tool"}
    for tool, state in states.items():
        assert state in ("succeeded", "unknown", "failed")
        assert state != "succeeded" or tool in world.ledger
        assert state != "failed" or tool not in world.ledger
    if "unknown" not in states.values() and "failed" not in states.values():
        assert second == said("paid and sent")
    await third.verify()
    return states


async def test_an_agent_answers_with_its_tools_and_the_same_each_time() -> None:
    backend, world = MemoryBackend(), World()
    session = await open_session(backend)
    assert await world.agent(session).run("r1", "Go.") == said("paid and sent")
    assert await settle(backend, world) == {"pay": "succeeded", "send": "succeeded"}
    assert (world.ledger, world.asked) == (["pay", "send"], 3)
    assert (await session.find_turn("r1")).state == "completed"


@pytest.mark.parametrize("error", [ModelDownError(), KeyboardInterrupt(), KilledError()])
@pytest.mark.parametrize("point", ["model 0", "model 1", "model 2"])
async def test_a_model_that_fails_is_asked_again_and_no_tool_runs_twice(
    point: str, error: BaseException
) -> None:
    backend, world = MemoryBackend(), World()
    world.fails[point] = error
    with pytest.raises(type(error)):
        await world.run_in(backend)
    assert await settle(backend, world) == {"pay": "succeeded", "send": "succeeded"}
    assert (world.ledger, world.asked) == (["pay", "send"], 4)


@pytest.mark.parametrize("point", ["before pay", "after pay", "before send", "after send"])
async def test_a_tool_that_is_interrupted_is_unknown_and_does_not_run_again(point: str) -> None:
    backend, world = MemoryBackend(), World()
    world.fails[point] = KilledError()
    with pytest.raises(KilledError):
        await world.run_in(backend)
    states = await settle(backend, world)
    tool = point.split()[1]
    assert states[tool] == "unknown"
    assert world.ledger.count(tool) == point.startswith("after")


async def test_the_error_of_a_tool_is_told_to_the_model() -> None:
    backend, world = MemoryBackend(), World()
    world.fails["before pay"] = ModelDownError("no funds")
    session = await open_session(backend)
    answer = await world.agent(session).run("r1", "Go.")
    assert answer == said("Error: ModelDownError: no funds and sent")
    assert world.ledger == ["send"]


@pytest.mark.parametrize("stores_last", [False, True])
async def test_a_kill_at_any_append_loses_nothing_and_repeats_nothing(*, stores_last: bool) -> None:
    backend, world = MortalBackend(), World()
    await world.run_in(backend)
    count = backend.appends
    assert count > 6
    for number in range(count):
        backend, world = MortalBackend(), World()
        backend.dies_at, backend.stores_last = number, stores_last
        with suppress(KilledError):  # After its last append, the answer may have been returned.
            await world.run_in(backend)
        backend.dies_at = -1
        await settle(backend, world)


@pytest.mark.parametrize(
    ("options", "limit", "ledger"),
    [
        ({"max_steps": 2}, "max_steps", ["pay", "send"]),
        ({"max_tool_calls": 1}, "max_tool_calls", ["pay"]),
        ({"timeout": 0.0}, "timeout", []),
    ],
)
async def test_a_limit_stops_the_turn_and_a_higher_one_continues_it(
    options: dict[str, Any], limit: str, ledger: list[str]
) -> None:
    world, session = World(), await open_session(MemoryBackend())
    for _ in range(2):  # The limits are those of the turn, however often it is run.
        with pytest.raises(AgentLimitError, match="run the turn again with a higher") as caught:
            await world.agent(session, **options).run("r1", "Go.")
        assert (caught.value.limit, caught.value.turn, world.ledger) == (limit, "r1", ledger)
    assert await world.agent(session).run("r1", "Go.") == said("paid and sent")
    assert world.ledger == ["pay", "send"]


async def test_limits_that_are_just_enough_do_not_stop_a_turn() -> None:
    world, session = World(), await open_session(MemoryBackend())
    agent = world.agent(session, max_steps=3, max_tool_calls=2, timeout=60)
    assert await agent.run("r1", "Go.") == said("paid and sent")


async def test_a_window_that_is_too_small_is_an_error_and_a_larger_one_continues() -> None:
    world, session = World(), await open_session(MemoryBackend())
    with pytest.raises(ContextWindowError):
        await world.agent(session, max_tokens=1).run("r1", "Go.")
    assert await world.agent(session, max_tokens=9_000).run("r1", "Go.") == said("paid and sent")


async def test_a_call_that_waits_for_an_approval_suspends_the_turn() -> None:
    world, session = World(), await open_session(MemoryBackend())
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    agent = perdure.AsyncAgent(session, world.model, [pay, world.send])
    with pytest.raises(ApprovalPendingError):
        await agent.run("r1", "Go.")
    assert (world.ledger, (await session.find_turn("r1")).state) == ([], "interrupted")
    (waiting,) = await session.approvals.pending()
    await session.approvals.approve(waiting.id, by="Ada")
    assert await agent.run("r1", "Go.") == said("paid and sent")
    assert world.asked == 3


async def test_bad_calls_are_told_to_the_model() -> None:
    bad = calling("nope", "late", "late")
    bad["tool_calls"][1]["function"]["arguments"] = '{"day": "tomorrow"}'
    bad["tool_calls"][2] |= {"id": "c2", "function": {"name": "late", "arguments": '{"day"'}}
    good = calling("late")
    good["tool_calls"][0] |= {"id": "c3"}
    good["tool_calls"][0]["function"]["arguments"] = '{"day": "2026-11-18"}'
    replies = [bad, good, said("done")]
    days: list[date] = []

    def late(day: date) -> None:
        days.append(day)

    session = await open_session(MemoryBackend())
    agent = perdure.AsyncAgent(session, lambda *_: replies.pop(0), [late])
    assert await agent.run("r1", "Go.") == said("done")
    messages = await session.messages()
    told = {item["tool_call_id"]: item["content"] for item in messages if item["role"] == "tool"}
    assert "there is no tool 'nope'. There are: late." in told["c-nope"]
    assert "the argument 'day' is invalid" in told["c-late"]
    assert "its arguments are not JSON" in told["c2"]
    assert days == [date(2026, 11, 18)]


async def test_instructions_are_sent_and_not_stored() -> None:
    prompts: list[Any] = []

    def model(messages: list[dict[str, Any]], _tools: object) -> dict[str, Any]:
        prompts.append([*messages])
        return said("yes")

    session = await open_session(MemoryBackend())
    await perdure.AsyncAgent(session, model, instructions="Be kind.").run("r1", "Go.")
    assert prompts[0][0] == {"role": "system", "content": "Be kind."}
    assert len(session) == 2


async def test_an_agent_continues_a_turn_that_it_is_called_with() -> None:
    world, session = World(), await open_session(MemoryBackend())
    world.fails["model 1"] = ModelDownError()
    turn = session.turn("Go.")
    agent = world.agent(session)
    async with turn:
        with suppress(ModelDownError):
            await agent(turn)
        await agent(turn)
    assert await turn.answer() == said("paid and sent")


async def test_the_replay_of_an_agent_calls_nothing() -> None:
    world, session = World(), await open_session(MemoryBackend())
    await world.agent(session).run("r1", "Go.")

    async def again(replayed: perdure.AsyncSession) -> None:
        await world.agent(replayed).run("r1", "Go.")

    replay = await perdure.replay(session, again)
    replay.check()
    assert (world.ledger, world.asked) == (["pay", "send"], 3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"session": "s"}, "needs the class"),
        ({"model": "gpt"}, "is not a model"),
        ({"model": str}, "no format"),
        ({"max_steps": "3"}, "max_steps must be"),
        ({"timeout": -1}, "timeout must be"),
        ({"tools": [print]}, "has no keyword"),
    ],
)
async def test_a_bad_option_is_refused(options: dict[str, Any], reason: str) -> None:
    good: dict[str, Any] = {"session": await open_session(MemoryBackend()), "model": World().model}
    assert repr(perdure.AsyncAgent(**good)).endswith("Agent 'model' of 's'>")
    with pytest.raises(UsageError, match=reason):
        perdure.AsyncAgent(**good | options)


async def test_a_reply_that_is_no_message_fails_the_turn() -> None:
    session = await open_session(MemoryBackend())
    with pytest.raises(UsageError):
        await perdure.AsyncAgent(session, lambda *_: 5).run("r1", "Go.")
    assert (await session.find_turn("r1")).state == "failed"
    agent = perdure.AsyncAgent(session, lambda *_: said("better"))
    assert await agent.run("r1", "Go.") == said("better")
