"""What the demo does: starts the assistant, kills it at a moment, and keeps what it said.

What counts as acknowledged is what came through the pipe before the kill; what counts as recovered
is what the next process says it read from the store.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from perdure.cli.demo_child import SCRIPT, THINKING


class Fact(NamedTuple):
    """A record: as it was acknowledged, or as it was read."""

    position: int
    kind: str
    text: str


class Found(NamedTuple):
    """What a new process saw before it did anything, and how long seeing it took."""

    seconds: float
    facts: tuple[Fact, ...]
    interrupted: tuple[str, ...]
    plan: Any


class Moment(NamedTuple):
    """When to kill: in this turn, after so many parts, and then some seconds later."""

    turn: str
    parts: int
    delay: float


class Life(NamedTuple):
    """One process from its start to its end."""

    pid: int
    found: Found
    acknowledged: tuple[Fact, ...]
    again: int
    returncode: int
    killed_in: str

    @property
    def new(self) -> tuple[Fact, ...]:
        """What was acknowledged to it and had not been there: what was sent again is not new."""
        return tuple(sorted(set(self.acknowledged) - set(self.found.facts)))


class AssistantError(Exception):
    """The assistant's process could not do its work; the text says why."""


def moments(kills: int, seed: int) -> list[Moment]:
    """Choose when to kill: at random within the two turns, so that each run gets on a little."""
    draw = random.Random(seed)  # noqa: S311 - it must repeat, not be secret.
    chosen = []
    shares = ((kills + 1) // 2, kills // 2)
    for scene, share in zip(SCRIPT, shares, strict=True):
        most = max((len(scene.parts) - 1) // share, 1) if share else 0
        for _ in range(share):
            delay = draw.uniform(0, 1.5 * THINKING)
            chosen.append(Moment(scene.turn, draw.randint(1, most), delay))
    return chosen


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, where the system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Assistant:
    """The assistant's process, seen from outside. Leaving `with` leaves no process behind."""

    def __init__(self, path: str, session: str) -> None:
        # -P: a file in the current directory must not stand in for a module.
        self._command = [sys.executable, "-P", "-m", "perdure.cli.demo_child", path, session]
        self._started: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started is not None:
            self._started.kill()
            self._started.communicate()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process; there is one when `start` has been called."""
        if self._started is None:
            raise RuntimeError("the assistant was not started")
        return self._started

    def start(self) -> int:
        """Start the process, inside `with`: an interrupt comes before it, or when it is known."""
        pipe = subprocess.PIPE
        with _no_interrupt():
            self._started = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own module.
        return self._started.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what the process says until it ends; what a kill cut short was not said."""
        for line in self.process.stdout or ():
            if line.endswith(b"\n"):
                yield json.loads(line)

    def go_on(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and the last line of its errors."""
        errors = self.process.communicate()[1].decode(errors="replace").strip()
        return self.process.returncode, errors.splitlines()[-1] if errors else "it said nothing"


class _Notes:
    """What the parent has heard of one life so far."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.facts: list[Fact] = []
        self.again = 0
        self.turn = ""
        self.parts = 0
        self.is_waiting = False

    def take(self, event: dict[str, Any]) -> None:
        self.is_waiting = event["event"] == "wait"
        match event:
            case {"event": "found", "records": records, "interrupted": turns}:
                facts = tuple(Fact(*record) for record in records)
                self.found = Found(event["seconds"], facts, tuple(turns), event["plan"])
            case {"event": "stored", "record": record, "again": again}:
                self.again += again
                self._stored(Fact(*record))
            case {"event": "trouble", "reason": reason}:
                raise AssistantError(reason)

    def _stored(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.parts += fact.kind == "value"
        if fact.kind in {"turn.begun", "turn.continued"}:
            self.turn, self.parts = fact.text.split("'")[1], 0

    def is_at(self, moment: Moment) -> bool:
        return self.turn == moment.turn and (self.parts >= moment.parts or self.is_waiting)


def live(
    path: str, session: str, moment: Moment | None, on_found: Callable[[int, Found], object]
) -> Life:
    """Run the assistant until it is killed at the given moment, or to the end of the script."""
    notes, killed_in = _Notes(), ""
    with _Assistant(path, session) as assistant:
        pid = assistant.start()
        for event in assistant.events():
            notes.take(event)
            if event["event"] == "found" and notes.found is not None:
                on_found(pid, notes.found)
            if killed_in:
                continue  # What it had said before it died.
            if moment is not None and notes.is_at(moment):
                killed_in = notes.turn
                time.sleep(moment.delay)
                assistant.process.kill()
            elif notes.is_waiting:
                assistant.go_on()
        code, errors = assistant.end()
    if notes.found is None or (code and not killed_in):
        raise AssistantError(f"the assistant's process ended with {code}: {errors}")
    return Life(pid, notes.found, tuple(notes.facts), notes.again, code, killed_in)
