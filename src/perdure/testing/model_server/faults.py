"""Injected faults, and the requests that they apply to. No sockets."""

import threading
from typing import Literal, NamedTuple, get_args

from perdure.errors import UsageError

FaultKind = Literal["disconnect", "hang", "slow"]


class ServerFault(NamedTuple):
    """How one request fails: with a status, or as its kind says."""

    kind: FaultKind | None
    status: int | None = None
    after_chunks: int = 0
    seconds: float = 0.0

    @property
    def at_once(self) -> bool:
        """Whether no part of the answer is sent."""
        return self.kind != "slow" and not self.after_chunks


class FaultQueue:
    """Pending faults, for the next requests in order or for requests by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: list[ServerFault] = []
        self._at: dict[int, ServerFault] = {}

    def add(self, fault: ServerFault, *, times: int, at: int | None) -> None:
        if (fault.kind is None) == (fault.status is None):
            raise UsageError(
                f"a fault needs either a status or one of {', '.join(get_args(FaultKind))}"
            )
        if fault.kind is not None and fault.kind not in get_args(FaultKind):
            raise UsageError(f"{fault.kind!r} is not one of {', '.join(get_args(FaultKind))}")
        if fault.after_chunks < 0 or fault.seconds < 0 or times < 1 or (at is not None and at < 1):
            raise UsageError("after_chunks and seconds must be at least 0, times and at at least 1")
        with self._lock:
            if at is None:
                self._next.extend([fault] * times)
            else:
                self._at.update(dict.fromkeys(range(at, at + times), fault))

    def take(self, number: int) -> ServerFault | None:
        """Remove and return the fault of a request, None if it has none."""
        with self._lock:
            fault = self._at.pop(number, None)
            return fault or (self._next.pop(0) if self._next else None)
