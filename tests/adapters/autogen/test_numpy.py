"""Scalars of numpy, which comes with some versions of the framework, are stored by choice."""

from typing import Any

import pytest

import perdure
from perdure.errors import UsageError
from perdure.journal.codec import Codec, decode_tree, encode_tree
from perdure.types import NUMPY_SCALARS

np: Any = pytest.importorskip("numpy", reason="this version of the framework has no numpy")

SCALARS = [
    np.float64(1.5),
    np.float32(0.1),
    np.float16(1e-7),
    np.float64(-0.0),
    np.float64("nan"),
    np.uint64(0xFFF8_0000_0000_0000).view("float64"),  # What 0/0 is.
    np.uint64(0x7FF8_0000_0000_0001).view("float64"),
    np.float32("-inf"),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.int64(-(2**63)),
    np.bool_(1),
    np.complex64(1 + 2j),
    np.complex128(complex(float("nan"), -0.0)),
    np.datetime64("2026-01-02T03:04:05.123456789"),
    np.datetime64("NaT"),
    np.datetime64("2026", "Y"),
    np.datetime64(3, "25us"),
    np.timedelta64(5, "ns"),
    np.timedelta64(5),
    np.str_("é\0"),
    np.bytes_(b"a\0"),
]


@pytest.mark.parametrize(
    "number", range(len(SCALARS)), ids=lambda number: f"{number}: {SCALARS[number]!r}"
)
def test_a_scalar_comes_back_to_the_bit(number: int) -> None:
    scalar, codec = SCALARS[number], Codec([NUMPY_SCALARS])
    (back,) = codec.unpack(decode_tree(encode_tree(codec.pack([scalar]))))
    assert type(back) is type(scalar)
    assert back.dtype == scalar.dtype
    assert back.tobytes() == scalar.tobytes()
    with pytest.raises(UsageError):
        Codec().pack(scalar)


@pytest.mark.parametrize(
    "value",
    [
        np.longdouble(1.5),
        np.array([1.0]),
        np.array(1.0),
        np.void(b"ab"),
        np.zeros(1, dtype=[("a", "i4")])[0],
    ],
    ids=repr,
)
def test_what_is_no_exact_scalar_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        Codec([NUMPY_SCALARS]).pack(value)


@pytest.mark.parametrize("name", ["object", "float128", "O", "V8", "float64,float64", "U3", 5])
def test_a_stored_name_of_another_type_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        Codec([NUMPY_SCALARS]).unpack({"$type": ["numpy", [name, 1]]})


def test_a_tool_may_return_one_and_the_model_reads_a_number() -> None:
    def mean() -> dict[str, Any]:
        return {"mean": np.float64(1.5), "count": np.int64(2)}

    call = {"id": "c", "type": "function", "function": {"name": "mean", "arguments": "{}"}}
    session = perdure.open("memory:", types=[NUMPY_SCALARS]).session("s")
    with session.turn("Count.") as turn:
        turn.append({"role": "assistant", "tool_calls": [call]})
        (told,) = session.run_tool_calls(None, [mean])
    assert told["content"] == '{"mean":1.5,"count":2}'
    (effect,) = session.effects.list()
    assert effect.result == mean()
    assert type(effect.result["mean"]) is np.float64


def test_without_the_choice_a_tool_that_returns_one_has_succeeded() -> None:
    session = perdure.open("memory:").session("s")
    with session.turn("Count."):
        assert session.tool(lambda: np.float64(1.5), name="mean")() == 1.5
    (effect,) = session.effects.list()
    assert (effect.state, effect.unstored) == ("succeeded", "float64")
