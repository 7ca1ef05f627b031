"""A call that succeeded is recorded as succeeded, even if its result cannot be stored."""

import asyncio
import enum
import logging
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import UnstoredResultError
from perdure.journal.codec import PAYLOAD_MAX, TEXT_CHARS_MAX
from perdure.journal.records import EffectOutcome

SECRET = "4929-secret"  # noqa: S105 - it must not show up in errors


@dataclass
class Receipt:
    card: str


class Color(enum.StrEnum):
    RED = "red"


class Plain:
    """It has the default repr, which shows a memory address."""


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError(SECRET)


class Endless:
    def __repr__(self) -> str:
        return repr(self)


def name_of(value: object) -> str:
    return type(value).__name__


RESULTS: list[tuple[Any, str]] = [
    ((1, "a"), "(1, 'a')"),
    ([(1,), (2,)], "[(1,), (2,)]"),
    (Receipt(SECRET), f"Receipt(card='{SECRET}')"),
    (Color.RED, "red"),
    (datetime(2026, 1, 2, 3, 4), "datetime.datetime(2026, 1, 2, 3, 4)"),  # noqa: DTZ001
    (float("nan"), "nan"),
    (Plain(), "Plain"),
    ({"rows": [Plain()]}, "{'rows': [Plain]}"),
    (Hostile(), "Hostile"),
    (Endless(), "Endless"),
    ("a\ud800b", "a?b"),
    (name_of, "<function name_of>"),
    ("crash at 0xdeadbeef\ud800", "crash at 0xdeadbeef?"),
    (("crash at 0xdeadbeef",), "('crash at 0xdeadbeef',)"),
]
IDS = [f"{number}-{name_of(value)}" for number, (value, _) in enumerate(RESULTS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def calls_message(*names: str) -> dict[str, Any]:
    requested = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": requested}


def outcomes(session: perdure.Session) -> list[EffectOutcome]:
    contents = [record.content for record in session.records()]
    return [content for content in contents if isinstance(content, EffectOutcome)]


@pytest.mark.parametrize(("value", "text"), RESULTS, ids=IDS)
def test_a_direct_call_returns_it_once_and_is_recorded_as_succeeded(
    value: object, text: str, path: Path
) -> None:
    ran: list[int] = []

    def pay() -> Any:
        ran.append(1)
        return value

    with perdure.open(path) as store:
        session = store.session("s")
        session.turn("Pay.", id="t").__enter__()
        assert session.tool(pay)() is value
    with perdure.open(path) as store:
        session = store.session("s")
        (effect,) = session.effects.list()
        assert (effect.state, effect.error, effect.result) == ("succeeded", "", text)
        assert effect.unstored == name_of(value)
        with session.turn("Pay.", id="t"), pytest.raises(UnstoredResultError) as raised:
            session.tool(pay)()
        assert ran == [1]
        position = session.position
        assert raised.value.type == name_of(value)
        assert raised.value.tool == "pay"
        (outcome,) = [r for r in session.records() if r.kind == "effect.outcome"]
        assert raised.value.position == outcome.position < position
        assert f"position {outcome.position}" in str(raised.value)
        assert "types=" in str(raised.value)
        assert SECRET not in repr(raised.value)
        session.verify()


@pytest.mark.parametrize(("value", "text"), RESULTS, ids=IDS)
def test_the_model_is_told_its_text_and_no_error(value: object, text: str, path: Path) -> None:
    def pay() -> Any:
        return value

    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Pay.") as turn:
            turn.append(calls_message("pay"))
            (told,) = session.run_tool_calls(None, [pay])
        assert told == {"role": "tool", "tool_call_id": "c0", "content": text}
        assert session.last_message == told
        (outcome,) = outcomes(session)
        assert (outcome.state, outcome.unstored, outcome.reason) == (
            "succeeded",
            name_of(value),
            "",
        )


@pytest.mark.parametrize("value", [(1, "a"), "x" * (PAYLOAD_MAX + 1)], ids=["tuple", "large"])
def test_the_same_message_is_returned_after_a_restart(value: object, path: Path) -> None:
    ran: list[int] = []

    def pay() -> Any:
        ran.append(1)
        return value

    with perdure.open(path) as store:
        session = store.session("s")
        turn = session.turn("Pay.", id="t").__enter__()
        turn.append(calls_message("pay"))
        first = session.run_tool_calls(None, [pay])
    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Pay.", id="t"):
            assert session.run_tool_calls(calls_message("pay"), [pay]) == first
        assert len(session) == 3
    assert ran == [1]


def test_a_result_that_can_be_stored_is_served_again(path: Path) -> None:
    with perdure.open(path) as store:
        session = store.session("s")
        session.turn("Pay.", id="t").__enter__()
        assert session.tool(list, name="pay")() == []
        assert outcomes(session)[0].unstored == ""
    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Pay.", id="t"):
            assert session.tool(list, name="pay")() == []


def test_a_result_that_is_too_large_is_told_shortened(path: Path) -> None:
    size = PAYLOAD_MAX + 1

    def large() -> str:
        return "x" * size

    session = perdure.open("memory:").session("s")
    with session.turn("Try.") as turn:
        assert len(session.tool(large)()) == size
        turn.append(calls_message("large"))
        (told,) = session.run_tool_calls(None, [large])
    assert told["content"] == f"{'x' * TEXT_CHARS_MAX}… (shortened from {size} characters)"
    assert [effect.state for effect in session.effects.list()] == ["succeeded"] * 2
    assert [effect.unstored for effect in session.effects.list()] == ["str"] * 2
    assert {effect.result for effect in session.effects.list()} == {told["content"]}


def test_it_is_the_same_in_an_event_loop(path: Path) -> None:
    async def pay() -> Any:
        return Receipt(SECRET), 1

    async def large() -> str:
        return "x" * (PAYLOAD_MAX + 1)

    async def first() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            turn = await session.turn("Pay.", id="t").__aenter__()
            assert await session.tool(pay)() == (Receipt(SECRET), 1)
            assert len(await session.tool(large)()) > PAYLOAD_MAX
            await turn.append(calls_message("pay"))
            (told,) = await session.run_tool_calls(None, [pay])
            assert told["content"] == f"(Receipt(card='{SECRET}'), 1)"

    async def second() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            effects = await session.effects.list()
            assert [effect.state for effect in effects] == ["succeeded"] * 3
            async with session.turn("Pay.", id="t"):
                for tool, kind in [(pay, "tuple"), (large, "str")]:
                    with pytest.raises(UnstoredResultError) as raised:
                        await session.tool(tool)()
                    assert raised.value.type == kind

    asyncio.run(first())
    asyncio.run(second())


def test_the_answer_of_a_model_is_too(path: Path) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> Any:
        asked.append(prompt)
        return Receipt(prompt)

    with perdure.open(path) as store:
        session = store.session("s")
        session.turn("Ask.", id="t").__enter__()
        assert session.model(answer)("Hi") == Receipt("Hi")
    with perdure.open(path) as store:
        session = store.session("s")
        with session.turn("Ask.", id="t"), pytest.raises(UnstoredResultError, match="Receipt"):
            session.model(answer)("Hi")
        (effect,) = session.effects.list(kind="model")
        assert (effect.state, effect.result) == ("succeeded", "Receipt(card='Hi')")
    assert asked == ["Hi"]


def test_a_late_outcome_is_recorded_as_reconciled(path: Path) -> None:
    """The process was presumed dead, and comes back with a result that cannot be stored."""
    first = perdure.open(path).session("s")
    first.turn("Pay.", id="t").__enter__()
    other = perdure.open(path).session("s")

    def presume_dead() -> None:
        with other.turn("Pay.", id="t"), pytest.raises(perdure.UnknownOutcomeError):
            other.tool(pay)()

    def pay() -> tuple[int]:
        Context().run(presume_dead)  # Not as a call within the call.
        return (1,)

    assert first.tool(pay)() == (1,)
    other.refresh()
    (effect,) = other.effects.list()
    assert (effect.state, effect.result, effect.unstored) == ("reconciled", "(1,)", "tuple")


def test_it_is_logged_so_that_it_is_found_before_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    session = perdure.open("memory:").session("s")
    with caplog.at_level(logging.WARNING, "perdure"), session.turn("Pay."):
        session.tool(lambda: Receipt(SECRET), name="pay")()
        session.tool(lambda: 1, name="fine")()
    (logged,) = caplog.records
    assert vars(logged)["event"] == "unstored"
    assert (vars(logged)["tool"], vars(logged)["type"]) == ("pay", "Receipt")
    assert SECRET not in caplog.text


def agent(session: perdure.Session) -> None:
    def pay() -> tuple[int, int]:
        return (1, 2)

    with session.turn("Pay.") as turn:
        turn.append(calls_message("pay"))
        (told,) = session.run_tool_calls(None, [pay])
        turn.append({"role": "assistant", "content": f"Done: {told['content']}"})


def direct_agent(session: perdure.Session) -> None:
    with session.turn("Pay.") as turn:
        paid = session.tool(lambda: (1, 2), name="pay")()
        turn.append({"role": "assistant", "content": f"Done: {paid[0]}"})


def test_a_replay_tells_the_same_text_and_stops_where_the_value_is_needed() -> None:
    store = perdure.open("memory:")
    session = store.session("told")
    agent(session)
    perdure.replay(session, agent).check()
    session = store.session("direct")
    direct_agent(session)
    replay = perdure.replay(session, direct_agent)
    assert "'pay' could not be stored" in (replay.ended or "")
    assert replay.divergence is None
