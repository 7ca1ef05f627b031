"""A progress bar for work longer than a second, on standard error, only on a terminal."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import click

from perdure.cli.text import at_terminal, columns, counted, first_line, terminal_width

PATIENCE = 1.0  # Seconds; shorter work needs no bar.
PAUSE = 0.1  # Seconds between two paints.
BAR = 20  # Columns.
NAME_MIN = 16  # Columns; a session name cut shorter than this is useless.


class Progress:
    """Shows how far a command has come; update `done` and `at` as it runs.

    `total` is called once, and only if a bar is shown. A total of 0 means unknown: the bar then
    shows the count alone.
    """

    def __init__(self, activity: str, noun: str, total: Callable[[], int]) -> None:
        self.done = 0
        self.at = ""
        self._activity, self._noun = activity, noun
        self._total = total
        self._shown = False
        self._finished = threading.Event()
        self._paint_lock = threading.Lock()
        self._thread = threading.Thread(target=self._paint_loop, daemon=True)

    def __enter__(self) -> Self:
        if at_terminal(sys.stderr):
            self._thread.start()
        return self

    def hide(self) -> None:
        """Erase the bar so that a line can be printed; the next paint restores it."""
        with self._paint_lock:
            self._erase()

    def _paint_loop(self) -> None:
        start = time.monotonic()
        if self._finished.wait(PATIENCE):
            return
        total = self._total()
        while not self._finished.is_set():
            line = self._line(total, time.monotonic() - start)
            with self._paint_lock:
                click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
                self._shown = True
            self._finished.wait(PAUSE)

    def _line(self, total: int, seconds: float) -> str:
        line = f"{self._activity} {self._share(total)}, {seconds:.0f} s"
        room = terminal_width() - columns(line) - 3
        return f"{line}  {first_line(self.at, room)}" if self.at and room >= NAME_MIN else line

    def _share(self, total: int) -> str:
        if not total:
            return counted(self.done, self._noun)
        filled = int(min(self.done / total, 1.0) * BAR)
        bar = "#" * filled + "." * (BAR - filled)
        return f"[{bar}] {self.done:,} of {counted(total, self._noun)}"

    def _erase(self) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)
            self._shown = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join(timeout=PATIENCE)
        self._erase()
