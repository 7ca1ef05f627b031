"""Objects of the caller's own classes come back as they were, or are refused before that."""

from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import pydantic
import pytest

import perdure
from perdure.errors import UsageError
from perdure.journal.user_types import TypeCodec


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="claimNumber")


class Nested(pydantic.BaseModel):
    inner: Aliased
    more: list[Aliased] = []


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    number: int


@dataclass
class Derived:
    x: int
    twice: int = field(init=False, default=0)
    known: ClassVar[int] = 3

    def __post_init__(self) -> None:
        self.twice = 2 * self.x


@dataclass(eq=False)
class Handle:
    name: str
    inside: Any = None


class Excluding(pydantic.BaseModel):
    number: int = 1
    aside: str = pydantic.Field(default="none", exclude=True)


class Private(pydantic.BaseModel):
    number: int = 1
    _seen: int = 0


class Larger(Aliased):
    more: int = 0


class Renamed(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias="in", serialization_alias="out")


class Shown(pydantic.BaseModel):
    number: int = pydantic.Field(serialization_alias="No.")

    @cached_property
    def twice(self) -> int:
        return 2 * self.number


class Coerced(pydantic.BaseModel):
    number: float


@dataclass
class Growing:
    x: int

    def __post_init__(self) -> None:
        self.x += 3


@dataclass
class Initial:
    x: int
    base: InitVar[int]

    def __post_init__(self, base: int) -> None:
        self.x += base


class Raising:
    pass


def refuse(_: object) -> Any:
    raise OSError("the text of a body")


class Selfish:
    pass


class Array:
    """Compares as arrays do: the answer is no answer."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Client:
    key: str
    line: object = None


def read(shown: Shown) -> Shown:
    assert shown.twice == 2 * shown.number
    return shown


TYPES: dict[str, type | TypeCodec] = {
    **{
        cls.__name__: cls
        for cls in (
            *(Aliased, Nested, Open, Derived, Handle, Excluding, Private, Larger, Renamed),
            *(Coerced, Growing, Initial, Shown),
        )
    },
    "set": TypeCodec(set, list, set),
    "Array": TypeCodec(Array, lambda one: one.items, Array),
    "Client": TypeCodec(Client, lambda one: one.key, Client),
    "Raising": TypeCodec(Raising, refuse, refuse),
    "Selfish": TypeCodec(Selfish, lambda one: one, lambda one: one),
}


def dug(seen: int) -> Private:
    found = Private()
    found._seen = seen
    return found


def drawn(twice: int) -> Derived:
    found = Derived(1)
    found.twice = twice
    return found


@pytest.fixture
def session() -> perdure.Session:
    return perdure.open("memory:", types=TYPES).session("s")


@pytest.mark.parametrize(
    "value",
    [
        Aliased(claimNumber=3),
        Nested(inner=Aliased(claimNumber=1), more=[Aliased(claimNumber=2)]),
        Open.model_validate({"number": 1, "else": [2]}),
        Derived(4),
        Excluding(number=2),
        Private(number=2),
        Shown(number=3),
        read(Shown(number=4)),
        {3, 1, 2},
        [Derived(1), {"a": Aliased(claimNumber=1)}],
    ],
    ids=repr,
)
def test_an_object_comes_back_as_it_was(session: perdure.Session, value: Any) -> None:
    session.set("k", value)
    assert session.get("k") == value
    assert type(session.get("k")) is type(value)


def test_and_one_of_a_class_without_equality_with_all_its_fields(session: perdure.Session) -> None:
    session.set("k", Handle("a", [Handle("b")]))
    found = session.get("k")
    assert (found.name, found.inside[0].name) == ("a", "b")


def test_a_codec_of_the_caller_s_says_what_matters(session: perdure.Session) -> None:
    session.set("k", [Array([1, 2]), Client("4711", object())])
    array, client = session.get("k")
    assert (array.items, client) == ([1, 2], Client("4711"))


def test_a_refusal_names_what_would_change(session: perdure.Session) -> None:
    with pytest.raises(UsageError, match=r"it differs at \._seen\)"):
        session.set("k", dug(3))


@pytest.mark.parametrize(
    "value",
    [
        Excluding(aside="told to nobody"),
        dug(3),
        Nested(inner=Larger(claimNumber=1, more=2)),
        Renamed.model_validate({"in": 1}),
        Coerced.model_construct(number=1),
        drawn(7),
        Growing(1),
        Initial(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_its_class_would_change_is_refused_with_its_path(
    session: perdure.Session, value: Any
) -> None:
    kind = type(value).__name__
    with pytest.raises(
        UsageError, match=f"an object of type '{kind}' would not be restored"
    ) as caught:
        session.append({"role": "user", "content": "x", "claim": [value]})
    assert caught.value.path == "$.claim[0]"
    assert "pass a TypeCodec" in str(caught.value)
    assert "told to nobody" not in str(caught.value)
    assert session.position == 0


def test_what_an_encoder_raises_is_a_refusal_without_its_words(session: perdure.Session) -> None:
    with pytest.raises(UsageError, match=r"'Raising' cannot be encoded \(OSError\)") as caught:
        session.set("k", {"a": Raising()})
    assert (caught.value.path, "body" in str(caught.value)) == ("$.a", False)
    with pytest.raises(UsageError, match="contains itself"):
        session.set("k", Selfish())
    assert session.position == 0


def test_a_class_that_does_not_fit_is_told_apart_from_damage() -> None:
    @dataclass
    class Less:
        y: int

    with perdure.open("memory:", types=TYPES) as store:
        session = store.session("s")
        session.set("k", Derived(1))
        again = perdure.open(store._backend, types={**TYPES, "Derived": Less}).session("s")
        with pytest.raises(UsageError, match=r"'Derived' does not fit the class .* \(TypeError\)"):
            again.get("k")
        again.verify()
        assert session.get("k") == Derived(1)
