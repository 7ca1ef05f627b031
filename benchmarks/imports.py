"""What `import perdure` costs on top of the interpreter, and which modules the time goes to."""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import Line, Part, Progress, table

MOST = 0.060
SHOWN = 10
UNWANTED = ("apsw", "asyncio", "click", "sqlite3")  # Imported where they are used, and not before.


def unwanted() -> list[str]:
    """Return those heavy modules that a new process has after `import perdure`."""
    code = f"import sys, perdure; print(*[m for m in {UNWANTED!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def _seconds(code: str, env: dict[str, str]) -> tuple[float, float]:
    """Return the seconds and the processor seconds that a new interpreter takes for the code."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # Of children: user, system.
    return time.perf_counter() - start, cpu


def _slowest(env: dict[str, str]) -> list[tuple[str, float]]:
    """Return the modules by the time of their own, in milliseconds, slowest first."""
    command = [sys.executable, "-X", "importtime", "-c", "import perdure"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)
    return sorted(((name, int(own) / 1e3) for own, name in found), key=lambda one: -one[1])


def measure(folder: Path, *, repeats: int) -> Part:
    """Start the interpreter with and without perdure, in turns, compiled as when installed."""
    env = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    _seconds("import perdure", env)
    progress = Progress("import", repeats)
    without, with_it = [], []
    for _ in range(repeats):
        without.append(_seconds("pass", env))
        with_it.append(_seconds("import perdure", env))
        progress.step(f"{1e3 * (with_it[-1][0] - without[-1][0]):.0f} ms")
    base, whole = (statistics.median(one for one, _ in times) for times in (without, with_it))
    # The system counts in ticks of 10 ms, so that only a mean says something.
    cpu = statistics.mean(a - b for (_, a), (_, b) in zip(with_it, without, strict=True))
    slowest = _slowest(env)
    part = Part("import")
    part.data = {
        "interpreter_s": base,
        "with_perdure_s": whole,
        "cpu_s": cpu,
        "modules_ms": slowest[:40],
    }
    rows = [[name, f"{own:.1f}"] for name, own in slowest[:SHOWN]]
    part.tables.append(table(["slowest modules (-X importtime)", "ms of their own"], rows))
    extra = unwanted()
    part.lines = [
        Line(
            "`import perdure` on top of the interpreter",
            f"{1e3 * (whole - base):.0f} ms, {1e3 * cpu:.0f} of CPU (without: {1e3 * base:.0f} ms)",
            f"at most {1e3 * MOST:.0f} ms",
            whole - base <= MOST,
        ),
        Line(
            "`import perdure` leaves alone what it does not need",
            ", ".join(extra) or "none of them",
            f"not {', '.join(UNWANTED)}",
            not extra,
        ),
    ]
    return part
