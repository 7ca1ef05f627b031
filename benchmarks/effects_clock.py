"""What those who run steps have in common: the threads, and when the clock runs."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """Seconds and processor seconds a step, and what the database says of its durability."""

    seconds: float
    cpu: float
    settings: str


class Clock:
    """Starts when all sessions are ready, and is read when all have made their steps."""

    def __init__(self) -> None:
        self._start = self._cpu = 0.0

    def start(self) -> None:
        self._start, self._cpu = time.perf_counter(), time.process_time()

    def result(self, steps: int, settings: str) -> Result:
        seconds, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu
        return Result(seconds / steps, cpu / steps, settings)


def look_up(number: int) -> dict[str, int]:
    return {"number": number}


def started(sessions: int, work: Callable[[int], None]) -> list[threading.Thread]:
    """Start a thread for each session."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    """Wait for threads."""
    for thread in threads:
        thread.join()
