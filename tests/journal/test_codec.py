"""Values in and out, and versions of payloads."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from perdure.errors import PayloadError, UsageError, VersionError
from perdure.journal import codec
from perdure.journal.codec import Codec
from perdure.journal.kinds import KINDS
from perdure.journal.records import Content, Message, Note
from perdure.journal.user_types import TypeCodec


@dataclass
class Claim:
    number: str
    amount: Decimal


class Colour(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


STORABLE: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    -(2**13_000),
    0.1,
    -0.0,
    5e-324,
    1e22,
    "",
    "ümlaut 😀 \x00",
    [],
    {},
    [1, 1.0, True],
    b"",
    b"\xff\x00",
    Decimal("1.50"),
    Decimal("-0E+3"),
    UUID(int=7),
    date(2026, 11, 16),
    datetime(2026, 11, 16, 5, 15, tzinfo=UTC),
    datetime(2026, 11, 16, 5, 15, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    datetime(2026, 11, 16, 5, 15, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    {"$bytes": "not a tag"},
    {"$object": {"$object": 1}},
    {"$": 1},
    {"$bytes": 1, "other": 2},
]


def strict(value: Any) -> Any:
    """A form in which only values of the same types and parts are equal."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    if isinstance(value, datetime):
        return (value.isoformat(), value.fold, repr(value.tzinfo), value.tzname())
    return (type(value), repr(value))


@pytest.mark.parametrize("value", STORABLE, ids=range(len(STORABLE)))
def test_a_storable_value_comes_back_exactly(value: Any) -> None:
    tree = Codec().pack({"in": [value]})
    data = codec.encode_tree(tree)
    assert strict(Codec().unpack(codec.decode_tree(data))) == strict({"in": [value]})
    assert Codec().encode({"in": [value]}) == data
    assert Codec().encode(value) == codec.encode_tree(Codec().pack(value))


REFUSED: list[tuple[Any, str, str]] = [
    ({"a": [1, {2}]}, "$.a[1]", "set cannot be stored"),
    ({"a": (1, 2)}, "$.a", "tuple cannot be stored"),
    ({"a b": float("nan")}, "$['a b']", "nan has no JSON form"),
    ([float("-inf")], "$[0]", "-inf has no JSON form"),
    ({"a": {1: 2}}, "$.a['1']", "a key is int"),
    ("\ud800", "$", "lone surrogate at index 0"),
    ({"\ud800": 1}, "$['\\ud800']", "lone surrogate"),
    (datetime(2026, 1, 1), "$", "without a zone"),  # noqa: DTZ001 - that is the point
    (Decimal("NaN"), "$", "has no exact form"),
    (Colour.RED, "$", "Colour cannot be stored"),
    (Text("x"), "$", "Text cannot be stored"),
    (bytearray(b"x"), "$", "pass bytes"),
    (2**20_000, "$", "more than 14000 bits"),
    (object(), "$", "object cannot be stored"),
]


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_can_not_come_back_is_refused_with_its_path(
    value: Any, path: str, reason: str
) -> None:
    for refuse in (Codec().pack, Codec().encode):
        with pytest.raises(UsageError, match=reason) as caught:
            refuse(value)
        assert caught.value.path == path
        with pytest.raises(UsageError, match=reason):
            refuse({"in": [0, value]})


def test_nesting_is_bounded_and_a_value_that_holds_itself_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(63):
        deep = [deep]
    assert Codec().unpack(Codec().pack(deep)) == deep
    assert codec.decode_tree(Codec().encode(deep)) == deep
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    for refuse in (Codec().pack, Codec().encode):
        with pytest.raises(UsageError, match="deeper than 64"):
            refuse([deep])
        with pytest.raises(UsageError, match="contains itself"):
            refuse(cycle)


def test_a_dataclass_comes_back_through_the_class_that_was_given() -> None:
    given = Codec({"Claim": Claim})
    claim = Claim("4711", Decimal("9.90"))
    tree = codec.decode_tree(codec.encode_tree(given.pack([claim])))
    assert given.unpack(tree) == [claim]
    with pytest.raises(UsageError, match=r"types=\{'Claim': the class\}"):
        Codec().unpack(tree)
    with pytest.raises(UsageError, match="Claim cannot be stored"):
        Codec().pack(claim)


def test_a_type_codec_stores_what_has_no_form_of_its_own() -> None:
    given = Codec({"set": TypeCodec(set, sorted, set)})
    assert given.unpack(given.pack({"tags": {3, 1}})) == {"tags": {1, 3}}


def test_a_class_that_is_no_record_needs_a_type_codec() -> None:
    with pytest.raises(UsageError, match="pass a TypeCodec"):
        Codec({"set": set})


@pytest.mark.parametrize(
    "tree",
    [
        {"$bytes": "%%%"},
        {"$decimal": "x"},
        {"$uuid": 7},
        {"$datetime": "yesterday"},
        {"$datetime": "2026-01-01T00:00:00"},
        {"$date": None},
        {"$type": "Claim"},
        {"$object": 1},
    ],
)
def test_a_tag_that_does_not_parse_is_damage(tree: Any) -> None:
    with pytest.raises(PayloadError):
        Codec().unpack(tree, stream="s", position=3)


def test_an_unknown_tag_asks_for_an_upgrade() -> None:
    with pytest.raises(VersionError, match="upgrade"):
        Codec().unpack({"$duration": 1})


def test_stored_text_never_chooses_a_file_or_a_module_as_a_time_zone() -> None:
    for zone in ("../../etc/passwd", "os", "Europe/Atlantis"):
        with pytest.raises(UsageError, match="has no time zone"):
            Codec().unpack({"$datetime": ["2026-01-01T00:00:00+00:00", zone, 0]})


def test_content_comes_back_from_its_payload() -> None:
    message = Message(message={"role": "user"}, turn=".t", author="a", origin="web")
    assert codec.decode("message", codec.encode(message)) == message
    assert codec.encode(Note(data=1)) == b'{"data":1}'


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b'{"message":1}', b"{}", b"\xff"])
def test_a_payload_that_is_no_record_is_damage(payload: bytes) -> None:
    with pytest.raises(PayloadError, match="'s' entry 3 is damaged: not a message"):
        codec.decode("message", payload, stream="s", position=3)


def test_an_unknown_kind_or_schema_asks_for_an_upgrade() -> None:
    unknown = "'s' entry 3 has a record kind 'telepathy' that this perdure does not know: upgrade"
    with pytest.raises(VersionError, match=unknown):
        codec.decode("telepathy", b"{}", stream="s", position=3)
    with pytest.raises(VersionError, match="has version 2"):
        codec.decode("note", b'{"v":2,"data":1}')


@pytest.fixture
def third_schema(monkeypatch: pytest.MonkeyPatch) -> type[Content]:
    class Remark(Content, frozen=True, kw_only=True):
        kind: ClassVar[str] = "remark"
        schema: ClassVar[int] = 3

        text: str
        loud: bool

    import msgspec

    monkeypatch.setitem(KINDS, "remark", Remark)
    monkeypatch.setitem(codec._decoders, "remark", msgspec.json.Decoder(Remark).decode)
    monkeypatch.setitem(codec.UPCASTS, ("remark", 1), lambda data: {"text": data["words"]})
    monkeypatch.setitem(codec.UPCASTS, ("remark", 2), lambda data: {**data, "loud": False})
    return Remark


def test_old_payloads_are_brought_up_one_version_at_a_time(third_schema: type[Content]) -> None:
    current = third_schema(text="hi", loud=False, v=3)  # type: ignore[call-arg]
    for payload in (b'{"words":"hi"}', b'{"v":2,"text":"hi"}', codec.encode(current)):
        assert codec.decode("remark", payload) == current


def test_a_record_over_the_limit_is_refused_with_advice() -> None:
    with pytest.raises(UsageError, match=r"session\.upload"):
        codec.encode(Note(data="x" * codec.PAYLOAD_MAX))


class Plain:
    """It has the default repr, which shows a memory address."""


class Polite:
    def __str__(self) -> str:
        return "How do you do?"


def test_a_text_for_a_value_shows_no_address() -> None:
    class Local:
        pass

    assert codec.to_text([Plain(), Local()]) == "[Plain, Local]"
    assert codec.to_text(Plain(), str) == codec.to_text(Polite()).replace("Polite", "Plain")
    assert codec.to_text(Polite(), str) == "How do you do?"
    assert codec.to_text([].append) == "<built-in method append of list object>"
    assert codec.type_name(Local()) == "Local"


def test_a_text_for_a_value_is_short_and_can_be_stored() -> None:
    text = codec.to_text(["é\ud800" * codec.TEXT_CHARS_MAX])
    assert len(text) < codec.TEXT_CHARS_MAX + 100
    assert text.endswith("characters)")
    assert Codec().pack(text) == text
    assert codec.to_text("x" * codec.TEXT_CHARS_MAX) == "x" * codec.TEXT_CHARS_MAX
