"""Objects of the caller's registered classes ⇄ storable parts. Pure.

A class may omit, transform or derive fields when an object is rebuilt, and storing it would not
notice. So an object is rebuilt from its parts and compared before anything is written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import EnumMeta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from perdure.errors import UsageError
from perdure.journal.scalars import UnstorableValue


class TypeCodec(NamedTuple):
    """How objects of one class are stored: `encode` returns storable parts, `decode` rebuilds."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class TypeFamily(NamedTuple):
    """How the values that `matches` accepts are stored, such as scalars of numpy: see `TypeCodec`.

    `name` is their name in the store, unless the caller gives another one.
    """

    name: str
    matches: Callable[[Any], bool]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


Registered: TypeAlias = type | TypeCodec | TypeFamily

Types: TypeAlias = Mapping[str, Registered] | Sequence[Registered]

"""Registered classes by their names in the store, or a list of classes that have a name."""


class NamedType(NamedTuple):
    """A registered class or family, and its name in the store."""

    name: str
    codec: TypeCodec | TypeFamily
    is_custom: bool = False
    """Whether `codec` also decides what has to be preserved: it was not derived from a class."""

    def to_parts(self, value: Any) -> Any:
        """Return the storable parts of an object, or raise UnstorableValue."""
        try:
            return self.codec.encode(value)
        except Exception as error:
            reason = f"an object of type {self.name!r} cannot be encoded"
            raise UnstorableValue(f"{reason} ({type(error).__name__})") from error

    def from_parts(self, parts: Any) -> Any:
        """Rebuild an object from its stored parts; raise UsageError if the class does not fit."""
        try:
            return self.codec.decode(parts)
        except UsageError:
            raise
        except Exception as error:
            reason = f"a stored {self.name!r} does not fit the class registered for it"
            hint = "open the store with a class or a TypeCodec that fits"
            raise UsageError(f"{reason} ({type(error).__name__}): {hint}") from error


class TypeRegistry:
    """The registered classes of a store, by name and by class."""

    def __init__(self, types: Types) -> None:
        named_types = [_named_type(name, item) for name, item in _names(types).items()]
        self.by_name = {named.name: named for named in named_types}
        codecs = [(named, named.codec) for named in named_types]
        self._by_class = {codec.cls: named for named, codec in codecs if type(codec) is TypeCodec}
        self._families = [(codec, named) for named, codec in codecs if type(codec) is TypeFamily]

    def find(self, value: Any) -> NamedType | None:
        """Return the registered class or family of a value; a class comes first."""
        named = self._by_class.get(type(value))
        if named is None and self._families:
            matching = (named for family, named in self._families if family.matches(value))
            return next(matching, None)
        return named

    def require_same(self, named: NamedType, value: Any, rebuild: Callable[[], Any]) -> None:
        """Raise UnstorableValue unless the rebuilt object equals the original."""
        reason = f"an object of type {named.name!r} would not be restored unchanged"
        hint = "pass a TypeCodec(cls, encode, decode) that preserves what matters"
        try:
            path = self._difference(value, rebuild(), "")
        except Exception as error:
            raise UnstorableValue(f"{reason}: {hint} ({type(error).__name__})") from error
        if path is not None:
            where = f" (it differs at {path})" if path else ""
            raise UnstorableValue(f"{reason}{where}: {hint}")

    def _difference(self, original: Any, rebuilt: Any, path: str) -> str | None:
        """Return the path at which two values differ, or None if they do not."""
        kind = type(original)
        if type(rebuilt) is not kind:
            return path
        if kind is dict:
            if original.keys() != rebuilt.keys():
                return path
            nested = [(original[key], rebuilt[key], f"{path}.{key}") for key in original]
        elif kind is list:
            if len(original) != len(rebuilt):
                return path
            nested = [(*pair, path) for pair in zip(original, rebuilt, strict=True)]
        else:
            return self._object_difference(original, rebuilt, path)
        paths = (self._difference(*values) for values in nested)
        return next((differing for differing in paths if differing is not None), None)

    def _object_difference(self, original: Any, rebuilt: Any, path: str) -> str | None:
        named = self.find(original)
        if named is not None and named.is_custom:
            if _is_equal(original, rebuilt):
                return None
            to_comparable: Callable[[Any], Any] | None = named.codec.encode
        else:
            to_comparable = _comparable(type(original))
        if to_comparable is None:
            return None if _is_equal(original, rebuilt) else path
        return self._difference(to_comparable(original), to_comparable(rebuilt), path)


def _comparable(kind: type) -> Callable[[Any], Any] | None:
    """Return a function from object to everything that must match; None if `==` decides."""
    if hasattr(kind, "__pydantic_private__"):
        return _model_state
    if isinstance(kind, EnumMeta):
        return None
    if hasattr(kind, "__dataclass_fields__"):
        return partial(_read_fields, _dataclass_fields(kind))
    return _tuple_state if hasattr(kind, "_fields") and issubclass(kind, tuple) else None


def _tuple_state(value: Any) -> list[Any]:
    """Return the fields of a named tuple, and the attributes that a subclass may have."""
    return [*value, getattr(value, "__dict__", {})]


def _names(types: Types) -> dict[str, Registered]:
    """Return registered classes by name: a class in a list is stored under its own name."""
    if isinstance(types, Mapping):
        return dict(types)
    if isinstance(types, str | type | TypeCodec | TypeFamily) or not isinstance(types, Iterable):
        hint = 'a list of classes such as [Claim], or a dict such as {"Claim": Claim}'
        raise UsageError(f"types must be {hint}")
    names: dict[str, Registered] = {}
    for registered in types:
        match registered:
            case TypeFamily():
                name = registered.name
            case TypeCodec():
                name = registered.cls.__name__
            case _:
                name = getattr(registered, "__name__", type(registered).__name__)
        if names.setdefault(name, registered) is not registered:
            raise UsageError(f"two types are named {name!r}: pass a dict that names them")
    return names


def _is_equal(original: Any, rebuilt: Any) -> bool:
    """Whether `==` returns exactly True; arrays return an array, which decides nothing."""
    try:
        return (original == rebuilt) is True
    except Exception:  # noqa: BLE001 - `__eq__` is the application's code
        return False


def _model_state(model: Any) -> dict[str, Any]:
    """Return all fields of a pydantic model: declared, extra and private."""
    extra, private = model.__pydantic_extra__ or {}, model.__pydantic_private__ or {}
    return {**_model_fields(model), **extra, **private}


def _named_type(name: str, registered: Registered) -> NamedType:
    if isinstance(registered, TypeCodec | TypeFamily):
        return NamedType(name, registered, is_custom=True)
    if hasattr(registered, "model_validate"):  # pydantic, without depending on it
        return NamedType(name, TypeCodec(registered, _dump_model, registered.model_validate))
    if isinstance(registered, EnumMeta):
        return NamedType(name, TypeCodec(registered, attrgetter("value"), registered))
    if hasattr(registered, "__dataclass_fields__"):
        return _dataclass_type(name, registered)
    if hasattr(registered, "_fields") and issubclass(registered, tuple):
        fields: tuple[str, ...] = registered._fields  # type: ignore[attr-defined]
        return NamedType(
            name,
            TypeCodec(registered, partial(_read_fields, fields), lambda parts: registered(**parts)),
        )
    reason = f"{name!r} is no dataclass, pydantic model, enum or named tuple"
    raise UsageError(f"{reason}: pass a TypeCodec(cls, encode, decode) for it")


def _dump_model(model: Any) -> Any:
    """Dump a pydantic model so that it validates again: by field name, else by alias."""
    # Warnings are off because `require_same` finds what pydantic would warn about.
    options = {"round_trip": True, "warnings": False}
    by_name = model.model_dump(**options)
    rebuilt = _try_validate(type(model), by_name)
    is_same = rebuilt is not None and _is_equal(_model_fields(rebuilt), _model_fields(model))
    return by_name if is_same else model.model_dump(by_alias=True, **options)


def _try_validate(cls: Any, parts: dict[str, Any]) -> Any:
    try:
        return cls.model_validate(parts)
    except ValueError:
        return None  # It validates by alias only.


def _model_fields(model: Any) -> dict[str, Any]:
    """Return the declared fields of a pydantic model, without cached computed ones."""
    fields = type(model).model_fields
    return {name: value for name, value in vars(model).items() if name in fields}


def _dataclass_type(name: str, cls: type) -> NamedType:
    init_fields = [name for name, field in _dataclass_fields(cls).items() if field.init]
    return NamedType(
        name, TypeCodec(cls, partial(_read_fields, init_fields), lambda parts: cls(**parts))
    )


def _dataclass_fields(kind: Any) -> dict[str, Any]:
    from dataclasses import fields  # A slow import; a caller with a dataclass has already paid it.

    return {field.name: field for field in fields(kind)}


def _read_fields(names: Iterable[str], value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
