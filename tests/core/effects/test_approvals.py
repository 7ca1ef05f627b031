"""A call that needs an approval runs exactly what was approved, once."""

import asyncio
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.effects.listing import Approval
from perdure.errors import (
    ApprovalDeniedError,
    ApprovalError,
    ApprovalPendingError,
    ConflictError,
    DivergenceError,
    EffectError,
    NotFoundError,
    UsageError,
)
from perdure.journal.records import ApprovalDecided, EffectIntent
from tests.support import said


class World:
    """The outside world: what really happened there."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def pay(self, amount: int, to: str = "bob") -> dict[str, int]:
        self.calls.append((amount, to))
        return {"paid": amount}


class Clock:
    """A clock that anybody can set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend, clock: Clock) -> Iterator[perdure.Store]:
    with perdure.open(backend, clock=clock) as store:
        yield store


def asked(session: perdure.Session, tool: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Make a call in a turn that nobody waits in; return the id of its approval."""
    with pytest.raises(ApprovalPendingError) as found, session.turn("Pay.", id="turn-1"):
        tool(*args, **kwargs)
    return found.value.approval


def requests(session: perdure.Session) -> Iterator[Approval]:
    """Yield what waits for a decision, now and from now on."""
    seen: set[str] = set()
    changes = session.watch(timeout=60)
    while True:
        for one in session.approvals.pending():
            if one.id not in seen:
                seen.add(one.id)
                yield one
        if next(changes, None) is None:
            return


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def test_a_call_runs_when_it_was_approved_and_says_by_which_approval(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0, version="2", actor="clerk")
    approval = asked(session, pay, 5, to="eve")
    (one,) = session.approvals.pending()
    assert (one.id, one.tool, one.version, one.actor) == (approval, "pay", "2", "clerk")
    assert (one.arguments, one.state, one.session) == ({"amount": 5, "to": "eve"}, "waiting", "s")
    assert world.calls == []
    assert "approval-waiting" in session.labels
    session.approvals.approve(approval, by="ada", reason="it is due", digest=one.digest)
    assert "approval-waiting" not in session.labels
    with session.interrupted[0]:
        assert pay(5, to="eve") == {"paid": 5}
    assert world.calls == [(5, "eve")]
    content = [one.content for one in session.records() if one.kind == "effect.intent"]
    assert isinstance(content[0], EffectIntent)
    assert content[0].approval == approval
    (found,) = session.approvals.list()
    assert (found.state, found.by, found.reason) == ("used", "ada", "it is due")
    assert session.approvals.pending() == []
    session.verify()


def test_a_call_that_waits_goes_on_at_once_when_it_is_approved(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True)

    def approve() -> None:
        other = store.session("s")
        other.approvals.approve(next(requests(other)).id, by="ada")

    thread = threading.Thread(target=approve)
    thread.start()
    began = time.monotonic()
    with session.turn("Pay."):
        assert pay(5) == {"paid": 5}
    assert time.monotonic() - began < 30
    thread.join()
    session.append(said("nothing that came meanwhile is a conflict"))


def test_a_denied_call_is_not_made_and_the_reason_is_its_outcome(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    session.approvals.deny(asked(session, pay, 5), by="ada", reason="too much")
    for _ in range(2):  # The second time from the record.
        with session.interrupted[0] as turn:
            with pytest.raises(ApprovalDeniedError) as error:
                pay(5)
            turn.suspend()
        assert isinstance(error.value, EffectError)
        assert "ada" in error.value.reason
        assert "too much" in error.value.reason
    assert world.calls == []
    assert kinds(session).count("effect.outcome") == 1
    assert "effect.intent" not in kinds(session)
    assert session.approvals.list()[0].state == "denied"
    session.verify()


def test_whoever_does_not_wait_looks_at_least_once(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    with session.turn("Pay."):
        with pytest.raises(ApprovalPendingError) as first:
            pay(5)
        with pytest.raises(ApprovalPendingError) as second:
            pay(5)
        assert first.value.approval == second.value.approval, "it is the same call"
        store.session("s").approvals.approve(first.value.approval, by="ada")
        assert pay(5) == {"paid": 5}
        with pytest.raises(ApprovalPendingError) as third:
            pay(5)
        assert third.value.approval != first.value.approval, "another call needs another one"
    assert world.calls == [(5, "bob")]
    assert session.approvals.pending() == []


def test_the_error_says_what_to_run(store: perdure.Store, world: World) -> None:
    session = store.session("a claim")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    with pytest.raises(ApprovalPendingError) as error, session.turn("Pay."):
        pay(5)
    approval = error.value.approval
    assert f"perdure approve --store memory: 'a claim' {approval}" in str(error.value)
    assert error.value.approvals == (approval,)
    again = copy.copy(error.value)
    assert (again.command, str(again)) == (error.value.command, str(error.value))


def test_whoever_waits_is_told_in_the_log(
    store: perdure.Store, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0.05)
    with caplog.at_level(logging.WARNING, "perdure"):
        approval = asked(session, pay, 5)
    assert f"perdure approve --store memory: s {approval}" in caplog.text


def test_only_calls_of_which_the_function_says_so_need_an_approval(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    seen: list[Any] = []

    def large(arguments: dict[str, Any]) -> bool:
        seen.append(dict(arguments))
        arguments["amount"] = 0  # A copy.
        return bool(seen[-1]["amount"] > 10)

    pay = session.tool(world.pay, approval=large, approval_wait=0)
    with session.turn("Pay."):
        assert pay(10) == {"paid": 10}
        with pytest.raises(ApprovalPendingError):
            pay(11)
    assert world.calls == [(10, "bob")]
    assert seen == [{"amount": 10}, {"amount": 11}]


def test_what_was_asked_binds_even_if_the_function_has_changed_its_mind(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    lenient = session.tool(world.pay, approval=lambda _: False, approval_wait=0)
    with session.interrupted[0] as turn:
        with pytest.raises(ApprovalPendingError):
            lenient(5)
        turn.suspend()
    session.approvals.deny(approval, by="ada")
    with session.interrupted[0], pytest.raises(ApprovalDeniedError):
        session.tool(world.pay)(5)
    assert world.calls == []


@pytest.mark.parametrize(
    "need",
    [lambda arguments: arguments["nix"], lambda _: 1, lambda _: None, lambda _: "no"],
    ids=["raises", "a number", "nothing", "a text"],
)
def test_nothing_runs_if_the_function_can_not_say(
    store: perdure.Store, world: World, need: Any
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=need)
    with pytest.raises(UsageError, match="nothing was called"), session.turn("Pay."):
        pay(5)
    assert world.calls == []
    assert "effect.intent" not in kinds(session)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"approval": "yes"},
        {"approval": None},
        {"approval": 1},
        {"approval": True, "approval_ttl": 0},
        {"approval": True, "approval_ttl": -5},
        {"approval": True, "approval_ttl": float("nan")},
        {"approval": True, "approval_ttl": float("inf")},
        {"approval": True, "approval_ttl": True},
        {"approval": True, "approval_ttl": "1h"},
        {"approval_ttl": 60},
        {"approval": True, "approval_wait": -1},
        {"approval": True, "approval_wait": "long"},
    ],
    ids=str,
)
def test_nonsense_is_refused_where_it_is_declared(
    store: perdure.Store, world: World, nonsense: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="approval"):
        store.session("s").tool(world.pay, **nonsense)


def test_the_first_decision_counts_and_is_named(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    one, two = store.session("s"), store.session("s")
    one.approvals.deny(approval, by="ada")
    for decide in (two.approvals.approve, two.approvals.deny, one.approvals.approve):
        with pytest.raises(ApprovalError, match="denied by 'ada'"):
            decide(approval, by="bob")
    assert kinds(store.session("s")).count("approval.decided") == 1


def test_deciding_disturbs_nobody_and_is_disturbed_by_nobody(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    decider = store.session("s")
    session.append(said("written meanwhile"))
    session.set("plan", 1)
    decider.approvals.approve(approval, by="ada")
    session.append(said("and this after it"))


def test_what_does_not_wait_can_not_be_decided(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    for decide in (session.approvals.approve, session.approvals.deny):
        with pytest.raises(NotFoundError, match="perdure approvals"):
            decide("nix", by="ada")
    approval = asked(session, pay, 5)
    with pytest.raises(UsageError, match="who decides"):
        session.approvals.approve(approval, by="")
    with pytest.raises(UsageError):
        session.approvals.approve(approval, by=7)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        store.session("other").approvals.approve(approval, by="ada")
    with pytest.raises(ApprovalError, match="and not for other"):
        session.approvals.approve(approval, by="ada", digest="other")
    assert len(session.approvals.pending()) == 1
    session.approvals.approve(approval, by="ada")
    with session.interrupted[0]:
        pay(5)
        with pytest.raises(ApprovalError, match="used already, after it was approved by 'ada'"):
            session.approvals.deny(approval, by="ada")
    with pytest.raises(ApprovalError, match="used by 'ada'"):
        session.approvals.deny(approval, by="ada")


def test_an_approval_ends_with_its_turn(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    session.interrupted[0].abandon()
    assert "approval-waiting" not in session.labels
    with pytest.raises(ApprovalError, match="void"):
        session.approvals.approve(approval, by="ada")
    assert session.approvals.list()[0].state == "void"


def test_another_version_needs_another_approval(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    first = session.tool(world.pay, approval=True, approval_wait=0, version="1")
    approval = asked(session, first, 5)
    session.approvals.approve(approval, by="ada")
    second = session.tool(world.pay, approval=True, approval_wait=0, version="2")
    with session.interrupted[0] as turn:
        with pytest.raises(ApprovalPendingError) as again:
            second(5)
        turn.suspend()
    assert again.value.approval != approval
    assert world.calls == []
    assert [one.state for one in session.approvals.list()] == ["void", "waiting"]
    session.approvals.approve(again.value.approval, by="ada")
    with session.interrupted[0]:
        assert second(5) == {"paid": 5}
    assert world.calls == [(5, "bob")]


def test_an_approval_for_other_arguments_or_another_tool_is_none(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay.keyed("invoice-7"), 5)
    session.approvals.approve(approval, by="ada")
    other = session.tool(world.pay, approval=True, approval_wait=0, name="pay2")
    with session.interrupted[0] as turn:
        with pytest.raises(DivergenceError):
            pay.keyed("invoice-7")(6)
        with pytest.raises(ApprovalPendingError):
            other.keyed("invoice-7")(5)
        with pytest.raises(ApprovalPendingError):
            pay(5)
        turn.suspend()
    assert world.calls == []
    with session.interrupted[0]:
        assert pay.keyed("invoice-7")(5) == {"paid": 5}
    assert world.calls == [(5, "bob")]


def test_arguments_that_change_while_the_call_waits_do_not_change_the_call(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    order = {"amount": 5}
    done: list[Any] = []
    pay = session.tool(done.append, name="pay", approval=True, approval_wait=60)

    def approve() -> None:
        other = store.session("s")
        found = next(requests(other))
        order["amount"] = 5_000
        other.approvals.approve(found.id, by="ada")

    thread = threading.Thread(target=approve)
    thread.start()
    with session.turn("Pay."):
        pay(order)
    thread.join()
    assert done == [{"amount": 5}]
    assert session.effects.list()[0].arguments == session.approvals.list()[0].arguments


def test_a_branch_does_not_take_approvals_with_it(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    session.approvals.approve(approval, by="ada")
    branch = session.branch("what-if")
    assert branch.approvals.pending() == []
    assert branch.approvals.list()[0].state == "void"
    with branch.interrupted[0] as turn:
        with pytest.raises(ApprovalPendingError) as other:
            branch.tool(world.pay, approval=True, approval_wait=0)(5)
        turn.suspend()
    assert other.value.approval != approval
    assert world.calls == []
    with session.interrupted[0]:
        assert pay(5) == {"paid": 5}
    assert world.calls == [(5, "bob")]
    branch.verify()


# Time.


def test_what_nobody_decided_in_time_is_not_made(
    store: perdure.Store, world: World, clock: Clock
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_ttl=60, approval_wait=0)
    approval = asked(session, pay, 5)
    assert session.approvals.pending()[0].expires is not None
    clock.now += 60
    assert session.approvals.pending() == []
    assert session.approvals.list()[0].state == "expired"
    with pytest.raises(ApprovalError, match="expired"):
        session.approvals.approve(approval, by="ada")
    clock.now -= 60
    with pytest.raises(ApprovalError, match="expired"):
        session.approvals.approve(approval, by="ada")
    with session.interrupted[0], pytest.raises(ApprovalDeniedError, match="expired"):
        pay(5)
    assert world.calls == []


def test_an_approval_is_to_be_used_in_time_too(
    store: perdure.Store, world: World, clock: Clock
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_ttl=60, approval_wait=0)
    approval = asked(session, pay, 5)
    session.approvals.approve(approval, by="ada")
    clock.now += 61
    with session.interrupted[0] as turn:
        with pytest.raises(ApprovalDeniedError):
            pay(5)
        clock.now -= 1_000_000  # What was recorded as over stays over.
        turn.suspend()
    with session.interrupted[0], pytest.raises(ApprovalDeniedError):
        pay(5)
    assert world.calls == []
    assert session.approvals.list()[0].state == "expired"
    assert kinds(session).count("approval.decided") == 2


def test_whoever_waits_counts_the_time_itself(
    store: perdure.Store, world: World, clock: Clock
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_ttl=0.2)
    clock.now -= 1_000_000  # Set back, and it stands still: only the waiting counts.
    began = time.monotonic()
    with session.turn("Pay."), pytest.raises(ApprovalDeniedError):
        pay(5)
    assert 0.2 <= time.monotonic() - began < 30
    assert world.calls == []


def test_a_clock_that_jumps_ahead_only_ends_approvals_early(
    store: perdure.Store, world: World, clock: Clock
) -> None:
    session = store.session("s")
    endless = session.tool(world.pay, name="endless", approval=True, approval_wait=0)
    short = session.tool(world.pay, name="short", approval=True, approval_ttl=60, approval_wait=0)
    with session.turn("Pay.", id="turn-1") as turn:
        for tool in (endless, short):
            with pytest.raises(ApprovalPendingError):
                tool(5)
        turn.suspend()
    clock.now += 10 * 366 * 86_400
    session.approvals.approve(session.approvals.pending()[0].id, by="ada")
    with session.interrupted[0]:
        assert endless(5) == {"paid": 5}
        with pytest.raises(ApprovalDeniedError):
            short(5)
    assert len(world.calls) == 1


# The calls of a model.


def calls(*amounts: int) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [
            {
                "id": f"call-{amount}",
                "type": "function",
                "function": {"name": "pay", "arguments": f'{{"amount": {amount}}}'},
            }
            for amount in amounts
        ],
    }


def test_other_calls_go_on_while_one_waits_and_the_model_is_told_of_all(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=lambda arguments: arguments["amount"] > 10)
    seen: list[Approval] = []

    def decide() -> None:
        other = store.session("s")
        found = requests(other)
        seen.extend(next(found) for _ in range(3))
        for _ in range(6_000):  # Those that need nobody are made meanwhile.
            if len(world.calls) == 2:
                break
            time.sleep(0.01)
        assert sorted(world.calls) == [(1, "bob"), (2, "bob")]
        other.approvals.approve(seen[0].id, by="ada")
        other.approvals.approve(seen[1].id, by="ada")
        other.approvals.deny(seen[2].id, by="ada", reason="not today")

    thread = threading.Thread(target=decide)
    thread.start()
    with session.turn("Pay.") as turn:
        message = calls(20, 30, 1, 2, 40)
        turn.append(message)
        told = session.run_tool_calls(message, [pay], parallel=2)
    thread.join()
    denied = seen[2].arguments["amount"]
    assert sorted(world.calls) == sorted(
        (amount, "bob") for amount in (20, 30, 1, 2, 40) if amount != denied
    )
    assert [one["tool_call_id"] for one in told] == [f"call-{n}" for n in (20, 30, 1, 2, 40)]
    texts = {one["tool_call_id"]: one["content"] for one in told}
    assert "not today" in texts[f"call-{denied}"]
    assert session.messages()[2:] == sorted(told, key=session.messages().index)
    session.verify()


def test_calls_that_nobody_waits_for_are_found_again(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(
        world.pay, approval=lambda arguments: arguments["amount"] > 10, approval_wait=0
    )
    with session.turn("Pay.") as turn:
        turn.append(calls(20, 1, 30))
        with pytest.raises(ApprovalPendingError) as error:
            session.run_tool_calls(None, [pay])
        turn.suspend()
    assert len(error.value.approvals) == 2
    assert "and 1 more" in str(error.value)
    assert world.calls == [(1, "bob")]
    for approval in error.value.approvals:
        session.approvals.approve(approval, by="ada")
    with session.interrupted[0]:
        told = session.run_tool_calls(None, [pay])
    assert sorted(world.calls) == [(1, "bob"), (20, "bob"), (30, "bob")]
    assert len(told) == 2
    assert len(session.messages()) == 5


def test_a_function_that_fails_keeps_the_call_of_a_model_open(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=lambda arguments: arguments["nix"])
    with session.turn("Pay.") as turn:
        turn.append(calls(5))
        with pytest.raises(UsageError):
            session.run_tool_calls(None, [pay])
    assert world.calls == []


# Restarts, takeovers, damage.


def test_a_request_survives_a_restart_and_is_not_made_twice(tmp_path: Path, world: World) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        session = store.session("s")
        approval = asked(session, session.tool(world.pay, approval=True, approval_wait=0), 5)
    for decided in (False, True):
        with perdure.open(path) as store:
            if decided:
                (found,) = store.approvals()
                assert (found.id, found.session) == (approval, "s")
                store.session(found.session).approvals.approve(found.id, by="ada")
            session = store.session("s")
            pay = session.tool(world.pay, approval=True, approval_wait=0)
            if decided:
                with session.interrupted[0]:
                    assert pay(5) == {"paid": 5}
            else:
                with pytest.raises(ApprovalPendingError) as error, session.interrupted[0]:
                    pay(5)
                assert error.value.approval == approval
    assert world.calls == [(5, "bob")]


def test_whoever_lost_the_turn_does_not_use_its_approval(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True)
    errors: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        try:
            with session.turn("Pay."):
                begun.set()
                pay(5)
        except PerdureErrors as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    other = store.session("s")
    while not other.approvals.pending():
        other.refresh()
    with other.interrupted[0]:
        other.approvals.approve(other.approvals.pending()[0].id, by="ada")
        thread.join(60)
        assert isinstance(errors[0], ConflictError)
        assert world.calls == []
        assert other.tool(world.pay, approval=True, approval_wait=0)(5) == {"paid": 5}
    assert world.calls == [(5, "bob")]


PerdureErrors = perdure.PerdureError


def test_closing_ends_the_wait(store: perdure.Store, world: World) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            with session.turn("Pay."):
                pay(5)
        except PerdureErrors as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    store.close()
    thread.join(60)
    assert isinstance(errors[0], UsageError)
    assert world.calls == []


def test_the_same_effect_tried_again_is_one_use(
    backend: MemoryBackend, store: perdure.Store, world: World
) -> None:
    session = store.session("s")

    class KilledError(BaseException):
        pass

    def dying(amount: int) -> None:
        world.pay(amount)
        session._handle.write = _dead  # type: ignore[method-assign]
        raise KilledError

    def _dead(plan: object) -> Any:
        raise KilledError

    first = session.tool(
        dying, name="pay", effect="idempotent", approval=True, approval_wait=0, version="1"
    )
    session.approvals.approve(asked(session, first, 5), by="ada")
    with pytest.raises(KilledError), session.interrupted[0]:
        first(5)
    later = perdure.open(backend).session("s")
    again = {"effect": "idempotent", "approval": True, "approval_wait": 0, "name": "pay"}
    with later.interrupted[0] as turn:
        with pytest.raises(ApprovalPendingError):
            later.tool(world.pay, **again, version="2")(5)  # type: ignore[call-overload]
        turn.suspend()
    assert world.calls == [(5, "bob")]


@pytest.mark.parametrize("field", ["approval", "call_digest", "decision"])
def test_a_decision_about_something_else_lets_nothing_happen(
    store: perdure.Store, world: World, field: str
) -> None:
    session = store.session("s")
    pay = session.tool(world.pay, approval=True, approval_wait=0)
    approval = asked(session, pay, 5)
    digest = session.approvals.pending()[0].digest
    given = {"approval": approval, "call_digest": digest, "decision": "approved"}
    given[field] = "denied" if field == "decision" else _mutated(given[field])
    forged = ApprovalDecided(**given)  # type: ignore[arg-type]
    plan = _adding(session, forged)
    session._handle.write(plan)
    wanted = ApprovalDeniedError if field == "decision" else ApprovalPendingError
    with pytest.raises(wanted), session.interrupted[0]:
        pay(5)
    assert world.calls == []


def _mutated(text: str) -> str:
    return text[:-2] + ("B" if text[-2] != "B" else "C") + text[-1]


def _adding(session: perdure.Session, content: ApprovalDecided) -> Any:
    from perdure.core.plans import Plan, RecordBatch

    def make(batch: RecordBatch) -> int:
        return batch.add_content(session._replica.settings.new_id(), content)

    return Plan("approval.decide", content.approval, make)


def test_a_snapshot_holds_what_waits(tmp_path: Path, world: World) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        session = store.session("s")
        pay = session.tool(world.pay, approval=True, approval_wait=0, approval_ttl=3_600)
        approval = asked(session, pay, 5)
        for number in range(300):
            session.note(number)
        assert "snapshot" in kinds(session)
        session.verify()
    with perdure.open(path) as store:
        session = store.session("s")
        assert [one.id for one in session.approvals.pending()] == [approval]
        assert "approval-waiting" in session.labels
        session.approvals.approve(approval, by="ada")
        with session.interrupted[0]:
            pay = session.tool(world.pay, approval=True, approval_ttl=3_600)
            assert pay(5) == {"paid": 5}
        session.verify()


def test_the_approvals_of_all_sessions_are_listed_by_their_label(
    store: perdure.Store, world: World
) -> None:
    waiting = {}
    for name in ("a/1", "a/2", "b/1"):
        session = store.session(name)
        waiting[name] = asked(session, session.tool(world.pay, approval=True, approval_wait=0), 5)
    store.session("c").append(said("x"))
    assert {one.session: one.id for one in store.approvals()} == waiting
    assert [one.session for one in store.approvals(prefix="a/")] == ["a/1", "a/2"]
    store.session("a/1").approvals.deny(waiting["a/1"], by="ada")
    assert [one.session for one in store.approvals()] == ["a/2", "b/1"]


async def go_on(session: perdure.AsyncSession, tool: Any, inside: asyncio.Event) -> None:
    async with session.interrupted[0]:
        inside.set()
        await tool(7)


def test_the_same_holds_in_an_event_loop(tmp_path: Path, world: World) -> None:
    async def pay(amount: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return world.pay(amount)

    async def large(arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0)
        return bool(arguments["amount"] > 10)

    async def broken(arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0)
        return bool(arguments["nix"])

    async def scenario() -> None:
        async with perdure.open_async(tmp_path / "agents.db") as store:
            session = await store.session("s")
            tool = session.tool(pay, approval=large)

            async def decide() -> None:
                other = await store.session("s")
                changes = other.watch(timeout=60)
                while True:
                    for one in await other.approvals.pending():
                        if one.arguments["amount"] == 20:
                            await other.approvals.approve(one.id, by="ada")
                        else:
                            await other.approvals.deny(one.id, by="ada", reason="no")
                    await anext(changes)

            task = asyncio.create_task(decide())
            async with session.turn("Pay.") as turn:
                await turn.append(calls(20, 1, 30))
                told = await session.run_tool_calls(None, [tool], parallel=1)
                assert "denied by ada" in told[2]["content"]
                assert sorted(world.calls) == [(1, "bob"), (20, "bob")]
                with pytest.raises(ApprovalDeniedError):
                    await tool(31)
                with pytest.raises(UsageError, match="nothing was called"):
                    await session.tool(pay, approval=broken)(5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            quick = session.tool(pay, approval=True, approval_wait=0)
            with pytest.raises(ApprovalPendingError) as error:
                async with session.turn("Pay."):
                    await quick(7)
            found = [one async for one in store.approvals()]
            assert [one.id for one in found] == [error.value.approval]
            assert isinstance((await session.approvals.pending())[0], Approval)
            inside = asyncio.Event()
            waiting = asyncio.create_task(go_on(session, session.tool(pay, approval=True), inside))
            await asyncio.wait_for(inside.wait(), 60)
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert len(world.calls) == 2
            assert [one.state for one in await session.approvals.list()][-1] == "void"
            await session.verify()

    asyncio.run(scenario())


def test_anybody_may_decide_while_one_handle_holds_the_lease(
    store: perdure.Store, world: World
) -> None:
    session = store.session("s")
    with session.lease(ttl=60):
        pay = session.tool(world.pay, approval=True, approval_wait=0)
        approval = asked(session, pay, 5)
        store.session("s").approvals.approve(approval, by="ada")
        with session.interrupted[0]:
            assert pay(5) == {"paid": 5}
    assert world.calls == [(5, "bob")]


def test_a_branch_at_a_call_that_was_denied_begins_before_it_was_asked_for() -> None:
    session = perdure.open("memory:").session("s")
    tool = session.tool(len, name="measure", approval=True, approval_wait=0)
    with session.turn("Measure."):
        before = session.position
        with pytest.raises(perdure.ApprovalPendingError):
            tool("x")
        session.approvals.deny(session.approvals.pending()[0].id, by="ada")
        with pytest.raises(perdure.ApprovalDeniedError):
            tool("x")
    (denied,) = session.effects.list()
    branch = session.branch("what-if", at=denied)
    assert branch.position == before + 1  # With the record that it is a branch.
