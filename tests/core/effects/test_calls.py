"""Arguments reach a tool or a model as they were passed, and are no longer the caller's objects."""

import asyncio
import functools
import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from unittest import mock

import pytest

import perdure
from perdure.core.effects.calls import ToolSpec, bind_arguments
from perdure.errors import UsageError


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Claim:
    """A registered class."""

    items: list[int] = field(default_factory=list)


def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def echo_mixed(a: Any, /, b: Any, *rest: Any, c: Any = 3, **others: Any) -> Any:
    """`a` may also be among the others: the first one is positional only."""
    return (a, b, *rest), {"c": c, **others}


@functools.wraps(echo_mixed)
def echo_wrapped(*args: Any, **kwargs: Any) -> Any:
    """A decorator's function, which sees how it was called, whatever the signature says."""
    return args, kwargs


class Clerk:
    """An object whose method is a tool: `self` is not an argument."""

    def __init__(self) -> None:
        self.lock = Lock()

    def echo(self, a: Any, *, b: Any) -> Any:
        assert not self.lock.locked()
        return (a,), {"b": b}


@pytest.fixture
def session() -> Iterator[perdure.Session]:
    with perdure.open("memory:", types={"Claim": Claim}) as store:
        yield store.session("s")


def call(session: perdure.Session, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as a tool; return what it got."""
    got: list[Any] = []

    @functools.wraps(function)
    def keep(*args: Any, **kwargs: Any) -> str:
        got.append(function(*args, **kwargs))
        return "done"

    with session.turn("Go."):
        assert session.tool(keep, name="echo")(*args, **kwargs) == "done"
    return got[0]


SHAPES: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (echo, ([1], {"k": [2]}), {"other": {"$tag": 1}}),
    (echo, (), {"$odd key": [1], "with space": None}),
    (echo, (), {}),
    (echo_mixed, (1, [2], [3], [4]), {"c": [5], "a": [6], "z": [7]}),
    (echo_wrapped, ([1],), {"b": [2], "z": [3]}),
    (echo_wrapped, ([1], [2]), {}),
    (Clerk().echo, ([1],), {"b": [2]}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), SHAPES)
def test_a_tool_gets_equal_arguments_in_the_same_places(
    session: perdure.Session,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    got_args, got_kwargs = call(session, function, *args, **kwargs)
    assert (got_args, {"c": 3, **got_kwargs}) == (args, {"c": 3, **kwargs})
    passed = [*args, *kwargs.values()]
    mutable = [one for one in (*got_args, *got_kwargs.values()) if isinstance(one, list | dict)]
    assert not any(one is other for one in mutable for other in passed)


def test_a_tool_gets_the_classes_that_it_was_called_with(session: perdure.Session) -> None:
    claim, point, pair = Claim([1]), Point(1, 2), ([1], [2])

    def look(claim: Any, point: Any, *, pair: Any, nested: Any) -> Any:
        return claim, point, pair, nested

    got = call(session, look, claim, point, pair=pair, nested={"deep": [claim]})
    assert got == (claim, point, pair, {"deep": [claim]})
    assert [type(one) for one in got] == [Claim, Point, tuple, dict]
    assert type(got[3]["deep"][0]) is Claim
    assert got[0] is not claim
    assert got[2][0] is not pair[0]


def test_a_tool_without_a_signature_gets_its_arguments(session: perdure.Session) -> None:
    with session.turn("Go."):
        assert session.tool(max, name="max")([1, 3], [2]) == [2]
    assert session.effects.list()[0].arguments == {"args": [[1, 3], [2]], "kwargs": {}}


def test_arguments_that_do_not_fit_are_refused_with_the_names_of_parameters(
    session: perdure.Session,
) -> None:
    with session.turn("Go."):
        with pytest.raises(UsageError, match="missing a required argument: 'b'"):
            session.tool(echo_mixed)(1)  # type: ignore[call-arg]
        assert session.tool(lambda b: b, name="one")(b=2) == 2


def test_a_value_that_changes_while_it_is_encoded_is_refused(session: perdure.Session) -> None:
    order: dict[str, Any] = {}

    def encode(_: Any) -> list[int]:
        order["more"] = 1
        return []

    order["first"], order["last"] = Clerk(), 1
    codec = perdure.TypeCodec(Clerk, encode, lambda _: order["first"])
    with perdure.open("memory:", types={"Clerk": codec}) as store:
        other = store.session("s")
        done: list[Any] = []
        with other.turn("Go.") as turn:
            with pytest.raises(UsageError, match=r"changed the value while it was encoded.*copy"):
                other.tool(done.append, name="pay")(order)
            del order["more"]
            with pytest.raises(UsageError, match="changed the value while it was encoded"):
                turn.append({"role": "user", "content": "", "order": order})
    assert done == []


# Models.


class Client:
    """A live object: it must not be copied."""

    def __init__(self) -> None:
        self.lock, self.used = Lock(), 0


@dataclass
class Context:
    """Another live object, which could be copied, and must not be."""

    used: int = 0


@pytest.mark.parametrize("live", [Client, Context])
def test_a_model_gets_live_objects_as_they_are_and_data_as_a_copy(
    session: perdure.Session, live: type[Any]
) -> None:
    client, messages = live(), [{"role": "user", "content": ["Hi."]}]
    got: list[Any] = []

    def ask(client: Any, messages: Any) -> str:
        client.used += 1
        got.append((client, messages))
        return "Hello."

    model = session.model(ask, digest_of=lambda arguments: arguments["messages"])
    with session.turn("Go."):
        assert model(client, messages=messages) == "Hello."
    assert got == [(client, messages)]
    assert got[0][0] is client
    assert client.used == 1
    assert got[0][1] is not messages
    assert got[0][1][0]["content"] is not messages[0]["content"]


def test_what_identifies_a_request_is_computed_from_what_is_sent(session: perdure.Session) -> None:
    seen: list[Any] = []

    def count(messages: list[Any]) -> int:
        return len(messages)

    def digest_of(arguments: dict[str, Any]) -> Any:
        seen.append(arguments["messages"])
        messages.append({"role": "user", "content": "And this."})
        return arguments["messages"]

    messages = [{"role": "user", "content": "This."}]
    with session.turn("Go."):
        assert session.model(count, digest_of=digest_of)(messages) == 1
    assert seen == [messages[:1]]


@pytest.mark.parametrize("make", [Claim, lambda data: [Claim(data)]], ids=["object", "in a list"])
def test_a_model_gets_copies_of_objects_that_are_digested(
    session: perdure.Session, make: Callable[[list[int]], Any]
) -> None:
    request, got = make([1]), []

    def ask(request: Any) -> int:
        got.append(request)
        return 1

    async def run() -> int:
        async with perdure.open_async("memory:") as store:
            other = await store.session("s")
            async with other.turn("Go."):
                return int(await other.model(ask)(request))

    with session.turn("Go."):
        assert session.model(ask)(request) == 1
    assert asyncio.run(run()) == 1
    assert got == [request, request]
    assert not any(one is request for one in got)


def test_a_function_is_inspected_once_and_not_kept() -> None:
    def pay(amount: int, *, to: str = "") -> None: ...

    with mock.patch("inspect.signature", wraps=inspect.signature) as look:
        for tool in (ToolSpec(pay, "pay", "unsafe"), ToolSpec(pay, "other", "unsafe")):
            assert bind_arguments(tool, (1,), {"to": "me"}).by_name() == {"amount": 1, "to": "me"}
            with pytest.raises(UsageError, match="missing a required argument"):
                bind_arguments(tool, (), {})
        assert look.call_count == 1
    kept = weakref.ref(pay)
    del pay, tool, look
    gc.collect()
    assert kept() is None
