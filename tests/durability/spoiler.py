"""A disk that spoils one I/O call, as SQLite's VFS would report it, and records all the others."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tests.durability.disk import Done
from tests.durability.vfs import Call

# `short` writes half. SQLite tells a full disk from other errors in writes only, so what else
# differs between the errors is seen only under strace and in perdure's own sync.
ERRORS = {
    "open": ("EIO", "ENOSPC"),
    "read": ("EIO",),
    "write": ("EIO", "ENOSPC", "EDQUOT", "short"),
    "sync": ("EIO", "ENOSPC", "EDQUOT"),
    "truncate": ("EIO", "ENOSPC"),
    "delete": ("EIO",),
}


class Fault(NamedTuple):
    """The nth call fails; a lasting fault spoils all later calls of its kind until it relents."""

    number: int
    op: str
    error: str
    lasting: bool = False

    def __str__(self) -> str:
        until = " and later ones" if self.lasting else ""
        return f"{self.error} from {self.op}, call {self.number}{until}"


class Spoiler:
    """A watcher that makes a fault happen. `seen` are the calls so far."""

    def __init__(self, fault: Fault, record: Callable[[Done], object]) -> None:
        self._fault = fault
        self._record = record
        self._op = ""
        self.seen: list[str] = []
        self.struck = False

    def relent(self) -> None:
        """The fault is noticed and repaired."""
        self._op = ""

    def __call__(self, call: Call) -> Any:
        self.seen.append(call.op)
        if len(self.seen) == self._fault.number:
            self.struck = True
            self._op = call.op if self._fault.lasting else ""
            return self._spoil(call)
        if call.op == self._op:
            return self._spoil(call)
        answer = call.do(call.data)
        if call.op != "read":
            self._note(call, call.op, call.data)
        return answer

    def _note(self, call: Call, op: str, data: bytes) -> None:
        self._record(Done(op, Path(call.path).name, call.handle, call.at, data))

    def _spoil(self, call: Call) -> None:
        if call.op == "sync":
            self._note(call, "failed_sync", b"")
        if self._fault.error == "short" and call.op == "write":
            half = call.data[: len(call.data) // 2]
            call.do(half)
            self._note(call, "write", half)
        raise self._error(call)

    def _error(self, call: Call) -> Exception:
        error = self._fault.error
        if (
            not call.handle and call.op == "sync"
        ):  # perdure's own, which does not go through SQLite.
            return OSError(getattr(errno, error), "made to fail")
        if call.op == "open":
            return apsw.CantOpenError("made to fail")
        if call.op == "write" and error in {"ENOSPC", "short"}:
            return apsw.FullError("made to fail")
        return apsw.IOError("made to fail")
