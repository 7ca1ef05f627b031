"""Objects of the caller's registered classes ⇄ storable parts. Pure.

A class may omit, transform or derive fields when an object is rebuilt, and storing it would not
notice. So an object is rebuilt from its parts and compared before anything is written.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.journal.scalars import UnstorableValue


class TypeCodec(NamedTuple):
    """How objects of one class are stored: `encode` returns storable parts, `decode` rebuilds."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class NamedType(NamedTuple):
    """A registered class and its name in the store."""

    name: str
    codec: TypeCodec
    is_custom: bool = False
    """Whether the caller passed a TypeCodec, which also decides what has to be preserved."""

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
        except Exception as error:
            reason = f"a stored {self.name!r} does not fit the class registered for it"
            hint = "open the store with a class or a TypeCodec that fits"
            raise UsageError(f"{reason} ({type(error).__name__}): {hint}") from error


class TypeRegistry:
    """The registered classes of a store, by name and by class."""

    def __init__(self, types: dict[str, type | TypeCodec]) -> None:
        named_types = [_named_type(name, registered) for name, registered in types.items()]
        self.by_name = {named.name: named for named in named_types}
        self.by_class = {named.codec.cls: named for named in named_types}

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
        kind = type(original)
        to_comparable = self._comparable(kind)
        if to_comparable is None or self._is_custom(kind):
            if _is_equal(original, rebuilt):
                return None
            if to_comparable is None:
                return path
        return self._difference(to_comparable(original), to_comparable(rebuilt), path)

    def _is_custom(self, kind: type) -> bool:
        named = self.by_class.get(kind)
        return named is not None and named.is_custom

    def _comparable(self, kind: type) -> Callable[[Any], Any] | None:
        """Return a function from object to everything that must match; None if `==` decides."""
        if self._is_custom(kind):
            return self.by_class[kind].codec.encode
        if hasattr(kind, "__pydantic_private__"):
            return _model_state
        return (
            partial(_read_fields, _dataclass_fields(kind))
            if hasattr(kind, "__dataclass_fields__")
            else None
        )


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


def _named_type(name: str, registered: type | TypeCodec) -> NamedType:
    if isinstance(registered, TypeCodec):
        return NamedType(name, registered, is_custom=True)
    if hasattr(registered, "model_validate"):  # pydantic, without depending on it
        return NamedType(name, TypeCodec(registered, _dump_model, registered.model_validate))
    if hasattr(registered, "__dataclass_fields__"):
        return _dataclass_type(name, registered)
    reason = f"{name!r} is neither a dataclass nor a pydantic model"
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
