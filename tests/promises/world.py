"""The world outside of a store: what tools really did there, one line each, and where to die.

A line is written in one call and synced, as a bank would keep its books. Every step of it, and of
what happens in the store meanwhile, is a point at which a process may be killed.
"""

import itertools
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.protocol import Append, Backend, Outcome
from perdure.testing.faults import BackendWrapper
from tests.promises.calls import LOOKS, Call, Watcher, let_pass

_WHOLE = "whole"


class Line(NamedTuple):
    """A real effect: which errand was run, under which key, in which attempt, by which tool."""

    errand: str
    key: str
    effect: str
    tool: str


class World:
    """Counts real effects in a file."""

    def __init__(self, path: Path, watcher: Watcher = let_pass) -> None:
        self.path = path
        self.watcher = watcher
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        os.close(self._fd)

    def happen(self, errand: str) -> None:
        """Take effect, once, for the effect that is current."""
        effect = perdure.current_effect()
        # The end of a line that somebody did not finish must not spoil the next one.
        line = f"\n{errand} {effect.key} {effect.id} {effect.tool} {_WHOLE}".encode()
        self.watcher(Call("effect", "begun", lambda _: None))
        self.watcher(Call("effect", "line", lambda data: os.write(self._fd, data), data=line))
        self.watcher(Call("effect", "sync", lambda _: os.fsync(self._fd)))

    def has(self, key: str) -> bool:
        """Whether something took effect under a key."""
        self.watcher(Call("effect", "look", lambda _: None))
        return any(line.key == key for line in read(self.path))


def read(path: Path) -> list[Line]:
    """Return what happened; a line that was not finished did not."""
    if not path.exists():
        return []
    words = (line.split(" ") for line in path.read_text().splitlines())
    return [Line(*found[:4]) for found in words if len(found) == 5 and found[4] == _WHOLE]


class Boundary(BackendWrapper):
    """A backend whose appends are points to die at."""

    def __init__(self, backend: Backend, watcher: Watcher) -> None:
        super().__init__(backend)
        self._watcher = watcher

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        send = super().append
        found: Sequence[Outcome] = self._watcher(Call("record", "", lambda _: send(appends)))
        return found


class Death(NamedTuple):
    """Where to die: before, after or in the middle of the nth point of a kind."""

    of: str
    number: int
    how: str = "before"

    def __str__(self) -> str:
        return f"{self.how} {self.of} {self.number}"


def kind_of(call: Call) -> str:
    """Return which kind of point a call is, "" for none."""
    if call.op in ("record", "effect"):
        return call.op
    return "" if call.op in LOOKS else "io"


class Reaper:
    """Kills its own process at a point, and counts the points."""

    def __init__(self, death: Death | None = None) -> None:
        self._death = death
        self._next = {of: itertools.count(1) for of in ("record", "effect", "io")}
        self.points: Counter[str] = Counter()
        self.halves: dict[str, set[int]] = {of: set() for of in self._next}

    def __call__(self, call: Call) -> Any:
        of = kind_of(call)
        if not of:
            return call.do(call.data)
        number = next(self._next[of])
        self.points[of] = max(self.points[of], number)
        if call.data:
            self.halves[of].add(number)
        if self._death is None or self._death[:2] != (of, number):
            return call.do(call.data)
        if self._death.how == "after":
            answer = call.do(call.data)
            self.die()
            return answer
        if self._death.how == "half of" and call.data:
            call.do(call.data[: len(call.data) // 2])
        self.die()
        return call.do(call.data)  # It was not killed, but only stopped.

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def deaths(self) -> list[Death]:
        """Return every point that was passed, as one to die at."""
        return [
            Death(of, number, how)
            for of, count in self.points.items()
            for number in range(1, count + 1)
            for how in ("before", "half of", "after")
            if how != "half of" or number in self.halves[of]
        ]
