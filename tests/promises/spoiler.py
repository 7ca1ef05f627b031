"""A disk that spoils one I/O call, as its store would be told of it, and records all the others."""

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

import apsw

from tests.promises.calls import LOOKS, Call, Done, done

_ANY = ("EIO", "ENOSPC", "EDQUOT")
# `short` writes half. SQLite tells a full disk from other errors in writes only, so what else
# differs between the errors is seen only under strace and in perdure's own sync.
ERRORS = {
    "sqlite": {
        "open": ("EIO", "ENOSPC"),
        "read": ("EIO",),
        "write": (*_ANY, "short"),
        "sync": _ANY,
        "truncate": ("EIO", "ENOSPC"),
        "delete": ("EIO",),
    },
    "files": {
        "open": (*_ANY, "EMFILE"),
        "look": ("EIO", "EMFILE"),
        "close": ("EIO",),
        "lock": ("EIO", "ENOLCK"),
        "read": ("EIO", "EINTR"),
        "write": (*_ANY, "EINTR", "short"),
        "sync": (*_ANY, "EINTR"),
        "sync_directory": _ANY,
        "truncate": ("EIO", "ENOSPC"),
        "rename": _ANY,
        "make": _ANY,
        "remove": ("EIO",),
        "delete": ("EIO",),
    },
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
        if call.op not in LOOKS:
            self._record(done(call))
        return answer

    def _spoil(self, call: Call) -> None:
        if call.op in ("sync", "sync_directory"):
            self._record(done(call, op=f"failed_{call.op}"))
        if call.op == "close":
            call.do(b"")  # The file is closed, whatever is said.
        if self._fault.error == "short" and call.op == "write":
            half = call.data[: len(call.data) // 2]
            call.do(half)
            self._record(done(call, data=half))
        raise self.error(call)

    def error(self, call: Call) -> Exception:
        """Return what the system raises."""
        name = "ENOSPC" if self._fault.error == "short" else self._fault.error
        return OSError(getattr(errno, name), "made to fail")


class SqliteSpoiler(Spoiler):
    """Raises what SQLite understands."""

    def error(self, call: Call) -> Exception:
        """Return what a VFS raises; perdure's own sync does not go through SQLite."""
        if not call.handle and call.op == "sync":
            return super().error(call)
        if call.op == "open":
            return apsw.CantOpenError("made to fail")
        if call.op == "write" and self._fault.error in {"ENOSPC", "short"}:
            return apsw.FullError("made to fail")
        return apsw.IOError("made to fail")


SPOILERS: dict[str, type[Spoiler]] = {"sqlite": SqliteSpoiler, "files": Spoiler}
