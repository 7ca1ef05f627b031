"""Types that are stored by choice, in one line: `perdure.open(address, types=perdure.types.ALL)`.

Each comes back exactly as it was. They are not stored unless the caller says so: other readers see
them as tagged objects, and without numpy its scalars cannot be read at all. An application's own
classes go into the same list: `types=[*perdure.types.ALL, Claim]`.

Names in the store are part of the format: do not change them.
"""

import re
import sys
from datetime import datetime
from typing import Any

from perdure.errors import UsageError
from perdure.journal.user_types import TypeFamily

__all__ = ["ALL", "NAIVE_DATETIMES", "NUMPY_SCALARS", "TUPLES", "TypeFamily"]


TUPLES = TypeFamily("tuple", lambda value: type(value) is tuple, list, tuple)

"""Plain tuples. A named tuple is registered by its class."""


def _is_naive(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is None


def _encode_naive(value: datetime) -> str | list[Any]:
    return [value.isoformat(), value.fold] if value.fold else value.isoformat()


def _decode_naive(parts: str | list[Any]) -> datetime:
    text, fold = (parts, 0) if isinstance(parts, str) else parts
    return datetime.fromisoformat(text).replace(fold=fold)


NAIVE_DATETIMES = TypeFamily("datetime", _is_naive, _encode_naive, _decode_naive)

"""Datetimes without a time zone, for applications in which all times are of one zone."""


def _is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # If it is not imported, no value is one of its scalars.
    return numpy is not None and isinstance(value, numpy.generic)


# Exact on every machine. `longdouble` is not, and structured values and objects are no scalars.
_DTYPE = re.compile(
    r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|(datetime|timedelta)64(\[\w+\])?"
)


def _encode_numpy(value: Any) -> list[Any]:
    parts = _numpy_parts(value)
    if _decode_numpy(parts).tobytes() == value.tobytes():
        return parts
    # A NaN has many forms, and that of 0/0 is not the usual one: its bytes, little-endian.
    return [parts[0], (value if sys.byteorder == "little" else value.byteswap()).tobytes()]


def _numpy_parts(value: Any) -> list[Any]:
    dtype = value.dtype
    if dtype.kind == "U":
        return ["str_", str.__str__(value)]  # `item` strips zeros at the end.
    if dtype.kind == "S":
        return ["bytes_", bytes.__getitem__(value, slice(None))]
    if not _DTYPE.fullmatch(dtype.name):
        raise TypeError(dtype.name)
    if dtype.kind in "mM":  # As a number of its units: `item` loses nanoseconds.
        return [dtype.name, int(value.view("int64"))]
    if dtype.kind == "c":
        return [dtype.name, _encode_float(value.real.item()), _encode_float(value.imag.item())]
    return [dtype.name, _encode_float(value.item()) if dtype.kind == "f" else value.item()]


def _encode_float(number: float) -> float | str:
    """Return a float that JSON has, or the name of one that it lacks: nan, inf or -inf."""
    return number if number - number == 0 else str(number)


def _decode_numpy(parts: list[Any]) -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise UsageError("a scalar of numpy is stored here: install numpy to read it") from error
    name, *numbers = parts
    if name in ("str_", "bytes_"):
        return np.str_(numbers[0]) if name == "str_" else np.bytes_(numbers[0])
    if not _DTYPE.fullmatch(name):
        raise ValueError(name)
    dtype = np.dtype(name)
    if isinstance(numbers[0], bytes):
        return np.frombuffer(numbers[0], dtype.newbyteorder("<"))[0]
    if dtype.kind in "mM":
        return np.int64(numbers[0]).view(dtype)
    if dtype.kind == "c":
        return dtype.type(complex(*map(float, numbers)))
    return dtype.type(numbers[0])


NUMPY_SCALARS = TypeFamily("numpy", _is_numpy_scalar, _encode_numpy, _decode_numpy)

"""Single values of numpy, such as the `float64` that a mean is. Arrays are refused."""

ALL = (TUPLES, NAIVE_DATETIMES, NUMPY_SCALARS)

"""All of these."""
