"""Which turn the running code is inside of, by thread and by task."""

import sys
from contextvars import ContextVar
from threading import get_ident
from typing import Any


class Entered:
    """A turn of a handle, from when it was entered to when it was left, wherever that was."""

    __slots__ = ("holder", "left", "turn")

    def __init__(self, holder: object, turn: Any) -> None:
        self.holder = holder
        self.turn = turn
        self.left = False


_entered: ContextVar[tuple[Entered, ...]] = ContextVar("perdure_turns", default=())


def enter(holder: object, turn: Any) -> Entered:
    """Take a turn as entered here; return what `leave` takes."""
    entered = Entered(holder, turn)
    _entered.set((*_inside(), entered))
    return entered


def leave(entered: Entered) -> None:
    """Take a turn as left, in every thread and task."""
    entered.left = True
    _entered.set(_inside())


def innermost(holder: object) -> Any:
    """Return the turn of a handle that was entered last and not left, or None."""
    return next((one.turn for one in reversed(_inside()) if one.holder is holder), None)


def _inside() -> tuple[Entered, ...]:
    return tuple(one for one in _entered.get() if not one.left)


def lane() -> tuple[int, int]:
    """Return which thread this is, and which task in it."""
    task = None
    if "asyncio" in sys.modules:
        try:
            task = sys.modules["asyncio"].current_task()
        except RuntimeError:  # No event loop runs here.
            task = None
    return get_ident(), id(task)
