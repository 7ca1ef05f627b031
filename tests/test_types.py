"""Types that are stored by choice come back as they were; without the choice they are refused."""

import dataclasses
import enum
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import perdure
from perdure.errors import UsageError
from perdure.journal.codec import Codec
from perdure.journal.user_types import Registered
from perdure.types import ALL, NAIVE_DATETIMES, NUMPY_SCALARS, TUPLES

NAIVE = datetime(2026, 11, 18, 9, 30)  # noqa: DTZ001 - what this is about


@dataclasses.dataclass
class Money:
    amount: int
    parts: tuple[Any, ...] = ()


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mixed(Money, enum.Enum):
    FEE = (5,)


class Point(NamedTuple):
    x: Any
    y: Any = None


class Tagged(Point):
    """A named tuple that can have attributes, which its fields do not show."""


class Box:
    """Two of them are never equal."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


BOXES = perdure.TypeCodec(Box, vars, lambda parts: Box(**parts))
CLASSES: list[Registered] = [Money, Color, Level, Access, Mixed, Point, Tagged, BOXES]


@pytest.mark.parametrize(
    "value",
    [
        (),
        (1, (2, ["three", ()])),
        {"rows": [(1, "a"), (2, "b")]},
        NAIVE,
        NAIVE.replace(fold=1),
        NAIVE.replace(microsecond=7),
        datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        datetime(1, 1, 1),  # noqa: DTZ001
        datetime(2026, 11, 18, tzinfo=UTC),
        Color.RED,
        Level.LOW,
        Access.READ | Access.WRITE,
        Mixed.FEE,
        Money(5, (Money(1), NAIVE)),
        Point((1,), Color.RED),
        Tagged(1),
        [Point(1), {"by": (Color.RED, Level.LOW)}],
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", ["memory:", "s.db", "files:s"])
def test_it_comes_back_as_it_was(value: Any, place: str, tmp_path: Path) -> None:
    scheme, colon, name = place.rpartition(":")
    address = place if place == "memory:" else f"{scheme}{colon}{tmp_path / name}"
    with perdure.open(address, types=[*ALL, *CLASSES]) as store:
        session = store.session("s")
        session.set("k", value)
        for back in (session.get("k"), store.session("s").get("k")):
            assert back == value
            assert type(back) is type(value)
            assert repr(back) == repr(value)
        if isinstance(value, datetime):
            assert (session.get("k").fold, session.get("k").tzinfo) == (value.fold, value.tzinfo)


@pytest.mark.parametrize(
    "value", [(1,), NAIVE, Color.RED, Level.LOW, Money(1), Point(1), [(1,)], {"a": NAIVE}], ids=repr
)
def test_without_the_choice_it_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        perdure.open("memory:").session("s").set("k", value)


def test_a_choice_is_only_for_what_it_names() -> None:
    codec = Codec([TUPLES])
    assert codec.pack((1,)) == {"$type": ["tuple", [1]]}
    for value in (NAIVE, Point(1), Color.RED):
        with pytest.raises(UsageError):
            codec.pack(value)
    with pytest.raises(UsageError, match="unknown type 'tuple'"):
        Codec([NAIVE_DATETIMES]).unpack({"$type": ["tuple", [1]]})


def test_what_is_not_equal_is_compared_by_its_parts() -> None:
    codec = Codec([TUPLES, Point, BOXES])
    back = codec.unpack(codec.pack((Box(1), Point(Box((2,))))))
    assert (back[0].inside, back[1].x.inside) == (1, (2,))


def test_a_named_tuple_with_more_than_its_fields_is_refused() -> None:
    tagged = Tagged(1)
    tagged.tag = "lost"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="would not be restored unchanged"):
        Codec(CLASSES).pack(tagged)


def test_a_path_leads_through_a_tuple() -> None:
    with pytest.raises(UsageError) as raised:
        Codec(ALL).pack({"a": (1, {2})})
    assert raised.value.path == "$.a[1]"


def test_classes_may_have_names_in_the_store() -> None:
    codec = Codec({"money": Money, "times": NAIVE_DATETIMES, "tuple": TUPLES})
    assert codec.pack(NAIVE) == {"$type": ["times", "2026-11-18T09:30:00"]}
    assert codec.pack([Money(1)]) == [
        {"$type": ["money", {"amount": 1, "parts": {"$type": ["tuple", []]}}]}
    ]


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        (TUPLES, "types must be a list"),
        (Money, "types must be a list"),
        ("Money", "types must be a list"),
        (5, "types must be a list"),
        ([Money, perdure.TypeCodec(Money, vars, dict)], "two types are named 'Money'"),
        ([Box], "'Box' is no dataclass"),
        ([5], "'int' is no dataclass"),
        ({"n": 5}, "'n' is no dataclass"),
    ],
    ids=["family", "class", "text", "number", "twice", "no dataclass", "int", "named"],
)
def test_a_wrong_choice_is_refused(types: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        perdure.open("memory:", types=types)


def test_a_tool_may_return_it(tmp_path: Path) -> None:
    """What the model is told is JSON, and the call that is repeated gets the value again."""

    def book() -> tuple[str, Money]:
        return "LH 123", Money(5)

    def open_session() -> perdure.Session:
        return perdure.open(tmp_path / "s.db", types=[*ALL, Money]).session("s")

    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    session = open_session()
    turn = session.turn("Book it.", id="t").__enter__()
    assert session.tool(book)() == ("LH 123", Money(5))
    turn.append({"role": "assistant", "tool_calls": [call]})
    (told,) = session.run_tool_calls(None, [book])
    assert told["content"] == '["LH 123",{"amount":5,"parts":[]}]'
    session = open_session()
    with session.turn("Book it.", id="t"):
        assert session.tool(book)() == ("LH 123", Money(5))
    assert [effect.unstored for effect in session.effects.list()] == ["", ""]


# numpy is no dependency, and not installed here: see tests/adapters/autogen/test_numpy.py for the
# real one, which comes with some of the frameworks.


def test_without_numpy_nothing_is_imported_and_its_scalars_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import sys, perdure; store = perdure.open('memory:', types=perdure.types.ALL);"
        "store.session('s').set('k', (1,)); print('numpy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"
    monkeypatch.setitem(sys.modules, "numpy", None)  # Not installed, as far as an import can tell.
    with pytest.raises(UsageError, match="install numpy"):
        Codec(ALL).unpack({"$type": ["numpy", ["float64", 1.5]]})


def test_only_scalars_of_numpy_are_taken_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in has the one class that tells them apart."""
    numpy = ModuleType("numpy")
    numpy.generic = type("generic", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    assert NUMPY_SCALARS.matches(numpy.generic())
    lookalike = type("float64", (float,), {"dtype": "float64", "item": lambda self: self})
    assert not NUMPY_SCALARS.matches(lookalike(1.5))
