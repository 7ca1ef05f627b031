"""Errors say what happened without content: in their text, their repr, and what a turn records."""

import copy
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import errors
from perdure.backends.memory import MemoryBackend
from perdure.errors import (
    ApprovalDeniedError,
    ApprovalPendingError,
    DivergenceError,
    EffectError,
    PerdureError,
    UnknownOutcomeError,
    UsageError,
)

CARD = "4111-1111-1111-1111"


class Sessions:
    """A session that is opened anew by each process, in one turn."""

    def __init__(self) -> None:
        self._backend = MemoryBackend()

    def open(self) -> perdure.Session:
        return perdure.open(self._backend).session("s")

    def failed_turns(self) -> list[Any]:
        return [one.content for one in self.open().records() if one.kind == "turn.failed"]


def pay(card: str) -> str:
    return f"paid with {card}"


def broken(card: str) -> str:
    raise ValueError(f"{card} was declined")


def begin(session: perdure.Session) -> None:
    session.turn("Pay.", id="turn-1").__enter__()


def other_arguments_under_a_key(sessions: Sessions) -> None:
    session = sessions.open()
    with session.turn("Pay."):
        session.tool(pay).keyed("invoice-7")(CARD)
    with session.turn("Pay."):
        session.tool(pay).keyed("invoice-7")(f"{CARD} again")


def other_arguments_under_an_approval(sessions: Sessions) -> None:
    session = sessions.open()
    tool = session.tool(pay, approval=True, approval_wait=0).keyed("invoice-7")
    with pytest.raises(ApprovalPendingError), session.turn("Pay.", id="turn-1"):
        tool(CARD)
    with session.turn("Pay.", id="turn-1"):
        tool(f"{CARD} again")


def other_input_under_an_id(sessions: Sessions) -> None:
    session = sessions.open()
    with session.turn(CARD, id="turn-1"):
        pass
    with session.turn("Go."), session.turn(f"{CARD} again", id="turn-1"):
        pass


def a_recorded_failure(sessions: Sessions) -> None:
    first = sessions.open()
    begin(first)
    with pytest.raises(ValueError, match=CARD):
        first.tool(broken)(CARD)
    again = sessions.open()
    with again.turn("Pay.", id="turn-1"):
        again.tool(broken)(CARD)


def a_reconcile_function_that_fails(sessions: Sessions) -> None:
    class KilledError(BaseException):
        pass

    first = sessions.open()
    begin(first)

    def die(card: str) -> None:
        first._handle.write = None  # type: ignore[method-assign,assignment]
        raise KilledError(card)

    def look(effect: perdure.Effect) -> Any:
        raise ValueError(f"nothing about {effect.arguments['card']}")

    options: dict[str, Any] = {"name": "pay", "effect": "reconcile", "reconcile": look}
    with pytest.raises(TypeError):
        first.tool(die, **options)(CARD)
    again = sessions.open()
    with again.turn("Pay.", id="turn-1"):
        again.tool(die, **options)(CARD)


def a_denial(sessions: Sessions) -> None:
    session = sessions.open()
    tool = session.tool(pay, approval=True, approval_wait=0)
    with pytest.raises(ApprovalPendingError) as asked, session.turn("Pay.", id="turn-1"):
        tool(CARD)
    session.approvals.deny(asked.value.approval, by="ada", reason=f"{CARD} is stolen")
    with session.turn("Pay.", id="turn-1"):
        tool(CARD)


def an_approval_function_that_fails(sessions: Sessions) -> None:
    def needs(arguments: dict[str, Any]) -> bool:
        raise ValueError(arguments["card"])

    session = sessions.open()
    with session.turn("Pay."):
        session.tool(pay, approval=needs)(CARD)


def a_chunk_that_is_none(sessions: Sessions) -> None:
    session = sessions.open()
    with session.turn("Go.") as turn:
        for _ in turn.stream([{"choices": [{"delta": {CARD: CARD}, "index": CARD}]}, {CARD: 1}]):
            pass


def a_value_that_cannot_be_stored(sessions: Sessions) -> None:
    session = sessions.open()
    with session.turn("Go.") as turn:
        turn.append({"role": "user", "content": [{"text": CARD, "raw": {CARD}}]})


CASES: list[tuple[Callable[[Sessions], None], type[PerdureError]]] = [
    (other_arguments_under_a_key, DivergenceError),
    (other_arguments_under_an_approval, DivergenceError),
    (other_input_under_an_id, DivergenceError),
    (a_recorded_failure, EffectError),
    (a_reconcile_function_that_fails, UnknownOutcomeError),
    (a_denial, ApprovalDeniedError),
    (an_approval_function_that_fails, UsageError),
    (a_chunk_that_is_none, UsageError),
    (a_value_that_cannot_be_stored, UsageError),
]


@pytest.mark.parametrize(("case", "kind"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_no_error_shows_content_nor_does_the_record_of_the_turn(
    case: Callable[[Sessions], None], kind: type[PerdureError]
) -> None:
    sessions = Sessions()
    with pytest.raises(kind) as caught:
        case(sessions)
    error = caught.value
    own_text = "".join(traceback.format_exception_only(error))
    assert CARD not in f"{error} {error!r} {own_text}"
    failed = sessions.failed_turns()
    assert [CARD in f"{one.error} {one.reason}" for one in failed] == [False] * len(failed)
    assert failed or case is other_input_under_an_id


def test_a_tools_words_are_there_for_those_who_ask() -> None:
    for case in (a_recorded_failure, a_denial, a_reconcile_function_that_fails):
        with pytest.raises(PerdureError) as caught:
            case(Sessions())
        assert CARD in vars(caught.value)["reason"]


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "EffectError": ("s", "pay", "ValueError", CARD, {"card": CARD}),
    "ApprovalDeniedError": ("s", "pay", "ApprovalExpired", CARD),
    "UnknownOutcomeError": ("s", "pay", ".id", "key", CARD),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_errors_with_content_survive_pickling_and_keep_it_to_themselves(name: str) -> None:
    error = getattr(errors, name)(*ARGUMENTS[name])
    copies = pickle.loads(pickle.dumps(error)), copy.copy(error)  # noqa: S301 - our own bytes
    for again in copies:
        assert (str(again), repr(again), again.args) == (str(error), repr(error), error.args)
        assert CARD not in f"{again} {again!r}"
