"""One I/O call of a store, and who watches it: does it, half of it, raises, or ends the process."""

from collections.abc import Callable
from typing import Any, NamedTuple

LOOKS = frozenset({"read", "look", "lock", "close"})
"""Calls that change nothing."""


class Call(NamedTuple):
    """A call that is about to happen; `do(data)` makes it happen.

    `path` is where the file lies in the directory of the trial, `to` its new name. `at` is the
    offset of a write or read, the size of a truncation, the flags of an opening, and for a deletion
    by SQLite whether the directory is synced. `handle` is 0 where no open file is concerned.
    """

    op: str
    path: str
    do: Callable[[bytes], Any]
    handle: int = 0
    at: int = 0
    data: bytes = b""
    to: str = ""


class Done(NamedTuple):
    """A call that was made."""

    op: str
    path: str
    handle: int = 0
    at: int = 0
    data: bytes = b""
    to: str = ""


Watcher = Callable[[Call], Any]


def let_pass(call: Call) -> Any:
    """Watch without doing anything."""
    return call.do(call.data)


def done(call: Call, *, op: str = "", data: bytes | None = None) -> Done:
    """Return what to write down of a call; `op` and `data` where it was not done as asked."""
    found = call.data if data is None else data
    return Done(op or call.op, call.path, call.handle, call.at, found, call.to)


def recording_in(log: Callable[[Done], object]) -> Watcher:
    """Return a watcher that writes down every call that changes something."""

    def watch(call: Call) -> Any:
        answer = call.do(call.data)
        if call.op not in LOOKS:
            log(done(call))
        return answer

    return watch
