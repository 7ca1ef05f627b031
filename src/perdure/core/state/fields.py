"""Fields of a session: small typed values by which listings find and sort sessions. Pure.

In: values of callers, or of records. Out: texts whose order by code points is that of the values,
as the labels of a head have them (`perdure.backends.fields`), and the values again.

Editing: the texts are stored in heads and snapshots. They are part of the format.
"""

import struct
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from perdure.backends.fields import FIELD_MARK, FIELDS_MAX
from perdure.core.validation import require_text
from perdure.errors import DamagedError, UsageError
from perdure.journal import scalars

FieldValue = str | int | float | bool | datetime

NAME_BYTES_MAX = 63  # bytes of UTF-8

TEXT_BYTES_MAX = 255  # bytes of UTF-8; name, mark and text fit into a label, encrypted or not

INTEGER_MAX = 2**53 - 1  # a double has every integer up to this one, so all numbers have one order

# The first character of a text is the type of its value; a field's values are sorted by it first.
BOOL, NUMBER, TEXT, TIME = "b", "n", "s", "t"

_SIGN = 1 << 63


def encode_value(value: object, what: str) -> str:
    """Return a value as a text that sorts as the value does; UsageError if it cannot be one."""
    if isinstance(value, bool):
        return BOOL + ("1" if value else "0")
    if type(value) is str:
        return TEXT + require_text(value, what, longest=TEXT_BYTES_MAX)
    if type(value) is int or type(value) is float:
        return NUMBER + _encode_number(value, what)
    if isinstance(value, datetime):
        moment = require_time(value, what).replace(tzinfo=None)
        return f"{TIME}{moment.isoformat(timespec='microseconds')}Z"
    allowed = "str, int, float, bool or a datetime with a zone"
    raise UsageError(f"{what} must be {allowed}, not {type(value).__name__}")


def require_time(value: datetime, what: str) -> datetime:
    """Return a time in UTC; raise UsageError if it has no zone."""
    if value.utcoffset() is None:
        raise UsageError(f"{what} is a datetime without a zone: add one, such as timezone.utc")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise UsageError(
            f"{what} is a datetime that UTC cannot express: use one of the years 1 to 9999"
        ) from error


def encode_stored(value: Any, name: str) -> str:
    """Return the text of a value as a record has it; LookupError if it cannot be one."""
    try:
        if type(value) is dict:
            ((tag, packed),) = value.items()
            value = scalars.unpack(tag, packed)
        return encode_value(value, name)
    except (UsageError, ValueError, TypeError, AttributeError) as error:
        raise LookupError(name) from error


def _encode_number(value: float, what: str) -> str:
    if type(value) is int and abs(value) > INTEGER_MAX:
        raise UsageError(f"{what} is an integer beyond {INTEGER_MAX}: store it as a text")
    number = float(value) + 0.0  # Turns -0.0 into 0.0.
    if number - number != 0.0:
        raise UsageError(f"{what} is not a finite number and cannot be sorted: leave the field out")
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    # Doubles sort as integers do, once the sign is inverted, and all bits of negative ones.
    return f"{bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN:016x}"


def decode_value(text: str) -> FieldValue:
    """Return the value of a text. A whole number is an int. ValueError if it is not one."""
    kind, rest = text[:1], text[1:]
    if kind == TEXT:
        return rest
    if kind == BOOL:
        return rest == "1"
    if kind == TIME:
        return datetime.fromisoformat(rest).astimezone(UTC)
    if kind != NUMBER:
        raise ValueError(text)
    bits = int(rest, 16)
    bits = bits & ~_SIGN if bits & _SIGN else bits ^ (2 * _SIGN - 1)
    (number,) = struct.unpack(">d", bits.to_bytes(8))
    return int(number) if number.is_integer() and abs(number) <= INTEGER_MAX else float(number)


def require_name(name: object) -> str:
    """Return the name of a field, or raise UsageError that says what is wrong with it.

    It is normalized as Python does with a keyword, so that `where` finds what `describe` stored.
    """
    if type(name) is not str or not name.isidentifier():
        raise UsageError(f"the name of a field must be a Python identifier, not {name!r:.80}")
    name = unicodedata.normalize("NFKC", name)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"the name of a field has at most {NAME_BYTES_MAX} bytes of UTF-8")
    if name in {"id", "changed"}:
        raise UsageError(f"every session has {name!r} already: choose another name for the field")
    return name


def require_room(count: int) -> None:
    """Raise UsageError if a session would have too many fields."""
    if count > FIELDS_MAX:
        raise UsageError(f"a session has at most {FIELDS_MAX} fields: remove one with None first")


def labels_of(fields: dict[str, str]) -> frozenset[str]:
    """Return the labels of a head with these fields, given as texts."""
    return frozenset([name + FIELD_MARK + text for name, text in fields.items()])


def split_labels(stream: str, labels: Iterable[str]) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the labels of a head without its fields, and the values of its fields by name."""
    own, fields = set(), {}
    for label in labels:
        name, mark, text = label.partition(FIELD_MARK)
        if mark:
            fields[name] = text
        else:
            own.add(label)
    return frozenset(own), decode_fields(stream, fields)


def decode_fields(stream: str, fields: dict[str, str]) -> dict[str, Any]:
    """Return the values of fields, sorted by name; DamagedError if a text is not a value."""
    try:
        return {name: decode_value(fields[name]) for name in sorted(fields)}
    except (ValueError, OverflowError) as error:
        raise DamagedError(stream, 0, "a field of its head cannot be read") from error
