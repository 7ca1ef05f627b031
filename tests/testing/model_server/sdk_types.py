"""What the openai package says about the fields of its request types."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import typing_extensions


class Fields:
    """The fields of a TypedDict: all, those required, those that may be null."""

    def __init__(self, typed: Any) -> None:
        self.hints: dict[str, Any] = get_type_hints(typed, include_extras=False)
        qualified: dict[str, Any] = get_type_hints(typed, include_extras=True)
        required: Any = typing_extensions.Required
        self.all = frozenset(self.hints)
        self.required = frozenset(
            name for name, hint in qualified.items() if get_origin(hint) is required
        )
        self.nullable = frozenset(
            name for name, hint in self.hints.items() if type(None) in get_args(hint)
        )

    def literals(self, name: str) -> list[str]:
        return literals(self.hints[name])


def literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [value for inner in get_args(hint) for value in literals(inner)]


def members(union: Any) -> list[Fields]:
    return [Fields(typed) for typed in get_args(union)]
