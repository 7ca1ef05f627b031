# Generated from aio/test_tool_types.py by scripts/generate_sync.py: do not edit.
"""Tools and models have the types, the name and the signature of their functions.

`mypy` checks this file: it fails if a call loses its types, or if a wrong call is accepted (then an
ignored error is unused).
"""

import inspect
from typing import Any, assert_type, get_type_hints

import pytest

import perdure
from perdure.errors import UsageError
from perdure.sync.tools import Model, Tool


def charge(amount: int, *, currency: str = "EUR") -> list[str]:
    """Charge an amount."""
    return [f"{amount} {currency}"]


def refund(amount: int) -> bool:
    return amount > 0


def answer(prompt: str, model: str = "small") -> dict[str, Any]:
    return {"text": f"{model}: {prompt}"}


def opposite(text: str) -> str:
    return text[::-1]


def test_a_call_has_the_types_of_the_function() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        with session.turn("Pay."):
            pay, back = session.tool(charge), session.tool(refund, effect="idempotent")
            assert_type(pay(5, currency="USD"), list[str])
            assert_type(back(amount=5), bool)
            assert_type(pay.keyed("invoice-17")(6), list[str])
            with pytest.raises(UsageError, match="missing a required argument: 'amount'"):
                pay()  # type: ignore[call-arg]
            with pytest.raises(UsageError, match="unexpected keyword argument"):
                back(5, currency="USD")  # type: ignore[call-arg]


def test_a_request_has_the_types_of_the_function() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        with session.turn("Ask."):
            ask, mirror = session.model(answer, name="small"), session.model(opposite)
            assert_type(ask("Hi", model="large"), dict[str, Any])
            assert_type(mirror("Hi"), str)
            with pytest.raises(UsageError, match="missing a required argument: 'prompt'"):
                ask()  # type: ignore[call-arg]


def test_both_are_decorators_with_options_and_without() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")

        @session.tool
        def pay(amount: int) -> list[str]:
            return [str(amount)]

        @session.tool(effect="idempotent", name="give_back")
        def back(amount: int) -> bool:
            return amount > 0

        @session.model(name="small")
        def ask(prompt: str) -> dict[str, Any]:
            return {"text": prompt}

        assert (pay.spec.policy, back.spec.policy, back.name) == (
            "unsafe",
            "idempotent",
            "give_back",
        )
        assert ask.name == "small"
        with session.turn("Pay."):
            assert assert_type(pay(5), list[str]) == ["5"]
            assert assert_type(back(5), bool)
            assert assert_type(ask("Hi"), dict[str, Any]) == {"text": "Hi"}
            with pytest.raises(UsageError, match="missing a required argument: 'amount'"):
                back()  # type: ignore[call-arg]


def test_options_are_checked() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        unknown: Any = {"retries": 3}
        with pytest.raises(TypeError, match="retries"):
            session.tool(charge, **unknown)
        harmless: Any = "harmless"
        with pytest.raises(UsageError, match="'harmless'"):
            session.tool(effect=harmless)(charge)


def test_a_tool_looks_like_its_function() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        tools: list[Tool[..., Any] | Model[..., Any]] = [
            session.tool(charge, name="pay"),
            session.tool(charge).keyed("invoice-17"),
            session.model(charge),
        ]
        for tool in tools:
            assert tool.__name__ == "charge"  # type: ignore[union-attr]
            assert tool.__doc__ == "Charge an amount."
            assert tool.__module__ == __name__
            assert tool.__wrapped__ is charge  # type: ignore[union-attr]
            assert inspect.signature(tool) == inspect.signature(charge)
            assert get_type_hints(tool) == get_type_hints(charge)
        assert tools[0].name == "pay"
