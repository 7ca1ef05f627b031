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
        hint = "give a TypeCodec(cls, encode, decode) that keeps all of it"
        reason = f"an object of type {typed.name!r} would not come back as it is: {hint}"
        try:
            same = self._same(value, remade())
        except Exception as error:
            raise Refused(f"{reason} ({type(error).__name__})") from error
        if not same:
            raise Refused(reason)

    def _same(self, one: Any, two: Any) -> bool:
        kind = type(one)
        if type(two) is not kind:
            return False
        if kind is dict:
            return one.keys() == two.keys() and all(self._same(one[key], two[key]) for key in one)
        if kind is list:
            return len(one) == len(two) and all(map(self._same, one, two))
        facts = self._facts(kind)
        return bool(one == two) if facts is None else self._same(facts(one), facts(two))

    def _facts(self, kind: type) -> Callable[[Any], Any] | None:
        """Return what makes of an object all that must be the same; None where `==` tells that."""
        typed = self.by_class.get(kind)
        if typed is not None and typed.is_given:
            has_equality = kind.__dict__.get("__eq__", kind.__eq__) is not object.__eq__
            return None if has_equality else typed.codec.encode
        if hasattr(kind, "__pydantic_private__"):
            return lambda one: [one.__dict__, one.__pydantic_extra__, one.__pydantic_private__]
        return partial(_of, _fields(kind)) if hasattr(kind, "__dataclass_fields__") else None


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
    # What pydantic would warn of is found by comparing.
    return model.model_dump(by_alias=True, round_trip=True, warnings=False)


def _dataclass(name: str, given: type) -> Typed:
    taken = [name for name, field in _fields(given).items() if field.init]
    return Typed(name, TypeCodec(given, partial(_of, taken), lambda parts: given(**parts)))


def _fields(kind: Any) -> dict[str, Any]:
    from dataclasses import fields  # It takes its time, and whoever has a dataclass has spent it.

    return {field.name: field for field in fields(kind)}


def _of(names: Iterable[str], value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
