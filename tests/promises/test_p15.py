"""P15, a seeded sample: values round-trip exactly or append raises."""

import itertools
import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest

import perdure
from perdure.errors import UsageError
from perdure.journal import codec, scalars
from perdure.journal.user_types import TypeRegistry
from tests.promises import p15_values
from tests.promises.p15_drawing import (
    BAD,
    BAD_KEYS,
    MORE_TYPES,
    NAIVE,
    TYPES,
    Colour,
    Drawing,
    Model,
    Pair,
    Point,
)
from tests.promises.promise import sample

pytestmark = pytest.mark.durability

BERLIN = ZoneInfo("Europe/Berlin")
TWICE = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_values_come_back_exactly_or_are_refused(seed: int) -> None:
    sample(p15_values.PROMISE, seed=seed, seconds=6, least=1_000)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1], [True]),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal(0), Decimal("-0")),
        (TWICE, TWICE.replace(fold=1)),
        (TWICE, TWICE.replace(tzinfo=timezone(timedelta(hours=2)))),
        (TWICE.replace(tzinfo=UTC), TWICE.replace(tzinfo=timezone(timedelta(0), "GMT"))),
        (TWICE.replace(tzinfo=UTC), TWICE.replace(tzinfo=ZoneInfo("UTC"))),
        (Point(1), Point(1.0)),
        (Model(part=1), Model(part=True)),
        ((1, 2), [1, 2]),
        ((1,), (True,)),
        (Pair(1, 2), (1, 2)),
        (Pair(1), Pair(1.0)),
        (NAIVE, NAIVE.replace(fold=1)),
        (NAIVE, NAIVE.replace(tzinfo=UTC)),
        (Colour.RED, "red"),
        ("a", b"a"),
    ],
)
def test_the_comparison_is_strict(one: Any, two: Any) -> None:
    assert not p15_values.same(one, two)
    assert p15_values.same(one, one)
    assert p15_values.same(two, two)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_can_not_come_back_is_refused_and_leaves_nothing(number: int) -> None:
    with perdure.open("memory:", types=TYPES) as store:
        session = store.session("a")
        session.append({"role": "user", "content": "", "good": 1})
        with pytest.raises(UsageError) as caught:
            session.append(
                {"role": "user", "content": "", "good": 1},
                {"role": "user", "content": "", "list": [1, {"x y": BAD[number]()}]},
            )
        assert caught.value.path == "$.list[1]['x y']"
        assert session.position == store.session("a").position == 1


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_keys_that_json_lacks_are_refused(key: Any) -> None:
    with pytest.raises(UsageError):
        perdure.open("memory:").session("a").set(
            "k", {"a": 0} | {key: 1} if key != "a" else {key: 1}
        )


@pytest.mark.parametrize("text", [5, b"a", "\ud800"], ids=repr)
def test_names_beside_a_value_are_refused_as_values_are(text: Any) -> None:
    """A record that is stored and can not be decoded would close its session for ever."""
    with perdure.open("memory:") as store:
        session = store.session("a")
        session.append({"role": "user", "content": "", "good": 1})
        turn = session.turn("hello").__enter__()
        before = session.position
        for call in (
            lambda: session.append({"role": "user", "content": "", "a": 1}, author=text),
            lambda: session.append({"role": "user", "content": "", "a": 1}, recipient=text),
            lambda: session.append({"role": "user", "content": "", "a": 1}, channel=text),
            lambda: session.append({"role": "user", "content": "", "a": 1}, origin=text),
            lambda: session.note(1, author=text),
            lambda: session.turn("a", correlation_id=text).__enter__(),
            lambda: session.turn("a", author=text).__enter__(),
            lambda: turn.append({"role": "user", "content": "", "a": 1}, author=text),
            lambda: turn.abandon(text),
            lambda: store.delete("a", reason=text),
        ):
            with pytest.raises(UsageError):
                call()
        assert store.session("a").position == before
        turn.abandon("a reason")
        session.verify()


def test_related_values_are_stored_as_deltas() -> None:
    """Otherwise the chains of the sample would prove nothing about deltas."""
    drawing = Drawing(random.Random(1))
    forms = set()
    for _ in range(40):
        with perdure.open("memory:", types=TYPES) as store:
            block = p15_values.Block(store, drawing)
            assert not [trial for trial in block.write() if trial.failure]
            records = store.session("values").records()
            forms |= {getattr(record.content, "form", "") for record in records}
    assert forms >= {"full", "delta"}


def _shortened(value: Decimal) -> dict[str, str]:
    return {"$decimal": str(value.normalize())}


def test_a_codec_that_changes_values_is_found() -> None:
    """The twin: the sample fails when the codec loses the exponent of a decimal."""
    with (
        mock.patch.dict(scalars._PACK, {Decimal: _shortened}),
        mock.patch.object(TypeRegistry, "require_same"),
        pytest.raises(AssertionError, match="Decimal"),
    ):
        sample(p15_values.PROMISE, seed=1, seconds=10, least=100_000)


def test_a_codec_that_takes_everything_is_found() -> None:
    """The twin: the sample fails when NaN is taken and comes back as null."""
    with (
        mock.patch.object(codec, "isfinite", lambda value: not math.isinf(value)),
        mock.patch.object(TypeRegistry, "require_same"),
        pytest.raises(AssertionError, match="it was taken"),
    ):
        sample(p15_values.PROMISE, seed=1, seconds=10, least=100_000)


@pytest.mark.parametrize("more", [False, True])
def test_a_seed_repeats_its_values(*, more: bool) -> None:
    one, two = (Drawing(random.Random(7), more=more) for _ in range(2))
    for _ in itertools.repeat(None, 200):
        assert p15_values.same(one.value(), two.value())


def test_values_of_all_types_are_drawn() -> None:
    """Otherwise the sample would prove nothing about them."""
    drawing = Drawing(random.Random(1), more=True)
    kinds = Counter(type(drawing.value()) for _ in range(3_000))
    assert min(kinds[kind] for kind in (tuple, Pair, Colour, Point, Model, dict)) > 20
    assert len(drawing._bad) < len(BAD)


def test_a_preset_that_changes_values_is_found() -> None:
    """The twin: the sample fails when a datetime loses its fold."""
    shortened = perdure.types.NAIVE_DATETIMES._replace(encode=datetime.isoformat)
    with (
        mock.patch.dict(MORE_TYPES, {"datetime": shortened}),
        mock.patch.object(TypeRegistry, "require_same"),
        pytest.raises(AssertionError, match="fold"),
    ):
        sample(p15_values.PROMISE, seed=1, seconds=10, least=100_000)
