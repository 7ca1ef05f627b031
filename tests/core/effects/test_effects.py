"""Tools run once, or say that nobody knows."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.digests import digest_of
from perdure.core.effects.calls import (
    DidNotHappen,
    Effect,
    Happened,
    ToolTimeoutError,
    current_effect,
)
from perdure.errors import (
    ConflictError,
    DivergenceError,
    EffectError,
    InFlightError,
    NotFoundError,
    ToolFailureError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.journal.records import EffectIntent


class Ledger:
    """The outside world: what really happened there."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def charge(self, amount: int) -> dict[str, int]:
        self.calls.append((current_effect().key, amount))
        return {"charged": amount}


class Killed(BaseException):
    """The process dies here: nothing is recorded any more."""


def dying(session: perdure.Session, ledger: Ledger) -> Callable[[int], Any]:
    """Return a tool that takes effect and whose process then dies."""

    def charge(amount: int) -> None:
        ledger.charge(amount)
        # What a dead process does not write, this one does not either.
        session._handle.write = _dead  # type: ignore[method-assign]
        raise Killed

    return charge


def _dead(plan: object) -> Any:
    raise Killed


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def kill_in_call(path: Path, ledger: Ledger, effect: Any, **options: Any) -> None:
    """Leave a turn behind whose only call took effect and has no outcome."""
    store = perdure.open(path)
    session = store.session("s")
    tool = session.tool(dying(session, ledger), effect=effect, **options)
    with pytest.raises(Killed), session.turn("Pay.", id="turn-1"):
        tool(5)


def test_a_call_is_recorded_before_and_after(path: Path, ledger: Ledger) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge, version="2", actor="clerk")
    with session.turn("Pay.") as turn:
        before = session.position
        assert charge(5) == {"charged": 5}
        assert session.position == before + 2
    (effect,) = session.effects.list()
    assert (effect.tool, effect.state, effect.turn) == ("charge", "succeeded", turn.id)
    assert (effect.arguments, effect.result) == ({"amount": 5}, {"charged": 5})
    assert (effect.policy, effect.version) == ("unsafe", "2")
    assert effect.key == ledger.calls[0][0]
    assert effect.duration > 0
    assert abs((datetime.now(UTC) - effect.time).total_seconds()) < 60
    assert session.effects.list(tool="other") == []
    assert session.effects.list(turn=turn.id) == [effect]
    assert session.effects.list(since=effect.time) == [effect]
    assert session.effects.list(until=effect.time) == []
    with pytest.raises(UsageError, match="with a zone"):
        session.effects.list(since=datetime(2026, 1, 1))  # noqa: DTZ001 - without one, on purpose
    session.verify()


def test_what_was_recorded_is_returned_and_not_run_again(path: Path, ledger: Ledger) -> None:
    first = perdure.open(path).session("s")
    turn = first.turn("Pay.", id="turn-1")
    turn.__enter__()
    charge = first.tool(ledger.charge)
    assert [charge(5), charge(5), charge(7)] == [{"charged": n} for n in (5, 5, 7)]
    # The process is gone. Another one runs the same code, with a newer version of the tool.
    again = perdure.open(path).session("s")
    with again.turn("Pay.", id="turn-1"):
        charge = again.tool(ledger.charge, version="3")
        assert [charge(5), charge(5), charge(7)] == [{"charged": n} for n in (5, 5, 7)]
        assert len(ledger.calls) == 3
        assert charge(5) == {"charged": 5}
    assert len(ledger.calls) == 4
    assert len({key for key, _ in ledger.calls}) == 4


def test_an_unsafe_call_that_may_have_happened_is_not_made_again(
    path: Path, ledger: Ledger
) -> None:
    kill_in_call(path, ledger, "unsafe", name="charge")
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge)
    turn = session.turn("Pay.", id="turn-1")
    with turn, pytest.raises(UnknownOutcomeError, match="may have happened") as caught:
        charge(5)
    assert len(ledger.calls) == 1
    assert "unknown-effect" in session.labels
    (unknown,) = session.effects.unknown()
    assert (unknown.id, unknown.key) == (caught.value.effect, ledger.calls[0][0])
    session.effects.reconcile(unknown, Happened({"charged": 5}))
    assert session.effects.unknown() == []
    assert session.labels == frozenset()
    last = session.last_message
    assert last is not None
    assert '{"charged":5}' in last["content"]
    with pytest.raises(NotFoundError):
        session.effects.reconcile(unknown.id, DidNotHappen())
    session.verify()


def test_an_idempotent_call_is_made_again_with_the_same_key(path: Path, ledger: Ledger) -> None:
    kill_in_call(path, ledger, "idempotent", name="charge")
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"):
        assert session.tool(ledger.charge, effect="idempotent")(5) == {"charged": 5}
    assert len(ledger.calls) == 2
    assert len({key for key, _ in ledger.calls}) == 1
    assert [one.state for one in session.effects.list()] == ["repeated", "succeeded"]


def test_the_stricter_of_two_policies_counts(path: Path, ledger: Ledger) -> None:
    kill_in_call(path, ledger, "unsafe", name="charge")
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"), pytest.raises(UnknownOutcomeError):
        session.tool(ledger.charge, effect="idempotent")(5)
    assert len(ledger.calls) == 1


@pytest.mark.parametrize("found", [Happened({"charged": 5}), DidNotHappen()])
def test_a_call_is_reconciled_by_the_users_function(
    path: Path, ledger: Ledger, found: Happened | DidNotHappen
) -> None:
    asked: list[Effect] = []

    def look(effect: Effect) -> Happened | DidNotHappen:
        asked.append(effect)
        return found

    kill_in_call(path, ledger, "reconcile", name="charge", reconcile=look)
    assert asked == []
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"):
        charge = session.tool(ledger.charge, effect="reconcile", reconcile=look)
        assert charge(5) == {"charged": 5}
    assert [(one.key, one.arguments) for one in asked] == [(ledger.calls[0][0], {"amount": 5})]
    assert len(ledger.calls) == (1 if isinstance(found, Happened) else 2)
    assert len({key for key, _ in ledger.calls}) == 1
    session.verify()


@pytest.mark.parametrize("bad", [ZeroDivisionError("no"), "done"])
def test_a_reconcile_function_that_fails_leaves_the_call_unknown(
    path: Path, ledger: Ledger, bad: Any
) -> None:
    def look(_: Effect) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return bad

    kill_in_call(path, ledger, "reconcile", name="charge", reconcile=look)
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"):
        charge = session.tool(ledger.charge, effect="reconcile", reconcile=look)
        with pytest.raises(UnknownOutcomeError, match="charge") as caught:
            charge(5)
    assert "function failed" in caught.value.reason
    assert "function failed" not in str(caught.value)
    assert len(ledger.calls) == 1
    assert "function failed" in session.effects.unknown()[0].reason


def test_a_reconciled_call_happened_even_if_its_result_cannot_be_stored(
    path: Path, ledger: Ledger
) -> None:
    def look(_: Effect) -> Any:
        return Happened((1, 2))

    kill_in_call(path, ledger, "reconcile", name="charge", reconcile=look)
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"):
        result: Any = session.tool(ledger.charge, effect="reconcile", reconcile=look)(5)
        assert result == (1, 2)
    (effect,) = session.effects.list()
    assert (effect.state, effect.result, effect.unstored) == ("reconciled", "(1, 2)", "tuple")
    assert session.effects.unknown() == []
    assert len(ledger.calls) == 1


def test_a_person_is_told_that_a_result_cannot_be_stored(path: Path, ledger: Ledger) -> None:
    """Nothing happens by telling it, so that the call can be mended."""
    kill_in_call(path, ledger, "unsafe", name="charge")
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"), pytest.raises(UnknownOutcomeError):
        session.tool(ledger.charge)(5)
    (effect,) = session.effects.unknown()
    with pytest.raises(UsageError, match=r"\$\.result"):
        session.effects.reconcile(effect, Happened((1, 2)))
    session.effects.reconcile(effect, Happened([1, 2]))
    assert session.effects.unknown() == []


def test_other_arguments_under_the_same_identity_are_a_divergence(
    path: Path, ledger: Ledger
) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge).keyed("invoice-17")
    with session.turn("Pay."):
        assert charge(5) == {"charged": 5}
    with session.turn("Pay again."):
        assert charge(5) == {"charged": 5}
        with pytest.raises(DivergenceError, match="invoice-17") as caught:
            charge(6)
        (intent,) = [one for one in session.records() if one.kind == EffectIntent.kind]
        assert f"at position {intent.position}" in caught.value.recorded
        assert "amount" not in f"{caught.value} {caught.value.args}"
    assert len(ledger.calls) == 1


def test_a_key_within_a_turn_holds_for_that_turn_and_is_forgotten_with_it(
    path: Path, ledger: Ledger
) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge)
    with session.turn("Pay."):
        assert charge.keyed("call-1", in_turn=True)(5) == {"charged": 5}
        assert charge.keyed("call-1", in_turn=True)(5) == {"charged": 5}
        with pytest.raises(DivergenceError):
            charge.keyed("call-1", in_turn=True)(6)
        charge.keyed("call-2", in_turn=True)(5)
    assert session._replica.state.effects.by_identity == {}
    with session.turn("Pay again."):
        charge.keyed("call-1", in_turn=True)(5)
    assert len(ledger.calls) == 3


def test_a_call_of_a_turn_that_was_left_is_served_when_it_is_entered_again(
    path: Path, ledger: Ledger
) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge)
    with session.turn("Pay.") as turn:
        charge.keyed("call-1", in_turn=True)(5)
        turn.suspend()
    (again,) = session.interrupted
    with again:
        assert charge.keyed("call-1", in_turn=True)(5) == {"charged": 5}
    assert len(ledger.calls) == 1


def test_an_error_is_recorded_and_served(path: Path) -> None:
    calls = []

    def broken(text: str) -> None:
        calls.append(text)
        raise ZeroDivisionError(text)

    first = perdure.open(path).session("s")
    first.turn("Try.", id="turn-1").__enter__()
    with pytest.raises(ZeroDivisionError):
        first.tool(broken)("x")
    again = perdure.open(path).session("s")
    match = "ZeroDivisionError, and is not repeated"
    with again.turn("Try.", id="turn-1"), pytest.raises(EffectError, match=match) as caught:
        again.tool(broken)("x")
    assert (caught.value.error, caught.value.reason) == ("ZeroDivisionError", "x")
    assert calls == ["x"]


@pytest.mark.parametrize("result", [{"code": 402, "at": datetime(2026, 1, 1, tzinfo=UTC)}, object])
def test_a_tool_may_fail_with_a_result(path: Path, result: Any) -> None:
    """What cannot be stored is left out; the failure is recorded all the same."""

    def charge(amount: int) -> None:
        raise ToolFailureError("declined", result)

    first = perdure.open(path).session("s")
    first.turn("Pay.", id="turn-1").__enter__()
    with pytest.raises(ToolFailureError, match=r"^declined$") as raised:
        first.tool(charge)(5)
    assert raised.value.result is result
    again = perdure.open(path).session("s")
    with again.turn("Pay.", id="turn-1"), pytest.raises(EffectError) as caught:
        again.tool(charge)(5)
    stored = None if result is object else result
    assert (caught.value.error, caught.value.reason) == ("ToolFailureError", "declined")
    assert caught.value.result == stored
    (effect,) = again.effects.list()
    assert (effect.state, effect.result) == ("failed", stored)


def test_a_replayed_failure_has_its_result(path: Path) -> None:
    def charge(amount: int) -> None:
        raise ToolFailureError("declined", {"code": 402})

    def agent(session: perdure.Session) -> None:
        with session.turn("Pay."):
            try:
                session.tool(charge)(5)
            except ToolFailureError as error:
                session.append({"role": "assistant", "content": f"{error}: {error.result}"})

    session = perdure.open(path).session("s")
    agent(session)
    assert perdure.replay(session, agent).identical


def test_a_tool_belongs_into_a_turn(path: Path, ledger: Ledger) -> None:
    session = perdure.open(path).session("s")
    with pytest.raises(UsageError, match="outside of a turn"):
        session.tool(ledger.charge)(5)
    with pytest.raises(UsageError, match="outside of a durable tool"):
        current_effect()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"effect": "harmless"}, "no effect 'harmless'"),
        ({"effect": "reconcile"}, "go together"),
        ({"reconcile": print}, "go together"),
    ],
)
def test_a_wrong_declaration_is_refused(options: dict[str, Any], reason: str, path: Path) -> None:
    session = perdure.open(path).session("s")
    with pytest.raises(UsageError, match=reason):
        session.tool(print, **options)
    with pytest.raises(UsageError, match="must be a function"):
        session.tool("charge")  # type: ignore[call-overload]


def test_a_tool_that_changes_its_arguments_changes_no_record(path: Path) -> None:
    session = perdure.open(path).session("s")

    def grow(items: list[int]) -> int:
        items.append(2)
        return len(items)

    given = [1]
    with session.turn("Try."):
        assert session.tool(grow)(given) == 2
    assert given == [1]  # As after a crash, when the recorded result is returned.
    assert session.effects.list()[0].arguments == {"items": [1]}


def test_a_tool_that_takes_too_long_may_have_happened(path: Path) -> None:
    session = perdure.open(path).session("s")
    go_on = threading.Event()
    with session.turn("Wait."), pytest.raises(ToolTimeoutError, match=r"0\.05 s"):
        session.tool(go_on.wait, name="wait", timeout=0.05)()
    go_on.set()
    assert [one.state for one in session.effects.list()] == ["unknown"]


def test_calls_within_calls_know_each_other(path: Path, ledger: Ledger) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge)

    def pay_twice(amount: int) -> list[Any]:
        return [charge(amount), charge(amount)]

    with session.turn("Pay."):
        session.tool(pay_twice)(5)
    outer, *inner = session.effects.list()
    assert [one.tool for one in inner] == ["charge", "charge"]
    contents = [record.content for record in session.records()]
    parents = {one.parent for one in contents if isinstance(one, EffectIntent)}
    assert parents == {"", outer.identity}


def test_the_same_call_is_not_made_twice_at_once(path: Path) -> None:
    session = perdure.open(path).session("s")
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert go_on.wait(60)
        return "done"

    tool = session.tool(slow).keyed("one")
    with session.turn("Try."):
        thread = threading.Thread(target=tool)
        thread.start()
        assert started.wait(60)
        with pytest.raises(InFlightError, match="wait for its outcome"):
            tool()
        go_on.set()
        thread.join()
        assert tool() == "done"


def test_who_lost_the_turn_may_not_begin_a_call(path: Path, ledger: Ledger) -> None:
    first = perdure.open(path).session("s")
    first.turn("Pay.", id="turn-1").__enter__()
    again = perdure.open(path).session("s")
    with again.turn("Pay.", id="turn-1"), pytest.raises(ConflictError):
        first.tool(ledger.charge)(5)
    assert ledger.calls == []


CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}},
        {"id": "c2", "type": "function", "function": {"name": "boom", "arguments": ""}},
        {"id": "c3", "type": "function", "function": {"name": "nope", "arguments": ""}},
        {"id": "c4", "type": "function", "function": {"name": "add", "arguments": "{"}},
    ],
}


NOT_APPENDED = {"id": "c1", "function": {"name": "add", "arguments": '{"a":1,"b":3}'}}


def add(a: int, b: int) -> int:
    return a + b


def boom() -> None:
    raise ZeroDivisionError("no")


TOLD = [
    "3",
    "Error: ZeroDivisionError: no",
    "Error: there is no tool 'nope'. There are: add, boom.",
    "Error: 'add' was not called, its arguments are not JSON",
]


@pytest.mark.parametrize("parallel", [1, 8])
def test_the_calls_of_a_model_are_made_and_it_is_told(path: Path, parallel: int) -> None:
    session = perdure.open(path).session("s")
    with session.turn("Add.") as turn:
        turn.append(CALLS)
        told = session.run_tool_calls(CALLS, [session.tool(add), boom], parallel=parallel)
        assert [one["tool_call_id"] for one in told] == ["c1", "c2", "c3", "c4"]
        assert all(one["content"].startswith(text) for one, text in zip(told, TOLD, strict=True))
        assert session.run_tool_calls(None, [add]) == []
        assert session.run_tool_calls(CALLS, [add]) == told
        with pytest.raises(UsageError, match=r"append it with turn\.append"):
            session.run_tool_calls({**CALLS, "tool_calls": [NOT_APPENDED]}, [add])
    transcript = session.messages(format="openai.chat")
    assert transcript.interrupted_calls == ()
    assert [one.state for one in session.effects.list(tool="add")] == ["succeeded"]
    session.verify()


def test_a_model_that_calls_a_tool_where_there_is_none_is_told() -> None:
    session = perdure.open("memory:").session("s")
    with session.turn("Add.") as turn:
        turn.append(CALLS)
        told = [one["content"] for one in session.run_tool_calls(CALLS)]
    assert told[0] == "Error: there is no tool 'add'. There are: none."


def test_the_calls_of_a_killed_process_are_made_once(path: Path, ledger: Ledger) -> None:
    first = perdure.open(path).session("s")
    calls = {
        "role": "assistant",
        "tool_calls": [
            {"id": f"c{n}", "function": {"name": "charge", "arguments": f'{{"amount":{n}}}'}}
            for n in (1, 2)
        ],
    }

    def charge(amount: int) -> Any:
        if amount == 2:
            return dying(first, ledger)(amount)
        return ledger.charge(amount)

    turn = first.turn("Pay.", id="turn-1")
    turn.__enter__()
    turn.append(calls)
    with pytest.raises(Killed):
        first.run_tool_calls(calls, [charge], parallel=1)
    again = perdure.open(path).session("s")
    with again.turn("Pay.", id="turn-1"):
        (told,) = again.run_tool_calls(None, [ledger.charge])
    assert told["tool_call_id"] == "c2"
    assert told["content"].startswith("Interrupted")
    assert [amount for _, amount in ledger.calls] == [1, 2]
    assert len(again.effects.unknown()) == 1
    assert again.messages(format="openai.chat").interrupted_calls == ()


def test_async_tools_run_once_too(path: Path, ledger: Ledger) -> None:
    async def charge(amount: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return ledger.charge(amount)

    async def main() -> None:
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            turn = session.turn("Pay.", id="turn-1")
            await turn.__aenter__()
            tool, plain = session.tool(charge), session.tool(ledger.charge, name="plain")
            found = list(await asyncio.gather(tool(1), plain(2)))
            assert found == [{"charged": 1}, {"charged": 2}]
        async with perdure.open_async(path) as store:
            session = await store.session("s")
            async with session.turn("Pay.", id="turn-1"):
                tool, plain = session.tool(charge), session.tool(ledger.charge, name="plain")
                assert list(await asyncio.gather(tool(1), plain(2))) == found
                slow = session.tool(lambda: asyncio.sleep(9), name="slow", timeout=0.05)
                with pytest.raises(ToolTimeoutError):
                    await slow()
            assert len(await session.effects.list(tool="plain")) == 1
            assert len(ledger.calls) == 2

    asyncio.run(main())


def test_async_functions_need_an_async_session(path: Path) -> None:
    async def charge() -> None: ...

    session = perdure.open(path).session("s")
    with pytest.raises(UsageError, match="open_async"):
        session.tool(charge)


def test_a_store_that_is_gone_stops_the_agent(path: Path, ledger: Ledger) -> None:
    store = perdure.open(path)
    session = store.session("s")
    charge = session.tool(ledger.charge)
    turn = session.turn("Pay.")
    turn.__enter__()
    path.unlink()
    with pytest.raises(UnavailableError):
        charge(5)
    assert ledger.calls == []


def test_how_many_are_unknown_is_known_without_counting(path: Path) -> None:
    session = perdure.open(path).session("s")

    def stop() -> None:
        raise KeyboardInterrupt

    with session.turn("Stop.", id="t"):
        for key in "ab":
            with pytest.raises(KeyboardInterrupt):
                session.tool(stop).keyed(key)()
    assert session._replica.state.effects.unknown == 2
    for left, found in zip((1, 0), session.effects.unknown(), strict=True):
        session.effects.reconcile(found.id, DidNotHappen())
        assert session._replica.state.effects.unknown == left
    deeds = session._replica.state.effects
    assert type(deeds).of(deeds.by_identity) == deeds
    session.verify()


def test_another_version_is_told_and_what_was_recorded_is_returned(
    path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    first = perdure.open(path).session("s")
    first.turn("Pay.", id="turn-1").__enter__()
    first.tool(ledger.charge, version="1")(5)
    again = perdure.open(path).session("s")
    with again.turn("Pay.", id="turn-1"):
        assert again.tool(ledger.charge, version="2")(5) == {"charged": 5}
        assert again.tool(ledger.charge, version="1")(7) == {"charged": 7}
    assert [amount for _, amount in ledger.calls] == [5, 7]
    (effect, _) = again.effects.list()
    (changed,) = again.effects.changed
    assert changed == (effect.id, "charge", "1", "2", False)
    told = [record for record in caplog.records if vars(record).get("event") == "version"]
    assert [vars(record)["outcome"] for record in told] == ["serve"]
    assert (effect.version, effect.before) == ("1", "")


def test_another_version_that_makes_a_call_again_is_told(path: Path, ledger: Ledger) -> None:
    kill_in_call(path, ledger, "idempotent", name="charge", version="1")
    session = perdure.open(path).session("s")
    with session.turn("Pay.", id="turn-1"):
        session.tool(ledger.charge, effect="idempotent", version="2")(5)
    found = session.effects.list()
    assert [(one.state, one.version, one.before) for one in found] == [
        ("repeated", "1", ""),
        ("succeeded", "2", "1"),
    ]
    (changed,) = session.effects.changed
    assert changed == (found[1].id, "charge", "1", "2", True)


def test_a_branch_at_an_effect_goes_on_before_it(path: Path, ledger: Ledger) -> None:
    session = perdure.open(path).session("s")
    charge = session.tool(ledger.charge)
    with session.turn("Pay."):
        charge(5)
        charge(7)
    _, second = session.effects.list()
    branches = session.branch("what-if", at=second), session.branch("what-then", at=second.id)
    for branch in branches:
        (turn,) = branch.interrupted
        with turn:
            again = branch.tool(ledger.charge)
            assert again(5) == {"charged": 5}  # It was recorded.
            assert again(8) == {"charged": 8}
        assert [one.state for one in branch.effects.list()] == ["succeeded"] * 2
        branch.verify()
    assert [amount for _, amount in ledger.calls] == [5, 7, 8, 8]
    with pytest.raises(NotFoundError, match="nonsense"):
        session.branch("other", at=".nonsense")
    with pytest.raises(UsageError, match="must be int"):
        session.branch("other", at="nonsense")


def test_a_branch_at_an_effect_begins_before_those_that_ran_beside_it(
    path: Path, ledger: Ledger
) -> None:
    session = perdure.open(path).session("s")
    inner = session.tool(ledger.charge, name="inner")
    outer = session.tool(lambda: inner(5), name="outer")
    with session.turn("Pay.") as turn:
        turn.append({"role": "assistant", "content": "Now."})
        before = session.position
        outer()
    inside = session.effects.list(tool="inner")[0]
    branch = session.branch("what-if", at=inside)
    assert branch.position == before + 1  # With the record that it is a branch.
    assert branch.effects.list() == []


def test_a_blocking_tool_that_hangs_does_not_keep_a_loop_from_ending() -> None:
    go_on = threading.Event()

    async def run() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            async with session.turn("Wait."):
                with pytest.raises(ToolTimeoutError):
                    await session.tool(lambda: go_on.wait(60), name="wait", timeout=0.05)()

    begun = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - begun < 40
    go_on.set()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_any_error_of_a_blocking_tool_reaches_its_caller_in_a_loop(timeout: float | None) -> None:
    async def run() -> list[tuple[str, str]]:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            async with session.turn("Take."):
                nothing: list[int] = []
                take = session.tool(lambda: next(iter(nothing)), name="take", timeout=timeout)
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await asyncio.wait_for(take(), 60)
            return [(one.state, one.error) for one in await session.effects.list()]

    assert asyncio.run(run()) == [("failed", "RuntimeError")]


def test_a_tool_of_another_session_is_recorded_where_the_model_called_it(ledger: Ledger) -> None:
    function = {"name": "charge", "arguments": '{"amount": 5}'}
    call = {"id": "1", "type": "function", "function": function}
    store = perdure.open("memory:")
    one, other = store.session("one"), store.session("other")
    tool = one.tool(ledger.charge, effect="idempotent")
    with one.turn("Wait."), other.turn("Pay.") as turn:
        turn.append({"role": "assistant", "tool_calls": [call]})
        with pytest.raises(UsageError, match="parallel"):
            other.run_tool_calls(None, [tool], parallel="all")  # type: ignore[arg-type]
        other.run_tool_calls(None, [tool])
    assert other.last_message is not None
    assert other.last_message["role"] == "tool"
    assert (len(one), one.effects.list()) == (1, [])
    assert [(found.tool, found.policy) for found in other.effects.list()] == [
        ("charge", "idempotent")
    ]


def test_an_intent_leaves_out_what_is_known_from_its_id_its_turn_and_its_arguments() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        keys: list[str] = []

        def charge(amount: int) -> None:
            keys.append(current_effect().key)

        with session.turn("go") as turn:
            session.tool(charge)(5)
            identity, effect = next(iter(session._handle.replica.state.effects.by_identity.items()))
        record = next(one for one in session.records() if isinstance(one.content, EffectIntent))
        assert record.content == EffectIntent(
            identity=identity, tool="charge", arguments={"amount": 5}, turn=turn.id
        )
        assert (effect.key, effect.owner, effect.policy) == (record.id[1:], turn.id, "unsafe")
        assert effect.digest == digest_of(b'{"amount":5}')
        assert keys == [session.effects.list()[0].key] == [record.id[1:]]


def test_a_read_only_call_is_recorded_once_after_it_ran(path: Path) -> None:
    session = perdure.open(path).session("looks")
    kinds: list[list[str]] = []

    def look(at: str) -> str:
        kinds.append([record.kind for record in session.records()])
        return at.upper()

    with session.turn("Look!"):
        assert session.tool(look, effect="read_only")("here") == "HERE"
        appends = [record.position for record in session.records()]
    assert kinds == [["turn.begun", "message"]]
    tail = [*session.records()][len(kinds[0]) :]
    assert [record.kind for record in tail[:2]] == ["effect.intent", "effect.outcome"]
    intent = tail[0].content
    assert isinstance(intent, EffectIntent)
    assert intent.begun_after == appends[1]
    (effect,) = session.effects.list()
    assert (effect.state, effect.result, effect.arguments) == ("succeeded", "HERE", {"at": "here"})


def test_a_read_only_call_is_listed_with_the_time_when_it_began(path: Path) -> None:
    session = perdure.open(path).session("looks")
    with session.turn("Look!"):
        before = datetime.now(UTC)
        session.tool(lambda: time.sleep(0.2), name="look", effect="read_only")()
    (effect,) = session.effects.list()
    assert abs((effect.time - before).total_seconds()) < 0.15
    assert [*session.effects.list(since=before + timedelta(seconds=0.15))] == []


def test_a_read_only_call_whose_process_died_left_nothing_and_runs_again(
    path: Path,
) -> None:
    session, ledger = perdure.open(path).session("looks"), Ledger()
    with pytest.raises(Killed), session.turn("Look!", id="t"):
        session.tool(dying(session, ledger), name="look", effect="read_only")(1)
    again = perdure.open(path).session("looks")
    assert [record.kind for record in again.records()] == ["turn.begun", "message"]
    with again.turn("Look!", id="t"):
        result = again.tool(ledger.charge, name="look", effect="read_only")(1)
        # Once recorded, it is not made again.
    assert result == {"charged": 1}
    assert len(ledger.calls) == 2
    assert [effect.state for effect in again.effects.list()] == ["succeeded"]


def test_a_read_only_call_that_fails_is_recorded_with_its_error(path: Path) -> None:
    session = perdure.open(path).session("looks")
    with session.turn("Look!"):
        with pytest.raises(ZeroDivisionError):
            session.tool(lambda: 1 // 0, name="look", effect="read_only")()
        (effect,) = session.effects.list()
    assert (effect.state, effect.error) == ("failed", "ZeroDivisionError")


def test_a_read_only_call_in_a_turn_that_another_handle_continued_is_not_recorded(
    path: Path,
) -> None:
    session = perdure.open(path).session("looks")

    def look() -> int:
        other = perdure.open(path).session("looks")
        with other.turn("Look!", id="t"):
            pass
        return 1

    with pytest.raises(ConflictError), session.turn("Look!", id="t"):
        session.tool(look, effect="read_only")()
    assert session.effects.list() == []


def test_a_read_only_call_with_a_key_is_recorded_before_it_runs(path: Path) -> None:
    session = perdure.open(path).session("looks")
    with session.turn("Look!"):

        def look() -> int:
            with pytest.raises(InFlightError):
                session.tool(look, effect="read_only").keyed("k")()
            return 1

        assert session.tool(look, effect="read_only").keyed("k")() == 1


@pytest.mark.parametrize("length", [9 * 2**20, 17 * 2**20])
def test_large_arguments_of_a_read_only_call_are_stored_or_refused_before_it_runs(
    path: Path, length: int
) -> None:
    session, ran = perdure.open(path).session("looks"), []

    def look(text: str) -> str:
        ran.append(len(text))
        return "y" * (9 * 2**20)

    tool = session.tool(look, effect="read_only")
    with session.turn("Look!"):
        if length > 16 * 2**20:
            with pytest.raises(UsageError):
                tool("x" * length)
        else:
            assert len(tool("x" * length)) == 9 * 2**20
    assert ran == [length] * (length < 16 * 2**20)
    assert [(one.state, one.unstored) for one in session.effects.list()] == [
        ("succeeded", "") for _ in ran
    ]


def test_a_read_only_call_whose_result_is_too_large_leaves_no_intent_alone(path: Path) -> None:
    session = perdure.open(path).session("looks")
    with session.turn("Look!"):
        session.tool(lambda: "y" * (17 * 2**20), name="look", effect="read_only")()
    (effect,) = session.effects.list()
    assert (effect.state, effect.unstored) == ("succeeded", "str")
    kinds = [record.kind for record in session.records()]
    assert kinds.count("effect.intent") == kinds.count("effect.outcome") == 1
