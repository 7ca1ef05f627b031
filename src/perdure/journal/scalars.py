"""The scalars that JSON lacks, as objects with one key that begins with `$`. Pure.

`uuid` and `zoneinfo` are imported on first use: few applications need them, and each makes
`import perdure` 10 % slower. Unpacking never imports anything chosen by stored data.
"""

import base64
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timezone, tzinfo
from decimal import Decimal
from typing import Any

from perdure.errors import UsageError, VersionError


class UnstorableValue(Exception):  # noqa: N818 - `codec` converts it
    """A value cannot be stored. Its path is collected while the stack unwinds: success is free."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def pack(value: Any, kind: type) -> dict[str, Any]:
    """Return the tagged form of a scalar, or raise UnstorableValue."""
    packer = _PACK.get(kind)
    if packer is not None:
        return packer(value)
    if kind.__name__ == "UUID" and kind is _uuid_class():
        return {"$uuid": str(value)}
    advice = _ADVICE.get(kind, "pass a codec for it in `types`, or convert it")
    raise UnstorableValue(f"{kind.__qualname__} cannot be stored: {advice}")


def unpack(tag: str, packed: Any) -> Any:
    """Return the scalar of a tagged form; raise VersionError for an unknown tag."""
    unpacker = _UNPACK.get(tag)
    if unpacker is None:
        raise VersionError("a tagged scalar", tag, ", ".join(_UNPACK))
    return unpacker(packed)


def require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"a lone surrogate at index {error.start} is not a character"
        raise UnstorableValue(f"{reason}: clean the text with errors='replace'") from None


def _pack_datetime(value: datetime) -> dict[str, Any]:
    zone = value.tzinfo
    if zone is not None and _is_zone_info(zone):
        key: str = zone.key  # type: ignore[attr-defined]
        _require_installed(value, key)
        return {"$datetime": [value.isoformat(), key, value.fold]}
    if type(zone) is timezone:
        return _pack_fixed(value, zone)
    if zone is None:
        raise UnstorableValue(
            "a datetime without a zone is ambiguous: add one, such as timezone.utc, or open the "
            "store with types=[perdure.types.NAIVE_DATETIMES]"
        )
    hint = "use zoneinfo.ZoneInfo or timezone.utc"
    raise UnstorableValue(f"tzinfo is a {type(zone).__name__}: {hint}")


def _require_installed(value: datetime, key: str) -> None:
    """Reject a zone that a reader would not find, or whose rules differ from those of its key."""
    zone = _find_zone(key)
    if zone is None:
        raise UnstorableValue(f"this machine has no time zone {key!r}: use an installed one")
    if value.replace(tzinfo=zone).utcoffset() != value.utcoffset():
        reason = f"the rules of zone {key!r} differ from this machine's"
        raise UnstorableValue(f"{reason}: use ZoneInfo({key!r})")


def _pack_fixed(value: datetime, zone: timezone) -> dict[str, Any]:
    """Pack a datetime with a fixed offset, and its name if it has one: timezone(offset, "CET")."""
    name = zone.tzname(None)
    require_unicode(name)
    if name != timezone(zone.utcoffset(None)).tzname(None):
        return {"$datetime": [value.isoformat(), "=" + name, value.fold]}
    return {"$datetime": [value.isoformat(), "", 1] if value.fold else value.isoformat()}


def _unpack_datetime(packed: Any) -> datetime:
    if isinstance(packed, str):
        return _normalize_utc(datetime.fromisoformat(packed))
    text, zone, fold = packed
    zone = _require_text(zone)
    stored = datetime.fromisoformat(text)
    if not zone:
        return _normalize_utc(stored).replace(fold=fold)
    if zone.startswith("="):
        offset = stored.utcoffset()
        if offset is None:
            raise ValueError(text)
        return stored.replace(tzinfo=timezone(offset, zone[1:]), fold=fold)
    installed = _find_zone(zone)
    if installed is None:
        raise UsageError(f"this machine has no time zone {zone!r}: install tzdata")
    local = stored.replace(tzinfo=installed, fold=fold)
    # Zone rules change; the stored instant does not.
    return local if local.utcoffset() == stored.utcoffset() else stored.astimezone(local.tzinfo)


def _normalize_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(value)
    return value.replace(tzinfo=UTC) if not value.utcoffset() else value


_zone_cache: dict[str, tzinfo] = {}


def _find_zone(key: str) -> tzinfo | None:
    """Return the zone of a name, or None if this machine does not have it."""
    # Look up only installed names: stored text must never choose a path or an import (zoneinfo
    # falls back to importing a package named after the key).
    if key not in _zone_cache:
        from zoneinfo import ZoneInfo, available_timezones

        if not re.fullmatch(r"[A-Za-z0-9_+\-/]{1,64}", key) or key not in available_timezones():
            return None
        _zone_cache[key] = ZoneInfo(key)
    return _zone_cache[key]


def _pack_decimal(value: Decimal) -> dict[str, str]:
    if not value.is_finite():
        raise UnstorableValue(f"{value} has no exact form: store None or a string instead")
    return {"$decimal": str(value)}


def _require_text(packed: Any) -> str:
    if type(packed) is not str:
        raise TypeError(type(packed))
    return packed


def _is_zone_info(zone: tzinfo) -> bool:
    if type(zone).__name__ != "ZoneInfo":
        return False
    from zoneinfo import ZoneInfo

    return type(zone) is ZoneInfo and zone.key is not None


def _uuid_class() -> Any:
    from uuid import UUID

    return UUID


_PACK: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
    datetime: _pack_datetime,
    date: lambda value: {"$date": value.isoformat()},
    Decimal: _pack_decimal,
}


_UNPACK: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda packed: base64.b64decode(_require_text(packed), validate=True),
    "$datetime": _unpack_datetime,
    "$date": lambda packed: date.fromisoformat(_require_text(packed)),
    "$int": lambda packed: int(_require_text(packed)),
    "$decimal": lambda packed: Decimal(_require_text(packed)),
    "$uuid": lambda packed: _uuid_class()(_require_text(packed)),
}


_ADVICE: dict[type, str] = {
    tuple: "it would come back as a list: pass list(...), or types=[perdure.types.TUPLES]",
    set: "it has no order: pass sorted(...), or a codec in `types`",
    frozenset: "it has no order: pass sorted(...), or a codec in `types`",
    bytearray: "pass bytes(...)",
    memoryview: "pass bytes(...)",
}
