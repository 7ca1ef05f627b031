"""Draws values for P15: those that must come back exactly, and those that must be refused.

Everything is drawn from one `random.Random`, so a seed repeats a failure.
"""

import dataclasses
import math
import random
import struct
from collections import OrderedDict
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic

import perdure

INT_BITS_MAX = 14_000
DEPTH_MAX = 64
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
# Clocks were put forward (an hour that never was) and back (one that was twice), in these zones.
TURNS = (datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30), datetime(2024, 11, 3, 1, 30))  # noqa: DTZ001
KEYS = (
    "a",
    "role",
    "content",
    "$",
    "$bytes",
    "$object",
    "$type",
    "$x",
    "",
    "a.b",
    "ключ",
    "🔑",
    '"',
)
TEXTS = ("", "plain", "ünïcödé", "\0", "\u2028", "🧵" * 9, '"$bytes"', "\\ud800", "x" * 300, "\x7f")
FLOATS = (
    0.0,
    -0.0,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    1e16,
    1e22,
    0.1,
)


@dataclasses.dataclass
class Point:
    """A dataclass that the store is told of."""

    x: Any
    y: Any = None


class Model(pydantic.BaseModel):
    """A model that the store is told of, with a field whose name outside is another one."""

    part: Any = None
    given: Any = pydantic.Field(default=None, alias="Given-As")


class Box:
    """A class that the caller says how to store; two of them are never equal."""

    def __init__(self, part: Any) -> None:
        self.part = part


class Pair(NamedTuple):
    """A named tuple that the store may be told of."""

    one: Any
    two: Any = None


@dataclasses.dataclass
class Unknown:
    """A dataclass that the store is not told of."""

    x: int = 1


class Text(str):
    __slots__ = ()


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Plain(Enum):
    ONE = 1


class Integer(int):
    pass


class Moment(datetime):
    pass


class Zone(tzinfo):
    def utcoffset(self, _when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, _when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _when: datetime | None) -> str:
        return "an hour"


Registered = type | perdure.TypeCodec | perdure.types.TypeFamily

TYPES: dict[str, Registered] = {
    "point": Point,
    "$model": Model,
    "box": perdure.TypeCodec(Box, vars, lambda parts: Box(**parts)),
}
# These, and the types that are stored by choice.
MORE_TYPES: dict[str, Registered] = {
    **TYPES,
    **{family.name: family for family in perdure.types.ALL},
    "pair": Pair,
    "colour": Colour,
    "number": Number,
    "plain": Plain,
}


class Refusal(NamedTuple):
    """A value that must be refused, and the path that the refusal must name."""

    value: Any
    path: str
    deepest: str = ""
    """The last step of a path that is as long as a path can be."""

    @property
    def path_in_message(self) -> str:
        """The path when the value stands in a message under the key `v`."""
        return "$.v" + self.path[1:].removesuffix(self.deepest)


NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - what must be refused

BAD: tuple[Callable[[], Any], ...] = (
    lambda: {1, 2},
    lambda: frozenset({1}),
    lambda: (1, 2),
    lambda: "\ud800",
    lambda: "text \udfff text",
    lambda: math.nan,
    lambda: math.inf,
    lambda: -math.inf,
    lambda: NAIVE,
    lambda: Moment(2024, 1, 1, tzinfo=UTC),
    lambda: datetime(2024, 1, 1, tzinfo=Zone()),
    lambda: datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "\ud800")),
    lambda: Text("a"),
    lambda: Integer(1),
    lambda: Colour.RED,
    lambda: Number.ONE,
    lambda: Plain.ONE,
    lambda: OrderedDict(a=1),
    lambda: bytearray(b"a"),
    lambda: memoryview(b"a"),
    lambda: 1 << (INT_BITS_MAX + 1),
    lambda: -(1 << INT_BITS_MAX),
    lambda: Decimal("NaN"),
    lambda: Decimal("-Infinity"),
    lambda: Fraction(1, 2),
    lambda: 1j,
    lambda: time(1, 2),
    lambda: timedelta(1),
    object,
    Unknown,
    lambda: Pair(1),
    lambda: Unknown,
    lambda: range(3),
    lambda: len,
)

BAD_KEYS: tuple[Any, ...] = (
    1,
    1.5,
    True,
    None,
    b"a",
    (1,),
    Text("a"),
    Colour.RED,
    "\ud800",
    "a\udc00",
)


def step(key: Any) -> str:
    """How a path names a key of a dict."""
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{str(key)[:40]!r}]"


def is_stored_by_choice(value: Any, types: Collection[type]) -> bool:
    """Whether a value is of one of these types, or a datetime without a zone."""
    return type(value) in types or (type(value) is datetime and value.tzinfo is None)


class Drawing:
    """Draws from one seed; with `more`, also values of `MORE_TYPES`."""

    def __init__(self, draw: random.Random, *, more: bool = False) -> None:
        self.draw = draw
        self._more = more
        types = {Pair, Colour, Number, Plain, tuple} if more else set()
        self._bad = [bad for bad in BAD if not (more and is_stored_by_choice(bad(), types))]
        self._scalars = (
            lambda: None,
            lambda: draw.random() < 0.5,
            self._int,
            self._float,
            self._text,
            self._bytes,
            self._decimal,
            self._datetime,
            lambda: date.fromordinal(draw.randint(1, date.max.toordinal())),
            lambda: UUID(int=draw.getrandbits(128)),
        )

    def value(self, depth: int = 4) -> Any:
        """A value that must come back exactly."""
        kind = self.draw.random()
        if depth == 0 or kind < 0.45:
            return self.draw.choice(self._scalars)()
        if kind < 0.65:
            return [self.value(depth - 1) for _ in range(self.draw.randrange(4))]
        if self._more and self.draw.random() < 0.4:
            return self._by_choice(depth)
        if kind < 0.9:
            return self.mapping(depth)
        if kind < 0.94:
            return Point(self.value(depth - 1), self.value(depth - 1))
        if kind < 0.96:
            return Box(self.value(depth - 1))
        if kind < 0.98:
            return Model.model_validate({"part": self._deep(3), "Given-As": self._deep(3)})
        return self._deep(self.draw.randint(1, DEPTH_MAX - 8))

    def _by_choice(self, depth: int) -> Any:
        """A value of a type that is stored by choice."""
        match self.draw.randrange(6):
            case 0:
                return self._datetime().replace(tzinfo=None)
            case 1:
                return self.draw.choice((Colour.RED, Number.ONE, Plain.ONE))
            case 2:
                return Pair(self.value(depth - 1), self.value(depth - 1))
            case _:
                return tuple(self.value(depth - 1) for _ in range(self.draw.randrange(4)))

    def mapping(self, depth: int = 4) -> dict[str, Any]:
        """A dict; its keys often look like the tags that perdure itself writes."""
        count = self.draw.choice((0, 1, 1, 2, 3))
        return {self._key(): self.value(depth - 1) for _ in range(count)}

    def related(self, value: Any) -> Any:
        """A value that differs a little, so that it is stored as a delta."""
        if isinstance(value, dict) and value:
            changed = dict(value)
            key = self.draw.choice(list(changed))
            match self.draw.randrange(5):
                case 0:
                    changed[self._key()] = self.value(2)
                case 1:
                    del changed[key]
                case 2:
                    changed[key] = changed.pop(key)  # The same, in another order.
                case _:
                    changed[key] = self.related(changed[key])
            return changed
        if isinstance(value, list) and value:
            at = self.draw.randrange(len(value))
            middle = self.draw.choice(([], [value[at]] * 2, [self.related(value[at])]))
            return [*value[:at], *middle, *value[at + 1 :]]
        if isinstance(value, str) and value:
            at = self.draw.randrange(len(value))
            return value[:at] + self._text() + value[at + 1 :]
        lookalikes = (1, 1.0, True, 0, 0.0, -0.0, False, "1", None)
        return self.draw.choice((*lookalikes, self.value(1)))

    def refusal(self) -> Refusal:
        """A value that must be refused: a bad leaf or key somewhere in a good tree."""
        kind = self.draw.random()
        if kind < 0.08:
            return self._too_deep()
        if kind < 0.3:
            key = self.draw.choice(BAD_KEYS)
            others = {name: item for name, item in self.mapping(1).items() if name != key}
            found = Refusal({**others, key: 1}, "$" + step(key))
        else:
            found = Refusal(self.draw.choice(self._bad)(), "$")
        for _ in range(self.draw.randrange(5)):
            found = self._around(found)
        return found

    def _around(self, inner: Refusal) -> Refusal:
        rest = inner.path[1:]
        match self.draw.randrange(4):
            case 0:
                before = [self.value(1) for _ in range(self.draw.randrange(3))]
                return Refusal([*before, inner.value], f"$[{len(before)}]{rest}")
            case 1:
                return Refusal(Point(1, inner.value), f"$.y{rest}")
            case 2:
                return Refusal(Box(inner.value), f"$.part{rest}")
            case _:
                key = self._key()
                others = {other: 1 for other in KEYS[:3] if other != key}
                return Refusal({**others, key: inner.value, "after": 1}, f"${step(key)}{rest}")

    def _too_deep(self) -> Refusal:
        if self.draw.random() < 0.5:
            cycle: list[Any] = []
            cycle.append(cycle)
            return Refusal(cycle, "$" + "[0]" * DEPTH_MAX, "[0]")
        tree: Any = {}
        for _ in range(DEPTH_MAX + self.draw.randrange(3)):
            tree = {"a": tree}
        return Refusal(tree, "$" + ".a" * DEPTH_MAX, ".a")

    def _deep(self, levels: int) -> Any:
        tree: Any = self.draw.choice(self._scalars)()
        for _ in range(levels):
            tree = [tree] if self.draw.random() < 0.5 else {self._key(): tree}
        return tree

    def _key(self) -> str:
        return self.draw.choice(KEYS) if self.draw.random() < 0.8 else self._text()[:20]

    def _text(self) -> str:
        if self.draw.random() < 0.5:
            return self.draw.choice(TEXTS)
        ends = (self.draw.choice((0x20, 0x7F, 0xFF, 0x3000, 0x10FFFF)) for _ in range(9))
        points = (self.draw.randint(0, end) for end in ends)
        return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)

    def _bytes(self) -> bytes:
        return self.draw.randbytes(self.draw.choice((0, 1, 2, 3, 50)))

    def _int(self) -> int:
        bits = self.draw.choice((1, 8, 53, 54, 63, 64, 65, 200, INT_BITS_MAX))
        return self.draw.getrandbits(bits) * self.draw.choice((1, -1))

    def _float(self) -> float:
        if self.draw.random() < 0.3:
            return self.draw.choice(FLOATS)
        (drawn,) = struct.unpack("d", self.draw.randbytes(8))
        return float(drawn) if math.isfinite(drawn) else 1.5

    def _decimal(self) -> Decimal:
        digits = tuple(self.draw.randrange(10) for _ in range(self.draw.choice((1, 3, 40))))
        exponent = self.draw.choice((0, -2, 5, -400, 400, 9999))
        return Decimal((self.draw.randrange(2), digits, exponent))

    def _datetime(self) -> datetime:
        zone, fold = self._zone(), self.draw.randrange(2)
        if self.draw.random() < 0.3:
            return self.draw.choice(TURNS).replace(tzinfo=zone, fold=fold)
        # A day off either end: an offset must not lead out of the calendar.
        seconds = self.draw.randint(-62135510400, 253402214400)
        drawn = datetime(1970, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001
        return drawn.replace(tzinfo=zone, fold=fold, microsecond=self.draw.randrange(10**6))

    def _zone(self) -> tzinfo:
        kind = self.draw.random()
        if kind < 0.25:
            return UTC
        if kind < 0.6:
            return ZoneInfo(self.draw.choice(ZONES))
        offset = timedelta(minutes=self.draw.randint(-1439, 1439))
        offset = self.draw.choice((offset, timedelta(0), timedelta(seconds=4321, microseconds=7)))
        name = self.draw.choice((None, "CET", "GMT", "", "UTC", "=", "Zürich", "UTC+01:00"))
        return timezone(offset) if name is None else timezone(offset, name)
