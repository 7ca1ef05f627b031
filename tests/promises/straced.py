"""Children under `strace`, which spoils one system call of theirs: a signal or an error instead."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.promises import children, places
from tests.promises.children import End
from tests.promises.kinds import Kind


def _try() -> bool:
    if not places.has("strace"):
        return False
    words = ["strace", "-qq", "-o", os.devnull, "-e", "inject=chdir:error=EIO", "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


WORKS = _try()  # It is not there everywhere, and some containers do not allow it.


def run(kind: Kind, directory: Path, turns: int, *inject: str, log: Path | str = os.devnull) -> End:
    """Play the script in a child, with injections such as `pwrite64:error=EIO:when=3`."""
    return trace(kind, children.program(directory, turns, kind.name)[0][1:], *inject, log=log)


def trace(kind: Kind, words: list[str], *inject: str, log: Path | str = os.devnull) -> End:
    """Run Python with these words, under `strace`, with injections."""
    spoil = [word for one in inject for word in ("-e", f"inject={one}")]
    trace = ["-e", f"trace={','.join(kind.changes)}", "-e", "signal=none"]
    strace = ["strace", "-f", "-qq", "-o", str(log), *trace, *spoil]
    _, environment = children.program(children.ROOT, 0, kind.name)
    done = subprocess.run(
        [*strace, sys.executable, *words],
        cwd=children.ROOT,
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    # Notes of an exception stand behind the line that names it.
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Interrupt|Exit)\b", line)]
    return End(done.stdout, done.returncode, "".join((errors or lines)[-1:]))


def counts(kind: Kind, directory: Path, turns: int) -> Counter[str]:
    """Return how often a child makes each call that changes files, on a new store."""
    kind.clear(directory)
    log = directory / "calls.strace"
    run(kind, directory, turns, log=log)
    return counted(kind, log)


def counted(kind: Kind, log: Path) -> Counter[str]:
    """Return how often each call that changes files is in a log."""
    names = (line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line)
    return Counter(name for name in names if name in kind.changes)
