"""Track the turn that the running code is inside of, per thread and task.

A context variable holds the entered turns, so each thread and task has its own. A task started
inside a turn inherits it; `exit_turn` marks the shared entry, so such a task sees the exit too.
"""

import sys
from contextvars import Context, ContextVar, copy_context
from threading import get_ident
from typing import Any


class TurnContext:
    """A turn entered through a handle. `exited` is shared by all threads and tasks that see it."""

    __slots__ = ("exited", "holder", "turn")

    def __init__(self, holder: object, turn: Any) -> None:
        self.holder = holder
        self.turn = turn
        self.exited = False


_entered_turns: ContextVar[tuple[TurnContext, ...]] = ContextVar("perdure_turns", default=())


def enter_turn(holder: object, turn: Any) -> TurnContext:
    """Mark a turn as entered in this thread or task; return the argument for `exit_turn`."""
    entered = TurnContext(holder, turn)
    _entered_turns.set((*_active(), entered))
    return entered


def exit_turn(entered: TurnContext) -> None:
    """Mark a turn as exited, in every thread and task."""
    entered.exited = True
    _entered_turns.set(_active())


def context_outside_turns() -> Context:
    """Return a copy of the context for work that outlives the turns entered here.

    A thread or task keeps its context, and so the handles of the turns in it, as long as it runs.
    """
    context = copy_context()
    context.run(_entered_turns.set, ())
    return context


def current_turn(holder: object) -> Any:
    """Return the turn of a handle that was entered last and not exited, or None."""
    return next((item.turn for item in reversed(_active()) if item.holder is holder), None)


def _active() -> tuple[TurnContext, ...]:
    return tuple(item for item in _entered_turns.get() if not item.exited)


def execution_lane() -> tuple[int, int]:
    """Return a key for the running thread and the asyncio task in it, if there is one."""
    return get_ident(), id(current_task())


def current_task() -> Any:
    """Return the running asyncio task, or None outside of an event loop."""
    if "asyncio" not in sys.modules:  # Sync programs must not pay for importing it.
        return None
    try:
        return sys.modules["asyncio"].current_task()
    except (AttributeError, RuntimeError):  # It is being imported, or no loop runs in this thread.
        return None
