"""Children under `strace`, which spoils one system call of theirs: a signal or an error instead."""

import os
import re
import subprocess
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
    spoil = [word for one in inject for word in ("-e", f"inject={one}")]
    trace = ["-e", f"trace={','.join(kind.changes)}", "-e", "signal=none"]
    words = ["strace", "-f", "-qq", "-o", str(log), *trace, *spoil]
    program, environment = children.program(directory, turns, kind.name)
    done = subprocess.run(
        [*words, *program],
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
    names = (line.split("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line)
    return Counter(name for name in names if name in kind.changes)
