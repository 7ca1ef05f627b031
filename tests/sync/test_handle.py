"""What two handles, odd input and interrupted calls must not break."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.effects.calls import Happened
from perdure.errors import ConflictError, InFlightError, UnavailableError, UsageError
from perdure.journal.records import Message
from perdure.testing import violations
from tests.formats.streams import one_choice
from tests.support import said

WHOLE = [
    one_choice(0, {"role": "assistant", "content": "one "}),
    one_choice(0, {"content": "two "}),
    one_choice(0, {"content": "three"}),
    one_choice(0, {}, finish_reason="stop"),
]


def calls(*names: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for n, name in enumerate(names)
        ],
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def two(path: Path) -> tuple[perdure.Session, perdure.Session]:
    return perdure.open(path).session("s"), perdure.open(path).session("s")


def texts(session: perdure.Session) -> list[Any]:
    found = session.messages(format="openai.chat")
    assert violations("openai.chat", found) == []
    return [message["content"] for message in found]


def test_an_answer_that_was_heard_is_kept_though_somebody_spoke_meanwhile(path: Path) -> None:
    one, other = two(path)
    with one.turn("q") as turn:
        stream = turn.stream(WHOLE)
        next(stream)
        other.refresh()
        other.append(said("by the way"))
        assert len(list(stream)) == 3
    assert texts(one) == ["q", "by the way", "one two three"]
    one.verify()


def test_an_answer_that_another_handle_took_for_cut_is_shown_once(path: Path) -> None:
    one, other = two(path)
    with one.turn("q") as turn:
        stream = turn.stream(WHOLE, flush_every=0)
        next(stream)
        other.refresh()
        with other.turn("another question") as second:
            second.append({"role": "assistant", "content": "another answer"})
        list(stream)
    kept = [record.content for record in one.records() if isinstance(record.content, Message)]
    assert [one.interrupted for one in kept] == [False, True, False, False, False]
    assert texts(one) == ["q", "another question", "another answer", "one two three"]
    one.verify()


@pytest.mark.parametrize("count", [3.5, None, "7", True, float("nan"), -1])
def test_a_counter_that_does_not_count_is_refused(path: Path, count: Any) -> None:
    class Odd:
        name = "odd"

        def count(self, _message: object) -> Any:
            return count

    session = perdure.open(path, tokens=Odd()).session("s")
    with pytest.raises(UsageError, match="must return an int"):
        session.append(said("x"))
    assert session.position == 0


@pytest.mark.parametrize(
    "options", [{"version": 2}, {"actor": 7}, {"name": "\ud800"}, {"timeout": -1}, {"timeout": "x"}]
)
def test_a_tool_that_could_not_be_read_back_is_refused(path: Path, options: Any) -> None:
    session = perdure.open(path).session("s")
    with pytest.raises(UsageError):
        session.tool(print, **options)
    with pytest.raises(UsageError):
        session.tool(print).keyed("\ud800")


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": [{"index": "x", "delta": {"content": "b"}}]},
        {"choices": ["x"]},
        {"choices": [{"index": 0, "delta": 5}]},
    ],
)
def test_an_odd_chunk_is_refused_and_the_session_goes_on(path: Path, odd: Any) -> None:
    session = perdure.open(path).session("s")

    def chunks() -> Iterator[Any]:
        yield WHOLE[0]
        yield odd

    with pytest.raises(UsageError), session.turn("q") as turn:
        list(turn.stream(chunks(), flush_every=0))
    with session.turn("again") as turn:
        turn.append({"role": "assistant", "content": "fine"})
    assert texts(session)[-1] == "fine"
    session.verify()


def test_errors_of_the_store_come_out_of_the_loop(path: Path) -> None:
    session = perdure.open(path).session("s")
    turn = session.turn("q")
    turn.__enter__()
    turn.append(calls("pay"))

    def pay() -> str:
        path.unlink()
        return "paid"

    with pytest.raises(UnavailableError):
        session.run_tool_calls(None, [pay])


def test_who_lost_the_turn_is_told_by_the_loop(path: Path) -> None:
    one, other = two(path)
    turn = one.turn("q", id="t")
    turn.__enter__()
    turn.append(calls("pay"))
    other.refresh()
    ran = []
    with other.turn("q", id="t"), pytest.raises(ConflictError):
        one.run_tool_calls(None, {"pay": lambda: ran.append(1)})
    assert ran == []


def test_a_call_without_an_outcome_is_unknown_when_its_turn_is_given_up(path: Path) -> None:
    one, other = two(path)
    turn = one.turn("q", id="t")
    turn.__enter__()

    def pay() -> None:
        raise KeyboardInterrupt

    write = one._handle.write

    def dies(plan: Any) -> Any:
        if plan.kind == "effect.settle":
            raise SystemExit
        return write(plan)

    one._handle.write = dies  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        one.tool(pay)()
    other.refresh()
    other.interrupted[0].abandon()
    (found,) = other.effects.unknown()
    other.effects.reconcile(found.id, Happened("it was paid"))
    assert other.effects.list()[0].state == "reconciled"
    other.verify()


def test_a_call_of_a_turn_that_goes_on_is_nobody_elses(path: Path) -> None:
    one, other = two(path)
    ran = []

    def pay() -> None:
        ran.append("one")
        other.refresh()
        with other.turn("mine"), pytest.raises(InFlightError):
            other.tool(lambda: ran.append("other"), name="pay", effect="idempotent").keyed("k")()

    with one.turn("q"):
        one.tool(pay, effect="idempotent").keyed("k")()
    assert ran == ["one"]


def test_a_call_that_was_in_flight_when_it_was_seen_is_looked_at_again(path: Path) -> None:
    one, other = two(path)
    ran: list[str] = []

    def pay() -> str:
        ran.append("one")
        other.refresh()  # It sees the intent, and not the outcome.
        theirs.__enter__()
        return "paid"

    theirs = other.turn("mine")
    with one.turn("q"):
        one.tool(pay, effect="idempotent").keyed("k")()
        again = other.tool(lambda: ran.append("other"), name="pay", effect="idempotent")
        assert again.keyed("k")() == "paid"
        theirs.__exit__(None, None, None)
    assert ran == ["one"]


def test_a_cancelled_caller_leaves_the_outcome_recorded(path: Path) -> None:
    async def main() -> list[str]:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            done = asyncio.Event()

            async def pay() -> str:
                done.set()
                return "paid"

            async with session.turn("q"):
                task = asyncio.create_task(session.tool(pay)())
                await done.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return [one.state for one in await session.effects.list()]

    assert asyncio.run(main()) == ["succeeded"]


def test_an_unknown_call_is_told_again_after_a_summary(path: Path) -> None:
    session = perdure.open(path).session("s")

    def pay() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.turn("pay " * 100):
        session.tool(pay)()
    for number in range(2):
        with session.turn(f"q{number} " * 50) as turn:
            turn.append({"role": "assistant", "content": "a" * 200})
    session.summarize(lambda _: "They paid.", keep_turns=1)
    assert any("may have happened" in str(text) for text in texts(session))


def test_all_items_of_what_begins_a_named_turn_are_stored(path: Path) -> None:
    session = perdure.open(path).session("s")
    response = {
        "object": "response",
        "output": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            for text in ("one", "two")
        ],
    }
    for _ in range(2):
        with session.turn(response, id="t"):
            pass
    assert len(session) == 2


def test_arguments_nested_without_end_are_a_problem_of_the_call(path: Path) -> None:
    session = perdure.open(path).session("s")
    message = calls("pay")
    message["tool_calls"][0]["function"]["arguments"] = '{"a":' * 100_000
    with session.turn("q") as turn:
        turn.append(message)
        (told,) = session.run_tool_calls(None, {"pay": print})
    assert "was not called" in told["content"]


def test_a_tool_in_a_turn_that_had_ended_is_refused(path: Path) -> None:
    session = perdure.open(path).session("s")
    for _ in range(2):
        with session.turn("q", id="t") as turn:
            if turn.ended:
                with pytest.raises(UsageError, match="turn"):
                    session.tool(print)()


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": ["x"]},
        {"choices": [None]},
        {"choices": [{"message": "x"}]},
        {"object": "response", "output": [1]},
    ],
)
def test_an_odd_completion_is_refused(path: Path, odd: Any) -> None:
    session = perdure.open(path).session("s")
    with pytest.raises(UsageError):
        session.append(odd)
    assert session.position == 0
