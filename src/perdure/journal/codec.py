"""Values ⇄ plain JSON trees, and content ⇄ payload. Pure: decoding imports and executes nothing.

Scalars that JSON lacks are written as an object with one key that begins with `$`, such as
`{"$decimal": "1.50"}`; a caller's own object of that shape is wrapped in `$object`. A value that
cannot be restored exactly is rejected with its path, before anything is written.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any

import msgspec

from perdure.errors import PayloadError, UsageError, VersionError
from perdure.formats.bodies import TAG, Body, Citation, parse_citation, to_tag
from perdure.journal import scalars
from perdure.journal.kinds import KINDS
from perdure.journal.records import SKIPPED_PREFIX, Content, UnknownContent
from perdure.journal.scalars import UnstorableValue, require_unicode
from perdure.journal.user_types import TypeRegistry, Types

DEPTH_MAX = 64  # levels; deeper trees overflow the stack of common JSON parsers

INT_BITS_MAX = 14_000  # bits; Python refuses to print or parse much longer integers

INT_MAX = 2**53 - 1  # JSON parsers of other languages round integers beyond it

PAYLOAD_MAX = 16 * 2**20  # bytes; a record is read into memory whole, larger data is uploaded

UPLOAD_HINT = "store the largest part of it with session.upload(...), and pass what that returns"


Upcast = Callable[[dict[str, Any]], dict[str, Any]]


UPCASTS: dict[tuple[str, int], Upcast] = {}

"""(kind, version) → function that converts a payload of that version to the next version."""


_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder().decode

_decoders = {kind: msgspec.json.Decoder(content).decode for kind, content in KINDS.items()}


class Codec:
    """Packs values into JSON trees and unpacks them, including the caller's registered types.

    A class in `types` is stored under its key there, never under its import path; objects are
    restored only through the class that the reader passes.
    """

    def __init__(self, types: Types | None = None) -> None:
        self._types = TypeRegistry({} if types is None else types)
        self.make_body: Callable[[Citation], Body] = Body
        """Makes what `unpack` returns for a body that is kept apart."""
        self.require_own: Callable[[Body], object] = refuse_body
        """Raises UsageError for a body whose parts are in another session."""

    def copy(self) -> "Codec":
        """Return a codec with the same types, for the bodies of one session."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.make_body, other.require_own = Body, refuse_body
        return other

    def pack(self, value: object, *, root: str = "$") -> Any:
        """Return a JSON tree from which `unpack` restores an equal value, or raise UsageError."""
        try:
            return self._pack_dict(value, 0) if type(value) is dict else self._pack(value, 0)
        except UnstorableValue as error:
            path = root + "".join(reversed(error.path))
            raise UsageError(str(error), path) from error.__cause__
        except RuntimeError as error:  # From iterating over a dict: codecs' errors are converted.
            reason = "another thread or task changed the value while it was encoded"
            raise UsageError(f"{reason}: pass a copy of it", root) from error

    def encode(self, value: object, *, root: str = "$") -> bytes:
        """Return the JSON tree of a value, encoded, or raise UsageError.

        A large value that needs no packing is only looked through: half the time of packing it.
        """
        try:
            if type(value) in _CONTAINERS and _is_plain(value, 0):
                return _encode(value)
        except (RuntimeError, UnicodeEncodeError):
            pass  # Packing raises the error that says what is wrong.
        return _encode(self.pack(value, root=root))

    def unpack(self, tree: Any, *, stream: str = "", position: int = 0) -> Any:
        """Return the value that was packed; raise VersionError for an unknown tag."""
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
                require_unicode(value)
            return value
        if kind is dict:
            return self._pack_dict(value, depth)
        if kind is list:
            return self._pack_list(value, depth)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -INT_MAX <= value <= INT_MAX else _pack_long(value)
        if kind is float:
            if not isfinite(value):
                raise UnstorableValue(f"{value} has no JSON form: store None or a string instead")
            return value
        return self._pack_other(value, kind, depth)

    def _pack_dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        _require_depth(depth)
        packed = {}
        key = None
        try:
            for key, item in value.items():
                if type(key) is not str:
                    raise UnstorableValue(f"a key is {type(key).__name__}, not str: convert it")  # noqa: TRY301
                if not key.isascii():
                    require_unicode(key)
                # Inlined fast path: most values are ASCII text, and a call for each costs more.
                is_ascii = type(item) is str and item.isascii()
                packed[key] = item if is_ascii else self._pack(item, depth + 1)
        except UnstorableValue as error:
            error.path.append(_path_step(key))
            raise
        if len(packed) == 1 and key is not None and key.startswith("$"):
            return {"$object": packed}
        return packed

    def _pack_list(self, value: list[Any], depth: int) -> list[Any]:
        _require_depth(depth)
        packed: list[Any] = []
        try:
            for item in value:
                packed.append(self._pack(item, depth + 1))  # noqa: PERF401 - the path needs len()
        except UnstorableValue as error:
            error.path.append(f"[{len(packed)}]")
            raise
        return packed

    def _pack_other(self, value: Any, kind: type, depth: int) -> Any:
        named = self._types.find(value)
        if named is None and isinstance(value, Body):
            self.require_own(value)
            return to_tag(value.citation)
        if named is None:
            return scalars.pack(value, kind)
        _require_depth(depth)
        tree = {"$type": [named.name, self._pack(named.to_parts(value), depth + 1)]}
        self._types.require_same(named, value, lambda: self._unpack(tree))
        return tree

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
            named = self._types.by_name.get(name)
            if named is None:
                hint = f"open the store with types={{{name!r}: the class}}"
                raise UsageError(f"a stored object has the unknown type {name!r}: {hint}")
            return named.from_parts(self._unpack(parts))
        if tag == TAG:
            return self.make_body(parse_citation(packed))
        return scalars.unpack(tag, packed)


def refuse_body(body: Body) -> None:
    """Raise UsageError for a body of another session."""
    reason = f"a body of {body.size} bytes can be stored in its own session only"
    raise UsageError(f"{reason}: store it in this one with session.upload(body.chunks())")


def encode(content: Content) -> bytes:
    """Return the payload of a record's content, or raise UsageError if it is too large."""
    payload = _encode(content)
    if len(payload) > PAYLOAD_MAX:
        reason = f"{len(payload)} bytes exceed the limit of {PAYLOAD_MAX} for one record"
        raise UsageError(f"{reason}: {UPLOAD_HINT}", "$")
    return payload


TEXT_CHARS_MAX = 8_000  # characters; enough for a model to read, too few for a dump

_DEFAULT_REPR = re.compile(r"<(?:\w+\.|<locals>\.)*(\w+) object at 0x[0-9A-Fa-f]+>")

_ADDRESS = re.compile(r"(<[^<>]*?) at 0x[0-9A-Fa-f]+")


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return type(value).__qualname__.rpartition("<locals>.")[2]


def to_text(value: object, convert: Callable[[Any], str] = repr) -> str:
    """Return a text for a value that cannot be stored, shortened; it can always be stored itself.

    A str is its own text. For others it is that of `convert`, without memory addresses, which would
    differ in every process: a default repr becomes the type's name. So does one that fails.
    """
    try:
        text = value if isinstance(value, str) else convert(value)
        size, text = len(text), text[: 2 * TEXT_CHARS_MAX]
    except Exception:  # noqa: BLE001 - `__repr__` is the application's code
        return type_name(value)
    if not isinstance(value, str):
        text = _ADDRESS.sub(r"\1", _DEFAULT_REPR.sub(r"\1", text))
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[:TEXT_CHARS_MAX]}… (shortened from {size} characters)"
    return text.encode("utf-8", "replace").decode()


def digest_payloads(payloads: Sequence[bytes]) -> str:
    """Return a digest of several payloads, in order."""
    return sha256(b"\0".join(payloads)).hexdigest()[:32]


def encode_tree(tree: Any) -> bytes:
    """Return a packed tree as compact JSON."""
    return _encode(tree)


def decode_tree(data: bytes) -> Any:
    """Return the packed tree that compact JSON encodes."""
    return _decode(data)


def decode(kind: str, payload: bytes, *, stream: str = "", position: int = 0) -> Content:
    """Return the content of a payload, upcast to the current version of its kind."""
    cls = KINDS.get(kind)
    if cls is None and kind.startswith(SKIPPED_PREFIX):
        return _decode_unknown(kind, payload, stream, position)
    if cls is None:
        raise VersionError(f"{stream!r} entry {position}", f"a record kind {kind!r}", "")
    try:
        content = _decoders[kind](payload)
        if content.v == cls.schema:
            return content
    except msgspec.ValidationError:
        content = None  # It may be an older version; otherwise `convert` raises below.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(stream, position, f"not {with_article(kind)} record") from error
    return _upcast(cls, _decode(payload), stream, position)


def with_article(kind: str) -> str:
    """Return the name of a kind with its article, for the texts of errors."""
    return f"an {kind}" if kind[:1] in "aeio" else f"a {kind}"


def _decode_unknown(kind: str, payload: bytes, stream: str, position: int) -> Content:
    try:
        return UnknownContent(data=_decode(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(stream, position, f"not {with_article(kind)} record") from error


def _upcast(cls: type[Content], data: Any, stream: str, position: int) -> Content:
    try:
        version = data.get("v", 1)
        if version > cls.schema:
            what = f"{stream!r} entry {position} of kind {cls.kind!r}"
            raise VersionError(what, str(version), str(cls.schema))
        for number in range(version, cls.schema):
            data = {**UPCASTS[cls.kind, number](data), "v": number + 1}
        unknown = data.keys() - {*cls.__struct_fields__}
        if unknown:  # A newer version of perdure added it: refused, because it may change the rest.
            what = f"{stream!r} entry {position} of kind {cls.kind!r}"
            raise VersionError(what, f"a field {min(unknown)!r}", "")
        return msgspec.convert(data, cls)
    except (msgspec.ValidationError, AttributeError, TypeError, LookupError) as error:
        raise PayloadError(stream, position, f"not {with_article(cls.kind)} record") from error


_CONTAINERS = (dict, list)


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a dict or a list is its own JSON tree, except for text that UTF-8 cannot encode."""
    if depth >= DEPTH_MAX:
        return False
    items = value
    if type(value) is dict:
        items = value.values()
        for key in value:
            if type(key) is not str or (key[:1] == "$" and len(value) == 1):
                return False
    for item in items:
        kind = type(item)
        if not (
            kind is str
            or (kind is int and -INT_MAX <= item <= INT_MAX)
            or (kind in _CONTAINERS and _is_plain(item, depth + 1))
            or (kind is float and isfinite(item))
            or item is None
            or kind is bool
        ):
            return False
    return True


def _pack_long(value: int) -> dict[str, str]:
    if value.bit_length() > INT_BITS_MAX:
        raise UnstorableValue(f"an integer of more than {INT_BITS_MAX} bits cannot be stored")
    return {"$int": str(value)}


def _require_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise UnstorableValue(f"nested deeper than {DEPTH_MAX} levels, or contains itself")


def _path_step(key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}"
    return f"[{str(key)[:40]!r}]"
