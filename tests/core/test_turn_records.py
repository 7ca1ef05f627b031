"""A turn that failed is continued by its id; one that is completed gives its answer."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.effects.calls import DidNotHappen, Happened, ToolTimeoutError
from perdure.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    ConflictError,
    DivergenceError,
    EffectError,
    NotFoundError,
    UnknownOutcomeError,
    UsageError,
)
from perdure.journal.records import TurnContinued
from tests.support import contents, said


class ModelDownError(Exception):
    """The model's 500."""


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def session(backend: MemoryBackend) -> perdure.Session:
    return perdure.open(backend).session("s")


@pytest.fixture
def reopened(backend: MemoryBackend) -> Callable[[], perdure.Session]:
    """Open the session as another process does."""
    return lambda: perdure.open(backend).session("s")


@contextmanager
def failing(session: perdure.Session, id: str = "r1") -> Iterator[perdure.Turn]:
    """Begin or continue a turn that fails after the block."""
    with suppress(ModelDownError), session.turn("go", id=id) as turn:
        yield turn
        raise ModelDownError
    assert turn.state == "failed"


def fail(session: perdure.Session) -> None:
    with failing(session):
        pass


def kinds(session: perdure.Session) -> list[str]:
    return [record.kind for record in session.records()]


def call(name: str = "pay", id: str = "c1", arguments: str = '{"amount":5}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls]}


# The state of a turn.


def test_the_state_of_a_turn_has_six_words(session: perdure.Session) -> None:
    turn = session.turn("go", id="r1")
    assert turn.state == "new"
    with turn:
        assert turn.state == "open"
        assert session.find_turn("r1").state == "open"
        turn.suspend()
        assert turn.state == "interrupted"
    assert session.find_turn("r1").state == "interrupted"
    fail(session)
    assert session.find_turn("r1").state == "failed"
    with session.turn("go", id="r1") as again:
        assert again.state == "open"
    assert again.state == session.find_turn("r1").state == "completed"
    with session.turn("other", id="r2") as other:
        other.abandon()
    assert other.state == session.find_turn("r2").state == "abandoned"


@pytest.mark.parametrize("before", ["open", "failed"])
def test_the_state_that_another_handle_sees(
    session: perdure.Session, reopened: Callable[[], perdure.Session], before: str
) -> None:
    turn = session.turn("go", id="r1")
    turn.__enter__()
    if before == "failed":
        turn.fail(ModelDownError())
    found = reopened().find_turn("r1")
    assert found.state == ("failed" if before == "failed" else "interrupted")
    assert found.branch_point == 0
    with found:
        assert found.state == "open"


def test_a_turn_is_found_however_long_ago_it_was(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    with session.turn("one", id="r1", correlation_id="c-7") as turn:
        turn.append(said("the first answer", "assistant"))
    for number in range(1200):
        session.note(number, id=f"n-{number}")
    with session.turn("two", id="r2") as turn:
        turn.append(said("the second answer", "assistant"))
    found = reopened().find_turn("r1")
    assert (found.state, found.correlation_id) == ("completed", "c-7")
    assert found.answer() == said("the first answer", "assistant")
    assert found.messages() == [said("one"), said("the first answer", "assistant")]


def test_a_turn_without_an_id_of_its_caller_is_found_too(session: perdure.Session) -> None:
    with session.turn("one") as turn:
        turn.append(said("answer", "assistant"))
    for number in range(300):
        session.note(number)
    assert session.find_turn(turn.id).answer() == turn.answer() == said("answer", "assistant")


@pytest.mark.parametrize("id", ["r2", "m1", ".generated"])
def test_an_unknown_turn_is_not_found_and_the_error_says_what_to_do(
    session: perdure.Session, id: str
) -> None:
    session.append(said("x"), id="m1")
    with pytest.raises(NotFoundError, match=r"session\.turn\(message, id=\.\.\.\) begins one"):
        session.find_turn(id)


def test_a_turn_that_has_not_begun_has_no_messages_and_no_answer(session: perdure.Session) -> None:
    turn = session.turn("go", id="r1")
    for read in (turn.messages, turn.answer):
        with pytest.raises(UsageError, match="has not begun"):
            read()


# Answers.


@pytest.mark.parametrize(
    "answer",
    [
        said("hi", "assistant"),
        {"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"role": "model", "parts": [{"text": "hi"}]},
    ],
)
def test_the_answer_is_the_last_message_of_the_assistant_without_calls(
    session: perdure.Session, answer: dict[str, Any]
) -> None:
    with session.turn("go", id="r1") as turn:
        assert turn.answer() is None
        turn.append(calling(call()))
        assert turn.answer() is None
        turn.append({"role": "tool", "tool_call_id": "c1", "content": "paid"})
        assert turn.answer() is None
        turn.append(answer)
        assert turn.answer() == answer
        with session.turn("inner", id="r2") as other:
            other.append(said("of another turn", "assistant"))
        assert turn.answer() == answer
    assert session.find_turn("r1").answer() == answer


def test_an_interrupted_answer_is_no_answer(session: perdure.Session) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "half"}}]}
    with session.turn("go", id="r1") as turn:
        list(turn.stream([{**chunk, "object": "chat.completion.chunk"}]))
    assert session.last_message == said("half", "assistant")
    assert turn.answer() is None


def test_a_retracted_message_is_neither_a_message_nor_the_answer_of_its_turn(
    session: perdure.Session,
) -> None:
    with session.turn("go", id="r1") as turn:
        turn.append(said("first", "assistant"))
        position = turn.append(said("second", "assistant"))
    session.retract(position)
    assert turn.answer() == said("first", "assistant")
    assert turn.messages() == [said("go"), said("first", "assistant")]


def test_records_behind_the_end_of_a_turn_in_its_append_hide_none_of_it(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    for number in range(80):  # A snapshot follows the end of one of them.
        batch_id = None if number else "its record is the last one"
        with session.turn(f"q{number}", id=f"r{number}") as turn, turn.batch(id=batch_id) as batch:
            batch.append(said("done", "assistant"))
            batch.complete()
    kinds = ["turn.begun", "message", "message", "turn.completed"]
    for number in range(80):
        turn = reopened().find_turn(f"r{number}")
        assert turn.messages() == [said(f"q{number}"), said("done", "assistant")]
        assert [record.kind for record in turn.records()] == kinds
    end = next(session.records(kinds=["turn.completed"])).position
    branch = session.branch("cut within an append", at=end)
    assert [message["content"] for message in branch.find_turn("r0").messages()] == ["q0", "done"]
    branch.append(said("more"))
    assert len(branch.find_turn("r0").messages()) == 2


# Continuing a failed turn.


def test_a_failed_turn_is_continued_with_what_was_recorded(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[int] = []
    asked: list[str] = []

    def body(session: perdure.Session, *, down: bool) -> Any:
        def ask(text: str) -> str:
            asked.append(text)
            if down and text == "second":
                raise ModelDownError
            return f"answer to {text}"

        def pay(amount: int) -> int:
            paid.append(amount)
            return amount

        with session.turn("go", id="r1") as turn:
            model, tool = session.model(ask, name="m"), session.tool(pay)
            answers = [model("first"), tool(5), model("second"), tool(5)]
            turn.append(said(str(answers), "assistant"))
        return turn

    with pytest.raises(ModelDownError):
        body(session, down=True)
    turn = body(reopened(), down=False)
    assert (turn.state, paid) == ("completed", [5, 5])
    assert asked == ["first", "second", "second"]
    assert turn.messages()[0] == said("go")
    session.refresh()
    assert contents(session) == ["go", turn.answer()["content"]]
    assert session.interrupted == ()
    session.verify()


def test_a_failed_turn_can_fail_and_be_continued_many_times(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    for number in range(4):
        with failing(reopened() if number % 2 else session) as turn:
            turn.append(said(f"step {number}"))
        session.refresh()
        session.append(said("between"))
    with session.turn("go", id="r1") as turn:
        turn.append(said("answer", "assistant"))
    steps = [said(f"step {number}") for number in range(4)]
    assert turn.messages() == [said("go"), *steps, said("answer", "assistant")]
    found = reopened().find_turn("r1")
    assert found.messages() == turn.messages()
    assert found.branch_point == 0
    continued = [r.content for r in session.records() if isinstance(r.content, TurnContinued)]
    assert len({one.ended for one in continued}) == 4
    session.verify()


def test_the_same_object_of_a_failed_turn_can_be_entered_again(session: perdure.Session) -> None:
    turn = session.turn("go")
    with pytest.raises(ModelDownError), turn:
        raise ModelDownError
    assert turn.state == "failed"
    with pytest.raises(UsageError, match=r"has ended \(failed\): enter it again"):
        turn.append(said("late"))
    with turn:
        turn.append(said("answer", "assistant"))
    assert turn.state == "completed"
    with turn, pytest.raises(UsageError, match=r"has ended \(completed\): turn\.answer\(\)"):
        turn.append(said("late"))
    assert contents(session) == ["go", "answer"]


def test_another_input_under_the_id_of_a_failed_turn_is_refused(session: perdure.Session) -> None:
    fail(session)
    with pytest.raises(DivergenceError), session.turn("something else", id="r1"):
        pass
    assert session.find_turn("r1").state == "failed"


def test_an_input_for_a_turn_that_began_without_one_is_refused(session: perdure.Session) -> None:
    with session.turn(id="r1") as turn:
        turn.suspend()
    with pytest.raises(DivergenceError, match="a turn without an input"):
        session.turn("x", id="r1").__enter__()
    with session.turn(id="r1") as turn:
        assert turn.messages() == []


def test_of_two_that_continue_a_failed_turn_one_is_refused(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    fail(session)
    one, two = reopened(), reopened()
    first, second = one.turn("go", id="r1"), two.turn("go", id="r1")
    with first:
        with pytest.raises(ConflictError), second:
            pass
        first.append(said("answer", "assistant"))
    assert contents(reopened()) == ["go", "answer"]


def test_a_handle_whose_failed_turn_was_continued_elsewhere_takes_it_over(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    fail(session)
    first = reopened().turn("go", id="r1")
    first.__enter__()
    with reopened().turn("go", id="r1") as second:
        with pytest.raises(ConflictError):
            first.append(said("stale"))
        second.append(said("answer", "assistant"))
    assert contents(reopened()) == ["go", "answer"]


def test_an_abandoned_turn_stays_ended(session: perdure.Session) -> None:
    with session.turn("go", id="r1") as turn:
        turn.abandon("not needed")
    with session.turn("go", id="r1") as again:
        assert again.ended
        with pytest.raises(UsageError, match=r"has ended \(abandoned\)"):
            again.append(said("x"))
    assert kinds(session)[-1] == "turn.abandoned"
    with pytest.raises(UsageError, match="was abandoned: an abandoned turn is not continued"):
        session.run("r1", lambda turn: turn.append(said("x", "assistant")), "go")


def test_failed_turns_leave_nothing_in_the_state(session: perdure.Session) -> None:
    tool = session.tool(lambda: None, name="nothing")
    for number in range(50):
        with failing(session, f"r{number}"):
            tool()
    facts = session._replica.state.facts()
    assert not {"turns", "effects", "approvals"} & {*facts}


def test_a_turn_is_continued_after_a_snapshot_and_from_one(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    ran: list[int] = []

    def pay(amount: int) -> int:
        ran.append(amount)
        return amount

    with failing(session):
        session.tool(pay)(1)
    for number in range(300):
        session.note(number)
    again = reopened()
    turn = again.turn("go", id="r1")
    with turn:
        for number in range(300):
            again.note(number)
        third = reopened()
        assert third.interrupted[0].id == "r1"
        with third.turn("go", id="r1"):
            assert third.tool(pay)(1) == 1
        turn.suspend()
    assert ran == [1]
    third.verify()


def test_a_branch_continues_a_turn_that_failed_in_its_parent(session: perdure.Session) -> None:
    ran: list[int] = []

    def pay(amount: int) -> int:
        ran.append(amount)
        return amount

    with failing(session) as turn:
        turn.append(said("before"))
        session.tool(pay)(1)
    child = session.branch("child")
    for one, answer in ((child, "of the child"), (session, "of the parent")):
        with one.turn("go", id="r1") as turn:
            one.tool(pay)(1)
            turn.append(said(answer, "assistant"))
        assert turn.messages() == [said("go"), said("before"), said(answer, "assistant")]
        one.verify()
    assert ran == [1]


# Effects.


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()])
@pytest.mark.parametrize(
    ("effect", "runs"), [("unsafe", 1), ("idempotent", 2), ("read_only", 2), ("reconcile", 1)]
)
def test_an_interrupted_tool_is_treated_by_its_policy_as_after_a_crash(
    session: perdure.Session,
    reopened: Callable[[], perdure.Session],
    effect: Any,
    runs: int,
    error: BaseException,
) -> None:
    keys: list[str] = []

    def tool(amount: int) -> str:
        keys.append(perdure.current_effect().key)
        if len(keys) == 1:
            raise error
        return f"{amount} paid"

    def find_out(_: perdure.Effect) -> Happened:
        return Happened("found out")

    options: dict[str, Any] = {"effect": effect, "name": "pay"}
    if effect == "reconcile":
        options["reconcile"] = find_out
    with pytest.raises(type(error)), session.turn("go", id="r1"):
        session.tool(tool, **options)(5)
    (recorded,) = session.effects.list()
    assert (recorded.state, recorded.error) == ("unknown", type(error).__name__)
    again = reopened()
    with again.turn("go", id="r1"):
        durable = again.tool(tool, **options)
        if effect == "unsafe":
            with pytest.raises(UnknownOutcomeError):
                durable(5)
        else:
            assert durable(5) == ("found out" if effect == "reconcile" else "5 paid")
    assert (len(keys), len({*keys})) == (runs, 1)
    assert len(again.effects.unknown()) == (effect == "unsafe")
    again.verify()


def test_a_reconcile_function_can_have_an_interrupted_call_made(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    runs: list[str] = []

    def tool() -> str:
        runs.append(perdure.current_effect().key)
        if len(runs) == 1:
            raise KeyboardInterrupt
        return "paid"

    def options(session: perdure.Session) -> Any:
        reconcile = lambda _: DidNotHappen()  # noqa: E731
        return session.tool(tool, effect="reconcile", reconcile=reconcile, name="pay")

    with pytest.raises(KeyboardInterrupt), session.turn("go", id="r1"):
        options(session)()
    again = reopened()
    with again.turn("go", id="r1"):
        assert options(again)() == "paid"
    assert len(runs) == 2
    assert len({*runs}) == 1
    assert again.effects.unknown() == []


def test_the_stricter_policy_decides_about_an_interrupted_call(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    def tool() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.turn("go", id="r1"):
        session.tool(tool, effect="reconcile", reconcile=lambda _: Happened())()
    again = reopened()
    for effect in ("idempotent", "unsafe"):
        with again.turn("go", id="r1") as turn:
            with pytest.raises(UnknownOutcomeError):
                again.tool(tool, effect=effect)()
            turn.suspend()
    assert [one.state for one in again.effects.list()] == ["unknown"]


def test_a_call_in_flight_when_its_turn_fails_is_treated_by_its_policy(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    """As of a tool in a thread, while another thread fails the turn."""
    runs: list[str] = []
    turn = session.turn("go", id="r1")

    def tool() -> str:
        runs.append("run")
        if len(runs) == 1:
            turn.fail(ModelDownError())
            raise SystemExit  # It knows no more about itself than the turn did.
        return "done"

    def durable(session: perdure.Session) -> Any:
        return session.tool(tool, effect="idempotent").keyed("k", in_turn=True)

    with pytest.raises(SystemExit), turn:
        durable(session)()
    again = reopened()
    assert [(one.state, one.error) for one in again.effects.list()] == [
        ("unknown", "ModelDownError")
    ]
    with again.turn("go", id="r1"):
        assert durable(again)() == "done"
    assert len(runs) == 2
    assert kinds(again).count("effect.outcome") == 2


def test_a_recorded_timeout_is_served_and_not_taken_for_an_interruption(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    runs: list[int] = []

    def slow() -> None:
        runs.append(1)
        raise ToolTimeoutError(1.0)

    with failing(session), pytest.raises(ToolTimeoutError):
        session.tool(slow, effect="idempotent")()
    again = reopened()
    with again.turn("go", id="r1"), pytest.raises(UnknownOutcomeError):
        again.tool(slow, effect="idempotent")()
    assert runs == [1]


def test_a_recorded_failure_of_a_tool_is_served(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    runs: list[int] = []

    def broken() -> None:
        runs.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), session.turn("go", id="r1"):
        session.tool(broken)()
    again = reopened()
    with again.turn("go", id="r1"), pytest.raises(EffectError):
        again.tool(broken)()
    assert runs == [1]


def test_a_model_that_failed_and_was_asked_again_lines_up(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    asked: list[str] = []

    def body(session: perdure.Session, *, down: bool) -> list[str]:
        def ask(text: str) -> str:
            asked.append(text)
            if len(asked) == 1:
                raise ModelDownError  # Only the very first call.
            return f"answer {len(asked)}"

        model = session.model(ask, name="m")

        def retrying() -> str:
            try:
                return model("question")
            except ModelDownError:
                return model("question")

        with session.turn("go", id="r1"):
            answers = [retrying(), retrying()]
            if down:
                raise ModelDownError("later")
        return answers

    with pytest.raises(ModelDownError, match="later"):
        body(session, down=True)
    assert len(asked) == 3
    assert body(reopened(), down=False) == ["answer 2", "answer 3"]
    assert len(asked) == 3


def test_an_effect_that_was_reconciled_after_the_failure_is_served(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    def tool() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.turn("go", id="r1"):
        session.tool(tool, name="pay")()
    person = reopened()
    (unknown,) = person.effects.unknown()
    person.effects.reconcile(unknown, Happened("paid, says the bank"))
    again = reopened()
    with again.turn("go", id="r1"):
        assert again.tool(tool, name="pay")() == "paid, says the bank"
    assert again.effects.unknown() == []


def test_a_key_of_the_session_is_not_restored_over_a_later_call(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    runs: list[str] = []

    def tool() -> str:
        runs.append(perdure.current_effect().key)
        if len(runs) == 1:
            raise KeyboardInterrupt
        return "paid"

    def keyed(session: perdure.Session) -> Any:
        return session.tool(tool, effect="idempotent", name="pay").keyed("invoice-17")

    with pytest.raises(KeyboardInterrupt), session.turn("go", id="r1"):
        keyed(session)()
    with session.turn("again", id="r2"):
        assert keyed(session)() == "paid"
    with reopened().turn("go", id="r1") as turn:
        assert keyed(reopened_of(turn))() == "paid"
    assert len(runs) == 2
    assert len({*runs}) == 1


def reopened_of(turn: Any) -> perdure.Session:
    """Return a session object over the handle of a turn."""
    handle = turn._handle
    return perdure.Session(handle.driver, handle.replica, handle)


# Approvals.


def approving(session: perdure.Session, paid: list[int]) -> Any:
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    return session.tool(pay, approval=True, approval_wait=0)


def ask_and_fail(session: perdure.Session, paid: list[int]) -> None:
    with failing(session), pytest.raises(ApprovalPendingError):
        approving(session, paid)(5)


def test_an_approval_waits_again_when_its_failed_turn_is_continued(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[int] = []
    ask_and_fail(session, paid)
    (void,) = session.approvals.list()
    assert void.state == "void"
    with session.turn("go", id="r1") as turn:
        (waiting,) = session.approvals.list()
        assert (waiting.id, waiting.state) == (void.id, "waiting")
        person = reopened()
        person.approvals.approve(waiting.id, by="ann")
        session.refresh()
        assert approving(session, paid)(5) == 5
        turn.append(said("paid", "assistant"))
    assert paid == [5]
    assert [one.state for one in session.approvals.list()] == ["used"]


def test_what_was_denied_is_not_asked_again_when_its_failed_turn_is_continued(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[int] = []
    with failing(session):
        with pytest.raises(ApprovalPendingError):
            approving(session, paid)(5)
        (waiting,) = session.approvals.list()
        reopened().approvals.deny(waiting.id, by="ann")
        session.refresh()
        with pytest.raises(ApprovalDeniedError):
            approving(session, paid)(5)
    again = reopened()
    with again.turn("go", id="r1"), pytest.raises(ApprovalDeniedError):
        approving(again, paid)(5)
    with again.turn("go", id="r1"), pytest.raises(ApprovalDeniedError):  # It is completed now.
        approving(again, paid)(5)
    assert paid == []
    assert [one.state for one in again.approvals.list()] == ["denied"]


def test_a_branch_that_continues_a_failed_turn_asks_for_its_own_approval(
    session: perdure.Session,
) -> None:
    paid: list[int] = []
    ask_and_fail(session, paid)
    child = session.branch("child")
    with child.turn("go", id="r1") as turn:
        assert child.approvals.pending() == []
        with pytest.raises(ApprovalPendingError):
            approving(child, paid)(5)
        assert len(child.approvals.pending()) == 1
        turn.abandon()


# Calls of a model's message.


def paying(paid: list[str]) -> Callable[[int], str]:
    def pay(amount: int) -> str:
        paid.append(perdure.current_effect().key)
        return f"paid {amount}"

    return pay


def test_calls_can_be_run_again_and_give_the_same_results(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[str] = []
    message = calling(call(id="c1"), call(id="c2"), call(name="nope", id="c3"))
    with failing(session) as turn:
        turn.append(message)
        results = session.run_tool_calls(message, [paying(paid)])
        assert session.run_tool_calls(message, [paying(paid)]) == results
    again = reopened()
    with again.turn("go", id="r1") as turn:
        assert again.run_tool_calls(message, [paying(paid)]) == results
        turn.append(said("done", "assistant"))
        assert again.run_tool_calls(message, [paying(paid)]) == results
    with again.turn("go", id="r1") as done:
        assert done.state == "completed"
        assert again.run_tool_calls(message, [paying(paid)]) == results
        assert again.run_tool_calls(None, [paying(paid)]) == []
    assert [one["tool_call_id"] for one in results] == ["c1", "c2", "c3"]
    assert len(paid) == 2
    assert contents(again).count("paid 5") == 2


def test_the_rest_of_the_calls_is_made_if_some_have_results(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[str] = []
    message = calling(call(id="c1"), call(id="c2"), call(id="c3"))
    manual = {"role": "tool", "tool_call_id": "c2", "content": "by hand"}
    with failing(session) as turn:
        turn.append(message)
        turn.append(manual)
    again = reopened()
    with again.turn("go", id="r1"):
        results = again.run_tool_calls(message, [paying(paid)])
        assert results[1] == manual
        assert [one["content"] for one in results] == ["paid 5", "by hand", "paid 5"]
        assert again.run_tool_calls(message, [paying(paid)]) == results
    assert len(paid) == 2


def test_ids_of_calls_may_repeat_within_a_turn(session: perdure.Session) -> None:
    paid: list[str] = []
    first, second = calling(call(arguments='{"amount":1}')), calling(call(arguments='{"amount":2}'))
    with session.turn("go", id="r1") as turn:
        turn.append(first)
        one = session.run_tool_calls(first, [paying(paid)])
        turn.append(second)
        assert session.run_tool_calls(first, [paying(paid)]) == one
        two = session.run_tool_calls(second, [paying(paid)])
        assert session.run_tool_calls(first, [paying(paid)]) == one
        assert session.run_tool_calls(second, [paying(paid)]) == two
    assert [one[0]["content"], two[0]["content"]] == ["paid 1", "paid 2"]
    assert len(paid) == 2


def test_a_call_that_the_next_turn_closed_is_made_when_its_turn_is_continued(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[str] = []
    message = calling(call())
    with failing(session) as turn:
        turn.append(message)
    with session.turn("something else", id="r2") as turn:
        turn.append(said("yes", "assistant"))
    again = reopened()
    with again.turn("go", id="r1") as turn:
        (result,) = again.run_tool_calls(None, [paying(paid)])
        assert result["content"] == "paid 5"
        window = again.messages(format="openai.chat")
        assert [one["content"] for one in window if one["role"] == "tool"] == ["paid 5"]
        turn.append(said("done", "assistant"))
    assert len(paid) == 1


def test_a_call_that_was_answered_after_the_end_of_its_turn_is_not_open_again(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    """A tool that runs on while its turn fails answers late."""
    message = calling(call())
    turn = session.turn("go", id="r1")
    turn.__enter__()
    turn.append(message)

    def pay(amount: int) -> str:
        turn.fail(KeyboardInterrupt())
        return f"paid {amount}"

    results = session.run_tool_calls(message, [pay])
    turn.__exit__(None, None, None)
    assert results[0]["content"] == "paid 5"
    assert [one.state for one in session.effects.list()] == ["reconciled"]
    again = reopened()
    with again.turn("go", id="r1"):
        assert again.run_tool_calls(None, [pay]) == []
    with again.turn("other"):
        pass
    assert contents(again).count("paid 5") == 1


def test_an_interrupted_idempotent_call_of_the_model_is_made_again_and_told_once(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    runs: list[str] = []
    message = calling(call())

    def pay(amount: int) -> str:
        runs.append(perdure.current_effect().key)
        if len(runs) == 1:
            raise KeyboardInterrupt
        return f"paid {amount}"

    def run_once() -> None:
        turn.append(message)
        session.run_tool_calls(message, [session.tool(pay, effect="idempotent")])

    with pytest.raises(KeyboardInterrupt), session.turn("go", id="r1") as turn:
        run_once()
    again = reopened()
    with again.turn("go", id="r1"):
        tools = [again.tool(pay, effect="idempotent")]
        (result,) = again.run_tool_calls(message, tools)
    assert result["content"] == "paid 5"
    assert [one["content"] for one in again.messages() if one["role"] == "tool"] == ["paid 5"]
    assert len(runs) == 2
    assert len({*runs}) == 1


# Completed turns.


def test_calls_in_a_completed_turn_are_served_and_none_is_made(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    paid: list[str] = []

    def body(session: perdure.Session) -> list[Any]:
        ask = session.model(lambda text: f"re: {text}", name="m")
        with session.turn("go", id="r1") as turn:
            pay = session.tool(paying(paid))
            got = [ask("hi"), pay(1), pay(1), pay.keyed("k")(2), pay.keyed("k", in_turn=True)(3)]
            if not turn.ended:
                turn.append(said(str(got), "assistant"))
        return got

    first = body(session)
    again = reopened()
    position = again.position
    assert body(again) == first
    assert (len(paid), again.position) == (4, position)
    with again.turn("go", id="r1"):
        with pytest.raises(
            UsageError, match=r"has ended \(completed\), and this call of 'pay' is not"
        ):
            again.tool(paying(paid))(7)
        message = calling(call())
        with pytest.raises(UsageError, match="is not part of the turn"):
            again.run_tool_calls(message, [paying(paid)])
    assert (len(paid), again.position) == (4, position)


# session.run.


def call_it(function: Callable[[Any], Any], turn: Any) -> Any:
    """Call a function: a partial of this does not look like an async function."""
    return function(turn)


def test_run_does_a_request_once_and_gives_the_same_answer_each_time(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    ran: list[str] = []

    def agent(turn: perdure.Turn) -> None:
        ran.append(turn.id)
        turn.append(said(f"answer to {turn.id}", "assistant"))

    first = session.run("r1", agent, "one", correlation_id="c-1", author="ann")
    assert first == said("answer to r1", "assistant")
    session.run("r2", agent, "two")
    assert reopened().run("r1", agent, "one", author="ann") == first
    assert ran == ["r1", "r2"]
    assert session.find_turn("r1").correlation_id == "c-1"


@pytest.mark.parametrize("error", [ModelDownError("500"), KeyboardInterrupt(), GeneratorExit()])
def test_run_tries_a_request_again_that_failed(
    session: perdure.Session, reopened: Callable[[], perdure.Session], error: BaseException
) -> None:
    def broken(_: perdure.Turn) -> None:
        raise error

    with pytest.raises(type(error)):
        session.run("r1", broken, "one")
    again = reopened()
    answer = again.run("r1", lambda turn: turn.append(said("answer", "assistant")), "one")
    assert answer == said("answer", "assistant")
    assert contents(again) == ["one", "answer"]


def test_run_fails_a_turn_without_an_answer_so_that_it_can_be_tried_again(
    session: perdure.Session,
) -> None:
    with pytest.raises(UsageError, match="'r1' of session 's' has no answer: have the function"):
        session.run("r1", lambda _: None, "one")
    assert session.find_turn("r1").state == "failed"
    with session.turn("two", id="r2"):
        pass
    with pytest.raises(UsageError, match="'r2' of session 's' has no answer"):
        session.run("r2", lambda turn: turn.append(said("x", "assistant")), "two")


def test_a_blocking_session_runs_no_async_function(session: perdure.Session) -> None:
    async def agent(turn: perdure.Turn) -> None:
        del turn

    with pytest.raises(UsageError, match="open_async"):
        session.run("r1", agent, "one")
    assert session.position == 0
    with pytest.raises(UsageError, match="open_async"):
        session.run("r1", partial(call_it, agent), "one")
    assert session.find_turn("r1").state == "failed"


def test_run_in_an_event_loop_takes_both_kinds_of_function() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            ran: list[str] = []

            async def agent(turn: perdure.AsyncTurn) -> None:
                ran.append(turn.id)
                await turn.append(said(f"answer to {turn.id}", "assistant"))

            with pytest.raises(asyncio.CancelledError):
                await session.run("r1", cancelled, "one")
            assert (await session.find_turn("r1")).state == "failed"
            first = await session.run("r1", agent, "one")
            await session.run("r2", partial(call_it, agent), "two")
            assert await session.run("r1", agent, "one") == first
            assert ran == ["r1", "r2"]
            found = await session.find_turn("r1")
            assert await found.answer() == first
            assert await found.messages() == [said("one"), first]
            with pytest.raises(NotFoundError):
                await session.find_turn("r3")

    async def cancelled(_: perdure.AsyncTurn) -> None:
        raise asyncio.CancelledError

    asyncio.run(main())


# Replay.


def test_a_turn_that_failed_and_was_continued_is_replayed_as_one_run(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    down = [True, False]

    def agent(session: perdure.Session) -> None:
        def ask(text: str) -> str:
            if down.pop(0):
                raise ModelDownError
            return f"re: {text}"

        with session.turn("go", id="r1") as turn:
            session.tool(paying([]))(1)
            turn.append(said(session.model(ask, name="m")("hi"), "assistant"))

    with pytest.raises(ModelDownError):
        agent(session)
    agent(reopened())
    replayed = perdure.replay(reopened(), agent)
    assert replayed.check().identical
    assert [one["content"] for one in replayed.outputs] == ["go", "re: hi"]


def test_a_turn_that_failed_for_good_is_replayed_with_its_failure(
    session: perdure.Session, reopened: Callable[[], perdure.Session]
) -> None:
    def agent(session: perdure.Session) -> None:
        def ask(_: str) -> str:
            raise ValueError("down")

        with session.turn("go", id="r1"):
            session.model(ask, name="m")("hi")

    with pytest.raises(ValueError, match="down"):
        agent(session)
    replayed = perdure.replay(reopened(), agent)
    assert replayed.identical
    assert str(replayed.error) == "down"
