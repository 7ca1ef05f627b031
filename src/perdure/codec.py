"""Values ⇄ plain JSON trees, and content ⇄ payload. Pure: decoding imports and executes nothing.

JSON has too few scalars, so those it lacks are written as an object with one key that begins with
`$`, such as `{"$decimal": "1.50"}`; a caller's own object of that shape is wrapped in `$object`.
What can not come back exactly as it was is refused with its path, before anything is written.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timezone, tzinfo
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from perdure.errors import PayloadError, UsageError, VersionError
from perdure.records import KINDS, Content

DEPTH_MAX = 64  # Deeper trees exhaust the stack of ordinary JSON readers.
INT_BITS_MAX = 14_000  # Python itself refuses to print or parse integers much longer than this.
PAYLOAD_MAX = 16 * 2**20  # A record is read whole into memory; larger things belong in files.

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTS: dict[tuple[str, int], Upcast] = {}
"""(kind, version) → what turns that version's payload into the next one's."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decoders = {kind: msgspec.json.Decoder(content).decode for kind, content in KINDS.items()}


class TypeCodec(NamedTuple):
    """How objects of one class are stored: `encode` gives storable parts, `decode` takes them."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Carries the path of a value while the stack unwinds; costs nothing when all is well."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


class Codec:
    """Packs values into JSON trees and back, with the caller's own types where they were given.

    A class in `types` is stored under its name there and never under its import path; objects come
    back only through the class that the reader passes.
    """

    def __init__(self, types: Mapping[str, type | TypeCodec] | None = None) -> None:
        self._by_name = {name: _type_codec(name, given) for name, given in (types or {}).items()}
        self._by_class = {codec.cls: (name, codec) for name, codec in self._by_name.items()}

    def pack(self, value: object, *, root: str = "$") -> Any:
        """Return a JSON tree from which `unpack` makes an equal value, or raise UsageError."""
        try:
            return self._pack(value, 0)
        except _Refused as refused:
            raise UsageError(str(refused), root + "".join(reversed(refused.path))) from None

    def unpack(self, tree: Any, *, stream: str = "", position: int = 0) -> Any:
        """Return the value that was packed. An unknown tag is VersionError."""
        try:
            return self._unpack(tree)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            if isinstance(error, UsageError):
                raise
            raise PayloadError(stream, position, "a tagged scalar does not parse") from error

    def _pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            if not value.isascii():
                _require_unicode(value)
            return value
        if kind is dict:
            return self._pack_dict(value, depth)
        if kind is list:
            return self._pack_list(value, depth)
        if value is None or kind is bool:
            return value
        if kind is int:
            if value.bit_length() > INT_BITS_MAX:
                raise _Refused(f"an integer of more than {INT_BITS_MAX} bits can not be stored")
            return value
        if kind is float:
            if not isfinite(value):
                raise _Refused(f"{value} has no JSON form: store None or a string instead")
            return value
        return self._pack_other(value, kind, depth)

    def _pack_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        if depth >= DEPTH_MAX:
            raise _Refused(f"nested deeper than {DEPTH_MAX} levels, or containing itself")
        packed = {}
        key = None
        try:
            for key, item in value.items():
                if type(key) is not str:
                    raise _Refused(f"a key is {type(key).__name__}, not str: convert it")  # noqa: TRY301
                if not key.isascii():
                    _require_unicode(key)
                packed[key] = self._pack(item, depth + 1)
        except _Refused as refused:
            refused.path.append(_step(key))
            raise
        if len(packed) == 1 and key is not None and key.startswith("$"):
            return {"$object": packed}
        return packed

    def _pack_list(self, value: list[Any], depth: int) -> list[Any]:
        if depth >= DEPTH_MAX:
            raise _Refused(f"nested deeper than {DEPTH_MAX} levels, or containing itself")
        packed: list[Any] = []
        try:
            for item in value:
                packed.append(self._pack(item, depth + 1))  # noqa: PERF401 - the path needs len()
        except _Refused as refused:
            refused.path.append(f"[{len(packed)}]")
            raise
        return packed

    def _pack_other(self, value: Any, kind: type, depth: int) -> Any:
        named = self._by_class.get(kind)
        if named is not None:
            name, codec = named
            return {"$type": [name, self._pack(codec.encode(value), depth + 1)]}
        scalar = _PACK.get(kind)
        if scalar is None:
            advice = _ADVICE.get(kind, "pass a codec for it in `types`, or convert it")
            raise _Refused(f"{kind.__qualname__} can not be stored: {advice}")
        return scalar(value)

    def _unpack(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is list:
            return [self._unpack(item) for item in tree]
        if kind is not dict:
            return tree
        if len(tree) == 1:
            ((tag, packed),) = tree.items()
            if tag.startswith("$"):
                return self._unpack_tag(tag, packed)
        return {key: self._unpack(item) for key, item in tree.items()}

    def _unpack_tag(self, tag: str, packed: Any) -> Any:
        if tag == "$object":
            return {key: self._unpack(item) for key, item in packed.items()}
        if tag == "$type":
            name, parts = packed
            if name not in self._by_name:
                hint = f"open the store with types={{{name!r}: the class}}"
                raise UsageError(f"a stored object is of the type {name!r}: {hint}")
            return self._by_name[name].decode(self._unpack(parts))
        scalar = _UNPACK.get(tag)
        if scalar is None:
            raise VersionError("a tagged scalar", tag, ", ".join(_UNPACK))
        return scalar(packed)


def encode(content: Content) -> bytes:
    """Return the payload of some content, or raise UsageError if it is too large."""
    payload = _encode(content)
    if len(payload) > PAYLOAD_MAX:
        reason = f"{len(payload)} bytes are more than the {PAYLOAD_MAX} of one record"
        raise UsageError(f"{reason}: keep it in a file and store its name and digest", "$")
    return payload


def encode_tree(tree: Any) -> bytes:
    """Return a packed tree as compact JSON."""
    return _encode(tree)


def decode_tree(data: bytes) -> Any:
    """Return the packed tree that compact JSON stands for."""
    return _decode(data)


def decode(kind: str, payload: bytes, *, stream: str = "", position: int = 0) -> Content:
    """Return the content of a payload, brought up to the version that this perdure knows."""
    cls = KINDS.get(kind)
    if cls is None:
        raise VersionError(f"{stream!r} entry {position} of kind {kind!r}", kind, ", ".join(KINDS))
    try:
        content = _decoders[kind](payload)
        if content.v == cls.schema:
            return content
    except msgspec.ValidationError:
        content = None  # An older version may not fit; if this one does not, `convert` says so.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(stream, position, f"not a {kind} record") from error
    return _upcast(cls, _decode(payload), stream, position)


def _upcast(cls: type[Content], data: Any, stream: str, position: int) -> Content:
    try:
        version = data.get("v", 1)
        if version > cls.schema:
            what = f"{stream!r} entry {position} of kind {cls.kind!r}"
            raise VersionError(what, str(version), str(cls.schema))
        for number in range(version, cls.schema):
            data = {**UPCASTS[cls.kind, number](data), "v": number + 1}
        return msgspec.convert(data, cls)
    except (msgspec.ValidationError, AttributeError, TypeError, LookupError) as error:
        raise PayloadError(stream, position, f"not a {cls.kind} record") from error


def _type_codec(name: str, given: type | TypeCodec) -> TypeCodec:
    if isinstance(given, TypeCodec):
        return given
    if hasattr(given, "model_validate"):  # pydantic, without depending on it
        return TypeCodec(given, lambda value: value.model_dump(), given.model_validate)
    if hasattr(given, "__dataclass_fields__"):
        fields = tuple(given.__dataclass_fields__)
        return TypeCodec(
            given,
            lambda value: {field: getattr(value, field) for field in fields},
            lambda parts: given(**parts),
        )
    reason = f"{name!r} is neither a dataclass nor a pydantic model"
    raise UsageError(f"{reason}: give a TypeCodec(cls, encode, decode) for it")


def _step(key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{str(key)[:40]!r}]"


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"a lone surrogate at index {error.start} is not a character"
        raise _Refused(f"{reason}: clean the text with errors='replace'") from None


def _pack_datetime(value: datetime) -> dict[str, Any]:
    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key is not None:
        _require_listed(value, zone.key)
        return {"$datetime": [value.isoformat(), zone.key, value.fold]}
    if type(zone) is timezone:
        return _pack_fixed(value, zone)
    if zone is None:
        raise _Refused("a datetime without a zone is ambiguous: give it one, such as timezone.utc")
    raise _Refused(f"the zone is a {type(zone).__name__}: use zoneinfo.ZoneInfo or timezone.utc")


def _require_listed(value: datetime, key: str) -> None:
    """Refuse a zone that a reader would not find, or one made from another file than its key's."""
    if not _is_listed(key):
        raise _Refused(f"this machine does not list the zone {key!r}: use one that it lists")
    if value.replace(tzinfo=_zones[key]).utcoffset() != value.utcoffset():
        raise _Refused(f"the zone {key!r} has other rules than this machine's: use the machine's")


def _pack_fixed(value: datetime, zone: timezone) -> dict[str, Any]:
    """A name that was given to a fixed offset is part of it: timezone(offset, "CET")."""
    name = zone.tzname(None)
    _require_unicode(name)
    if name != timezone(zone.utcoffset(None)).tzname(None):
        return {"$datetime": [value.isoformat(), "=" + name, value.fold]}
    return {"$datetime": [value.isoformat(), "", 1] if value.fold else value.isoformat()}


def _unpack_datetime(packed: Any) -> datetime:
    if isinstance(packed, str):
        return _utc(datetime.fromisoformat(packed))
    text, zone, fold = packed
    zone = _text(zone)
    stored = datetime.fromisoformat(text)
    if not zone:
        return _utc(stored).replace(fold=fold)
    if zone.startswith("="):
        offset = stored.utcoffset()
        if offset is None:
            raise ValueError(text)
        return stored.replace(tzinfo=timezone(offset, zone[1:]), fold=fold)
    local = stored.replace(tzinfo=_zone(zone), fold=fold)
    # Rules of zones change; the instant that was stored does not.
    return local if local.utcoffset() == stored.utcoffset() else stored.astimezone(local.tzinfo)


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(value)
    return value.replace(tzinfo=UTC) if not value.utcoffset() else value


_zones: dict[str, ZoneInfo] = {}


def _zone(key: str) -> tzinfo:
    # Only names that this machine lists are looked up: stored text must never choose a path or
    # an import (zoneinfo falls back to importing a package named after the key).
    if not _is_listed(key):
        raise UsageError(f"this machine does not know the time zone {key!r}: install tzdata")
    return _zones[key]


def _is_listed(key: str) -> bool:
    if key not in _zones:
        if not re.fullmatch(r"[A-Za-z0-9_+\-/]{1,64}", key) or key not in available_timezones():
            return False
        _zones[key] = ZoneInfo(key)
    return True


def _pack_decimal(value: Decimal) -> dict[str, str]:
    if not value.is_finite():
        raise _Refused(f"{value} has no exact form: store None or a string instead")
    return {"$decimal": str(value)}


def _text(packed: Any) -> str:
    if type(packed) is not str:
        raise TypeError(type(packed))
    return packed


_PACK: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
    datetime: _pack_datetime,
    date: lambda value: {"$date": value.isoformat()},
    Decimal: _pack_decimal,
    UUID: lambda value: {"$uuid": str(value)},
}

_UNPACK: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda packed: base64.b64decode(_text(packed), validate=True),
    "$datetime": _unpack_datetime,
    "$date": lambda packed: date.fromisoformat(_text(packed)),
    "$decimal": lambda packed: Decimal(_text(packed)),
    "$uuid": lambda packed: UUID(_text(packed)),
}

_ADVICE: dict[type, str] = {
    tuple: "it would come back as a list: pass list(...), or a codec in `types`",
    set: "it has no order: pass sorted(...), or a codec in `types`",
    frozenset: "it has no order: pass sorted(...), or a codec in `types`",
    bytearray: "pass bytes(...)",
    memoryview: "pass bytes(...)",
}
