"""Processes that work on one store, are paused and killed, and leave a log that says what they did.

A log is a file to which each process writes whole lines, so what a killed one had done is known up
to its last breath. Times are of the one monotonic clock that all processes of a machine share.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 250.0  # Seconds without an end after which something hangs.


class Log:
    """Where one process says what it is about to do, and what came of it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **facts: Any) -> None:
        """Add a line; a kill leaves it whole or absent."""
        os.write(self._file, json.dumps({**facts, "time": time.monotonic_ns()}).encode() + b"\n")


class Done(NamedTuple):
    """One operation: who did what, from when to when, and the outcome: `unknown` if it is."""

    who: str
    what: str
    begin: int
    end: int
    outcome: Any
    facts: dict[str, Any]


FOREVER = 2**63


def operations(folder: Path) -> Iterator[Done]:
    """Yield what the logs in a folder tell. What has no answer was cut off by death."""
    for path in sorted(folder.glob("*.log")):
        begun: dict[str, Any] | None = None
        for line in path.read_text().splitlines():
            facts = json.loads(line)
            if "what" in facts:
                if begun is not None:
                    yield _done(path, begun, None)
                begun = facts
            elif begun is not None:
                yield _done(path, begun, facts)
                begun = None
        if begun is not None:
            yield _done(path, begun, None)


def _done(path: Path, begun: dict[str, Any], answer: dict[str, Any] | None) -> Done:
    end = FOREVER if answer is None else answer["time"]
    outcome = "unknown" if answer is None else answer["outcome"]
    facts = {**begun, **(answer or {})}
    return Done(path.stem, begun["what"], begun["time"], end, outcome, facts)


class Crew:
    """The processes of one trial."""

    def __init__(self, folder: Path, draw: random.Random, patience: float = PATIENCE) -> None:
        self.folder = folder
        self._patience = patience
        self._draw = draw
        self.running: dict[int, str] = {}
        self.killed: set[str] = set()
        self.failures: list[str] = []

    def start(self, name: str, work: Callable[[Log], object]) -> None:
        """Run the work in a child, with a log of its own."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Of forking beside threads.
            child = os.fork()
        if child:
            self.running[child] = name
            return
        code = 1
        try:
            signal.alarm(int(self._patience))
            work(Log(self.folder / f"{name}.log"))
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
            (self.folder / f"{name}.failed").write_text(traceback.format_exc())
        finally:
            sys.stdout.flush()
            os._exit(code)

    def pause(self, least: float = 0.0, most: float = 0.03) -> None:
        """Stop one of them for some seconds, wherever it is, and let it go on."""
        if not self.running:
            return
        child = self._draw.choice(list(self.running))
        os.kill(child, signal.SIGSTOP)
        time.sleep(self._draw.uniform(least, most))
        os.kill(child, signal.SIGCONT)

    def kill(self) -> str:
        """Kill one of them, wherever it is, and return its name."""
        child = self._draw.choice(list(self.running))
        name = self.running[child]
        os.kill(child, signal.SIGKILL)
        self._reap(child, os.waitpid(child, 0)[1])
        self.killed.add(name)
        return name

    def reap(self) -> list[str]:
        """Return the names of those that have come to their end."""
        ended = []
        for child, name in list(self.running.items()):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                self._reap(child, status)
                ended.append(name)
        return ended

    def _reap(self, child: int, status: int) -> None:
        name = self.running.pop(child)
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, -signal.SIGKILL):
            failed = self.folder / f"{name}.failed"
            why = failed.read_text() if failed.exists() else f"ended with {code}"
            self.failures.append(f"{name}: {why.strip().splitlines()[-1]}")

    def end(self) -> None:
        """Kill whoever is left."""
        for child in list(self.running):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            del self.running[child]
