"""Deltas between documents."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.state import values
from perdure.journal.codec import encode_tree

LONG = "x" * 300

trees = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0]) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@given(old=trees, new=trees, pad=st.integers(0, 3))
def test_whatever_delta_is_returned_gives_the_new_document_to_the_byte(
    old: Any, new: Any, pad: int
) -> None:
    before = encode_tree({"pad": [LONG] * pad, "tree": old})
    after = encode_tree({"pad": [LONG] * pad, "tree": new})
    edits = values.make_delta(before, after)
    if edits is not None:
        stored = json.loads(json.dumps(edits))
        assert values.apply_delta(before, stored) == after


@pytest.mark.parametrize(
    ("old", "new", "edits"),
    [
        ({"a": 1}, {"a": 2}, [[["a"], "=", 2]]),
        ({"a": 1}, {"a": 1.0}, [[["a"], "=", 1.0]]),
        ({"a": 1}, {"a": True}, [[["a"], "=", True]]),
        ({"a": 0.0}, {"a": -0.0}, [[["a"], "=", -0.0]]),
        ({"a": 1}, {"b": 2}, [[["a"], "-"], [["b"], "=", 2]]),
        ({"a": [1, 2]}, {"a": [1, 3, 2]}, [[["a"], "~", 1, 0, [3]]]),
        ({"a": [[1], [2]]}, {"a": [[1], [3]]}, [[["a", 1, 0], "=", 3]]),
        ({"a": "p" * 99}, {"a": "p" * 99 + "!"}, [[["a"], "~", 99, 0, "!"]]),
        ({"a": "p" * 99}, {"a": "p" * 40 + "q" * 30}, [[["a"], "~", 40, 59, "q" * 30]]),
        ({"a": 1}, {"a": 1}, []),
    ],
)
def test_a_small_change_of_a_long_document_is_a_small_delta(
    old: dict[str, Any], new: dict[str, Any], edits: list[Any]
) -> None:
    before, after = (encode_tree({**tree, "pad": LONG}) for tree in (old, new))
    found = values.make_delta(encode_tree({"pad": LONG, **old}), encode_tree({"pad": LONG, **new}))
    assert found == edits
    assert [type(edit[-1]) for edit in found or []] == [type(edit[-1]) for edit in edits]
    assert before != after or edits == []


def test_short_documents_and_wholly_other_ones_are_stored_in_full() -> None:
    assert values.make_delta(b'{"a":1}', b'{"a":2}') is None
    assert values.make_delta(encode_tree([LONG]), encode_tree([LONG.upper()])) is None


def test_another_order_of_keys_is_stored_in_full() -> None:
    before = encode_tree({"pad": LONG, "a": 1, "b": 2})
    after = encode_tree({"pad": LONG, "b": 2, "a": 1})
    assert values.make_delta(before, after) is None
