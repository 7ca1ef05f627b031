"""What a part of the benchmark hands back, and how it is shown on a terminal."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Line(NamedTuple):
    """Something that must hold: the figure, its bound, and whether it does (None: not measured)."""

    says: str
    figure: str
    bound: str
    holds: bool | None

    def __str__(self) -> str:
        mark = {True: "holds ", False: "BROKEN", None: "—     "}[self.holds]
        return f"{mark}  {self.says}: {self.figure} ({self.bound})"


@dataclass
class Part:
    """The outcome of one part: tables to print, lines that must hold, data for files and plots."""

    name: str
    tables: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns that line up; the first is text, the others are figures."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells)

    return "\n".join([line(head), "  ".join("─" * width for width in widths), *map(line, rows)])


class Progress:
    """A line on stderr that says how far it is: rewritten on a terminal, a new one elsewhere."""

    BAR = 24

    def __init__(self, name: str, steps: int) -> None:
        self._name = name
        self._steps = steps
        self._done = 0
        self._rewrites = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """Say what was just done."""
        self._done += 1
        full = self.BAR * min(self._done, self._steps) // self._steps
        bar = "█" * full + "░" * (self.BAR - full)
        text = f"{self._name:8} {bar} {self._done}/{self._steps}  {what}"
        if self._rewrites:
            end = "\n" if self._done >= self._steps else ""
            print(f"\r\x1b[2K{text[:110]}", end=end, file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
