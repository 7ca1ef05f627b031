"""Objects of the classes that a caller gives ⇄ parts that can be stored. Pure.

What a class leaves out, transforms or derives when it is made again is not noticed by storing it,
so an object is made again from its parts before anything is written, and compared with what it was.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.scalars import Refused


class TypeCodec(NamedTuple):
    """How objects of one class are stored: `encode` gives storable parts, `decode` takes them."""

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Typed(NamedTuple):
    """A class under its name in the store."""

    name: str
    codec: TypeCodec
    is_given: bool = False
    """Whether the caller says how it is stored, and so also what of it matters."""

    def parts(self, value: Any) -> Any:
        """Return what is to be stored of an object, or raise Refused."""
        try:
            return self.codec.encode(value)
        except Exception as error:
            reason = f"the object of type {self.name!r} can not be taken apart"
            raise Refused(f"{reason} ({type(error).__name__})") from error

    def made(self, parts: Any) -> Any:
        """Return an object from what is stored of it; UsageError if the class does not fit."""
        try:
            return self.codec.decode(parts)
        except Exception as error:
            reason = f"what is stored as {self.name!r} does not fit the class that was given for it"
            hint = "open the store with a class, or a TypeCodec, that fits"
            raise UsageError(f"{reason} ({type(error).__name__}): {hint}") from error


class Types:
    """The classes of a store, by their names there."""

    def __init__(self, given: dict[str, type | TypeCodec]) -> None:
        found = [_typed(name, one) for name, one in given.items()]
        self.by_name = {one.name: one for one in found}
        self.by_class = {one.codec.cls: one for one in found}

    def require_same(self, typed: Typed, value: Any, remade: Callable[[], Any]) -> None:
        """Raise Refused unless what is made again is the object that it was."""
        reason = f"an object of type {typed.name!r} would not come back as it is"
        hint = "give a TypeCodec(cls, encode, decode) that keeps what matters"
        try:
            other = self._difference(value, remade(), "")
        except Exception as error:
            raise Refused(f"{reason}: {hint} ({type(error).__name__})") from error
        if other is not None:
            where = f" (it differs at {other})" if other else ""
            raise Refused(f"{reason}{where}: {hint}")

    def _difference(self, one: Any, two: Any, at: str) -> str | None:
        """Return where two values differ, or None if they do not."""
        kind = type(one)
        if type(two) is not kind:
            return at
        if kind is dict:
            if one.keys() != two.keys():
                return at
            pairs = ((self._difference(one[key], two[key], f"{at}.{key}")) for key in one)
            return next((found for found in pairs if found is not None), None)
        if kind is list:
            if len(one) != len(two):
                return at
            items = (self._difference(*both, at) for both in zip(one, two, strict=True))
            return next((found for found in items if found is not None), None)
        facts = self._facts(kind)
        if facts is None or self._is_given(kind):
            if _equal(one, two):
                return None
            if facts is None:
                return at
        return self._difference(facts(one), facts(two), at)

    def _is_given(self, kind: type) -> bool:
        typed = self.by_class.get(kind)
        return typed is not None and typed.is_given

    def _facts(self, kind: type) -> Callable[[Any], Any] | None:
        """Return what makes of an object all that must be the same; None where `==` tells that."""
        if self._is_given(kind):
            return self.by_class[kind].codec.encode
        if hasattr(kind, "__pydantic_private__"):
            return _held
        return partial(_of, _fields(kind)) if hasattr(kind, "__dataclass_fields__") else None


def _equal(one: Any, two: Any) -> bool:
    """Whether a class itself says so; what arrays answer is no answer."""
    try:
        return (one == two) is True
    except Exception:  # noqa: BLE001 - what a class does that somebody wrote
        return False


def _held(model: Any) -> dict[str, Any]:
    """Return all that a pydantic model holds."""
    more, private = model.__pydantic_extra__ or {}, model.__pydantic_private__ or {}
    return {**_public(model), **more, **private}


def _typed(name: str, given: type | TypeCodec) -> Typed:
    if isinstance(given, TypeCodec):
        return Typed(name, given, is_given=True)
    if hasattr(given, "model_validate"):  # pydantic, without depending on it
        return Typed(name, TypeCodec(given, _dumped, given.model_validate))
    if hasattr(given, "__dataclass_fields__"):
        return _dataclass(name, given)
    reason = f"{name!r} is neither a dataclass nor a pydantic model"
    raise UsageError(f"{reason}: give a TypeCodec(cls, encode, decode) for it")


def _dumped(model: Any) -> Any:
    """Return what a pydantic model can be made of again: by its names, or by those for outside."""
    # What pydantic would warn of is found by comparing.
    how = {"round_trip": True, "warnings": False}
    by_name = model.model_dump(**how)
    remade = _validated(type(model), by_name)
    is_same = remade is not None and _equal(_public(remade), _public(model))
    return by_name if is_same else model.model_dump(by_alias=True, **how)


def _validated(cls: Any, parts: dict[str, Any]) -> Any:
    try:
        return cls.model_validate(parts)
    except ValueError:
        return None  # It wants other names.


def _public(model: Any) -> dict[str, Any]:
    """Return the fields of a pydantic model, but for what it computed and keeps at hand."""
    return {name: one for name, one in vars(model).items() if name in type(model).model_fields}


def _dataclass(name: str, given: type) -> Typed:
    taken = [name for name, field in _fields(given).items() if field.init]
    return Typed(name, TypeCodec(given, partial(_of, taken), lambda parts: given(**parts)))


def _fields(kind: Any) -> dict[str, Any]:
    from dataclasses import fields  # It takes its time, and whoever has a dataclass has spent it.

    return {field.name: field for field in fields(kind)}


def _of(names: Iterable[str], value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
