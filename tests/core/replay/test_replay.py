"""An agent that runs again on its record does the same, calls nothing, and writes nothing."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import errors
from perdure.core.effects.calls import ToolTimeoutError
from perdure.errors import (
    ReplayBlockedError,
    ReplayDivergenceError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.journal.records import EffectIntent
from tests.formats.streams import one_choice

Agent = Callable[[perdure.Session], Any]


class World:
    """Everything outside of the agent; it counts what really happens."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def charge(self, amount: int) -> dict[str, int]:
        self.calls.append(amount)
        return {"charged": amount, "number": len(self.calls)}

    def answer(self, messages: list[Any]) -> dict[str, Any]:
        self.calls.append("asked")
        return {"text": f"{len(messages)} read, {len(self.calls)} calls so far"}


def calling(*amounts: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": "charge", "arguments": f'{{"amount": {amount}}}'},
        }
        for number, amount in enumerate(amounts)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[perdure.Session]:
    with perdure.open(tmp_path / "agents.db") as store:
        yield store.session("s")


def an_agent(
    world: World,
    *,
    prompt: str = "Pay.",
    amount: int = 5,
    version: str = "1",
    plan: Any = ("one", "two"),
    last: str = "Done.",
    parallel: int = 8,
) -> Agent:
    def agent(session: perdure.Session) -> Any:
        charge = session.tool(world.charge, version=version)
        ask = session.model(world.answer)
        with session.turn(prompt) as turn:
            reply = ask(session.messages(format="openai.chat"))
            turn.append(said(reply["text"]))
            turn.append(calling(1, 2, 3))
            session.run_tool_calls(tools=[charge], parallel=parallel)
            paid = charge(amount)
            session.set("plan", {"steps": [*plan], "paid": paid})
            turn.append(said(last))
        session.note("that was all")
        return paid, session.position, session.get("plan"), session.messages()

    return agent


def test_an_agent_does_the_same_and_nothing_is_called_or_written(
    session: perdure.Session, world: World
) -> None:
    returned = an_agent(world)(session)
    before, position = [*world.calls], session.position
    for _ in range(3):
        replay = perdure.replay(session, an_agent(world))
        assert replay.divergence is None
        assert replay.identical
        assert replay.returned == returned
        assert replay.outputs == session.messages()
        assert replay.served[0] == "answer"
        assert sorted(replay.served[1:]) == ["charge"] * 4
        assert (replay.start, replay.end, replay.ended, replay.error) == (0, position, "", None)
        assert replay.check() is replay
    assert world.calls == before
    assert session.refresh() == position


@pytest.mark.parametrize(
    ("change", "path", "kind"),
    [
        ({"prompt": "Pay!"}, "$.message.content", "message"),
        ({"amount": 6}, "$.arguments.amount", "effect.intent"),
        ({"version": "2"}, "$.version", "effect.intent"),
        ({"plan": ["one", "three"]}, "$.data.steps[1]", "value"),
        ({"plan": ["one"]}, "$.data.steps[1]", "value"),
        ({"last": "Happened!"}, "$.message.content", "message"),
    ],
    ids=["prompt", "argument", "version", "value", "shorter", "words"],
)
def test_the_first_difference_is_found_and_shown(
    session: perdure.Session, world: World, change: dict[str, Any], path: str, kind: str
) -> None:
    an_agent(world)(session)
    before = [*world.calls]
    replay = perdure.replay(session, an_agent(world, **change))
    found = replay.divergence
    assert found is not None
    assert not replay.identical
    assert found.path == path
    recorded = {record.position: record for record in session.records()}[found.position]
    assert recorded.kind == kind
    text = str(found)
    assert f"position {found.position}" in text
    assert "- recorded: " in text
    assert "+ now:      " in text
    with pytest.raises(ReplayDivergenceError, match=f"position {found.position}") as caught:
        replay.check()
    assert caught.value.record_id == f"position {found.position}, {path}"
    assert isinstance(caught.value, perdure.DivergenceError)
    assert world.calls == before


def test_a_request_that_is_another_is_known_by_its_digest(
    session: perdure.Session, world: World
) -> None:
    def agent(system: str) -> Agent:
        def run(session: perdure.Session) -> None:
            ask = session.model(world.answer)
            with session.turn("Hi.") as turn:
                turn.append(said(ask([{"role": "system", "content": system}])["text"]))

        return run

    agent("Be kind.")(session)
    assert perdure.replay(session, agent("Be kind.")).identical
    found = perdure.replay(session, agent("Be rude.")).divergence
    assert found is not None
    assert found.path == "$.digest"


def test_more_and_less_than_was_recorded_are_differences(
    session: perdure.Session, world: World
) -> None:
    def agent(count: int, *, order: int = 1) -> Agent:
        def run(session: perdure.Session) -> None:
            charge = session.tool(world.charge)
            with session.turn("Pay."):
                for number in [*range(count)][::order]:
                    charge(number)

        return run

    agent(2)(session)
    for other in (agent(1), agent(3), agent(2, order=-1), agent(0), lambda session: None):
        replay = perdure.replay(session, other)
        assert replay.divergence is not None
    assert perdure.replay(session, lambda session: None).divergence is not None
    more = perdure.replay(session, agent(3)).divergence
    assert more is not None
    assert "calls charge with" in str(more)
    twice = perdure.replay(session, lambda session: (agent(2)(session), agent(2)(session)))
    assert twice.divergence is not None
    assert twice.divergence.position == 0
    assert "the record ends here" in str(twice.divergence)


def test_parallel_calls_are_served_whatever_their_order(
    session: perdure.Session, world: World
) -> None:
    others_done = threading.Event()

    def charge(amount: int) -> int:
        if amount == 0:
            assert others_done.wait(60)
        world.calls.append(amount)
        if len(world.calls) == 3:
            others_done.set()
        return amount

    def agent(session: perdure.Session) -> list[Any]:
        with session.turn("Pay.") as turn:
            turn.append(calling(0, 1, 2, 3))
            return session.run_tool_calls(tools=[session.tool(charge)])

    returned = agent(session)
    assert world.calls[-1] == 0
    for _ in range(10):
        replay = perdure.replay(session, agent)
        assert replay.check().returned == returned
        assert replay.outputs == session.messages()
    assert len(world.calls) == 4


def test_what_a_tool_wrote_and_called_itself_is_passed_over(
    session: perdure.Session, world: World
) -> None:
    def agent(session: perdure.Session) -> Any:
        inner = session.tool(world.charge)

        def outer() -> Any:
            session.set("inside", 1)
            session.note("inside")
            return inner(7)["charged"] + inner(8)["charged"]

        with session.turn("Pay.") as turn:
            found = session.tool(outer)()
            turn.append(said(str(found)))
            return found, session.get("inside")

    returned = agent(session)
    replay = perdure.replay(session, agent)
    assert replay.check().returned == returned == (15, 1)
    assert replay.served == ["outer"]
    assert world.calls == [7, 8]


class PaymentError(Exception):
    """One of the application's own."""


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("gone"), OSError("disk")])
def test_what_a_tool_raised_is_raised_again(session: perdure.Session, error: Exception) -> None:
    def charge() -> None:
        raise error

    def agent(session: perdure.Session) -> str:
        with session.turn("Pay.") as turn:
            try:
                session.tool(charge)()
            except type(error) as caught:
                turn.append(said(f"{type(caught).__qualname__}: {caught}"))
                return str(caught)
            return "nothing"

    assert agent(session) == str(error)
    assert perdure.replay(session, agent).check().returned == str(error)


def test_an_error_of_the_applications_own_is_given_to_replay(session: perdure.Session) -> None:
    def charge() -> None:
        raise PaymentError("declined")

    def agent(session: perdure.Session) -> None:
        with session.turn("Pay.") as turn:
            try:
                session.tool(charge)()
            except PaymentError as caught:
                turn.append(said(str(caught)))

    agent(session)
    assert perdure.replay(session, agent, errors=[PaymentError]).identical
    assert not perdure.replay(session, agent).identical


def test_a_turn_that_failed_fails_again(session: perdure.Session, world: World) -> None:
    def agent(session: perdure.Session) -> None:
        with session.turn("Pay."):
            session.tool(world.charge)(5)
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        agent(session)
    replay = perdure.replay(session, agent)
    assert replay.check().error is not None
    assert str(replay.error) == "no more"


def test_a_timeout_is_one_again(session: perdure.Session) -> None:
    gate = threading.Event()

    def agent(session: perdure.Session) -> None:
        with session.turn("Wait.") as turn:
            try:
                session.tool(gate.wait, name="wait", timeout=0.05)()
            except ToolTimeoutError as caught:
                turn.append(said(str(caught)))

    agent(session)
    gate.set()
    assert perdure.replay(session, agent).identical


@pytest.fixture
def address() -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def connect(address: Any) -> None:
    socket.create_connection(address, timeout=60).close()


def listen(address: Any) -> None:
    with socket.socket() as made:
        made.bind((address[0], 0))


def resolve(address: Any) -> None:
    socket.getaddrinfo(*address)


def run(_address: Any) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def in_thread(address: Any) -> None:
    def quietly(reach: Callable[[Any], None]) -> None:
        with suppress(ReplayBlockedError):
            reach(address)

    threads = [threading.Thread(target=quietly, args=(one,)) for one in (resolve, run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("reach", [connect, listen, resolve, run, in_thread])
def test_the_network_and_other_programs_are_refused_and_only_while_replaying(
    session: perdure.Session, world: World, address: Any, reach: Callable[[Any], None]
) -> None:
    def agent(session: perdure.Session) -> None:
        with session.turn("Pay."):
            reach(address)
            session.tool(world.charge)(5)

    agent(session)
    replay = perdure.replay(session, agent)
    assert not replay.identical
    assert replay.refused
    with pytest.raises(ReplayDivergenceError):
        replay.check()
    reach(address)
    assert world.calls == [5]


def test_a_session_that_is_live_is_refused_to_a_replayed_agent(
    session: perdure.Session, world: World
) -> None:
    tool = session.tool(world.charge)  # Bound to the live session, and not to the one given.

    def agent(_given: perdure.Session) -> None:
        with session.turn("Pay."):
            tool(5)

    agent(session)
    before = session.position
    replay = perdure.replay(session, agent)
    assert isinstance(replay.error, ReplayBlockedError)
    assert (replay.identical, replay.refused) == (False, ("turn.begin in the live session 's'",))
    with session.turn("Pay more."):
        replay = perdure.replay(session, lambda _: tool(6))
        assert replay.refused == ("call of 'charge' in the live session 's'",)
    assert world.calls == [5]
    assert session.position == before + 3  # The second turn, and nothing in it.


ASKING: dict[str, dict[str, Any]] = {
    "chat": {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
            {"id": "2", "type": "function", "function": {"name": "look", "arguments": '{"at": 0}'}},
        ],
    },
    "anthropic": {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "1", "name": "look", "input": {"at": 1}},
            {"type": "tool_use", "id": "2", "name": "look", "input": {"at": 0}},
        ],
    },
    "responses": {
        "type": "function_call",
        "call_id": "1",
        "name": "look",
        "arguments": '{"at": 1}',
    },
    "gemini": {
        "role": "model",
        "parts": [{"function_call": {"id": "1", "name": "look", "args": {"at": 1}}}],
    },
}


@pytest.mark.parametrize("size", [1, 2_000])
@pytest.mark.parametrize("message", ASKING.values(), ids=ASKING.keys())
def test_what_a_model_was_told_is_the_same_in_every_format(
    session: perdure.Session, message: dict[str, Any], size: int
) -> None:
    def look(at: int) -> dict[str, str]:
        return {"found": "x" * (size // at)}

    def agent(session: perdure.Session) -> None:
        with session.turn("Look.") as turn:
            turn.append(message)
            session.run_tool_calls(None, [look])

    agent(session)
    perdure.replay(session, agent).check()


WHOLE = [
    *(one_choice(0, {"role": "assistant", "content": text}) for text in ("one ", "two ", "three")),
    one_choice(0, {}, finish_reason="stop"),
]


def reading(session: perdure.Session, every: float) -> None:
    with session.turn("Go.") as turn:
        list(turn.stream(WHOLE, flush_every=every))


def stopping(session: perdure.Session, every: float) -> None:
    with session.turn("Go.") as turn, turn.stream(WHOLE, flush_every=every) as stream:
        next(stream)
        next(stream)


def dropped(session: perdure.Session, every: float) -> None:
    def breaking() -> Iterator[Any]:
        yield from WHOLE[:2]
        raise ConnectionError

    with suppress(ConnectionError), session.turn("Go.") as turn:
        list(turn.stream(breaking(), flush_every=every))


def asking_again(session: perdure.Session, every: float) -> None:
    with session.turn("Go.") as turn:
        list(turn.stream(WHOLE[:2], flush_every=every))
        list(turn.stream(WHOLE, flush_every=every))


@pytest.mark.parametrize("agent", [reading, stopping, dropped, asking_again])
@pytest.mark.parametrize(("then", "now"), [(60, 60), (60, 0), (0, 60), (0, 0)])
def test_a_streamed_answer_may_come_faster_or_slower_than_before(
    session: perdure.Session, agent: Callable[[perdure.Session, float], None], then: int, now: int
) -> None:
    """How many pieces of it are stored on the way goes by the clock, which no agent answers for."""
    agent(session, then)
    assert perdure.replay(session, lambda replayed: agent(replayed, now)).check().identical


def test_other_threads_go_on_while_one_replays(session: perdure.Session, world: World) -> None:
    an_agent(world)(session)
    inside, over = threading.Event(), threading.Event()
    found: list[object] = []

    def beside() -> None:
        assert inside.wait(60)
        found.append(subprocess.run([sys.executable, "-c", ""], check=True).returncode)
        over.set()

    thread = threading.Thread(target=beside)
    thread.start()

    def agent(session: perdure.Session) -> None:
        inside.set()
        assert over.wait(60)
        an_agent(world)(session)

    assert perdure.replay(session, agent).identical
    thread.join()
    assert found == [0]


def test_an_agent_that_swallows_everything_is_stopped_all_the_same(
    session: perdure.Session, world: World
) -> None:
    an_agent(world)(session)

    def agent(session: perdure.Session) -> None:
        for _ in range(100):
            with suppress(Exception):
                session.append({"role": "user", "content": "something else"})

    found = perdure.replay(session, agent).divergence
    assert found is not None
    assert found.position == 1


def test_a_part_can_be_replayed(session: perdure.Session, world: World) -> None:
    def one(session: perdure.Session, prompt: str) -> Any:
        with session.turn(prompt) as turn:
            turn.append(said(str(session.tool(world.charge)(len(prompt)))))

    for prompt in ("a", "bb", "ccc"):
        one(session, prompt)
    starts = [record.id for record in session.records() if record.kind == "turn.begun"]
    first_end = next(r.position for r in session.records() if r.kind == "turn.completed")
    assert perdure.replay(session, lambda s: one(s, "bb"), start=starts[1], end=starts[1]).identical
    assert perdure.replay(session, lambda s: one(s, "a"), end=first_end).identical
    rest = perdure.replay(session, lambda s: (one(s, "bb"), one(s, "ccc")), start=first_end)
    assert rest.check().start == first_end
    assert len(rest.outputs) == 4
    alone = perdure.replay(session, lambda s: one(s, "a"))
    assert alone.divergence is not None
    assert "the record continues" in alone.divergence.what
    beyond = perdure.replay(session, lambda s: (one(s, "a"), one(s, "bb")), end=first_end)
    assert beyond.ended == "the end of the replayed part"


def test_nonsense_is_refused(session: perdure.Session, world: World) -> None:
    an_agent(world)(session)
    wrong: Any = "agent"
    with pytest.raises(UsageError, match="a function of a session"):
        perdure.replay(session, wrong)
    with pytest.raises(UsageError, match="only a session can be replayed"):
        perdure.replay(wrong, an_agent(world))
    with pytest.raises(UsageError, match="no kind of record: word"):
        perdure.replay(session, an_agent(world), ignore=["word"])
    with pytest.raises(UsageError, match="positions 0 to"):
        perdure.replay(session, an_agent(world), start=10_000)
    with pytest.raises(UsageError, match="no turn"):
        perdure.replay(session, an_agent(world), start="nobody")
    with pytest.raises(UsageError, match="is open at 3: begin before it, at 0"):
        perdure.replay(session, an_agent(world), start=3)

    async def coroutine(session: Any) -> None: ...

    with pytest.raises(UsageError, match="open_async"):
        perdure.replay(session, coroutine)


def test_kinds_can_be_ignored_and_others_records_are_passed_over(
    session: perdure.Session, world: World
) -> None:
    def agent(session: perdure.Session) -> None:
        with session.turn("Pay."):
            session.tool(world.charge)(5)

    agent(session)
    session.branch("what-if")
    session.note("somebody looked at it")
    found = perdure.replay(session, agent).divergence
    assert found is not None
    assert perdure.replay(session, agent, ignore=["note"]).identical


# Interruptions.


def state_driven(world: World, *, dies_after: int = 99, policy: Any = "unsafe") -> Agent:
    """An agent that goes on from whatever the session holds; it dies after some calls."""

    def agent(session: perdure.Session) -> list[str]:
        left = dies_after

        def charge(amount: int) -> int:
            nonlocal left
            world.calls.append(amount)
            left -= 1
            if left < 0:
                session._handle.write = _dead  # type: ignore[method-assign]
                raise Killed
            return amount

        tool = session.tool(charge, effect=policy)
        found = []
        with session.turn("Pay.", id="turn-1") as turn:
            for amount in range(4):
                try:
                    found.append(str(tool(amount)))
                except UnknownOutcomeError:
                    found.append("unknown")
            turn.append(said(", ".join(found)))
        return found

    return agent


class Killed(BaseException):
    """The process dies here."""


def _dead(plan: object) -> Any:
    raise Killed


@pytest.mark.parametrize("dies_after", range(4))
@pytest.mark.parametrize("policy", ["unsafe", "idempotent"])
def test_an_interrupted_turn_is_replayed_as_if_it_had_not_been(
    tmp_path: Path, world: World, dies_after: int, policy: str
) -> None:
    path = tmp_path / "agents.db"
    with pytest.raises(Killed):
        state_driven(world, dies_after=dies_after, policy=policy)(perdure.open(path).session("s"))
    # Nobody has gone on yet: the record is the same as far as it goes.
    half = perdure.open(path).session("s")
    replay = perdure.replay(half, state_driven(world, policy=policy))
    assert replay.check().identical
    assert "while 'charge' was in flight" in replay.ended
    session = perdure.open(path).session("s")
    returned = state_driven(world, policy=policy)(session)
    before = [*world.calls]
    replay = perdure.replay(session, state_driven(world, policy=policy))
    assert replay.check().returned == returned
    assert replay.ended == ""
    assert ("unknown" in returned) == (policy == "unsafe")
    # And only what the second process did.
    continued = next(r.position for r in session.records() if r.kind == "turn.continued")
    second = perdure.replay(session, state_driven(world, policy=policy), start=continued - 1)
    assert second.check().returned == returned
    assert world.calls == before


def test_what_was_said_again_by_who_took_over_is_passed_over(tmp_path: Path, world: World) -> None:
    def agent(session: perdure.Session, *, die: bool = False) -> None:
        with session.turn("Pay.", id="turn-1") as turn:
            turn.append(said("Working."))
            if die:
                session._handle.write = _dead  # type: ignore[method-assign]
            turn.append(said(str(len(session.messages()))))

    path = tmp_path / "agents.db"
    with pytest.raises(Killed):
        agent(perdure.open(path).session("s"), die=True)
    session = perdure.open(path).session("s")
    agent(session)
    assert [m["content"] for m in session.messages()] == ["Pay.", "Working.", "Working.", "3"]
    assert perdure.replay(session, agent).check().outputs == session.messages()


def test_a_turn_that_nobody_went_on_with_says_from_where_to_replay(
    tmp_path: Path, world: World
) -> None:
    def one(session: perdure.Session, prompt: str, *, die: bool = False) -> Any:
        with session.turn(prompt) as turn:
            session.tool(world.charge)(1)
            if die:
                session._handle.write = _dead  # type: ignore[method-assign]
            turn.append(said(prompt))

    path = tmp_path / "agents.db"
    with pytest.raises(Killed):
        one(perdure.open(path).session("s"), "a", die=True)
    session = perdure.open(path).session("s")
    one(session, "b")
    replay = perdure.replay(session, lambda s: (one(s, "a"), one(s, "b")))
    assert replay.identical
    assert f"start={replay.end}" in replay.ended
    assert perdure.replay(session, lambda s: one(s, "b"), start=replay.end).check().ended == ""


def test_a_reconciled_effect_was_unknown_to_the_agent(tmp_path: Path, world: World) -> None:
    path = tmp_path / "agents.db"
    with pytest.raises(Killed):
        state_driven(world, dies_after=2)(perdure.open(path).session("s"))
    session = perdure.open(path).session("s")
    returned = state_driven(world)(session)
    (effect,) = session.effects.unknown()
    session.effects.reconcile(effect.id, perdure.Happened(2))
    assert perdure.replay(session, state_driven(world)).check().returned == returned


def test_a_turn_that_was_left_open_on_purpose_is_replayed(
    session: perdure.Session, world: World
) -> None:
    def agent(session: perdure.Session) -> None:
        with session.turn("Pay.") as turn:
            turn.append(said("May I?"))
            turn.suspend()
        session.note("asked")
        (turn,) = session.interrupted
        with turn:
            turn.append(said(str(session.tool(world.charge)(5))))

    agent(session)
    assert perdure.replay(session, agent).check().outputs == session.messages()


def test_a_long_session_with_snapshots_is_replayed(session: perdure.Session, world: World) -> None:
    def agent(session: perdure.Session) -> int:
        charge = session.tool(world.charge)
        for number in range(60):
            with session.turn(f"Pay {number}.") as turn:
                turn.append(said(str(charge(number))))
                session.set("plan", {"number": number, "text": "x" * 300})
        return session.position

    returned = agent(session)
    assert any(record.kind == "snapshot" for record in session.records())
    assert perdure.replay(session, agent).check().returned == returned


def test_a_branch_is_replayed_with_its_shared_past(session: perdure.Session, world: World) -> None:
    an_agent(world)(session)
    start = session.position
    branch = session.branch("what-if")

    def more(session: perdure.Session) -> Any:
        with session.turn("And now?") as turn:
            turn.append(said(str(session.tool(world.charge)(9))))

    more(branch)
    assert perdure.replay(branch, more, start=start).identical
    both = perdure.replay(branch, lambda s: (an_agent(world)(s), more(s)))
    assert both.check().outputs == branch.messages()


def test_async_agents_are_replayed(tmp_path: Path, world: World) -> None:
    async def charge(amount: int) -> dict[str, int]:
        await asyncio.sleep(0.01 / (amount + 1))
        return world.charge(amount)

    def agent_of(last: str) -> Any:
        async def agent(session: perdure.AsyncSession) -> Any:
            tool, ask = session.tool(charge), session.model(world.answer)
            async with session.turn("Pay.") as turn:
                reply = await ask(await session.messages(format="openai.chat"))
                await turn.append(said(reply["text"]))
                await turn.append(calling(1, 2, 3))
                await session.run_tool_calls(tools=[tool])
                found = await asyncio.gather(*(tool(number) for number in range(5)))
                await session.set("plan", found)
                await turn.append(said(last))
            return found, await session.get("plan")

        return agent

    async def work() -> None:
        async with perdure.open_async(tmp_path / "agents.db") as store:
            session = await store.session("s")
            returned = await agent_of("Done.")(session)
            before = [*world.calls]
            for _ in range(3):
                replay = await perdure.replay(session, agent_of("Done."))
                assert replay.check().returned == returned
                assert replay.outputs == await session.messages()
            other = await perdure.replay(session, agent_of("Happened!"))
            assert other.divergence is not None
            assert other.divergence.path == "$.message.content"

            async def reaching(session: perdure.AsyncSession) -> None:
                await asyncio.create_subprocess_exec(sys.executable, "-c", "")

            assert isinstance((await perdure.replay(session, reaching)).error, ReplayBlockedError)
            assert world.calls == before

    asyncio.run(work())


def test_large_results_that_are_stored_in_their_messages_are_served(
    session: perdure.Session, world: World
) -> None:
    def read(amount: int) -> Any:
        world.calls.append(amount)
        return "x" * 3_000 if amount == 1 else {"rows": ["y" * 40] * 60}

    def agent(session: perdure.Session) -> list[Any]:
        with session.turn("Read.") as turn:
            turn.append(calling(1, 2))
            told = session.run_tool_calls(tools={"charge": read})
            turn.append(said(str(len(session.messages()))))
            return told

    returned = agent(session)
    assert sum("x" * 3_000 in str(record.content) for record in session.records()) == 1
    assert perdure.replay(session, agent).check().returned == returned
    assert sorted(world.calls) == [1, 2]


def test_a_record_that_ends_between_two_calls_is_the_same_as_far_as_it_goes(
    tmp_path: Path, world: World
) -> None:
    def agent(session: perdure.Session, *, die: bool = False) -> None:
        with session.turn("Pay."):
            session.tool(world.charge)(1)
            if die:
                session._handle.write = _dead  # type: ignore[method-assign]
            session.tool(world.charge)(2)

    path = tmp_path / "agents.db"
    with pytest.raises(Killed):
        agent(perdure.open(path).session("s"), die=True)
    replay = perdure.replay(perdure.open(path).session("s"), agent)
    assert replay.check().ended.endswith("is open at the end of the record")
    other = perdure.replay(perdure.open(path).session("s"), an_agent(world))
    assert other.divergence is not None


@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("issued", [True, False])
def test_calls_that_somebody_decided_about_are_served(
    session: perdure.Session, world: World, decision: str, *, issued: bool
) -> None:
    def agent(session: perdure.Session) -> None:
        pay = session.tool(world.charge, approval=True, approval_wait=0.01)
        with suppress(errors.ApprovalPendingError), session.turn("Pay.", id="t") as turn:
            if issued:
                if len(session) == 1:
                    turn.append(calling(5, 6))
                session.run_tool_calls(tools=[pay])
            else:
                try:
                    turn.append(said(str(pay(5))))
                except errors.ApprovalDeniedError as error:
                    turn.append(said(str(error)))

    agent(session)
    while session.interrupted:
        for approval in session.approvals.pending():
            getattr(session.approvals, decision)(approval.id, by="Ada")
        agent(session)
    assert session.interrupted == ()
    made = [*world.calls]
    assert bool(made) == (decision == "approve")
    replay = perdure.replay(session, agent, end="t")
    assert replay.check().outputs == session.messages()
    assert world.calls == made


def test_a_session_that_was_held_is_replayed(session: perdure.Session, world: World) -> None:
    def agent(session: perdure.Session) -> None:
        with session.lease():
            an_agent(world)(session)

    agent(session)
    assert perdure.replay(session, agent).check().outputs == session.messages()
    assert perdure.replay(session, an_agent(world)).identical


def test_summaries_pins_tools_labels_and_ids_are_compared(session: perdure.Session) -> None:
    def agent(word: str) -> Agent:
        def run(session: perdure.Session) -> None:
            for number in range(4):
                with session.turn(f"Question {number}? " + "x" * 60) as turn:
                    turn.append(said(f"Answer {number}. " + "y" * 60))
            session.summarize(lambda messages: f"{word} {len(messages)}", keep_turns=1)
            session.pin(2)
            with session.turn("And now?") as turn:
                turn.record_tools(
                    [{"type": "function", "function": {"name": "f", "parameters": {}}}]
                )
                shown = session.messages(format="openai.chat", max_messages=9)
                turn.append(said(str(len(shown))))
            session.undo_summary()
            session.label("vip")
            for _ in range(2):
                session.append({"role": "user", "content": "Once."}, id="mine")

        return run

    agent("Summed up:")(session)
    assert perdure.replay(session, agent("Summed up:")).check().outputs == session.messages()
    found = perdure.replay(session, agent("In short:")).divergence
    assert found is not None
    assert found.path == "$.text"


def test_read_only_calls_that_overlapped_are_replayed_in_the_order_of_the_agent(
    tmp_path: Path,
) -> None:
    """They are recorded when they end, so that the record has another order than the agent."""

    async def agent(session: perdure.AsyncSession) -> None:
        async def look(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        tool = session.tool(look, effect="read_only")

        async def nested(seconds: float) -> float:
            return await tool(seconds)

        outer = session.tool(nested, effect="read_only")
        async with session.turn("Look.") as turn:
            slow = asyncio.create_task(tool(0.3))
            await asyncio.sleep(0)
            await turn.append(said("I am looking."))
            await tool(0.01)
            await outer(0.02)
            await slow
            await turn.append(said("Done."))

    async def run() -> list[Any]:
        async with perdure.open_async(tmp_path / "agents.db") as store:
            session = await store.session("s")
            await agent(session)
            contents = [record.content async for record in session.records()]
            intents = [content for content in contents if isinstance(content, EffectIntent)]
            tools = [intent.arguments["seconds"] for intent in intents]
            (await perdure.replay(session, agent)).check()
            return tools

    assert asyncio.run(run()) == [0.01, 0.02, 0.02, 0.3]


def test_what_a_read_only_tool_writes_is_part_of_its_call(session: perdure.Session) -> None:
    def agent(session: perdure.Session) -> None:
        def look(x: int) -> int:
            session.note({"x": x})
            session.set("seen", x)
            return x

        with session.turn("Look.") as turn:
            session.tool(look, effect="read_only")(1)
            turn.append(said("Done."))

    agent(session)
    assert perdure.replay(session, agent).identical
