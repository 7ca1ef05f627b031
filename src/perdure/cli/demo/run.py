"""Run the assistant of the demo, kill it at a chosen point, and collect its reports.

A record counts as acknowledged if its report came through the pipe before the kill. It counts as
recovered if the next process reports that it read the record from the store.
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

from perdure.cli.demo.assistant import SCRIPT, SECONDS_PER_PART
from perdure.cli.stores import InvalidCallError


class RecordFact(NamedTuple):
    """A record, as acknowledged or as read."""

    position: int
    kind: str
    text: str


class RecoveredState(NamedTuple):
    """The records that a new process found before it wrote any, and the seconds that took."""

    seconds: float
    facts: tuple[RecordFact, ...]
    interrupted: tuple[str, ...]
    plan: Any


class KillPoint(NamedTuple):
    """When to kill: in this turn, after this many parts, and then `delay` seconds later."""

    turn: str
    parts: int
    delay: float


class ProcessRun(NamedTuple):
    """One process, from its start to its end."""

    pid: int
    found: RecoveredState
    acknowledged: tuple[RecordFact, ...]
    again: int
    returncode: int
    killed_in: str

    @property
    def new(self) -> tuple[RecordFact, ...]:
        """The acknowledged records that were not found at the start; resent ones are not new."""
        return tuple(sorted(set(self.acknowledged) - set(self.found.facts)))


class AssistantError(InvalidCallError):
    """The assistant's process failed; the text says why."""


def choose_kill_points(kills: int, seed: int) -> list[KillPoint]:
    """Choose random kill points within the two turns, such that each run makes progress."""
    rng = random.Random(seed)  # noqa: S311 - must be repeatable, not secret
    points = []
    shares = ((kills + 1) // 2, kills // 2)
    for scene, share in zip(SCRIPT, shares, strict=True):
        max_parts = max((len(scene.parts) - 1) // share, 1) if share else 0
        for _ in range(share):
            delay = rng.uniform(0, 1.5 * SECONDS_PER_PART)
            points.append(KillPoint(scene.turn, rng.randint(1, max_parts), delay))
    return points


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, if the platform supports it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class _AssistantProcess:
    """The assistant's process, seen from the parent. Leaving `with` ends the process."""

    def __init__(self, path: str, session: str) -> None:
        # -P: a file in the current directory must not shadow a module.
        self._command = [sys.executable, "-P", "-m", "perdure.cli.demo.assistant", path, session]
        self._started: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started is not None:
            self._started.kill()
            self._started.communicate()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process; available after `start`."""
        if self._started is None:
            raise RuntimeError("the assistant was not started")
        return self._started

    def start(self) -> int:
        """Start the process. Ctrl-C is deferred until the process is known and can be ended."""
        pipe = subprocess.PIPE
        with _deferred_interrupt():
            self._started = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own module
        return self._started.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the reports of the process until it ends; a line that a kill cut off is dropped."""
        for line in self.process.stdout or ():
            if line.endswith(b"\n"):
                yield json.loads(line)

    def proceed(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the last line of standard error."""
        errors = self.process.communicate()[1].decode(errors="replace").strip()
        return self.process.returncode, errors.splitlines()[-1] if errors else "no error output"


class _RunProgress:
    """The reports received from one process so far."""

    def __init__(self) -> None:
        self.found: RecoveredState | None = None
        self.facts: list[RecordFact] = []
        self.again = 0
        self.turn = ""
        self.parts = 0
        self.is_waiting = False

    def handle(self, event: dict[str, Any]) -> None:
        self.is_waiting = event["event"] == "wait"
        match event:
            case {"event": "found", "records": records, "interrupted": turns}:
                facts = tuple(RecordFact(*record) for record in records)
                self.found = RecoveredState(event["seconds"], facts, tuple(turns), event["plan"])
            case {"event": "stored", "record": record, "again": again}:
                self.again += again
                self._record_stored(RecordFact(*record))
            case {"event": "error", "reason": reason}:
                raise AssistantError(reason)

    def _record_stored(self, fact: RecordFact) -> None:
        self.facts.append(fact)
        self.parts += fact.kind == "value"
        if fact.kind in {"turn.begun", "turn.continued"}:
            self.turn, self.parts = fact.text.split("'")[1], 0

    def is_at(self, moment: KillPoint) -> bool:
        return self.turn == moment.turn and (self.parts >= moment.parts or self.is_waiting)


def run_assistant(
    path: str,
    session: str,
    kill_point: KillPoint | None,
    on_found: Callable[[int, RecoveredState], object],
) -> ProcessRun:
    """Run the assistant until it is killed at the given point, or to the end of the script."""
    progress, killed_in = _RunProgress(), ""
    with _AssistantProcess(path, session) as assistant:
        pid = assistant.start()
        for event in assistant.events():
            progress.handle(event)
            if event["event"] == "found" and progress.found is not None:
                on_found(pid, progress.found)
            if killed_in:
                continue  # A report from before the kill.
            if kill_point is not None and progress.is_at(kill_point):
                killed_in = progress.turn
                time.sleep(kill_point.delay)
                assistant.process.kill()
            elif progress.is_waiting:
                assistant.proceed()
        code, errors = assistant.end()
    if progress.found is None or (code and not killed_in):
        raise AssistantError(f"the assistant's process exited with {code}: {errors}")
    return ProcessRun(pid, progress.found, tuple(progress.facts), progress.again, code, killed_in)
