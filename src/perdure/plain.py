"""Convert SDK objects to plain data: dicts, lists and scalars.

Objects come in, plain data goes out. Pure; no SDK is imported.

An object is converted by its own export methods, with the provider's field names. Unset fields are
omitted for an SDK object (the provider did not send them) and kept for any other (its class means
the default).
"""

from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from perdure.errors import UsageError

# levels; deeper trees are left as they are, and `codec` rejects them with their path
_DEPTH_MAX = 100

_ATOMS = frozenset({str, int, float, bool, type(None)})
_STORABLE = frozenset({bytes, date, Decimal})


def is_sdk_object(value: object) -> bool:
    """Whether a value is a model of the OpenAI or Anthropic SDK, or of a similar one."""
    kind = type(value)
    return hasattr(kind, "to_dict") and hasattr(kind, "model_dump")


def field_of(value: object, name: str) -> Any:
    """Return a field of a dict or an attribute of an object; None if missing."""
    return value.get(name) if type(value) is dict else getattr(value, name, None)


def dump(value: object, *, mode: str = "python") -> Any:
    """Return the result of an object's own export method; None if it has none.

    An SDK object exports to plain data, except for values parsed into the user's own classes.
    """
    kind = type(value)
    try:
        if is_sdk_object(value):
            if hasattr(kind, "__pydantic_validator__"):
                # SDKs build objects without validation, and parsed ones differ from their
                # annotations: pydantic would warn about both.
                return value.to_dict(mode=mode, warnings=False)  # type: ignore[attr-defined]
            return value.to_dict()  # type: ignore[attr-defined]
        if hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_dump"):
            return value.model_dump(mode=mode, by_alias=True, warnings=False)  # type: ignore[attr-defined]
        if hasattr(kind, "__fields__") and hasattr(kind, "parse_obj"):
            return value.dict(by_alias=True)  # type: ignore[attr-defined]
        if isinstance(value, msgspec.Struct):
            return msgspec.to_builtins(value, builtin_types=(bytes, datetime, date, Decimal))
    except (ValueError, TypeError, RecursionError) as error:
        name = kind.__qualname__
        reason = f"a {name} cannot be exported"
        raise UsageError(f"{reason}: convert it to a dict of plain JSON data first") from error
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    return dict(value) if isinstance(value, Mapping) else None


def exported(value: object) -> dict[str, Any] | None:
    """Return an object as plain data; None if it cannot be exported.

    Tuples and sets become lists, enums their values. Bytes, dates and decimals are kept: `codec`
    packs them. If a pydantic model contains any other value, its JSON form is used.
    """
    data = dump(value)
    if not isinstance(data, dict):
        return None
    foreign: list[object] = []
    plain: dict[str, Any] = _plain(data, foreign, 0)
    if foreign and hasattr(type(value), "__pydantic_validator__"):
        plain = _plain(dump(value, mode="json"), foreign, 0)
    return plain


def plain_parts(parts: Any) -> Any:
    """Return a list with its SDK objects exported; the same list if it has none."""
    if type(parts) is not list:
        return parts
    if any(type(part) is not dict and is_sdk_object(part) for part in parts):
        return [exported(part) if is_sdk_object(part) else part for part in parts]
    return parts


def _plain(value: Any, foreign: list[object], depth: int) -> Any:
    """Return a value as plain data; values without a plain form stay and go into `foreign`."""
    kind = type(value)
    if kind in _ATOMS or depth > _DEPTH_MAX:
        return value
    if kind is dict:
        return {key: _plain(item, foreign, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, foreign, depth + 1) for item in value]
    if isinstance(value, Enum):
        return _plain(value.value, foreign, depth + 1)
    if isinstance(value, set | frozenset):
        return [_plain(item, foreign, depth + 1) for item in sorted(value, key=repr)]
    if isinstance(value, str):
        return str(value)
    if _is_storable(value, kind):
        return value
    data = dump(value)
    if data is None:
        foreign.append(value)
        return value
    return _plain(data, foreign, depth + 1)


def _is_storable(value: Any, kind: type) -> bool:
    if kind is datetime:
        zone = type(value.tzinfo)
        return zone is timezone or zone.__name__ == "ZoneInfo"
    return kind in _STORABLE or kind.__name__ == "UUID"
