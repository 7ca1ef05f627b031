"""What goes wrong on request: which fault, and with which of the requests. No sockets."""

import threading
from typing import Literal, NamedTuple, get_args

from perdure.errors import UsageError

Kind = Literal["disconnect", "hang", "slow"]


class Fault(NamedTuple):
    """How one request fails: with a status, or in the way that the kind names."""

    kind: Kind | None
    status: int | None = None
    after_chunks: int = 0
    seconds: float = 0.0

    @property
    def at_once(self) -> bool:
        """Tell whether nothing of the answer is ever sent."""
        return self.kind != "slow" and not self.after_chunks


class Faults:
    """The faults to come, for the next requests in turn or for one by its number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: list[Fault] = []
        self._at: dict[int, Fault] = {}

    def add(self, fault: Fault, *, times: int, at: int | None) -> None:
        if (fault.kind is None) == (fault.status is None):
            raise UsageError(f"a fault is a status or one of {', '.join(get_args(Kind))}")
        if fault.kind is not None and fault.kind not in get_args(Kind):
            raise UsageError(f"{fault.kind!r} is not one of {', '.join(get_args(Kind))}")
        if fault.after_chunks < 0 or fault.seconds < 0 or times < 1 or (at is not None and at < 1):
            raise UsageError("after_chunks and seconds count from 0, times and at from 1")
        with self._lock:
            if at is None:
                self._next.extend([fault] * times)
            else:
                self._at.update(dict.fromkeys(range(at, at + times), fault))

    def take(self, number: int) -> Fault | None:
        """Return what goes wrong with the request of this number, once."""
        with self._lock:
            found = self._at.pop(number, None)
            return found or (self._next.pop(0) if self._next else None)
