"""A bar for what takes longer than a second: on standard error, and only on a terminal."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import click

from perdure.cli.text import at_terminal, columns, counted, first_line, terminal_width

PATIENCE = 1.0  # Seconds; who waits less needs no bar.
PAUSE = 0.1
BAR = 20
NAME_MIN = 16  # Columns; less of a session's name tells nothing.


class Progress:
    """How far a command has come. `total` is called once, and only if a bar is shown at all.

    Where it is 0 nobody knows it yet: then there is no share of it to be shown.
    """

    def __init__(self, doing: str, noun: str, total: Callable[[], int]) -> None:
        self.done = 0
        self.at = ""
        self._doing, self._noun = doing, noun
        self._total = total
        self._shown = False
        self._over = threading.Event()
        self._painting = threading.Lock()
        self._thread = threading.Thread(target=self._paint_on, daemon=True)

    def __enter__(self) -> Self:
        if at_terminal(sys.stderr):
            self._thread.start()
        return self

    def hide(self) -> None:
        """Take the bar away, so that a line can be printed; it comes back by itself."""
        with self._painting:
            self._erase()

    def _paint_on(self) -> None:
        start = time.monotonic()
        if self._over.wait(PATIENCE):
            return
        total = self._total()
        while not self._over.is_set():
            line = self._line(total, time.monotonic() - start)
            with self._painting:
                click.echo(f"\r\x1b[2K{line}", nl=False, err=True)
                self._shown = True
            self._over.wait(PAUSE)

    def _line(self, total: int, seconds: float) -> str:
        line = f"{self._doing} {self._share(total)}, {seconds:.0f} s"
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
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=PATIENCE)
        self._erase()
