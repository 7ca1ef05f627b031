"""Contract tests of fields, and of the capability `order`; that is skipped if not declared."""

import random
from typing import Any

import pytest

from perdure.backends.fields import FIELD_BYTES_MAX, FIELD_MARK, FIELDS_MAX, FieldOrder
from perdure.backends.protocol import (
    DELETED,
    LABELS_MAX,
    ORDER,
    REMOVE,
    Append,
    Backend,
    require_order,
    require_remove,
)
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    HOSTILE_NAMES,
    SIMILAR_TEXTS,
    OpenBackend,
    append_all,
    append_of,
    digest,
    entry,
    names,
    skip_unless_declared,
)


def field(name: str, value: str) -> str:
    """Return the label of a field with a value."""
    return name + FIELD_MARK + value


def ordered_names(backend: Backend, order: FieldOrder, **filters: Any) -> list[str]:
    """Return the names of streams in the order of a field, or skip the test."""
    skip_unless_declared(backend, ORDER)
    return [head.stream for head in require_order(backend).ordered(order, **filters)]


INVALID_FIELDS: dict[str, Append] = {
    "a field twice": append_of("s", 1, 1, field("n", "1"), field("n", "2")),
    "too many fields": append_of("s", 1, 1, *(field(str(n), "") for n in range(FIELDS_MAX + 1))),
    "a field too long": append_of("s", 1, 1, field("n", "x" * FIELD_BYTES_MAX)),
}


class OrderContract:
    """Fields of streams, and listings in the order of their values."""

    reopens: bool

    def test_fields_are_labels_that_streams_are_found_by(self, backend: Backend) -> None:
        append_all(backend, append_of("a", 1, 1, field("n", "1"), "x"))
        append_all(backend, append_of("b", 1, 1, field("n", "2"), field("m", "1")))
        append_all(backend, append_of("c", 1, 1, field("n", "1")))
        assert names(backend, labels=[field("n", "1")]) == ["a", "c"]
        assert names(backend, labels=[field("n", "1"), "x"]) == ["a"]
        assert names(backend, labels=[field("n", "2"), field("m", "1")]) == ["b"]
        assert names(backend, labels=["n"]) == names(backend, labels=[field("n", "")]) == []
        (head,) = backend.streams(labels=[field("m", "1")])
        assert head.labels == {field("n", "2"), field("m", "1")}

    def test_a_field_has_one_value_which_can_change(self, backend: Backend) -> None:
        for position, value in enumerate(["1", "2", "2", "1", "3"], 1):
            append_all(backend, append_of("s", position, position, field("n", value)))
            found = {text: names(backend, labels=[field("n", text)]) for text in "123"}
            assert found == {text: ["s"] if text == value else [] for text in "123"}
        append_all(backend, append_of("s", 6, 6))
        assert names(backend, labels=[field("n", "3")]) == []
        assert names(backend) == ["s"]

    @pytest.mark.parametrize("what", INVALID_FIELDS)
    def test_invalid_fields_are_refused_and_change_nothing(
        self, backend: Backend, what: str
    ) -> None:
        with pytest.raises(UsageError):
            backend.append([INVALID_FIELDS[what]])
        assert names(backend) == []

    def test_the_longest_and_most_fields_and_labels_are_stored(self, backend: Backend) -> None:
        fields = {
            field(f"{number:02}", "v" * (FIELD_BYTES_MAX - 3)) for number in range(FIELDS_MAX)
        }
        labels = fields | {f"label {number}" for number in range(LABELS_MAX)}
        append_all(backend, append_of("s", 1, 1, *labels))
        (head,) = backend.streams(labels=fields)
        assert head.labels == labels

    def test_only_a_store_that_declares_order_can_list_by_values(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1, field("n", "1")))
        method = getattr(backend, "ordered", None)
        if ORDER in backend.capabilities:
            assert method is not None
            assert list(method(FieldOrder("n"))) == list(backend.streams())
            return
        with pytest.raises(UnsupportedError, match="list them by id"):
            require_order(backend)
        if method is not None:
            with pytest.raises(UnsupportedError):
                list(method(FieldOrder("n")))

    def test_streams_are_in_the_order_of_values_then_of_names(self, backend: Backend) -> None:
        for name, value in (("a", "2"), ("d", "1"), ("b", "10"), ("c", "1"), ("e", "")):
            append_all(backend, append_of(name, 1, 1, field("n", value)))
        append_all(backend, append_of("other", 1, 1, field("na", "0"), field("N", "0"), "n"))
        up = ["e", "c", "d", "b", "a"]
        assert ordered_names(backend, FieldOrder("n")) == up
        assert ordered_names(backend, FieldOrder("n", reverse=True)) == up[::-1]
        append_all(backend, append_of("b", 2, 2, field("n", "1")), append_of("e", 2, 2))
        assert ordered_names(backend, FieldOrder("n")) == ["b", "c", "d", "a"]
        assert ordered_names(backend, FieldOrder("N")) == ["other"]
        assert ordered_names(backend, FieldOrder("")) == []
        (head,) = require_order(backend).ordered(FieldOrder("N"), headers=True)
        assert (head.position, head.header) == (1, entry(1).header)

    def test_a_range_has_its_lowest_value_and_not_its_end(self, backend: Backend) -> None:
        for value in ("a", "b", "ba", "c", "d"):
            append_all(backend, append_of(value, 1, 1, field("n", value)))
        for reverse in (False, True):
            for low, high, expected in (
                ("", "", ["a", "b", "ba", "c", "d"]),
                ("b", "", ["b", "ba", "c", "d"]),
                ("", "c", ["a", "b", "ba"]),
                ("b", "c", ["b", "ba"]),
                ("b", "b\0", ["b"]),
                ("b", "b", []),
                ("x", "", []),
            ):
                order = FieldOrder("n", low, high, reverse)
                assert ordered_names(backend, order) == (expected[::-1] if reverse else expected)

    def test_a_listing_continues_after_any_place(self, backend: Backend) -> None:
        places = [(value, value + name) for value in "ace" for name in "123"]
        append_all(backend, *(append_of(name, 1, 1, field("n", value)) for value, name in places))
        for after in [*places, ("b", "x"), ("", ""), ("z", "z")]:
            later = [name for value, name in places if (value, name) > after]
            earlier = [name for value, name in places if (value, name) < after]
            assert ordered_names(backend, FieldOrder("n", after=after)) == later
            assert ordered_names(backend, FieldOrder("n", "b", after=after)) == [
                name for name in later if name >= "b"
            ]
            down = FieldOrder("n", reverse=True, after=after)
            assert ordered_names(backend, down) == earlier[::-1]
            assert ordered_names(backend, down._replace(high="b")) == [
                name for name in earlier[::-1] if name < "b"
            ]

    def test_listings_by_value_filter_as_streams_does(self, backend: Backend) -> None:
        rng = random.Random(7)  # noqa: S311 - must be reproducible, not secret
        appends = []
        for number in range(700):  # More than a page.
            labels = [text for text in ("x", "y") if rng.random() < 0.5]
            labels += [field("n", f"{rng.randrange(50):02}")] if rng.random() < 0.9 else []
            labels = [DELETED] if number % 10 == 0 else labels
            appends.append(append_of(f"{rng.choice('ab')}/{number}", 1, 1, *labels))
        append_all(backend, *appends)
        choices: tuple[dict[str, Any], ...] = (
            {},
            {"prefix": "a/"},
            {"labels": ["x"]},
            {"labels": ["x", "y"], "prefix": "b/1"},
            {"labels": [field("n", "07")]},
            {"labels": [field("n", "07"), "x"]},
            {"without": ["x"]},
            {"without": [DELETED], "limit": 300},
            {"limit": 1},
            {"limit": 0},
        )
        for filters in choices:
            for order in (FieldOrder("n"), FieldOrder("n", "05", "40", reverse=True)):
                heads = list(backend.streams(**{**filters, "limit": None}))
                keys = [order.key(head.stream, head.labels) for head in heads]
                kept = sorted((key for key in keys if key), reverse=order.reverse)
                expected = [name for _, name in kept][: filters.get("limit")]
                assert ordered_names(backend, order, **filters) == expected

    def test_values_and_names_are_compared_by_code_points(self, backend: Backend) -> None:
        texts = [*SIMILAR_TEXTS, *(name for name in HOSTILE_NAMES if len(name) < 100)]
        append_all(backend, *(append_of(name, 1, 1, field("n", name)) for name in texts))
        assert ordered_names(backend, FieldOrder("n")) == sorted(texts)
        assert ordered_names(backend, FieldOrder("n", reverse=True)) == sorted(texts)[::-1]
        for text in texts:
            assert ordered_names(backend, FieldOrder("n", text, text + "\0")) == [text]
            assert names(backend, labels=[field("n", text)]) == [text]
        append_all(backend, *(append_of(f"of {text}", 1, 1, field(text, "1")) for text in texts))
        for text in texts:
            assert ordered_names(backend, FieldOrder(text))[-1:] == [f"of {text}"]

    def test_streams_that_are_removed_are_not_listed_by_value(self, backend: Backend) -> None:
        skip_unless_declared(backend, REMOVE)
        append_all(backend, *(append_of(name, 1, 1, field("n", name)) for name in "abc"))
        assert require_remove(backend).remove("b", digest=digest(entry(1)))
        assert ordered_names(backend, FieldOrder("n")) == ["a", "c"]

    def test_the_order_of_values_survives_reopening(self, open_handle: OpenBackend) -> None:
        if not self.reopens:
            pytest.skip("this store loses its data on close")
        first = open_handle()
        for name, value in (("a", "2"), ("b", "1")):
            append_all(first, append_of(name, 1, 1, field("n", "9")))
            append_all(first, append_of(name, 2, 2, field("n", value)))
        first.close()
        again = open_handle()
        append_all(again, append_of("a", 3, 3, field("n", "0")))
        assert ordered_names(again, FieldOrder("n")) == ["a", "b"]
        assert ordered_names(open_handle(), FieldOrder("n")) == ["a", "b"]

    def test_a_closed_store_refuses_to_list_by_value(self, backend: Backend) -> None:
        append_all(backend, append_of("s", 1, 1, field("n", "1")))
        backend.close()
        with pytest.raises(UsageError, match="closed"):
            ordered_names(backend, FieldOrder("n"))
